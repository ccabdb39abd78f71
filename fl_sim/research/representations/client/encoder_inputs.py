"""What an encoder reads: rows of numbers, or token ids; a batch is a choice of rows."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fl_sim.clients.errors import ModelError
from fl_sim.research.representations.client.local_privacy import WordDropout

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*|[^\w\s]")
UNKNOWN = 0
"""The id of a word that the vocabulary lacks."""


@dataclass(frozen=True)
class Ragged:
    """Token ids of B texts in one row.

    Attributes:
        tokens: int64 (total,). offsets: where each text begins, int64 (B,).
    """

    tokens: torch.Tensor
    offsets: torch.Tensor


class EncoderInputs(ABC):
    """n inputs, of which any rows can be had as a batch."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def batch(self, rows: NDArray[np.int64]) -> Any:
        """What the encoder's ``forward`` takes for these rows."""


class Table(EncoderInputs):
    """Rows of numbers, float32 (n, d); a batch is a tensor (B, d)."""

    def __init__(self, rows: NDArray[np.float32]) -> None:
        if rows.ndim != 2:
            raise ModelError(f"inputs are {rows.shape}; allowed: (n, d)")
        self.rows = torch.from_numpy(np.array(rows, dtype=np.float32))

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, rows: NDArray[np.int64]) -> torch.Tensor:
        return self.rows[torch.from_numpy(rows)]


class TokenLists(EncoderInputs):
    """A list of token ids for each text; a batch is :class:`Ragged`."""

    def __init__(self, texts: Sequence[Sequence[int]]) -> None:
        self.texts = [np.asarray(text, dtype=np.int64) for text in texts]

    def __len__(self) -> int:
        return len(self.texts)

    def batch(self, rows: NDArray[np.int64]) -> Ragged:
        chosen = [self.texts[row] for row in rows]
        ends = np.cumsum([0, *map(len, chosen)])
        tokens = np.concatenate(chosen) if chosen else np.empty(0, dtype=np.int64)
        return Ragged(torch.from_numpy(tokens), torch.from_numpy(ends[:-1].astype(np.int64)))


def words_of(text: str) -> list[str]:
    """Lower-case words and punctuation marks."""
    return _WORD.findall(text.lower())


class Vocabulary:
    """Words to ids, the commonest first; id 0 is every other word.

    Args:
        texts: public texts that it is made from.
        least: how often a word has to occur.
    """

    def __init__(self, texts: Iterable[str], least: int = 1) -> None:
        counts = Counter(word for text in texts for word in words_of(text))
        common = sorted((word for word, n in counts.items() if n >= least), key=lambda word: (-counts[word], word))
        self.ids = {word: number for number, word in enumerate(common, start=UNKNOWN + 1)}

    def __len__(self) -> int:
        return len(self.ids) + 1

    def encode(self, words: Iterable[str]) -> list[int]:
        """The ids of words."""
        return [self.ids.get(word, UNKNOWN) for word in words]


def drop_words(texts: Sequence[str], dropout: WordDropout, generator: np.random.Generator) -> list[str]:
    """The texts without the words that the dropout takes, by white space; a text may become empty."""
    return [" ".join(dropout.kept(text.split(), generator)) for text in texts]
