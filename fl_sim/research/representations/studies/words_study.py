"""The study's attack on word vectors: an attacker trains Word2Vec on its own text and looks up captured vectors.

A word is approximately recovered if it is among the five words of the attacker's model that are nearest to the captured
vector by cosine similarity (Zouhri and Abecidan 2021, section 1.2). If the user's vectors passed a privacy layer, the
attacker normalises its own as the layer does. ε is of one word's vector beside a known model: a sentence of w words
sends w of them. The model is trained on the user's text, so another sentence in it moves the vectors of all words, and
no ε covers that.

>>> user = WordVectors(("red", "green"), np.array([[1.0, 0.1], [0.0, 1.0]], dtype=np.float32))
>>> attacker = WordVectors(("red", "blue"), np.array([[2.0, 0.0], [0.0, 3.0]], dtype=np.float32))
>>> recover_words(user, attacker)
WordRecovery(words=2, known=0.5, first=0.5, nearest=0.5)

The study's three situations are made again with other corpora, because its own (Anki's sentences, Quora's questions,
tweets) are not at hand. Its figures are of one run each.

>>> {name: figure for name, (_, figure) in SITUATIONS.items()}
{'samples': '33 (English), 41 (French)', 'halves': '18', 'another corpus': '0.7'}
"""

from __future__ import annotations

import json
import operator
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from fl_sim.config import ConfigError
from fl_sim.formats import format_epsilon
from fl_sim.research.representations.client.encoder_inputs import words_of
from fl_sim.research.representations.client.feed_forward import short_seed
from fl_sim.research.representations.corpora.labelled import TRAIN, shuffled
from fl_sim.research.representations.corpora.labelled_text import TEXT_READERS
from fl_sim.research.representations.local_privacy import LayerName, build_mechanism, guarantee_of
from fl_sim.research.representations.representation_experiment import RECORD_FORMAT
from fl_sim.research.representations.server.group_metrics import share_error
from fl_sim.research.representations.studies.agreement import estimate, spread
from fl_sim.research.representations.studies.study_pictures import Panel, Picture, curves_of, draw_panels
from fl_sim.research.representations.studies.study_runs import (
    Log,
    Options,
    Record,
    collect,
    heading,
    seconds_of,
    task_file,
)
from fl_sim.research.study_files import Point, markdown_table
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


def train_word_vectors(texts: Texts, seed: int, width: int, *, by_word: bool) -> WordVectors:
    """Return gensim's Word2Vec vectors of ``texts``, trained with one worker, so that they are a function of the seed.

    gensim 4 draws the initial vector of a word from the word's rank and the seed: if user and attacker both keep the
    default seed, words of equal rank start alike. Until 3.8, the study's time, it drew it from the word itself and the
    seed (``by_word``): every word starts alike in both models, whatever its rank.
    """
    from gensim.models import Word2Vec

    sentences = [words_of(text) for text in texts]
    model = Word2Vec(vector_size=width, workers=1, seed=short_seed(seed, "word2vec", bits=31))
    model.build_vocab(sentences)
    if by_word:
        for number, word in enumerate(model.wv.index_to_key):
            model.wv.vectors[number] = _initial_vector(word, seed, width)
    model.train(sentences, total_examples=model.corpus_count, epochs=model.epochs)
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


@dataclass(frozen=True)
class WordAttack:
    """Conditions to measure; perturbed vectors are attacked with initial vectors by word, the strongest attack.

    ``layer`` is that of the user's vectors at each of ``epsilons``, ``width`` how many numbers a vector has.
    """

    width: int = 100
    layer: LayerName = "none"
    epsilons: tuple[float, ...] = ()

    def settings(self) -> Iterator[Setting]:
        """Yield all conditions."""
        for initial in get_args(InitialName):
            yield Setting(self.width, initial, "none", None)
        for epsilon in self.epsilons:
            yield Setting(self.width, "word", self.layer, epsilon)


def part_texts(texts: Texts, parts: PartName, seed: int) -> tuple[list[str], list[str]]:
    """Return the user's and the attacker's texts of one corpus, half of it each."""
    size = len(texts) // 2
    first = shuffled(len(texts), seed, "words user")
    second = first[size:] if parts == "halves" else shuffled(len(texts), seed, "words attacker")[:size]
    return [texts[i] for i in first[:size]], [texts[i] for i in second]


