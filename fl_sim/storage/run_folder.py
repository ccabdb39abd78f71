"""The run folder: all files of one run, written such that a killed run loses at most its last line.

    config.json        the configuration
    environment.json   commit, versions, machine (fl_sim.storage.environment)
    metrics.jsonl      one row per round, appended during the run
    computation.json   what the releases are computed from (fl_sim.storage.open_run)
    ledger.jsonl       one release record before every release; ledger.head.json (fl_sim.strategies.ledger)
    result.json        final figures, reason of the stop, assumptions of ε, warnings
    summary.txt        the same as text (fl_sim.reporting.report)
    held_out_users.json  losses and errors by held-out user, without names (fl_sim.experiments.user_utility)
    plots/*.png        ε against training steps, utility against ε (fl_sim.reporting.plots)
    model/             the trained model, with the ledgers behind it (fl_sim.storage.model_files) and its card
                       README.md (fl_sim.reporting.model_card)
    ancestors/         those of a trained model that the run started from
    trackers.json      where its trackers write, for a resumed run (fl_sim.experiments.trackers)
    checkpoint/        the state for a resumed run

Files are replaced atomically (temporary file, sync, rename); metrics.jsonl and ledger.jsonl are appended to, with one
synced line per round.

A metrics row has ``round`` (0 is the initial model), ``releases`` (so far), the task's held-out figures
(``perplexity`` per token, ``perplexity_per_word``, ``bits_per_byte``, ``accuracy`` of the most probable token and
``loss`` in nats per token, or ``error`` and ``loss``; fl_sim.experiments.evaluation), ε of these releases as
``epsilon_user`` (at the corpus's largest n'), ``epsilon_user_unbounded`` (n' = ∞) and, for a user and an entity at the
median, p95 or max of contribution bounds, ``epsilon_user_entity_<quantile>`` and
``epsilon_user_entity_robust_<quantile>``; and statistics of the round: ``cohort_users``, ``cohort_sentences``,
``clipped_fraction``, ``train_loss``, ``update_norm``, ``noise_norm``, ``failed_nodes`` (replies that count as zero)
and ``failed_KIND`` of each kind that occurred (``fl_sim.strategies.messages.REJECTIONS``), ``nonfinite``, ``seconds``;
``clip_norm`` if the clip adapts. Without noise every ε is inf. A run of ``published`` also has
``epsilon_as_published``: its paper's claim, always shown beside the proven ε.

JSON has no infinity, and null would make "no guarantee" look like "unknown". So the floats inf, -inf and nan are stored
as the strings "inf", "-inf" and "nan", and this module reads them as floats. ``None`` is null.

At the end the utility metric of each task, in metrics, result, report and plots; lower is better.

>>> encode({"epsilon": math.inf, "rounds": 3})
{'epsilon': 'inf', 'rounds': 3}
>>> decode({"epsilon": "inf"})
{'epsilon': inf}

>>> UTILITIES["classification"].show(0.125)
'12.5%'
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeGuard, TypeVar, cast

from fl_sim.files import MOST_LOG_BYTES, json_object, naming, owner_only, read_bytes, replace_file
from fl_sim.formats import nonzero
from fl_sim.storage.environment import Environment

if TYPE_CHECKING:
    import pandas as pd

RESULT_FORMAT = 1
"""Version of result.json and of the metric names; raised when a reader of an older version would misread them."""

MODEL_FOLDER = "model"
"""Folder of the model in a run folder."""

CHECKPOINT_FOLDER = "checkpoint"
"""Folder of the last checkpoint in a run folder."""

SWEEP_FILE = "sweep.json"
"""What describes a sweep, in the folder that has its runs below it."""

_HELD_OUT_USERS = "held_out_users.json"

INTERRUPTED, DIVERGED = "interrupted", "diverged"
"""Values of ``stopped`` in result.json: the run can be resumed; its model is not finite and it cannot go on."""

_SPECIAL_FLOATS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


class ResultsError(ValueError):
    """A run folder that cannot be created, read or plotted; the message is one line that names the file."""


Figure = float | str | None | list[int] | list[float]
Row = Mapping[str, Figure]
"""A row of the metrics, by the names of its figures; those of Flower apps may be lists."""
Values = TypeVar("Values", bound=Mapping[str, object])
T = TypeVar("T")


class FolderHead(TypedDict):
    """The hashes of config.json and of the first bytes of metrics.jsonl."""

    config: str
    metrics: str
    metrics_bytes: int


class Result(TypedDict, total=False):
    """The content of result.json; a key may be missing.

    Besides it has ε after the last round by the metrics' names, and the held-out figures at the end and (``initial_…``)
    at the start, with ``unigram_perplexity`` or ``majority_error`` as a reference (:func:`numbers_of`).

    Attributes:
        stopped: "rounds", "epsilon_budget", "interrupted" or "diverged"; ``signal`` is the one that interrupted it.
        plan: the fields of :meth:`fl_sim.strategies.mechanism.PrivacyPlan.record`.
        corpus: ``name``, ``users`` and ``sentences``.
        failed_nodes: replies that count as zero, by kind.
        held_out: the last evaluation by user (:mod:`fl_sim.experiments.user_utility`).
        releases, ledger: all releases, which ε covers, and the head hash of the ledger.
        model_files: the checksum of each file of the model.
        initial_model: the earlier runs that trained it, if any: the heads of those ``composed``, the number
            ``left_out``, and whether its owner stated that it is ``disjoint``.
        user_sentences: n'.
        reach: contribution bounds: median, p95 and max, each with the fields of
            :class:`fl_sim.strategies.accounting.adjacency.ContributionBound`.
    """

    format: int
    stopped: str
    signal: str
    rounds: int
    plan: dict[str, object]
    corpus: dict[str, object]
    task: str
    failed_nodes: dict[str, int]
    held_out: dict[str, object] | None
    releases: int
    ledger: Mapping[str, object]
    model_files: dict[str, str]
    initial_model: dict[str, object]
    user_sentences: float
    guarantee: dict[str, object]
    reach: dict[str, dict[str, Any]]
    kept: dict[str, object]
    warnings: list[str]


class RunFolder:
    """The folder of one run, by :meth:`create` (a new run) or :meth:`open` (an existing one); it has one writer."""

    def __init__(self, path: Path, *, config: Mapping[str, object], environment: Environment) -> None:
        self.path = path
        self.config_file = path / "config.json"
        self.environment_file = path / "environment.json"
        self.metrics_file = path / "metrics.jsonl"
        self.result_file = path / "result.json"
        self.summary_file = path / "summary.txt"
        self.model_dir = path / MODEL_FOLDER
        self.checkpoint_dir = path / CHECKPOINT_FOLDER
        self.plots_dir = path / "plots"
        self.config: Mapping[str, object] = dict(config)
        self.environment = environment
        self._last_round: int | None = None
        self._rows_hash, self._rows_hashed = hashlib.sha256(), 0
        self._closing: Result | None = None

    @classmethod
    def create(cls, path: Path | str, *, config: Mapping[str, object], environment: Environment) -> RunFolder:
        """Create a run folder at ``path``, with its parents and settings, or in a folder that is claimed for it.

        Raises:
            ResultsError: it cannot be written.
        """
        path = Path(path)
        run = cls(path, config=config, environment=environment)
        try:
            path.mkdir(parents=True, exist_ok=True)
            _write_json(run.environment_file, run.environment)
            _write_json(run.config_file, run.config)
            replace_file(run.metrics_file, b"")
        except OSError as error:
            raise ResultsError(f"{path}: cannot be written ({error.strerror or error})") from error
        return run

    @classmethod
    def open(cls, path: Path | str) -> RunFolder:
        """Read a run folder, finished or not.

        Raises:
            ResultsError: the folder does not exist, is not a run folder, or has a corrupt file.
        """
        path = Path(path)
        check_is_folder(path)
        if not (path / "config.json").is_file():
            raise ResultsError(f"{path}: is not a run folder (it has no config.json)")
        environment = cast("Environment", _read_json(path / "environment.json"))
        run = cls(path, config=_read_tree(path / "config.json"), environment=environment)
        rows, _ = _read_rows(run.metrics_file)
        run._last_round = round_of(rows[-1]) if rows else None
        return run

    @property
    def held_out_users(self) -> dict[str, list[float]] | None:
        """Return the sums of the last evaluation by held-out user; None of an unfinished or older run."""
        path = self.path / _HELD_OUT_USERS
        return _Sums(path, _read_json(path)) if path.exists() else None

    def write_held_out_users(self, sums: Mapping[str, object]) -> None:
        """Write the sums of the last evaluation by held-out user, for the owner alone."""
        with owner_only():
            _write_json(self.path / _HELD_OUT_USERS, sums)

    @property
    def last_round(self) -> int | None:
        """Return the last round in the metrics; None before the first row (0 is the initial model)."""
        return self._last_round

    @property
    def truncated_tail(self) -> str | None:
        """Return the location of an incomplete last line of the metrics (the run was killed), or None."""
        return _read_rows(self.metrics_file)[1]

    def setting(self, name: str) -> Any:
        """Return the run's setting ``name``, from the result or else the config; None if both lack it.

        The result comes first, because a setting may be calibrated (``noise_multiplier`` by a target ε). Of several
        keys of that name in one file, the one nearest to the root counts, but none of another run that is named.
        """
        for tree in (self.result or {}, self.config):
            value = _nearest(tree, name)
            if value is not None:
                return value
        return None

    @property
    def result(self) -> Result | None:
        """Return the result of :meth:`finish`; None for an unfinished run."""
        if self._closing is not None:
            return self._closing
        if not self.result_file.exists():
            return None
        return cast("Result", _with_epsilons(_read_tree(self.result_file), self.result_file))

    def section(self, *names: str) -> Mapping[str, object]:
        """Return a section of config.json, such as that of ``"run", "model"``; empty if it is not there."""
        tree = self.config
        for name in names:
            value = tree.get(name)
            tree = value if isinstance(value, Mapping) else {}
        return tree

    @property
    def fingerprint(self) -> str | None:
        """Return the fingerprint of the run's corpus; None if it has none, as the run of a Flower app."""
        value = self.section("corpus").get("fingerprint")
        return None if value is None else str(value)

    @property
    def of_a_sweep(self) -> bool:
        """Whether the run is one of a sweep, and still in its folder."""
        return (self.path.absolute().parent.parent / SWEEP_FILE).is_file()

    @property
    def finished(self) -> bool:
        """Return whether the run has ended for good; an interrupted run can be resumed, a diverged one cannot."""
        result = self.result
        return result is not None and result.get("stopped") != INTERRUPTED

    @property
    def closing(self) -> bool:
        """Return whether this object is in :meth:`finish`, so that its result is ahead of the file."""
        return self._closing is not None

    @property
    def diverged(self) -> bool:
        """Return whether the run ended because its model was no longer finite."""
        return (self.result or {}).get("stopped") == DIVERGED

    def append_metrics(self, row: Row) -> None:
        """Append one round's row and sync it to disk; ``row["round"]`` increases (0 is the initial model).

        Raises:
            ResultsError: ``round`` is missing, not an integer, or not above the last; or a value is not JSON.
        """
        number: Any = row.get("round")
        lowest = 0 if self._last_round is None else self._last_round + 1
        if not _is_round(number) or number < lowest:
            raise ResultsError(f"{self.metrics_file}: round is {number!r}; allowed: an integer of at least {lowest}")
        line = _dump(row, self.metrics_file)
        if not _ends_with_newline(self.metrics_file):  # an incomplete line of a killed run would absorb this one
            self._rewrite(_read_rows(self.metrics_file)[0])
        with naming(self.metrics_file), self.metrics_file.open("ab") as file:
            file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._last_round = int(number)

    def metrics(self) -> pd.DataFrame:
        """Return one row per round, in order, without an incomplete last line (:attr:`truncated_tail`).

        Raises:
            ResultsError: a line before the last is corrupt, or rounds do not increase.
        """
        import pandas as pd

        rows, _ = _read_rows(self.metrics_file)
        return pd.DataFrame(rows) if rows else pd.DataFrame({"round": pd.Series(dtype="int64")})

    def measured(self, metric: str) -> list[float]:
        """Return a metric of every round in which it was measured, in order; NaN where it was not finite."""
        return list(self.measured_by_round(metric).values())

    def measured_by_round(self, metric: str) -> dict[int, float]:
        """Return a metric by the rounds in which it was measured, in order; NaN where it was not finite.

        Raises:
            ResultsError: a value is no number.
        """
        found = {round_of(row): row.get(metric) for row in _read_rows(self.metrics_file)[0]}
        for number, value in found.items():
            if value is not None and not _is_number(value):
                kind = type(value).__name__
                raise ResultsError(
                    f"{self.metrics_file}: is corrupt ({metric} of round {number} is a {kind}; allowed: a number)"
                )
        return {number: float(cast("float", value)) for number, value in found.items() if value is not None}

    def truncate_metrics(self, after_round: int) -> None:
        """Remove the rows after round ``after_round``, which a resumed run computes again."""
        rows, _ = _read_rows(self.metrics_file)
        self._rewrite([row for row in rows if round_of(row) <= after_round])

    def head(self) -> FolderHead:
        """Return the hashes of settings and metrics; a checkpoint stores them for :meth:`check_head`."""
        with self.metrics_file.open("rb") as file:  # the rows since the last head: all of them again cost a long run
            file.seek(self._rows_hashed)
            rows = file.read()
        self._rows_hash.update(rows)
        self._rows_hashed += len(rows)
        settings = _digest(self.config_file.read_bytes())
        return {"config": settings, "metrics": self._rows_hash.hexdigest(), "metrics_bytes": self._rows_hashed}

    def check_head(self, head: Mapping[str, object], *, rows: bool = True) -> None:
        """Check that the settings and, with ``rows``, the metrics that ``head`` covers are unchanged.

        Raises:
            ResultsError: a file was changed or truncated; names it.
        """
        size = head.get("metrics_bytes")
        covered = self.metrics_file.read_bytes()[: size if isinstance(size, int) else 0]
        contents = [("config", self.config_file, self.config_file.read_bytes())]
        contents += [("metrics", self.metrics_file, covered)] if rows else []
        for name, file, content in contents:
            if _digest(content) != head.get(name):
                raise ResultsError(f"{file}: was changed after the run's last checkpoint; the run cannot go on from it")

    def finish(self, result: Mapping[str, object], present: Callable[[RunFolder], None] | None = None) -> None:
        """Finish the run: write the files of ``present``, which can read ``result`` already, and result.json last.

        A resumed run calls it again, as does a run that was killed in this method.
        """
        content = _dump({"format": RESULT_FORMAT, **result}, self.result_file, indent=2) + b"\n"
        self._closing = decode(json.loads(content))
        try:
            if present is not None:
                present(self)
            replace_file(self.result_file, content)
        finally:
            self._closing = None

    def _rewrite(self, rows: Sequence[Row]) -> None:
        replace_file(self.metrics_file, b"".join(_dump(row, self.metrics_file) + b"\n" for row in rows))
        self._last_round = round_of(rows[-1]) if rows else None
        self._rows_hash, self._rows_hashed = hashlib.sha256(), 0


