"""Inputs of encoders: rows of numbers, or token ids; a batch is a selection of rows.

>>> vocabulary = Vocabulary(["red red green"])
>>> inputs = TokenLists([vocabulary.encode(words_of(text)) for text in ("Red!", "green blue")])
>>> inputs.batch(np.array([1, 0])).tokens.tolist()  # blue and ! are unknown
[2, 0, 1, 0]
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fl_sim.research.representations.local_privacy import WordDropout

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*|[^\w\s]")
UNKNOWN = 0
"""Id of words outside the vocabulary."""
UNKNOWN_WORD = "\ue000"
"""A word that no vocabulary has: a character for private use."""


@dataclass(frozen=True)
class Ragged:
    """Token ids of B texts, concatenated.

    Attributes:
        tokens: int64 (total,).
        offsets: start of each text, int64 (B,).
        states: what enters the first layer that trains, float32 (total, h); None if the encoder starts from tokens.
    """

    tokens: torch.Tensor
    offsets: torch.Tensor
    states: torch.Tensor | None = None


class Table:
    """Rows of numbers, float32 (n, d); a batch is a tensor (B, d)."""

    def __init__(self, rows: NDArray[np.float32]) -> None:
        self.rows = torch.from_numpy(np.array(rows, dtype=np.float32))

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, rows: NDArray[np.int64]) -> torch.Tensor:
        return self.rows[torch.from_numpy(rows)]


class TokenLists:
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


EncoderInputs = Table | TokenLists
"""n inputs; ``batch`` returns the input of the encoder's ``forward`` for rows, int64 (B,)."""


def token_ids(tokenizer: Any, texts: Sequence[str], boundary: tuple[int, int], max_tokens: int) -> list[list[int]]:
    """Return ``[bos] + tokens + [eos]`` of each text (``boundary``: bos, eos), truncated to ``max_tokens`` ids."""
    if not texts:
        return []
    bos, eos = boundary
    encoded = tokenizer(list(texts), add_special_tokens=False, split_special_tokens=True)["input_ids"]
    return [[bos, *ids, eos][:max_tokens] for ids in encoded]


def words_of(text: str) -> list[str]:
    """Return the lower-case words and punctuation marks of a text."""
    return _WORD.findall(text.lower())


class Vocabulary:
    """Ids of the words of public texts, the most frequent first; id 0 stands for every other word."""

    def __init__(self, texts: Iterable[str]) -> None:
        counts = Counter(word for text in texts for word in words_of(text))
        del counts[UNKNOWN_WORD]
        common = sorted(counts, key=lambda word: (-counts[word], word))
        self.ids = {word: number for number, word in enumerate(common, start=UNKNOWN + 1)}

    def __len__(self) -> int:
        return len(self.ids) + 1

    def encode(self, words: Iterable[str]) -> list[int]:
        """Return the ids of ``words``."""
        return [self.ids.get(word, UNKNOWN) for word in words]


def drop_words(texts: Sequence[str], dropout: WordDropout, generator: np.random.Generator) -> list[str]:
    """Return the texts after ``dropout`` of their words, split at white space; a text may become empty."""
    return [" ".join(dropout.filter_words(text.split(), generator)) for text in texts]