def attack_words(user: Texts, attacker: Texts, attack: WordAttack, seed: int) -> list[Record]:
    """Return a JSON-ready row of shares for each condition of one seed; ConfigError without gensim.

    ε is that of one word's vector, as proven and as claimed: infinite without a layer.
    """
    try:
        import gensim  # noqa: F401
    except ImportError as error:
        raise ConfigError("gensim is not installed; pip install 'fl-sim[representations]'") from error
    width, apart = attack.width, short_seed(seed, "words of the attacker", bits=31)
    by_word, by_rank = (train_word_vectors(user, seed, width, by_word=how) for how in (True, False))
    models = {
        "word": (by_word, train_word_vectors(attacker, seed, width, by_word=True)),
        "rank": (by_rank, train_word_vectors(attacker, seed, width, by_word=False)),
        "different": (by_rank, train_word_vectors(attacker, apart, width, by_word=False)),
    }
    return [_measure(*models[setting.initial], setting, seed) for setting in attack.settings()]


def _measure(user: WordVectors, attacker: WordVectors, setting: Setting, seed: int) -> Record:
    mechanism = build_mechanism(setting.layer, setting.width, setting.epsilon)
    guarantee = guarantee_of(mechanism)
    if mechanism is not None:
        generator = streams.generator(seed, "release of words", round(1e6 * mechanism.epsilon))
        sent = mechanism.release(user.vectors.astype(np.float64), generator)
        user = WordVectors(user.words, sent.astype(np.float32))
        own = mechanism.normalise(attacker.vectors.astype(np.float64))
        attacker = WordVectors(attacker.words, own.astype(np.float32))
    epsilons = {"epsilon_proven": guarantee.any_text, "epsilon_claimed": guarantee.claimed}
    return {**setting._asdict(), "seed": seed, **epsilons, **asdict(recover_words(user, attacker))}


SHARES = ("known", "first", "nearest")
TEXTS = 20_000
ATTACKS = (
    WordAttack(layer="dpnr", epsilons=(1.0, 10.0, 100.0)),
    WordAttack(layer="l1", epsilons=(10.0, 100.0, 1000.0, 10_000.0)),
)
SITUATIONS = {
    "samples": ("two draws of half of AG News", "33 (English), 41 (French)"),
    "halves": ("disjoint halves of AG News", "18"),
    "another corpus": ("the user has half of AG News, the attacker SST-2", "0.7"),
}
"""What the parties have, and the study's share of words among the 5 nearest, in percent."""


def reproduce(options: Options, log: Log = lambda *line: None) -> Record:
    """Return the three situations as a JSON-ready mapping."""
    situations = _situations([attack for name in SITUATIONS for attack in _attacks(name)], options, log)
    title = "Study of DPNR (Zouhri and Abecidan 2021), section 1.2"
    return {**heading("words", title, replace(options, full=True)), "texts": TEXTS, "situations": situations}


def points(table: Record, options: Options) -> list[Point]:
    """Return a point for each attack of a situation, with all its seeds."""

    def compared(name: str, attack: WordAttack) -> tuple[Any, Any]:
        setting = operator.itemgetter(*Setting._fields)
        recorded = {setting(row): row for row in table["situations"][name]}
        again = _situations([(name, attack)], options, lambda *_: None)[name]
        return [recorded.get(setting(row)) for row in again], again

    seconds = seconds_of(table, len(options.seeds))
    attacks = [of for name in SITUATIONS for of in _attacks(name)]
    return [
        Point(f"{name}, {attack.layer}, all seeds", seconds, partial(compared, name, attack))
        for name, attack in attacks
    ]


def _attacks(situation: str) -> Iterator[tuple[str, WordAttack]]:
    """Yield the attacks of a situation: layers are measured in the first, the strongest."""
    for attack in ATTACKS if situation == "samples" else (WordAttack(),):
        yield situation, attack


