"""The study's attack on word vectors: an attacker trains Word2Vec on its own text and looks up captured vectors.

A word is approximately recovered if it is among the five words of the attacker's model that are nearest to the captured
vector by cosine similarity (Zouhri and Abecidan 2021, section 1.2).

>>> user = WordVectors(("red", "green"), np.array([[1.0, 0.1], [0.0, 1.0]], dtype=np.float32))
>>> attacker = WordVectors(("red", "blue"), np.array([[2.0, 0.0], [0.0, 3.0]], dtype=np.float32))
>>> recover_words(user, attacker)
WordRecovery(words=2, known=0.5, first=0.5, nearest=0.5)
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fl_sim.research.representations.client.encoder_inputs import words_of
from fl_sim.research.representations.client.feed_forward import short_seed
from fl_sim.stop_signals import raise_missed_stop

NEAREST = 5
_ROWS_AT_ONCE = 2048


@dataclass(frozen=True, slots=True)
class WordRecovery:
    """Shares of captured words that an attacker recovers.

    Attributes:
        words: captured words of the user's model.
        known: the share in the attacker's vocabulary, an upper bound on recovery.
        first: the share whose nearest word is correct.
        nearest: the share with the correct word among the ``NEAREST`` nearest.
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
    texts: Sequence[str], seed: int, *, width: int = 100, least: int = 5, epochs: int = 5, by_word: bool = False
) -> WordVectors:
    """Return gensim's Word2Vec vectors of ``texts``, trained with one worker, so that they are a function of the seed.

    gensim 4 draws the initial vector of a word from the word's rank and the seed: if user and attacker both keep the
    default seed, words of equal rank start alike. Until 3.8, the study's time, it drew it from the word itself and the
    seed: every word starts alike in both models, whatever its rank.

    Args:
        texts: training texts.
        seed: of the initial vectors.
        width: d.
        least: occurrences that a word needs.
        epochs: of training.
        by_word: draw initial vectors as gensim did until 3.8.
    """
    from gensim.models import Word2Vec

    sentences = [words_of(text) for text in texts]
    model = Word2Vec(
        vector_size=width,
        min_count=least,
        epochs=epochs,
        workers=1,
        seed=short_seed(seed, "word2vec", bits=31),
    )
    model.build_vocab(sentences)
    if by_word:
        for number, word in enumerate(model.wv.index_to_key):
            model.wv.vectors[number] = _initial_vector(word, seed, width)
    model.train(sentences, total_examples=model.corpus_count, epochs=epochs)
    raise_missed_stop()
    return WordVectors(tuple(model.wv.index_to_key), np.asarray(model.wv.vectors, dtype=np.float32))


def _initial_vector(word: str, seed: int, width: int) -> NDArray[np.float32]:
    """Return a word's initial vector, float32 (width,), uniform within ±1/(2·width) as in gensim 3.8."""
    generator = np.random.default_rng([seed, zlib.crc32(word.encode())])
    return ((generator.random(width) - 0.5) / width).astype(np.float32)


def recover_words(user: WordVectors, attacker: WordVectors) -> WordRecovery:
    """Return the recovery of the user's words by nearest neighbours among the attacker's vectors."""
    ids = {word: number for number, word in enumerate(attacker.words)}
    directions = _unit(attacker.vectors).T
    first = nearest = 0
    for start in range(0, len(user.words), _ROWS_AT_ONCE):
        similarity = _unit(user.vectors[start : start + _ROWS_AT_ONCE]) @ directions
        labels = np.array([ids.get(word, -1) for word in user.words[start : start + _ROWS_AT_ONCE]])
        ranks = _ranks(similarity[labels >= 0], labels[labels >= 0])
        first += int((ranks == 0).sum())
        nearest += int((ranks < NEAREST).sum())
    total = len(user.words)
    known = sum(word in ids for word in user.words)
    return WordRecovery(total, known / total, first / total, nearest / total)


def _ranks(similarity: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many columns come before the labelled one, int64 (n,): the more similar, and of equals the first."""
    own = similarity[np.arange(len(labels)), labels][:, None]
    earlier = np.arange(similarity.shape[1]) < labels[:, None]
    return np.asarray(((similarity > own) | ((similarity == own) & earlier)).sum(axis=1), dtype=np.int64)


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, length, out=np.zeros_like(vectors), where=length > 0)
