"""A tagger measured against a gold corpus, as a record that a prepared corpus and a run's report can carry.

The record, ``coverage.json``, lies beside a corpus's data files and outside of its fingerprint: it says how good the
tagger is, not what the corpus holds, and no ε depends on it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from data_prep.corpus import BUNDLED, Corpus
from data_prep.entities import Tagger, tagged
from data_prep.manifest import MANIFEST_FILE, fingerprint_of, record_of
from data_prep.ner_data import TEST, VALIDATION, sentences_of_corpus
from data_prep.ner_scoring import HIDING, UNKNOWN_NAME, Judged, Tally, figures, kind_of
from data_prep.readers_iob import iob_files, read_iob, read_iob_file
from data_prep.records import CorpusError, Sentence

COVERAGE_FILE = "coverage.json"
GOLD_TAGGER = {"tagger": "gold"}

_BATCH = 2_000


@dataclass(frozen=True)
class GoldCorpus:
    """Sentences whose mentions are true, of one split; ``fingerprint`` is a checksum of the data they come from."""

    name: str
    split: str
    fingerprint: str
    sentences: Callable[[], Iterator[Sentence]]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class Measured(_Strict):
    """A share with the interval in which the bootstrap put it in 95 of 100 resamplings; None where nothing is known."""

    value: float | None = Field(ge=0, le=1)
    low: float | None = Field(ge=0, le=1)
    high: float | None = Field(ge=0, le=1)


class GoldRecord(_Strict):
    """What a tagger was measured on."""

    name: str
    split: str
    fingerprint: str = Field(pattern=r"^[0-9a-f]{64}$")
    clusters: int = Field(ge=1)
    sentences: int = Field(ge=1)
    sensitive_sentences: int = Field(ge=0)
    mentions: int = Field(ge=0)
    entities: int = Field(ge=0)


class Evaluation(_Strict):
    """The content of ``coverage.json``.

    hiding: the shares of :data:`data_prep.ner_scoring.HIDING`. flagged: share of all sentences that are flagged.
    flag_precision: share of the flagged sentences that are sensitive. matching: match → kind ("any" for all) →
    precision, recall, f1. outside_scheme: found mentions of a kind that the gold corpus does not mark, left out of
    ``matching``.
    """

    format: Literal["fl-sim coverage"] = "fl-sim coverage"
    format_version: Literal[1] = 1
    tagger: dict[str, str]
    gold: GoldRecord
    hiding: dict[str, Measured]
    flagged: float = Field(ge=0, le=1)
    flag_precision: Measured
    matching: dict[str, dict[str, dict[str, Measured]]]
    outside_scheme: int = Field(ge=0)
    resamples: int = Field(ge=1)
    seed: int

    def write(self, path: Path) -> None:
        """Write to ``path``, whole or not at all."""
        scratch = path.with_name(f".{path.name}.partial-{uuid.uuid4().hex[:8]}")
        try:
            scratch.write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")
            scratch.replace(path)
        finally:
            scratch.unlink(missing_ok=True)

    def summary(self) -> dict[str, Any]:
        """What a run records and reports of it."""
        return {
            "tagger": self.tagger,
            "gold": self.gold.name,
            "split": self.gold.split,
            "fingerprint": self.gold.fingerprint,
            "sentences": self.gold.sentences,
            **{name: figure.model_dump() for name, figure in self.hiding.items()},
        }


def gold_corpus(source: str | Path, split: str | None = None) -> GoldCorpus:
    """The gold corpus at ``source``: a folder made by ``fl-sim prepare``, ``bundled``, or tagged (IOB) files.

    ``split`` by default is test, else validation; all sentences of tagged files whose names tell no splits.

    Raises:
        CorpusError: there is no such corpus or split, or its marks come from a tagger.
    """
    if str(source) == BUNDLED or (Path(source) / MANIFEST_FILE).is_file():
        return _prepared_gold(Corpus.open(source), split)
    path = Path(source)
    if not path.exists():
        raise CorpusError(f"{path}: no such file or folder; --gold must be a prepared corpus or tagged files")
    return _tagged_gold(path, split)


def evaluate(
    tagger: Tagger,
    gold: GoldCorpus,
    *,
    resamples: int = 1000,
    seed: int = 0,
    watch: Callable[[Iterable[Sentence]], Iterable[Sentence]] = lambda sentences: sentences,
) -> Evaluation:
    """Tag every sentence of ``gold`` and compare; memory grows with its users and entities, not with its text.

    Raises :class:`CorpusError` for a corpus without a sentence or without a mention.
    """
    tally = Tally(frozenset(kind_of(m.label) for s in gold.sentences() for m in s.mentions) - {UNKNOWN_NAME})
    sensitive = mentions = flagged = 0
    sentences = iter(watch(gold.sentences()))
    while batch := list(islice(sentences, _BATCH)):
        for true, found in zip(batch, tagged(batch, tagger), strict=True):
            tally.add(Judged(true.user, true.text, true.mentions, found.mentions))
            sensitive += bool(true.mentions)
            mentions += len(set(true.mentions))
            flagged += bool(found.mentions)
    if not mentions:
        raise CorpusError(f"{gold.name}: split {gold.split} marks no entity, so there is nothing to measure on")
    made = {
        name: Measured(**figure.record()) for name, figure in figures(tally, resamples=resamples, seed=seed).items()
    }
    matching: dict[str, dict[str, dict[str, Measured]]] = {}
    for name, figure in made.items():
        if len(name) == 3:
            matching.setdefault(name[0], {}).setdefault(name[1], {})[name[2]] = figure
    return Evaluation(
        tagger=tagger.describe(),
        gold=GoldRecord(
            name=gold.name,
            split=gold.split,
            fingerprint=gold.fingerprint,
            clusters=len(tally.clusters),
            sentences=tally.sentences,
            sensitive_sentences=sensitive,
            mentions=mentions,
            entities=tally.num_entities,
        ),
        hiding={name: made[(name,)] for name in HIDING},
        flagged=flagged / tally.sentences,
        flag_precision=made[("flag_precision",)],
        matching=matching,
        outside_scheme=tally.outside_scheme,
        resamples=resamples,
        seed=seed,
    )


def attach(evaluation: Evaluation, folder: Path) -> Path:
    """Put ``evaluation`` into the prepared corpus ``folder``; an earlier one is replaced.

    Raises:
        CorpusError: ``folder`` is no prepared corpus, or another tagger made its marks.
    """
    corpus = Corpus.open(folder)
    _check_same_tagger(evaluation, corpus, corpus.path)
    path = corpus.path / COVERAGE_FILE
    evaluation.write(path)
    return path


def read_coverage(corpus: Corpus) -> Evaluation | None:
    """The evaluation that ``corpus`` carries, None if it carries none.

    Raises:
        CorpusError: the file is not one of this version, or it is about another tagger.
    """
    path = corpus.path / COVERAGE_FILE
    if not path.is_file():
        return None
    evaluation = read_evaluation(path)
    _check_same_tagger(evaluation, corpus, path)
    return evaluation


def read_evaluation(path: Path) -> Evaluation:
    """The evaluation in ``path``; :class:`CorpusError` if it holds none of this version."""
    try:
        return Evaluation.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        raise CorpusError(f"{path}: not a coverage record of this version: {place}: {first['msg']}") from error


def _check_same_tagger(evaluation: Evaluation, corpus: Corpus, where: Path) -> None:
    measured, used = evaluation.tagger, corpus.manifest.tagger
    if measured != used:
        different = sorted(key for key in measured.keys() | used.keys() if measured.get(key) != used.get(key))
        raise CorpusError(
            f"{where}: the coverage is that of another tagger than marked this corpus; {different[0]} is "
            f"{measured.get(different[0])!r} there and {used.get(different[0])!r} here"
        )


def _prepared_gold(corpus: Corpus, split: str | None) -> GoldCorpus:
    if corpus.manifest.tagger != GOLD_TAGGER:
        made_by = corpus.manifest.tagger.get("tagger", "unknown")
        raise CorpusError(f"{corpus.path}: its entities were found by tagger {made_by!r}; --gold needs gold marks")
    chosen = _chosen(split, corpus.splits, corpus.path)
    return GoldCorpus(corpus.manifest.name, chosen, corpus.fingerprint, lambda: sentences_of_corpus(corpus, chosen))


def _tagged_gold(path: Path, split: str | None) -> GoldCorpus:
    files = iob_files(path)
    fingerprint = fingerprint_of({file.name: record_of(file) for file in files})
    name = path.name.split(".")[0]
    if split is None and not any(files.values()):
        return GoldCorpus(name, "all", fingerprint, lambda: (s for f in files for s in read_iob_file(f, "all")))
    present = tuple(dict.fromkeys(sentence.split for sentence in read_iob(path)))
    chosen = _chosen(split, present, path)
    return GoldCorpus(name, chosen, fingerprint, lambda: (s for s in read_iob(path) if s.split == chosen))


def _chosen(split: str | None, present: tuple[str, ...], where: Path) -> str:
    wanted = [split] if split is not None else [TEST, VALIDATION]
    for candidate in wanted:
        if candidate in present:
            return candidate
    raise CorpusError(f"{where}: no split {' or '.join(wanted)}, only {', '.join(present)}; choose one with --split")
