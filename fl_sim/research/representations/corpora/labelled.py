"""Labelled examples with private attributes.

An example has an input (a row of numbers, or a text), a class to predict, and private attributes that the sent vector
should hide. Splits are drawn from a seed that is an argument.

>>> [part.tolist() for part in cut(np.arange(5), (0.6, 0.4))]
[[0, 1, 2], [3, 4]]
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.textfiles import stored_file

TRAIN, VALIDATION, TEST = "train", "validation", "test"
SPLITS = (TRAIN, VALIDATION, TEST)

Integers = NDArray[np.int64]
Inputs = NDArray[np.float32] | tuple[str, ...]


@dataclass(frozen=True, eq=False)
class LabelledSplit:
    """n examples.

    Attributes:
        inputs: float32 (n, d), or n texts.
        labels: classes from 0, int64 (n,).
        private: private attributes, 0 or 1, int64 (n, p); p may be 0.
    """

    inputs: Inputs
    labels: Integers
    private: Integers

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the inputs of a corpus of texts."""
        return cast(tuple[str, ...], self.inputs)

    @property
    def table(self) -> NDArray[np.float32]:
        """Return the inputs of a table, float32 (n, d)."""
        return cast(NDArray[np.float32], self.inputs)

    def take(self, rows: Integers) -> LabelledSplit:
        """Return the examples of ``rows``, int64 (m,), in this order."""
        if isinstance(self.inputs, np.ndarray):
            inputs: Inputs = self.inputs[rows]
        else:
            inputs = tuple(self.inputs[row] for row in rows)
        return LabelledSplit(inputs, self.labels[rows], self.private[rows])


@dataclass(frozen=True, eq=False)
class LabelledData:
    """Examples in three splits.

    Attributes:
        name: of the corpus.
        classes: the names of the classes, at least two.
        attributes: the names of the private attributes (p).
        splits: ``train``, ``validation`` and ``test``.
        counts: what was left out or filled in, by subject; nothing for the published corpora.
        unused: texts of the training file that are in no split.
    """

    name: str
    classes: tuple[str, ...]
    attributes: tuple[str, ...]
    splits: Mapping[str, LabelledSplit]
    counts: Mapping[str, int] = field(default_factory=dict)
    unused: tuple[str, ...] = ()

    @property
    def train(self) -> LabelledSplit:
        return self.splits[TRAIN]

    @property
    def validation(self) -> LabelledSplit:
        return self.splits[VALIDATION]

    @property
    def test(self) -> LabelledSplit:
        return self.splits[TEST]

    @property
    def is_table(self) -> bool:
        """Return whether the inputs are rows of numbers, not texts."""
        return isinstance(self.train.inputs, np.ndarray)

    @property
    def fingerprint(self) -> str:
        """Return the SHA-256 of all inputs, labels, attributes and splits, in hexadecimal."""
        digest = hashlib.sha256()
        for name in SPLITS:
            split = self.splits[name]
            if isinstance(split.inputs, np.ndarray):
                digest.update(np.ascontiguousarray(split.inputs).tobytes())
            else:
                for text in split.inputs:
                    digest.update(text.encode() + b"\0")
            digest.update(split.labels.tobytes() + np.ascontiguousarray(split.private).tobytes())
        return digest.hexdigest()


def shuffled(rows: int, seed: int, purpose: str) -> Integers:
    """Return a permutation of 0 … rows − 1, int64 (rows,), that is a pure function of ``seed`` and ``purpose``."""
    name = int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:8], "little")
    return np.random.default_rng(np.random.SeedSequence([seed, name])).permutation(rows)


def cut(order: Integers, shares: Sequence[float]) -> list[Integers]:
    """Return consecutive parts of ``order`` of the given shares; the last part takes the rounding."""
    ends = [round(len(order) * sum(shares[: k + 1])) for k in range(len(shares) - 1)]
    return np.split(order, ends)


def corpus_file(source: Path, name: str) -> Path:
    """Return a file of a corpus's folder, as it is or packed; CorpusError if it is not there."""
    file = stored_file(source, name)
    if file is None:
        raise CorpusError(f"{source}: no {name} (or .xz, .gz) in this folder")
    return file
