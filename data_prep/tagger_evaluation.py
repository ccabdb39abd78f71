"""Evaluate a tagger against a gold corpus: a prepared one, or tagged files.

``fl-sim corpus ner`` writes the evaluation as JSON. As ``coverage.json`` it lies beside the data files of a corpus
that the same tagger marked, and reports show it. It is no part of the corpus's fingerprint: it describes the tagger,
not the corpus, and no ε depends on it.

>>> gold_corpus("bundled", "validation").name
'synthetic'
>>> read_coverage(Corpus.open("bundled")) is None  # its marks are gold
True
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from fl_sim.data_prep import SHIPPED_CORPORA
from fl_sim.data_prep.identity import DEFAULT_IDENTITY, Identity
from fl_sim.data_prep.readers.iob import IobReader, iob_files
from fl_sim.data_prep.readers.prepared_corpus import is_preprocessed, sentences_of_split
from fl_sim.data_prep.records import CorpusError, Sentence
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.manifest import MANIFEST_FILE, Record, comparable, fingerprint_of, record_of
from fl_sim.data_prep.tagger_scores import HIDING, UNKNOWN_NAME, Estimate, Tally, figures, kind_of
from fl_sim.data_prep.taggers.categories import Selection
from fl_sim.data_prep.taggers.tagger import EVERYTHING, GOLD, Tagger
from fl_sim.files import check_replaceable, owner_only, replace_file
from fl_sim.formats import first_mistake

COVERAGE_FILE = "coverage.json"

_BATCH = 2_000
_HELD_OUT = ("test", "validation")


class GoldRecord(Record):
    """The gold corpus of an evaluation."""

    name: str
    split: str
    fingerprint: str = Field(pattern=r"^[0-9a-f]{64}$")
    clusters: int = Field(ge=1)
    sentences: int = Field(ge=1)
    sensitive_sentences: int = Field(ge=0)
    mentions: int = Field(ge=0)
    entities: int = Field(ge=0)


class Evaluation(Record):
    """The content of ``coverage.json``.

    Attributes:
        hiding: the shares of :data:`fl_sim.data_prep.tagger_scores.HIDING`.
        flagged: share of all sentences in which the tagger marks anything.
        flag_precision: share of the flagged sentences that are sensitive.
        matching: match → kind ("any" for all) → precision, recall, f1.
        outside_scheme: mentions of kinds that the gold corpus does not mark, left out of ``matching``.
    """

    format: Literal["fl-sim coverage"] = "fl-sim coverage"
    format_version: Literal[1] = 1
    tagger: dict[str, str]
    gold: GoldRecord
    hiding: dict[str, Estimate]
    flagged: float = Field(ge=0, le=1)
    flag_precision: Estimate
    matching: dict[str, dict[str, dict[str, Estimate]]]
    outside_scheme: int = Field(ge=0)
    resamples: int = Field(ge=1)
    seed: int

    @owner_only()
    def write(self, path: Path) -> None:
        """Write to the file ``path``, atomically."""
        replace_file(path, self.model_dump_json(indent=2).encode() + b"\n")

    def summary(self) -> dict[str, str | int | dict[str, str] | dict[str, float]]:
        """Return what a run records and reports of the evaluation."""
        return {
            "tagger": self.tagger,
            "gold": self.gold.name,
            "split": self.gold.split,
            "fingerprint": self.gold.fingerprint,
            "sentences": self.gold.sentences,
            **{name: figure.model_dump() for name, figure in self.hiding.items()},
        }


@dataclass(frozen=True)
class GoldCorpus:
    """A split whose mentions are gold.

    Attributes:
        fingerprint: SHA-256 of the data.
        sentences: starts a new reading at each call.
    """

    name: str
    split: str
    fingerprint: str
    sentences: Callable[[], Iterator[Sentence]]


def gold_corpus(source: str | Path, split: str | None = None) -> GoldCorpus:
    """Return a gold corpus.

    Args:
        source: a folder made by ``fl-sim prepare``, ``bundled``, ``irc``, or tagged (IOB) files.
        split: by default test, else validation; all sentences of tagged files whose names name no splits.

    Raises:
        CorpusError: there is no such corpus or split, its marks come from a tagger, or its text was preprocessed.
    """
    if str(source) in SHIPPED_CORPORA or (Path(source) / MANIFEST_FILE).is_file():
        return _prepared_gold(Corpus.open(source), split)
    path = Path(source)
    if not path.exists():
        raise CorpusError(f"{path}: no such file or folder; `gold` must be a prepared corpus or tagged files")
    return _tagged_gold(path, split)


def evaluate(
    tagger: Tagger,
    gold: GoldCorpus,
    *,
    selection: Selection = EVERYTHING,
    resamples: int = 1000,
    seed: int = 0,
    watch: Callable[[Iterable[Sentence]], Iterable[Sentence]] = lambda sentences: sentences,
) -> Evaluation:
    """Tag every sentence of ``gold`` and score the mentions; memory grows with users and entities, not with text.

    Args:
        tagger: made with the same ``selection``.
        gold: what is marked.
        selection: which gold mentions count.
        watch: sees the sentences as they pass, for progress.

    Raises:
        CorpusError: the corpus has no mention that counts, or ``resamples`` is less than 1.
    """
    if resamples < 1:
        raise CorpusError(f"resamples {resamples} must be at least 1")
    labels = {mention.label for sentence in gold.sentences() for mention in sentence.mentions}
    counted = {label for label in labels if selection.keeps(label, labels)}
    tally = Tally(frozenset(kind_of(label) for label in counted) - {UNKNOWN_NAME})
    sensitive = mentions = flagged = 0
    remaining = iter(watch(gold.sentences()))
    while batch := list(islice(remaining, _BATCH)):
        for sentence, tagged in zip(batch, tagger.tag(sentence.text for sentence in batch), strict=True):
            marked = tuple(mention for mention in sentence.mentions if mention.label in counted)
            tally.add(sentence.user, sentence.text, gold=marked, tagged=tagged)
            sensitive += bool(marked)
            mentions += len(set(marked))
            flagged += bool(tagged)
    if not mentions:
        raise CorpusError(f"{gold.name}: split {gold.split} marks no entity, so there is nothing to measure on")
    estimates = figures(tally, resamples=resamples, seed=seed)
    matching: dict[str, dict[str, dict[str, Estimate]]] = {}
    for match, kind, metric in (name for name in estimates if len(name) == 3):
        matching.setdefault(match, {}).setdefault(kind, {})[metric] = estimates[match, kind, metric]
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
        hiding={name: estimates[(name,)] for name in HIDING},
        flagged=flagged / tally.sentences,
        flag_precision=estimates[("flag_precision",)],
        matching=matching,
        outside_scheme=tally.outside_scheme,
        resamples=resamples,
        seed=seed,
    )


def attach(evaluation: Evaluation, folder: Path) -> Path:
    """Write ``evaluation`` into the prepared corpus ``folder``, in place of an earlier one; return the file.

    Raises:
        CorpusError: ``folder`` is no prepared corpus, or another tagger marked it.
    """
    check_same_tagger(evaluation.tagger, Corpus.open(folder.absolute()), folder)
    path = folder / COVERAGE_FILE
    evaluation.write(path)
    return path


def read_coverage(corpus: Corpus) -> Evaluation | None:
    """Return the evaluation that ``corpus`` carries, or None.

    Raises:
        CorpusError: the file has another version, or describes another tagger.
    """
    path = corpus.path / COVERAGE_FILE
    if not path.is_file():
        return None
    try:
        evaluation = Evaluation.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise CorpusError(f"{path}: not a coverage record of this version: {first_mistake(error)}") from error
    check_same_tagger(evaluation.tagger, corpus, path)
    return evaluation


def check_writable(path: Path) -> None:
    """Check, before long work, that a file can be written at ``path``.

    Raises:
        CorpusError: it is a folder, or in none.
        OSError: it is a link, a device or the like.
    """
    if path.is_dir() or not path.parent.is_dir():
        raise CorpusError(f"{path}: `out` must be a file in a folder that exists")
    check_replaceable(path)


def check_same_tagger(measured: dict[str, str], corpus: Corpus, where: Path) -> None:
    """Check that the tagger with this description marked every part of the corpus, whose names have the same keys.

    Raises:
        CorpusError: another tagger did, or the corpus has another identity than that of figures, the default.
    """
    measured = comparable(measured)
    for part in corpus.parts:
        used = comparable(part.manifest.tagger)
        different = sorted(key for key in measured.keys() | used.keys() if measured.get(key) != used.get(key))
        if different:
            key = "tagger" if "tagger" in different else different[0]
            raise CorpusError(
                f"{where}: another tagger was measured than marked this corpus; its {key!r} is {measured.get(key)!r}, "
                f"the corpus has {used.get(key)!r}"
            )
    if Identity.of_corpus(corpus.manifest.settings) != DEFAULT_IDENTITY:
        raise CorpusError(f"{where}: the corpus has another `identity` than figures; allowed: the default one")


def _prepared_gold(corpus: Corpus, split: str | None) -> GoldCorpus:
    for part in corpus.parts:
        if (made_by := part.manifest.tagger.get("tagger", "unknown")) != GOLD:
            raise CorpusError(f"{corpus.path}: its entities were found by tagger {made_by!r}; `gold` needs gold marks")
    if is_preprocessed(corpus):
        raise CorpusError(
            f"{corpus.path}: its text was preprocessed; a tagger sees text as it was written, so prepare the `gold` "
            "corpus without `lower_case` and `strip_punctuation`"
        )
    chosen = _choose_split(split, corpus.splits, corpus.path)
    return GoldCorpus(corpus.manifest.name, chosen, corpus.fingerprint, lambda: sentences_of_split(corpus, chosen))


def _tagged_gold(path: Path, split: str | None) -> GoldCorpus:
    files = iob_files(path)
    fingerprint = fingerprint_of({file.name: record_of(file) for file in files})
    name, reader = path.name.removesuffix(".xz").removesuffix(".gz"), IobReader(path)
    if split is None and not any(files.values()):
        return GoldCorpus(name, "all", fingerprint, lambda: (s for f in files for s in reader.sentences_of(f, "all")))
    present = tuple(dict.fromkeys(sentence.split for sentence in reader.read().sentences()))
    chosen = _choose_split(split, present, path)
    return GoldCorpus(name, chosen, fingerprint, lambda: (s for s in reader.read().sentences() if s.split == chosen))


def _choose_split(split: str | None, present: tuple[str, ...], where: Path) -> str:
    wanted = [split] if split is not None else _HELD_OUT
    for candidate in wanted:
        if candidate in present:
            return candidate
    raise CorpusError(f"{where}: no split {' or '.join(wanted)}, only {', '.join(present)}; choose one with `split`")
