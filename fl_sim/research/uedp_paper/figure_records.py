"""The record of a figure: the figures that were measured and stated, with what they were made by. Versioned JSON.

Written to results/ and read to draw and to tell; a run folder is not needed for either.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fl_sim.research.project_roots import project_roots
from fl_sim.research.uedp_paper.figures import Name, PublishedNumber
from fl_sim.research.uedp_paper.table_two import Row
from fl_sim.storage.run_folder import ResultsError, decode, encode, replace_file

FORMAT: Final = 1
"""Version of the records; raised when a reader of an older one would be misled."""

RESULTS = Path("results")
"""Where the project keeps its records."""

_LEAST_SEEDS = 3


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class Epsilons(_Strict):
    """ε at the end of a run.

    Attributes:
        claimed: what the strategy says of itself: the paper's figure for ``published``, a user's under user-level DP, a
            user's and an entity's (95th percentile of reach) under ``uedp``; None for what claims nothing.
        user: proven for a user.
        user_entity_median, user_entity_p95, user_entity_max: proven for a user and an entity of that reach; None where
            the corpus has no entities any more.
        robust_p95: the same without relying on detection.
    """

    claimed: float | None
    user: float
    user_entity_median: float | None
    user_entity_p95: float | None
    user_entity_max: float | None
    robust_p95: float | None


class Spread(_Strict):
    """A figure over the seeds: its values, their mean, and their standard deviation (None for one value)."""

    values: tuple[float, ...] = Field(min_length=1)
    mean: float
    std: float | None


class Trace(_Strict):
    """A curve round by round: means and deviations over the seeds, and ε so far (None where there is none)."""

    rounds: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float | None, ...]
    claimed: tuple[float, ...] | None
    proven: tuple[float, ...]


class PointRecord(_Strict):
    """The runs of one setting.

    Attributes:
        x: where it is drawn, if the figure has values.
        settings: what was set for it, all layers of the configuration together.
        noise_multiplier: z, given or found.
        utility: at the end, over the seeds.
        initial: of the starting model, over the seeds.
        gap_closed: the share of the way from the starting model to the baseline that it closes.
        epsilon: claimed and proven.
        trace: round by round, of a curve without points.
        seconds: that all its runs took together.
    """

    x: float | None
    settings: dict[str, Any]
    noise_multiplier: float | None
    utility: Spread
    initial: Spread
    gap_closed: float | None
    epsilon: Epsilons
    trace: Trace | None
    seconds: float


class CurveRecord(_Strict):
    name: Name
    label: str
    strategy: str
    points: tuple[PointRecord, ...] = Field(min_length=1)


class CorpusRecord(_Strict):
    """A corpus as it was trained on; fingerprint: its checksum."""

    name: str
    users: int
    sentences: int
    entities: int
    tagger: str
    fingerprint: str


class TargetRecord(_Strict):
    words: str
    value: float


class PanelRecord(_Strict):
    """One picture. references: what one gets without a model, by its words. failed: runs that failed, and why."""

    name: Name
    title: str
    corpus: CorpusRecord
    curves: tuple[CurveRecord, ...]
    references: dict[str, float]
    targets: tuple[TargetRecord, ...]
    failed: dict[str, str]


class _Record(_Strict):
    """What every record says of itself.

    Attributes:
        figure: its name.
        size: ``default`` or ``full``.
        commit: of the sources that made it, with ``dirty`` if they had changes.
        config: the figure's file at that size, as it was read.
        versions: of fl_sim, python and the libraries that can change a figure.
        when: its end, UTC.
        skipped: corpora that could not be had, with the reason.
    """

    format: Literal[1] = FORMAT
    figure: Name
    title: str
    size: Literal["default", "full"]
    commit: str
    config: dict[str, Any]
    versions: dict[str, str | None]
    when: str
    skipped: dict[str, str]


class TrainingRecord(_Record):
    kind: Literal["training"] = "training"
    seeds: tuple[int, ...]
    x: Literal["epsilon", "rounds", "value", "curve"]
    x_words: str
    metric: str
    delta: float
    baseline: str | None
    panels: tuple[PanelRecord, ...]
    published: tuple[PublishedNumber, ...]


class EpsilonCurveRecord(_Strict):
    """ε of one mechanism at ``rounds``: as published (a claim), and proven for a user and for a user with an entity.

    proven_everywhere: for a user and an entity that all users mention, after the last round. printed: the paper's own
    figures, by rounds. at_printed: ours by the paper's accountant at the same rounds.
    """

    name: Name
    label: str
    rounds: tuple[int, ...]
    as_published: tuple[float, ...]
    proven_user: tuple[float, ...]
    proven_user_entity: tuple[float, ...]
    proven_everywhere: float
    printed: dict[str, float]
    at_printed: dict[str, float]
    section: str


class EpsilonPanelRecord(_Strict):
    name: Name
    title: str
    users: int
    curves: tuple[EpsilonCurveRecord, ...]


class EpsilonRecord(_Record):
    kind: Literal["epsilon"] = "epsilon"
    delta: float
    entity_users: int
    panels: tuple[EpsilonPanelRecord, ...]


class TableCorpusRecord(_Strict):
    """A corpus's row, ours and published, with how its entities were found and why the two differ."""

    title: str
    tagger: str
    columns: tuple[str, ...]
    ours: Row
    published: dict[str, Any]
    difference: str