def _situations(attacks: Iterable[tuple[str, WordAttack]], options: Options, log: Log) -> dict[str, list[Record]]:
    """Return the rows of each situation over the seeds."""
    tasks = [
        json.dumps(
            {"situation": name, "attack": asdict(attack), "seed": seed, "source": str(options.source), "texts": TEXTS}
        )
        for name, attack in attacks
        for seed in options.seeds
    ]
    records = collect(
        _attack, {f"words-{task_file(task)}": task for task in tasks}, options,
        lambda record: f"{record['situation']}, seed {record['seed']}:", log,
    )  # fmt: skip
    # Both attacks measure vectors without a layer.
    condition = operator.itemgetter("seed", *Setting._fields)
    rows: dict[str, dict[Any, Record]] = {}
    for record in records.values():
        rows.setdefault(record["situation"], {}).update({condition(row): row for row in record["rows"]})
    return {name: over_seeds(list(of.values())) for name, of in rows.items()}


def _attack(task: str) -> Record:
    """Return the rows of one seed of an attack in a situation."""
    asked = json.loads(task)
    name, seed = asked["situation"], asked["seed"]
    texts = _texts_of(name, Path(asked["source"]), asked["texts"], seed)
    began = time.process_time()
    rows = attack_words(*texts, WordAttack(**asked["attack"]), seed)
    seconds = round(time.process_time() - began, 3)
    return {"format": RECORD_FORMAT, "situation": name, "seed": seed, "rows": rows, "cpu_seconds": seconds}


def as_markdown(table: Record) -> str:
    """Return the situations in Markdown, proven ε first, the study's figure above each table."""
    lines = [
        "Shares of the user's words that the attacker recovers, in percent. ε is of one word's vector beside a known "
        "model; the model was trained on the user's text, which no ε covers."
    ]
    for name, rows in table["situations"].items():
        parties, published = SITUATIONS[name]
        lines += ["", f"{name}: {parties}. The study, on other corpora, among the 5 nearest: {published}.", ""]
        lines += _share_table(rows, len(table["seeds"]))
    return "\n".join(lines) + "\n"


def draw(table: Record) -> list[Picture]:
    """Return a picture of the share among the 5 nearest against proven ε, one curve per layer."""
    rows = [
        {**row, "label": f"no layer, initial vectors: {row['initial']}" if row["layer"] == "none" else row["layer"]}
        for row in table["situations"]["samples"]
    ]
    panel = Panel("Two draws of half of AG News", curves_of(rows, "label", "epsilon_proven", "nearest"))
    figure = draw_panels([panel], "ε of one word's vector, proven", "words among the 5 nearest, percent")
    words = "Share of words recovered against proven ε, with 95 % intervals; lines: without a layer"
    return [Picture("recovered", words, figure)]


def _texts_of(name: str, source: Path, size: int, seed: int) -> tuple[Texts, Texts]:
    news = TEXT_READERS["ag-news"](source / "ag_news", seed, size, "drawn").splits[TRAIN].texts
    user, attacker = part_texts(news, "samples" if name == "samples" else "halves", seed)
    if name == "another corpus":
        attacker = list(TEXT_READERS["sst2"](source / "sst2", seed, None, "drawn").splits[TRAIN].texts)
    return user, attacker


def over_seeds(rows: Sequence[Record]) -> list[Record]:
    """Return a row for each condition: the shares in percent over the seeds, with their intervals."""
    conditions: dict[Setting, list[Record]] = {}
    for row in rows:
        conditions.setdefault(Setting(*(row[name] for name in Setting._fields)), []).append(row)
    summaries = []
    for setting, of_setting in conditions.items():
        summary = {**setting._asdict(), **{name: of_setting[0][name] for name in ("epsilon_proven", "epsilon_claimed")}}
        for share in SHARES:
            errors = [100 * share_error(row[share], row["words"]) for row in of_setting]
            summary[share] = estimate([100 * row[share] for row in of_setting], errors)
        summaries.append(summary | {"words": [row["words"] for row in of_setting]})
    return summaries


def _share_table(rows: Sequence[Record], seeds: int) -> list[str]:
    """Return a row of Markdown for each condition, proven ε of a word's vector first."""
    names = ["ε proven", "ε claimed", "layer", "width", "initial vectors", "known", "first", "among 5 nearest"]
    cells = (
        [
            *(format_epsilon(row[name]) for name in ("epsilon_proven", "epsilon_claimed")),
            *(str(row[name]) for name in ("layer", "width", "initial")),
            *(spread(row[share], seeds, 2) for share in SHARES),
        ]
        for row in rows
    )
    return markdown_table(names, cells)