def rows_of(run: Path, last_round: int) -> list[Row]:
    """Return the metrics of a run up to round ``last_round`` as its observers saw them, a row each."""
    return [row for row in _read_rows(run / "metrics.jsonl")[0] if round_of(row) <= last_round]


def check_is_folder(path: Path) -> None:
    """Check that ``path`` is a folder, else raise ResultsError."""
    if not path.is_dir():
        raise ResultsError(f"{path}: {'is not a folder' if path.exists() else 'there is no such folder'}")


def check_free(path: Path) -> None:
    """Check that ``path`` is free for a new run; raise ResultsError if it has content, or cannot be a folder."""
    try:
        used = path.is_dir() and any(path.iterdir())
    except OSError as error:
        raise ResultsError(f"{path}: cannot be written ({error.strerror or error})") from error
    if used:
        raise ResultsError(f"{path}: exists and is not empty; choose another folder, or remove it")


def default_run_path(
    base: Path | str = "runs",
    *,
    strategy: str,
    seed: int | None,
    now: datetime | None = None,
    taken: Set[Path] = frozenset(),
) -> Path:
    """Return a free path: ``runs/20261120-183355-uedp-seed0``, or ``…-2``, ``…-3`` if it is there, or ``taken``."""
    stamp = (now or datetime.now()).strftime("%Y%m%d-%H%M%S")
    name = re.sub(r"[^\w.-]+", "-", strategy)  # it may be an import path
    first = Path(base) / (f"{stamp}-{name}" if seed is None else f"{stamp}-{name}-seed{seed}")
    path, number = first, 1
    while path in taken or path.exists():
        number += 1
        path = first.with_name(f"{first.name}-{number}")
    return path


