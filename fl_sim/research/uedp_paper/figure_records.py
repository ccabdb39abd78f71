"""The record of a figure: measured and published numbers with their configuration and environment, as versioned JSON.

Pictures and text need the records in results/ alone, not a run folder.

>>> spread([0.5, 0.7]).mean
0.6
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    PlainSerializer,
    TypeAdapter,
    ValidationError,
)

from fl_sim.research.study_files import StrictModel, read_json
from fl_sim.research.uedp_paper.figures import Name, PublishedNumber, Settings, Size, TrainingFigure
from fl_sim.research.uedp_paper.table_two import Row
from fl_sim.storage.run_folder import ResultsError, encode, replace_file

FORMAT: Final = 1
"""Version of the records; raised when a reader of an older version would misread them."""

_LEAST_SEEDS = 3
_NUMBERS = re.compile(r"\[\s+[-+.\deE]+(?:,\s+[-+.\deE]+)*\s+\]")
"""A list of numbers over several lines of JSON, which a record has in one."""
_FIGURES = re.compile(r"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")
"""An object whose values are flat."""


Attacks = dict[str, dict[str, JsonValue]]
"""The records of ``fl-sim leak``, by the name of the attack."""


class RecordModel(StrictModel):
    """A part of a record; a reader leaves out what it does not know."""

    model_config = ConfigDict(extra="ignore", frozen=True, protected_namespaces=())


class Epsilons(RecordModel):
    """ε at the end of the runs of a point: the largest of all seeds.

    Attributes:
        claimed: the strategy's own claim: the paper's figure for ``published``, a user's under user-level DP, a user's
            and an entity's (95th percentile of contribution bounds) under ``uedp``; None for a strategy without one.
        user: proven for a user.
        user_entity_median: proven for a user and an entity of the median contribution bound; None if the corpus is
            de-identified.
        user_entity_p95: the same at the 95th percentile.
        user_entity_max: the same at the largest bound.
        robust_p95: the same as ``user_entity_p95`` without relying on detection.
        any_entity: proven for any user with any entity within enforced bounds; None if no bound is enforced, or there
            is no entity.
        any_name: proven for any entity within enforced bounds, without a user; None as ``any_entity``.
    """

    claimed: float | None
    user: float
    user_entity_median: float | None
    user_entity_p95: float | None
    user_entity_max: float | None
    robust_p95: float | None
    any_entity: float | None = None
    any_name: float | None = None


class Estimate(RecordModel):
    """A figure with its standard error and 95 % interval, by bootstrap over held-out users and seeds."""

    value: float
    standard_error: float
    low: float
    high: float


class Comparison(RecordModel):
    """A point of a comparison at equal ε.

    Attributes:
        utility: the mean over the seeds.
        difference: from the reference at the same joint ε, paired by user; None for the reference and for curves
            without a budget.
        sums: what the metric sums over each held-out user's predictions, a list per seed in the order of the panel's
            ``predictions``: their cross-entropy in nats for a perplexity, how many are wrong for an error.
        accuracy: share of right predictions, the mean over the seeds; that of the next token, or of the class.
        initial_accuracy: of the starting model.
    """

    utility: Estimate
    difference: Estimate | None
    sums: tuple[tuple[float, ...], ...]
    accuracy: float
    initial_accuracy: float


class Spread(RecordModel):
    """Values over the seeds, their mean, and their standard deviation (None for one value)."""

    values: tuple[float, ...] = Field(min_length=1)
    mean: float
    std: float | None


class Trace(RecordModel):
    """A curve round by round: means and deviations over the seeds, and ε so far (None without a guarantee)."""

    rounds: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float | None, ...]
    claimed: tuple[float, ...] | None
    proven: tuple[float, ...]


class Parts(RecordModel):
    """What the runs of a point measured of parts of the held-out text, and what their bounds kept, over the seeds.

    Attributes:
        metric: of the figures: bits per byte, or an error.
        by_text: of all text, and by the names of :data:`fl_sim.reporting.held_out.PARTS`.
        by_sentences: by a user's number of held-out sentences.
        by_mentions: of the tokens of names, by how often the run's training text mentions the name.
        kept: the shares of sentences and of mentions that the bounds kept, in weight.
    """

    metric: str
    by_text: dict[str, Spread]
    by_sentences: dict[str, Spread]
    by_mentions: dict[str, Spread]
    kept: dict[str, Spread]


class PointRecord(RecordModel):
    """The runs of one setting, over the seeds; ``settings`` are all layers of the configuration merged.

    ``noise_multiplier`` is z, configured or calibrated. A curve without points has a ``trace`` round by round, a point
    of a figure with x = "joint" a ``comparison`` and ``parts``.
    """

    x: float | None
    settings: Settings
    noise_multiplier: float | None
    utility: Spread
    initial: Spread
    epsilon: Epsilons
    trace: Trace | None
    seconds: float
    comparison: Comparison | None = None
    parts: Parts | None = None


class CurveRecord(RecordModel):
    name: Name
    label: str
    strategy: str
    budget: Literal["joint", "user", "own"] | None = None
    deidentified: bool = False
    points: tuple[PointRecord, ...] = Field(min_length=1)


class CorpusRecord(RecordModel):
    """The training corpus; ``fingerprint`` is its checksum."""

    name: str
    users: int
    sentences: int
    entities: int
    tagger: str
    fingerprint: str


class AttackedRunRecord(RecordModel):
    """What attacks found in the model of one run.

    Attributes:
        deidentified: whether it was trained on de-identified text, and attacked with the text from before.
        joint: ε of any user with any entity that it was to spend; None without a guarantee.
        seed: of the run and of the attacked units.
        epsilon_any: ε of any user with any entity that it spent; None if none is proven. On de-identified text None.
        utility: at the end, by the figure's metric.
        attacks: the records of ``fl-sim leak``, without their (δ, ε) pairs.
        seconds: of the run's rounds and the attacks; None in a record without.
    """

    curve: Name
    label: str
    strategy: str
    deidentified: bool
    joint: float | None
    seed: int
    epsilon_any: float | None
    utility: float
    initial: float
    attacks: Attacks
    seconds: float | None = None


class PanelRecord(RecordModel):
    """One picture of a training figure, on one training corpus.

    Attributes:
        references: utility without a model, by description.
        failed: reason of each failed run.
        left_out: reason of each curve whose corpus cannot be made, by its label.
        predictions: with x = "joint": the prediction targets of each held-out user, a list per seed, without names.
        attacked: what attacks found in the models, if the figure asks for it.
    """

    name: Name
    title: str
    corpus: CorpusRecord
    curves: tuple[CurveRecord, ...]
    references: dict[str, float]
    failed: dict[str, str]
    left_out: dict[str, str] = Field(default_factory=dict)
    predictions: tuple[tuple[int, ...], ...] = ()
    attacked: tuple[AttackedRunRecord, ...] = ()


class FigureRecord(RecordModel):
    """What the records of all kinds have.

    Attributes:
        commit: those of the sources, separated by commas, with ``dirty`` where they had changes.
        config: the figure's configuration at that size.
        when: time of its end, UTC.
        skipped: reason of each missing corpus.
    """

    format: Literal[1] = FORMAT
    figure: Name
    title: str
    size: Size
    commit: str
    config: dict[str, JsonValue]
    versions: dict[str, str | None]
    when: str
    skipped: dict[str, str]


class TrainingRecord(FigureRecord):
    kind: Literal["training"] = "training"
    seeds: tuple[int, ...]
    x: Literal["epsilon", "value", "curve", "joint"]
    x_words: str
    joint: tuple[float, ...] = ()
    reference: str | None = None
    metric: str
    delta: float
    baseline: str | None
    panels: tuple[PanelRecord, ...]
    published: tuple[PublishedNumber, ...]


class EpsilonCurveRecord(RecordModel):
    """ε of one mechanism: as published (a claim), and proven for a user and for a user with an entity.

    Attributes:
        rounds: of the three columns that follow.
        as_published: by the paper's accountant, a claim.
        proven_everywhere: for a user and an entity that all users mention, after the last round.
        printed: the paper's own figures, by rounds.
    """

    name: Name
    label: str
    rounds: tuple[int, ...]
    as_published: tuple[float, ...]
    proven_user: tuple[float, ...]
    proven_user_entity: tuple[float, ...]
    proven_everywhere: float
    printed: dict[str, float]


class EpsilonPanelRecord(RecordModel):
    name: Name
    title: str
    curves: tuple[EpsilonCurveRecord, ...]


class EpsilonRecord(FigureRecord):
    kind: Literal["epsilon"] = "epsilon"
    delta: float
    entity_users: int
    panels: tuple[EpsilonPanelRecord, ...]


class TableCorpusRecord(RecordModel):
    """A corpus's row, ours and published, with the tagger of its entities and the reason of the difference."""

    title: str
    tagger: str
    columns: tuple[str, ...]
    ours: Row
    published: Annotated[
        Row | None,
        BeforeValidator(lambda row: row or None),
        PlainSerializer(lambda row: {} if row is None else asdict(row)),
    ]
    difference: str