class TableRecord(_Record):
    kind: Literal["table_two"] = "table_two"
    corpora: tuple[TableCorpusRecord, ...]


Record = Annotated[TrainingRecord | EpsilonRecord | TableRecord, Field(discriminator="kind")]


class _Any(_Strict):
    record: Record


def write_record(record: Record, path: Path) -> None:
    """Put a record at ``path``, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(encode(record.model_dump(mode="python")), ensure_ascii=False, indent=1)
    replace_file(path, text.encode() + b"\n")


def read_record(path: Path) -> Record:
    """The record at ``path``.

    Raises:
        ResultsError: it is no record of this version.
    """
    try:
        values = decode(json.loads(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise ResultsError(f"{path}: cannot be read as JSON ({error})") from error
    found = values.get("format") if isinstance(values, dict) else None
    if found != FORMAT:
        raise ResultsError(f"{path}: format is {found!r}; allowed: {FORMAT}, a record of fl-sim reproduce")
    try:
        return _Any.model_validate({"record": values}).record
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][2:])
        raise ResultsError(f"{path}: {where}: {first['msg']}") from error


def read_records(folder: Path) -> list[Record]:
    """All records of a folder, by name; :class:`ResultsError` if there is none."""
    records = [read_record(path) for path in sorted(folder.glob("*.json"))]
    if not records:
        raise ResultsError(f"{folder}: has no record; fl-sim reproduce NAME --record {folder} makes one")
    return records


def find_record(name: str) -> Record | None:
    """The record of a figure in results/, of the working folder or else of the sources; None if there is none."""
    for root in project_roots():
        path = root / RESULTS / f"{name}.json"
        if path.is_file():
            return read_record(path)
    return None


def check_publishable(record: Record) -> None:
    """Refuse what results/ does not take: fewer than three seeds, or nothing at all."""
    if isinstance(record, TrainingRecord) and len(record.seeds) < _LEAST_SEEDS:
        raise ResultsError(
            f"{record.figure}: seeds is {list(record.seeds)}; allowed for --record: at least {_LEAST_SEEDS}, because a "
            "figure without its spread is none"
        )
    if isinstance(record, TrainingRecord) and any(panel.failed for panel in record.panels):
        raise ResultsError(f"{record.figure}: runs failed; allowed for --record: a figure all of whose runs ended")


def file_name(record: Record) -> str:
    """What a record is called in results/."""
    return f"{record.figure}{'-full' if record.size == 'full' else ''}.json"


def spread(values: Sequence[float]) -> Spread:
    """Mean and standard deviation of what the seeds gave."""
    return Spread(
        values=tuple(values),
        mean=statistics.fmean(values),
        std=statistics.stdev(values) if len(values) > 1 else None,
    )
