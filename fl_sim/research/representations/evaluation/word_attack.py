"""The study's attack on word vectors: an attacker trains Word2Vec on text of its own and looks up captured vectors.

A word counts as approximately recovered if it is among the five words of the attacker's model that lie nearest to its
captured vector by cosine similarity (Zouhri and Abecidan 2021, section 1.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fl_sim.research.representations.client.draws import short_seed
from fl_sim.research.representations.client.encoder_inputs import words_of

NEAREST = 5
_ROWS_AT_ONCE = 2048


@dataclass(frozen=True, slots=True)
class WordRecovery:
    """How many words an attacker names.

    Attributes:
        words: of the user's model that were captured.
        known: the share of them that the attacker's model has at all; no more can be recovered.
        first, nearest: the share whose nearest word, or one of whose ``NEAREST`` words, is right.
    """

    words: int
    known: float
    first: float
    nearest: float


@dataclass(frozen=True, eq=False)
class WordVectors:
    """Words and their vectors, float32 (n, d)."""

    words: tuple[str, ...]
    vectors: NDArray[np.float32]


def train_word_vectors(
    texts: Sequence[str], seed: int, *, width: int = 100, least: int = 5, epochs: int = 5
) -> WordVectors:
    """gensim's Word2Vec on these texts, with one worker, so that the same seed gives the same vectors.

    gensim draws where a word's vector starts by the word's rank and the seed. Users and attackers who both leave the
    seed alone, as in the study, start words of like rank alike: that is what makes their vectors comparable.
    """
    from gensim.models import Word2Vec

    model = Word2Vec(
        [words_of(text) for text in texts],
        vector_size=width,
        min_count=least,
        epochs=epochs,
        workers=1,
        seed=short_seed(seed, "word2vec", bits=31),
    )
    return WordVectors(tuple(model.wv.index_to_key), np.asarray(model.wv.vectors, dtype=np.float32))


def recover_words(user: WordVectors, attacker: WordVectors) -> WordRecovery:
    """Look every vector of the user up among the attacker's."""
    place = {word: number for number, word in enumerate(attacker.words)}
    theirs = _unit(attacker.vectors).T
    first = nearest = 0
    for start in range(0, len(user.words), _ROWS_AT_ONCE):
        similarity = _unit(user.vectors[start : start + _ROWS_AT_ONCE]) @ theirs
        count = min(NEAREST, similarity.shape[1])
        best = np.argsort(-similarity, axis=1, kind="stable")[:, :count]
        wanted = np.array([place.get(word, -1) for word in user.words[start : start + _ROWS_AT_ONCE]])
        first += int((best[:, 0] == wanted).sum())
        nearest += int((best == wanted[:, None]).any(axis=1).sum())
    total = len(user.words)
    known = sum(word in place for word in user.words)
    return WordRecovery(total, known / total, first / total, nearest / total)


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, length, out=np.zeros_like(vectors), where=length > 0)
