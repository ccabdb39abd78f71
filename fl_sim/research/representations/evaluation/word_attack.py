"""The study's attack on word vectors: an attacker trains Word2Vec on its own text and looks up captured vectors.

A word is approximately recovered if it is among the five words of the attacker's model that are nearest to the captured
vector by cosine similarity (Zouhri and Abecidan 2021, section 1.2). If the user's vectors passed a privacy layer, the
attacker normalises its own as the layer does. ε is of one word's vector: a sentence of w words sends w of them.

>>> user = WordVectors(("red", "green"), np.array([[1.0, 0.1], [0.0, 1.0]], dtype=np.float32))
>>> attacker = WordVectors(("red", "blue"), np.array([[2.0, 0.0], [0.0, 3.0]], dtype=np.float32))
>>> recover_words(user, attacker)
WordRecovery(words=2, known=0.5, first=0.5, nearest=0.5)
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from fl_sim.config import ConfigError
from fl_sim.research.representations.client.encoder_inputs import words_of
from fl_sim.research.representations.client.feed_forward import short_seed
from fl_sim.research.representations.corpora.labelled import shuffled
from fl_sim.research.representations.local_privacy import LayerName, build_mechanism
from fl_sim.stop_signals import raise_missed_stop
from fl_sim.strategies.primitives import streams

Texts = Sequence[str]
PartName = Literal["halves", "samples"]
"""Texts of the parties, from one corpus: disjoint halves, or two draws of half the texts, which overlap."""
InitialName = Literal["word", "rank", "different"]
NEAREST = 5
_ROWS_AT_ONCE = 2048


@dataclass(frozen=True, slots=True)
class WordRecovery:
    """Shares of the user's captured words: in the attacker's vocabulary, nearest, and among the ``NEAREST`` nearest."""

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
    seed (``by_word``): every word starts alike in both models, whatever its rank.
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


class Setting(NamedTuple):
    """A condition of the attack.

    Attributes:
        width: numbers per vector.
        initial: how initial vectors are drawn: from one seed and the ``word`` (gensim until 3.8, the study's), from one
            seed and the word's ``rank`` (gensim 4), or by rank from ``different`` seeds.
        layer: of the user's vectors.
        epsilon: the layer's parameter.
    """

    width: int
    initial: InitialName
    layer: LayerName
    epsilon: float | None


@dataclass(frozen=True, slots=True)
class WordAttackRow:
    """The recovery under one condition and seed, with ε of one word's vector: infinite without a layer."""

    setting: Setting
    seed: int
    epsilon_proven: float
    epsilon_claimed: float
    recovery: WordRecovery

    def record(self) -> dict[str, str | float | None]:
        """Return the row as flat JSON values."""
        epsilons = {"epsilon_proven": self.epsilon_proven, "epsilon_claimed": self.epsilon_claimed}
        return {**self.setting._asdict(), "seed": self.seed, **epsilons, **asdict(self.recovery)}


@dataclass(frozen=True)
class WordAttack:
    """Conditions to measure; perturbed vectors are attacked with initial vectors by word, the strongest attack.

    ``layer`` is that of the user's vectors at each of ``epsilons``; ``least`` are the occurrences that a word needs.
    """

    widths: tuple[int, ...] = (100,)
    layer: LayerName = "none"
    epsilons: tuple[float, ...] = ()
    least: int = 5
    epochs: int = 5

    def settings(self) -> Iterator[Setting]:
        """Yield all conditions."""
        for width in self.widths:
            for initial in get_args(InitialName):
                yield Setting(width, initial, "none", None)
            for epsilon in self.epsilons:
                yield Setting(width, "word", self.layer, epsilon)


def part_texts(texts: Texts, parts: PartName, seed: int) -> tuple[list[str], list[str]]:
    """Return the user's and the attacker's texts of one corpus, half of it each."""
    size = len(texts) // 2
    first = shuffled(len(texts), seed, "words user")
    second = first[size:] if parts == "halves" else shuffled(len(texts), seed, "words attacker")[:size]
    return [texts[i] for i in first[:size]], [texts[i] for i in second]


def attack_words(user: Texts, attacker: Texts, attack: WordAttack, seed: int) -> list[WordAttackRow]:
    """Return a row of shares for each condition of one seed; ConfigError without gensim."""
    try:
        import gensim  # noqa: F401
    except ImportError as error:
        raise ConfigError("gensim is not installed; pip install 'fl-sim[representations]'") from error
    rows = []
    for width in attack.widths:

        def trained(texts: Texts, seed: int, *, by_word: bool, width: int = width) -> WordVectors:
            return train_word_vectors(
                texts, seed, width=width, least=attack.least, epochs=attack.epochs, by_word=by_word
            )

        by_word, by_rank = (trained(user, seed, by_word=how) for how in (True, False))
        apart = short_seed(seed, "words of the attacker", bits=31)
        models = {
            "word": (by_word, trained(attacker, seed, by_word=True)),
            "rank": (by_rank, trained(attacker, seed, by_word=False)),
            "different": (by_rank, trained(attacker, apart, by_word=False)),
        }
        for setting in (setting for setting in attack.settings() if setting.width == width):
            rows.append(_measure(*models[setting.initial], setting, seed))
    return rows


def _measure(user: WordVectors, attacker: WordVectors, setting: Setting, seed: int) -> WordAttackRow:
    mechanism = build_mechanism(setting.layer, setting.width, setting.epsilon)
    proven = claimed = math.inf
    if mechanism is not None:
        generator = streams.generator(seed, "release of words", round(1e6 * mechanism.epsilon))
        sent = mechanism.release(user.vectors.astype(np.float64), generator)
        user = WordVectors(user.words, sent.astype(np.float32))
        own = mechanism.normalise(attacker.vectors.astype(np.float64))
        attacker = WordVectors(attacker.words, own.astype(np.float32))
        guarantee = mechanism.guarantee()
        proven, claimed = guarantee.any_text, guarantee.claimed
    return WordAttackRow(setting, seed, proven, claimed, recover_words(user, attacker))
