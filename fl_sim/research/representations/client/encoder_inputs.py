"""Inputs of encoders: rows of numbers, or token ids; a batch is a selection of rows.

>>> vocabulary = Vocabulary(["red red green"], ngrams=2)
>>> inputs = TokenLists([vocabulary.encode(text) for text in ("Red!", "red green blue")])
>>> inputs.batch(np.array([1, 0])).tokens.tolist()  # blue, ! and the pairs with them are unknown
[1, 2, 0, 3, 0, 1, 0, 0]
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fl_sim.research.representations.local_privacy import WordDropout, uniform_doubles

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*|[^\w\s]")
UNKNOWN = 0
"""Id of words and n-grams outside the vocabulary, and of masked ones."""


@dataclass(frozen=True)
class Ragged:
    """Token ids of B texts, concatenated.

    Attributes:
        tokens: int64 (total,).
        offsets: start of each text, int64 (B,).
        states: what enters the first layer that trains, float32 (total, h); None if the encoder starts from tokens.
        visible: false for masked tokens, bool (total,); None if there are none.
    """

    tokens: torch.Tensor
    offsets: torch.Tensor
    states: torch.Tensor | None = None
    visible: torch.Tensor | None = None


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


class MaskedLists(TokenLists):
    """Token ids of each text, each of them masked with probability ``rate``, once and for all.

    Without a ``generator`` the operating system draws which.
    """

    def __init__(self, plain: TokenLists, rate: float, generator: np.random.Generator | None) -> None:
        self.texts = plain.texts
        self._visible = [uniform_doubles(len(text), generator) >= rate for text in self.texts]

    def batch(self, rows: NDArray[np.int64]) -> Ragged:
        visible = np.concatenate([self._visible[row] for row in rows]) if len(rows) else np.empty(0, dtype=np.bool_)
        return replace(super().batch(rows), visible=torch.from_numpy(visible))


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


def ngrams_of(text: str, most: int) -> list[str]:
    """Return the words of a text, then its pairs of neighbouring words, and so on to ``most`` words."""
    words = words_of(text)
    longer = (" ".join(words[at : at + n]) for n in range(2, most + 1) for at in range(len(words) - n + 1))
    return [*words, *longer]


class Vocabulary:
    """Ids of the words of public texts and their n-grams, the most frequent first; id 0 stands for every other."""

    def __init__(self, texts: Iterable[str], ngrams: int = 1) -> None:
        self._most = ngrams
        counts = Counter(token for text in texts for token in ngrams_of(text, ngrams))
        common = sorted(counts, key=lambda token: (-counts[token], token))
        self._ids = {token: number for number, token in enumerate(common, start=UNKNOWN + 1)}

    def __len__(self) -> int:
        return len(self._ids) + 1

    def encode(self, text: str) -> list[int]:
        """Return the ids of the words and n-grams of ``text``."""
        return [self._ids.get(token, UNKNOWN) for token in ngrams_of(text, self._most)]


def drop_words(texts: Sequence[str], dropout: WordDropout, generator: np.random.Generator | None) -> list[str]:
    """Return the texts after ``dropout`` of their words, split at white space; a text may become empty.

    Without a ``generator`` the operating system draws which words.
    """
    return [" ".join(dropout.filter_words(text.split(), generator)) for text in texts]