class TableRecord(FigureRecord):
    kind: Literal["table_two"] = "table_two"
    corpora: tuple[TableCorpusRecord, ...]


Record = TrainingRecord | EpsilonRecord | TableRecord

_RECORD: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="kind")])


def write_record(record: Record, path: Path) -> None:
    """Write a record to ``path``, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(encode(record.model_dump(mode="python")), ensure_ascii=False, indent=1)
    text = _NUMBERS.sub(lambda numbers: "".join(numbers[0].split()), text)
    text = _FIGURES.sub(lambda figures: " ".join(figures[0].split()), text)
    replace_file(path, text.encode() + b"\n")


def read_record(path: Path) -> Record:
    """Return the record at ``path``.

    Raises:
        ResultsError: the file is not a record of this version.
    """
    values = read_json(path)
    version = values.get("format") if isinstance(values, dict) else None
    if version != FORMAT:
        raise ResultsError(f"{path}: format is {version!r}; allowed: {FORMAT}, a record of fl-sim reproduce")
    try:
        return _RECORD.validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        raise ResultsError(f"{path}: {where}: {first['msg']}") from error


def read_records(folder: Path) -> list[Record]:
    """Return all records of a folder, by name; :class:`ResultsError` if there is none."""
    records = [read_record(path) for path in sorted(folder.glob("*.json"))]
    if not records:
        raise ResultsError(f"{folder}: has no record; fl-sim reproduce make NAME --record {folder} makes one")
    return records


def check_publishable(record: Record) -> None:
    """Raise ResultsError for a record that results/ does not accept: too few seeds without a reason, or failed runs."""
    if not isinstance(record, TrainingRecord):
        return
    if len(record.seeds) < _LEAST_SEEDS and not record.config.get("why_few_seeds"):
        raise ResultsError(
            f"{record.figure}: seeds is {list(record.seeds)}; allowed for --record: at least {_LEAST_SEEDS}, because a "
            "figure needs its spread, or a figure that says why_few_seeds"
        )
    if any(panel.failed for panel in record.panels):
        raise ResultsError(f"{record.figure}: runs failed; allowed for --record: a figure without failed runs")


def with_earlier_panels(record: Record, earlier: Record | None) -> Record:
    """Return a record of some panels (``--panel``) with those of an earlier one that it lacks, in the figure's order.

    The earlier record is one that :func:`check_same_settings` accepts; None for none.
    """
    if not isinstance(record, TrainingRecord) or not isinstance(earlier, TrainingRecord):
        return record
    known = {panel.name: panel for panel in (*earlier.panels, *record.panels)}
    names = [str(panel["name"]) for panel in record.config["panels"]]  # type: ignore[union-attr, index, call-overload]
    changes = {
        "panels": tuple(known[name] for name in names if name in known),
        "skipped": {name: reason for name, reason in record.skipped.items() if name not in known},
        "commit": ", ".join(dict.fromkeys(f"{earlier.commit}, {record.commit}".split(", "))),
    }
    return record.model_copy(update=changes)


def check_same_settings(figure: TrainingFigure, earlier: Record) -> None:
    """Raise ResultsError if an earlier record is of other settings than ``figure``, but for texts.

    A setting that did not exist when the record was made has its default there.
    """
    texts = {"title", "shows", "finding", "tuning"}
    try:
        known = {key: value for key, value in earlier.config.items() if key in type(figure).model_fields}
        then = type(figure).model_validate(known)
    except ValidationError:
        then = None
    if then is None or then.model_dump(exclude=texts) != figure.model_dump(exclude=texts):
        raise ResultsError(
            f"{earlier.figure}: its record has panels of other settings; allowed with --panel and --record: a record "
            "of the settings in its file. Make all panels anew, or remove the record"
        )


def file_name(record: Record) -> str:
    """Return the name of a record's file in results/."""
    return name_of(record.figure, record.size)


def name_of(figure: str, size: Size) -> str:
    """Return the file name in results/ of the record of a figure at one size."""
    return f"{figure}{'' if size == 'default' else f'-{size}'}.json"


def spread(values: Sequence[float]) -> Spread:
    """Return mean and standard deviation of the seeds' values."""
    return Spread(
        values=tuple(values),
        mean=statistics.fmean(values),
        std=statistics.stdev(values) if len(values) > 1 else None,
    )
