"""The record of a tagger's evaluation: ``fl-sim ner evaluate`` writes it, corpora carry it, and reports show it.

The record, ``coverage.json``, lies beside a corpus's data files and is no part of its fingerprint: it describes the
tagger, not the corpus, and no ε depends on it.

>>> Estimate(value=0.9, low=0.85, high=0.94).model_dump()
{'value': 0.9, 'low': 0.85, 'high': 0.94}
>>> read_coverage(Corpus.open("bundled")) is None  # its marks are gold
True
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.manifest import comparable
from fl_sim.files import check_replaceable, owner_only, replace_file

COVERAGE_FILE = "coverage.json"


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class Estimate(_Strict):
    """A share with its 95 % bootstrap interval; None where nothing is counted."""

    value: float | None = Field(ge=0, le=1)
    low: float | None = Field(ge=0, le=1)
    high: float | None = Field(ge=0, le=1)


class GoldRecord(_Strict):
    """The gold corpus of an evaluation."""

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

    Attributes:
        format: of the file.
        format_version: of the file.
        tagger: its description.
        gold: the gold corpus.
        hiding: the shares of :data:`fl_sim.data_prep.ner.scoring.HIDING`.
        flagged: share of all sentences in which the tagger marks anything.
        flag_precision: share of the flagged sentences that are sensitive.
        matching: match → kind ("any" for all) → precision, recall, f1.
        outside_scheme: mentions of kinds that the gold corpus does not mark, left out of ``matching``.
        resamples: of the bootstrap.
        seed: of the bootstrap.
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

    def summary(self) -> dict[str, Any]:
        """Return what a run records and reports of the evaluation."""
        return {
            "tagger": self.tagger,
            "gold": self.gold.name,
            "split": self.gold.split,
            "fingerprint": self.gold.fingerprint,
            "sentences": self.gold.sentences,
            **{name: figure.model_dump() for name, figure in self.hiding.items()},
        }


def attach(evaluation: Evaluation, folder: Path) -> Path:
    """Write ``evaluation`` into the prepared corpus ``folder``, in place of an earlier one; return the file.

    Raises:
        CorpusError: ``folder`` is no prepared corpus, or another tagger marked it.
    """
    check_attachable(evaluation.tagger, folder)
    path = folder / COVERAGE_FILE
    evaluation.write(path)
    return path


def check_attachable(tagger: dict[str, str], folder: Path) -> None:
    """Check that ``folder`` is a corpus marked by the tagger with this description, else raise :class:`CorpusError`."""
    _check_same_tagger(tagger, Corpus.open(folder.absolute()), folder)


def read_coverage(corpus: Corpus) -> Evaluation | None:
    """Return the evaluation that ``corpus`` carries, or None.

    Raises:
        CorpusError: the file has another version, or describes another tagger.
    """
    path = corpus.path / COVERAGE_FILE
    if not path.is_file():
        return None
    evaluation = read_evaluation(path)
    _check_same_tagger(evaluation.tagger, corpus, path)
    return evaluation


def check_writable(path: Path) -> None:
    """Check, before long work, that a file can be written at ``path``.

    Raises:
        CorpusError: it is a folder, or in none.
        OSError: it is a link, a device or the like.
    """
    if path.is_dir() or not path.parent.is_dir():
        raise CorpusError(f"{path}: --out must be a file in a folder that exists")
    check_replaceable(path)


def read_evaluation(path: Path) -> Evaluation:
    """Return the evaluation in the file ``path``; :class:`CorpusError` if it has another format or version."""
    try:
        return Evaluation.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "the file"
        raise CorpusError(f"{path}: not a coverage record of this version: {field}: {first['msg']}") from error


def _check_same_tagger(measured: dict[str, str], corpus: Corpus, where: Path) -> None:
    measured, used = comparable(measured), comparable(corpus.manifest.tagger)
    different = sorted(key for key in measured.keys() | used.keys() if measured.get(key) != used.get(key))
    if different:
        key = "tagger" if "tagger" in different else different[0]
        raise CorpusError(
            f"{where}: another tagger was measured than marked this corpus; its {key!r} is {measured.get(key)!r}, "
            f"the corpus has {used.get(key)!r}"
        )
