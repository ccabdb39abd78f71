"""How well a tagger covers what it should find, as a record: what ``fl-sim ner evaluate`` writes, and what a prepared
corpus and a run's report can carry.

The record, ``coverage.json``, lies beside a corpus's data files and outside of its fingerprint: it says how good the
tagger is, not what the corpus holds, and no ε depends on it.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.corpus import Corpus

COVERAGE_FILE = "coverage.json"


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class Estimate(_Strict):
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

    hiding: the shares of :data:`fl_sim.data_prep.ner.scoring.HIDING`. flagged: share of all sentences that are flagged.
    flag_precision: share of the flagged sentences that are sensitive. matching: match → kind ("any" for all) →
    precision, recall, f1. outside_scheme: found mentions of a kind that the gold corpus does not mark, left out of
    ``matching``.
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


def attach(evaluation: Evaluation, folder: Path) -> Path:
    """Put ``evaluation`` into the prepared corpus ``folder``; an earlier one is replaced.

    Raises :class:`CorpusError` where ``folder`` is no prepared corpus, or another tagger made its marks.
    """
    check_attachable(evaluation.tagger, folder)
    path = folder / COVERAGE_FILE
    evaluation.write(path)
    return path


def check_attachable(tagger: dict[str, str], folder: Path) -> None:
    """Raise :class:`CorpusError` unless ``folder`` is a prepared corpus that the tagger so described has marked."""
    _check_same_tagger(tagger, Corpus.open(folder.absolute()), folder)


def read_coverage(corpus: Corpus) -> Evaluation | None:
    """The evaluation that ``corpus`` carries, None if it carries none.

    Raises:
        CorpusError: the file is not one of this version, or it is about another tagger.
    """
    path = corpus.path / COVERAGE_FILE
    if not path.is_file():
        return None
    evaluation = read_evaluation(path)
    _check_same_tagger(evaluation.tagger, corpus, path)
    return evaluation


def check_writable(path: Path) -> None:
    """Raise :class:`CorpusError` unless a file can be put at ``path``, before work goes into what it shall hold."""
    if path.is_dir() or not path.parent.is_dir():
        raise CorpusError(f"{path}: --out must be a file in a folder that exists")


def read_evaluation(path: Path) -> Evaluation:
    """The evaluation in ``path``; :class:`CorpusError` if it holds none of this version."""
    try:
        return Evaluation.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        raise CorpusError(f"{path}: not a coverage record of this version: {place}: {first['msg']}") from error


def _check_same_tagger(measured: dict[str, str], corpus: Corpus, where: Path) -> None:
    used = corpus.manifest.tagger
    different = sorted(key for key in measured.keys() | used.keys() if measured.get(key) != used.get(key))
    if different:
        key = "tagger" if "tagger" in different else different[0]
        raise CorpusError(
            f"{where}: another tagger was measured than marked this corpus; its {key!r} is {measured.get(key)!r}, "
            f"the corpus has {used.get(key)!r}"
        )