def numbers_of(row: Mapping[str, object]) -> dict[str, float]:
    """Return the figures of a row of the metrics, or of a result, that are numbers."""
    return {name: float(value) for name, value in row.items() if _is_number(value)}


def encode(value: Any) -> Any:
    """Return ``value`` as strict JSON values: inf and nan as strings, numpy scalars and paths as plain values.

    A dataclass is an object of its fields.

    Raises:
        TypeError: for a value other than text, number, None, mapping, sequence or dataclass.
    """
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        return number if math.isfinite(number) else repr(number)
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [encode(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in fields(value)}
    raise TypeError(f"cannot store a {type(value).__name__}")


def decode(value: Any) -> Any:
    """Return the inverse of :func:`encode`: the strings "inf", "-inf" and "nan" become floats, at any depth."""
    if isinstance(value, str):
        return _SPECIAL_FLOATS.get(value, value)
    if isinstance(value, dict):
        return {key: decode(item) for key, item in value.items()}
    if isinstance(value, list):
        return [decode(item) for item in value]
    return value


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


_OF_OTHERS = ("origin",)
"""What a run records of others: the search that its settings come from."""


def _nearest(tree: Mapping[str, object], name: str) -> object:
    """Return the value of the shallowest key ``name`` that is not None, in nested mappings."""
    level: list[Mapping[str, object]] = [tree]
    while level:
        for section in level:
            if section.get(name) is not None:
                return section[name]
        level = [
            value
            for section in level
            for key, value in section.items()
            if isinstance(value, Mapping) and key not in _OF_OTHERS
        ]
    return None


def _dump(value: Mapping[str, object], path: Path, indent: int | None = None) -> bytes:
    try:
        return json.dumps(encode(value), ensure_ascii=False, allow_nan=False, indent=indent).encode()
    except TypeError as error:
        raise ResultsError(f"{path}: {error}") from error


def _write_json(path: Path, value: Mapping[str, object]) -> None:
    replace_file(path, _dump(value, path, indent=2) + b"\n")


def _read_json(path: Path) -> dict[str, object]:
    try:
        return {name: decode(value) for name, value in json_object(read_bytes(path)).items()}
    except FileNotFoundError as error:
        raise ResultsError(f"{path}: is missing; the run folder is incomplete") from error
    except json.JSONDecodeError as error:
        raise ResultsError(f"{path}, line {error.lineno}: is corrupt ({error.msg})") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, or numbers or nesting beyond Python's limits
        raise ResultsError(f"{path}: is corrupt (a JSON object in UTF-8 is expected)") from error


class _Sums(dict[str, list[float]]):
    """Sums by user, of equal lengths; one that the file lacks is an error in one line."""

    def __init__(self, path: Path, values: Mapping[str, object]) -> None:
        columns = {k: v for k, v in values.items() if isinstance(v, list) and all(map(_is_number, v))}
        super().__init__(columns)
        self._path = path
        if len(columns) != len(values) or len(set(map(len, columns.values()))) != 1:
            raise ResultsError(f"{path}: is corrupt (lists of numbers, one a user, are expected)")

    def __missing__(self, name: str) -> list[float]:
        raise ResultsError(f"{self._path}: is corrupt (it has no {name})")


def _read_tree(path: Path) -> dict[str, object]:
    """Return what config.json or result.json has; ResultsError names a value of another kind than readers take it for.

    None in the place of an object or a list is as good as nothing.
    """
    values = _read_json(path)
    for name, (kind, words) in _KINDS.items():
        value = values.get(name)
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise ResultsError(f"{path}: is corrupt ({name} is a {type(value).__name__}; allowed: {words})")
    return {name: value for name, value in values.items() if value is not None or name not in _KINDS}


_OBJECTS = (
    "run", "plan", "corpus", "gradients", "failed_nodes", "held_out", "attacker", "ledger", "model_files", "reach",
    "reach_coverage", "guarantee", "kept", "initial_model", "measured",
)  # fmt: skip
_KINDS: dict[str, tuple[type, str]] = {
    **dict.fromkeys(_OBJECTS, (dict, "an object")),
    "warnings": (list, "a list"),
    "stopped": (str, "a text"),
    "user_sentences": (Real, "a number"),
}
"""The values of config.json and result.json that are read as more than a figure, and what each is."""


def _with_epsilons(values: Values, where: Path | str) -> Values:
    """Return ``values`` if every ε in them is a number or None; else raise ResultsError."""
    for name, value in values.items():
        if name.startswith("epsilon") and value is not None and not _is_number(value):
            raise ResultsError(f"{where}: is corrupt ({name} is a {type(value).__name__}; allowed: a number)")
    return values


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, bool)


