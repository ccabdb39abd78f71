"""Labelled examples with private attributes: what private representations are trained and attacked on.

An example has an input (a row of numbers, or a text), a class to be told, and attributes that nobody is to learn from
what is sent. Splits are drawn from a seed that is an argument.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fl_sim.data_prep.records import CorpusError

TRAIN, VALIDATION, TEST = "train", "validation", "test"
SPLITS = (TRAIN, VALIDATION, TEST)

Integers = NDArray[np.int64]
Inputs = NDArray[np.float32] | tuple[str, ...]


@dataclass(frozen=True, eq=False)
class LabelledSplit:
    """n examples.

    Attributes:
        inputs: float32 (n, d), or n texts.
        labels: the class of each, int64 (n,), from 0.
        private: the private attributes, int64 (n, p) of 0 and 1; p may be 0.

    Raises:
        CorpusError: if the three are not equally long.
    """

    inputs: Inputs
    labels: Integers
    private: Integers

    def __post_init__(self) -> None:
        sizes = (len(self.inputs), len(self.labels), len(self.private))
        if len(set(sizes)) > 1 or self.private.ndim != 2:
            raise CorpusError(
                f"a split has {sizes[0]} inputs, {sizes[1]} labels, private {self.private.shape}; "
                "allowed: equally many of each"
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def texts(self) -> tuple[str, ...]:
        """The inputs of a corpus of texts; CorpusError for a table."""
        if isinstance(self.inputs, np.ndarray):
            raise CorpusError("these examples are rows of numbers; allowed here: texts")
        return self.inputs

    @property
    def table(self) -> NDArray[np.float32]:
        """The inputs of a table; CorpusError for texts."""
        if not isinstance(self.inputs, np.ndarray):
            raise CorpusError("these examples are texts; allowed here: rows of numbers")
        return self.inputs

    def take(self, rows: Integers) -> LabelledSplit:
        """These rows, in this order."""
        if isinstance(self.inputs, np.ndarray):
            chosen: Inputs = self.inputs[rows]
        else:
            chosen = tuple(self.inputs[row] for row in rows)
        return LabelledSplit(chosen, self.labels[rows], self.private[rows])


@dataclass(frozen=True, eq=False)
class LabelledData:
    """Examples in three splits.

    Attributes:
        name: of the corpus.
        classes: the names of the classes, at least two.
        attributes: the names of the private attributes (p).
        splits: ``train``, ``validation`` and ``test``.
    """

    name: str
    classes: tuple[str, ...]
    attributes: tuple[str, ...]
    splits: Mapping[str, LabelledSplit]

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
    def fingerprint(self) -> str:
        """A checksum over all inputs, labels, attributes and splits, in hexadecimal."""
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
    """The numbers 0 … rows − 1 in an order that is a pure function of ``seed`` and ``purpose``."""
    if seed < 0:
        raise CorpusError(f"seed {seed} must not be negative")
    name = int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:8], "little")
    return np.random.default_rng(np.random.SeedSequence([seed, name])).permutation(rows)


def cut(order: Integers, shares: Sequence[float]) -> list[Integers]:
    """``order`` cut into consecutive parts of these shares of it; the last part gets what rounding leaves."""
    ends = [round(len(order) * sum(shares[: k + 1])) for k in range(len(shares) - 1)]
    return np.split(order, ends)