def _read_rows(path: Path) -> tuple[list[Row], str | None]:
    """Return the rows of a metrics file, and the location of an incomplete last line or None."""
    try:
        lines = read_bytes(path, MOST_LOG_BYTES).split(b"\n")
    except FileNotFoundError as error:
        raise ResultsError(f"{path}: is missing; the run folder is incomplete") from error
    tail = lines.pop()  # empty if the last write was complete: it ends with a newline
    rows: list[Row] = []
    for number, line in enumerate(lines, start=1):
        rows.append(_parse_row(line, path, number, rows))
    if not tail:
        return rows, None
    try:
        rows.append(_parse_row(tail, path, len(lines) + 1, rows))
    except ResultsError:
        return rows, f"{path}, line {len(lines) + 1}: cut off (the run was killed while writing it); left out"
    return rows, None


def _parse_row(line: bytes, path: Path, number: int, earlier: Sequence[Row]) -> Row:
    try:
        row: Row = decode(json_object(line))
    except (ValueError, RecursionError) as error:
        raise ResultsError(f"{path}, line {number}: is corrupt (no JSON object)") from error
    if not _is_round(row.get("round")):
        raise ResultsError(f"{path}, line {number}: is corrupt (no object with an integer 'round')")
    if earlier and round_of(row) <= (before := round_of(earlier[-1])):
        raise ResultsError(f"{path}, line {number}: is corrupt (round {row['round']} after round {before})")
    return _with_epsilons(row, f"{path}, line {number}")


def round_of(row: Row) -> int:
    """Return the round of a row."""
    return cast("int", row["round"])


def _is_round(value: Any) -> TypeGuard[int]:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


@dataclass(frozen=True, slots=True)
class Utility:
    """The utility metric of a task.

    Attributes:
        column: its key in a metrics row and in the result (``initial_<column>`` for the starting model).
        reference: key in the result of the utility without a model.
        reference_words: name of that reference in texts.
    """

    column: str
    words: str
    reference: str
    reference_words: str
    form: str

    def show(self, value: float) -> str:
        """Return a value as text: "not finite" for the figure of a model that has diverged."""
        return nonzero(value, self.form) if math.isfinite(value) else "not finite"


UTILITIES = {
    "next-word": Utility("perplexity", "held-out perplexity", "unigram_perplexity", "a unigram model", ",.1f"),
    "classification": Utility("error", "held-out error", "majority_error", "always the most frequent class", ".1%"),
}


def utility_of(run: RunFolder) -> Utility:
    """Return the utility metric of a run; that of next-word prediction if the run names no task."""
    return UTILITIES.get(str(run.setting("task")), UTILITIES["next-word"])


def listed(runs: Sequence[T]) -> list[T]:
    """Return runs as a list; a single one is refused, because a text would be read letter by letter.

    Raises:
        ResultsError: they are no list.
    """
    if isinstance(runs, str) or not isinstance(runs, Sequence):
        raise ResultsError(f"runs is {runs!r:.100}; allowed: a list of runs")
    return list(runs)


def path_of(run: object) -> Path:
    """Return the path of a run that is open, or given as the path of its folder.

    Raises:
        ResultsError: it is neither.
    """
    path = getattr(run, "path", run)
    if not isinstance(path, str | Path):
        raise ResultsError(f"run is {run!r:.100}; allowed: an open run, or the path of its folder")
    return Path(path)
