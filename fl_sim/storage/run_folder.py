"""The run folder: all that one run leaves behind, written so that a killed run loses at most its last line.

    config.json        what was asked for
    environment.json   what it ran on: commit, versions, machine (fl_sim.storage.environment)
    metrics.jsonl      one row per round, appended as the run goes
    ledger.jsonl       what was released, a line before every release; ledger.head.json (fl_sim.strategies.ledger)
    metrics.parquet    the same rows, written at the end
    result.json        final figures, why the run stopped, what ε assumes, warnings
    summary.txt        the same for people (fl_sim.reporting.report)
    plots/*.png        ε against training steps, utility against ε (fl_sim.reporting.plots)
    model/             the trained model
    checkpoint/        what a resumed run needs

Files are replaced whole (written beside, synced, renamed); metrics.jsonl and ledger.jsonl alone are appended, a
synced line a round.

A metrics row has ``round`` (0 is the initial model), ``releases`` (how many the rounds so far took),
the task's held-out figures (``perplexity`` per token, ``perplexity_per_word`` and ``loss`` in nats per token, or
``error`` and ``loss``; fl_sim.experiments.evaluation), ε of these releases as ``epsilon_user`` (at the corpus's largest
n'), ``epsilon_user_unbounded`` (n' = ∞) and, for a user and an entity of ``reach`` median, p95 or max,
``epsilon_user_entity_<reach>`` and ``epsilon_user_entity_robust_<reach>``; and what the round did:
``cohort_users``, ``cohort_sentences``, ``clipped_fraction``, ``train_loss``, ``update_norm``, ``noise_norm``,
``failed_nodes``, ``nonfinite``, ``seconds``; ``clip_norm`` where the clip adapts. Without noise every ε is inf. A run
of ``published`` also has ``epsilon_as_published``: its paper's claim, which is never shown without the proven ones.

result.json has ``stopped`` ("rounds", "epsilon_budget" or "interrupted"), ``plan`` (the fields of
``fl_sim.strategies.mechanism.PrivacyPlan.record``), ``corpus`` (``name``, ``users``, ``sentences``),
``user_sentences`` (n'),
``releases`` and ``ledger`` (all releases, of which ε is stated, and the last hash of the ledger), ``model_files``
(the checksum of each file of the model), ``reach``
(median, p95 and max, each with the fields of ``fl_sim.strategies.accounting.adjacency.ContributionBound``), ``task``,
the held-out figures at the end and
(``initial_…``) at the start with ``unigram_perplexity`` or ``majority_error`` as a reference, and ``warnings`` (a list
of texts). Readers do without what is missing.

JSON has no infinity, and null would make "no guarantee" look like "unknown". So the floats inf, -inf and
nan are stored as the strings "inf", "-inf" and "nan", and come back from this module as floats. ``None`` is
null.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeGuard

import pandas as pd

RESULT_FORMAT = 1
"""Version of result.json and of the metric names; raised when a reader of an older folder would be misled."""

MODEL_FOLDER = "model"
"""Where a run keeps its model."""

_SPECIAL_FLOATS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


class ResultsError(ValueError):
    """A run folder that cannot be made, read or plotted; the message is one line that names the file."""


class RunFolder:
    """One run on disk, by :meth:`create` (a new run) or :meth:`open` (resume, report, plot). One writer."""

    def __init__(self, path: Path, *, config: Mapping[str, Any], environment: Mapping[str, Any]) -> None:
        self.path = path
        self.config = dict(config)
        self.environment = dict(environment)
        self._last_round: int | None = None
        self._closing: dict[str, Any] | None = None

    @classmethod
    def create(cls, path: Path | str, *, config: Mapping[str, Any], environment: Mapping[str, Any]) -> RunFolder:
        """Start a run folder at ``path``; parents are made, an empty folder may exist already.

        Raises:
            ResultsError: the folder exists with something in it, ``path`` is a file, or it cannot be written.
        """
        path = Path(path)
        run = cls(path, config=config, environment=environment)
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise ResultsError(f"{path}: exists and is not empty; choose another folder, or remove it")
            _write_json(run.environment_file, run.environment)
            _write_json(run.config_file, run.config)
            replace_file(run.metrics_file, b"")
        except FileExistsError as error:
            raise ResultsError(f"{path}: is a file; a run needs a folder") from error
        except OSError as error:
            raise ResultsError(f"{path}: cannot be written ({error.strerror or error})") from error
        return run

    @classmethod
    def open(cls, path: Path | str) -> RunFolder:
        """Read a run folder, finished or not.

        Raises:
            ResultsError: there is no such folder, it is not a run folder, or one of its files is corrupt.
        """
        path = Path(path)
        if not path.is_dir():
            raise ResultsError(f"{path}: {'is not a folder' if path.exists() else 'there is no such folder'}")
        if not (path / "config.json").is_file():
            raise ResultsError(f"{path}: is not a run folder (it has no config.json)")
        run = cls(path, config=_read_json(path / "config.json"), environment=_read_json(path / "environment.json"))
        rows, _ = _read_rows(run.metrics_file)
        run._last_round = rows[-1]["round"] if rows else None
        return run

    @property
    def config_file(self) -> Path:
        return self.path / "config.json"

    @property
    def environment_file(self) -> Path:
        return self.path / "environment.json"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def metrics_parquet(self) -> Path:
        return self.path / "metrics.parquet"

    @property
    def result_file(self) -> Path:
        return self.path / "result.json"

    @property
    def summary_file(self) -> Path:
        return self.path / "summary.txt"

    @property
    def model_dir(self) -> Path:
        return self.path / MODEL_FOLDER

    @property
    def checkpoint_dir(self) -> Path:
        return self.path / "checkpoint"

    @property
    def plots_dir(self) -> Path:
        return self.path / "plots"

    @property
    def last_round(self) -> int | None:
        """The last round in the metrics; None before the first row (0 is the initial model)."""
        return self._last_round

    @property
    def truncated_tail(self) -> str | None:
        """Where the last line of the metrics is half written (the run was killed); None if it is whole."""
        return _read_rows(self.metrics_file)[1]

    def setting(self, name: str) -> Any:
        """What the run used for ``name``, from the result or else the config; None if in neither.

        The result comes first, because a setting may be solved for (``noise_multiplier`` by a target ε). Of
        several keys of that name in one file, the one nearest to the root counts.
        """
        for tree in (self.result or {}, self.config):
            value = _nearest(tree, name)
            if value is not None:
                return value
        return None

    @property
    def result(self) -> dict[str, Any] | None:
        """What :meth:`finish` was given; None for a run that has not finished."""
        if self._closing is not None:
            return self._closing
        return _read_json(self.result_file) if self.result_file.exists() else None

    def append_metrics(self, row: Mapping[str, float | int | str | None]) -> None:
        """Add one round's row and sync it to disk. ``row["round"]`` rises (0 is the initial model).

        Raises:
            ResultsError: ``round`` is missing, no integer, or not above the last; or a value is no JSON.
        """
        number: Any = row.get("round")
        lowest = 0 if self._last_round is None else self._last_round + 1
        if not _is_round(number) or number < lowest:
            raise ResultsError(f"{self.metrics_file}: round is {number!r}; allowed: an integer of at least {lowest}")
        line = _dump(row, self.metrics_file)
        if not _ends_with_newline(self.metrics_file):  # a killed run's half line must not swallow this one
            self._rewrite(_read_rows(self.metrics_file)[0])
        with self.metrics_file.open("ab") as file:
            file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._last_round = int(number)

    def metrics(self) -> pd.DataFrame:
        """One row per round, in order; a half-written last line is left out (:attr:`truncated_tail` tells).

        Raises:
            ResultsError: a line before the last is corrupt, or rounds do not rise.
        """
        rows, _ = _read_rows(self.metrics_file)
        return pd.DataFrame(rows) if rows else pd.DataFrame({"round": pd.Series(dtype="int64")})

    def truncate_metrics(self, after_round: int) -> None:
        """Drop the rows of rounds later than ``after_round``: those that a resumed run will do again."""
        rows, _ = _read_rows(self.metrics_file)
        self._rewrite([row for row in rows if row["round"] <= after_round])

    def head(self) -> dict[str, Any]:
        """What the settings and the rounds' rows are by now; a checkpoint keeps it for :meth:`check_head`."""
        rows = self.metrics_file.read_bytes()
        settings = self.config_file.read_bytes()
        return {"config": _digest(settings), "metrics": _digest(rows), "metrics_bytes": len(rows)}

    def check_head(self, head: Mapping[str, Any]) -> None:
        """Check that the settings, and the rows that stood when ``seal`` was made, are the same today.

        Raises:
            ResultsError: a file was changed or cut; it is named.
        """
        size = head.get("metrics_bytes")
        rows = self.metrics_file.read_bytes()[: size if isinstance(size, int) else 0]
        for name, file, content in (
            ("config", self.config_file, self.config_file.read_bytes()),
            ("metrics", self.metrics_file, rows),
        ):
            if _digest(content) != head.get(name):
                raise ResultsError(f"{file}: was changed after the run's last checkpoint; the run cannot go on from it")

    def finish(self, result: Mapping[str, Any], present: Callable[[RunFolder], None] | None = None) -> None:
        """Close the run: metrics.parquet, what ``present`` writes, and last of all result.json: now it is finished.

        A resumed run calls it again, and so does one that was killed in here.

        Args:
            result: the content of result.json.
            present: writes what a reader gets besides (`fl_sim.reporting.presentation`); it sees ``result`` already.
        """
        self._closing = {"format": RESULT_FORMAT, **result}
        content = _dump(self._closing, self.result_file, indent=2) + b"\n"
        self._closing = decode(json.loads(content))
        try:
            buffer = io.BytesIO()
            self.metrics().to_parquet(buffer, index=False)
            replace_file(self.metrics_parquet, buffer.getvalue())
            if present is not None:
                present(self)
            replace_file(self.result_file, content)
        finally:
            self._closing = None

    def _rewrite(self, rows: Sequence[Mapping[str, Any]]) -> None:
        replace_file(self.metrics_file, b"".join(_dump(row, self.metrics_file) + b"\n" for row in rows))
        self._last_round = rows[-1]["round"] if rows else None


def default_run_path(base: Path | str = "runs", *, strategy: str, seed: int, now: datetime | None = None) -> Path:
    """A free path under ``base``: ``runs/20261120-183355-uedp-seed0``; if that is taken ``…-2``, ``…-3``."""
    stamp = (now or datetime.now()).strftime("%Y%m%d-%H%M%S")
    name = re.sub(r"[^\w.-]+", "-", strategy)  # it may be an import path
    first = Path(base) / f"{stamp}-{name}-seed{seed}"
    path, number = first, 1
    while path.exists():
        number += 1
        path = first.with_name(f"{first.name}-{number}")
    return path


def replace_file(path: Path, content: bytes) -> None:
    """Put ``content`` at ``path``: a reader, or a crash, finds the old file or the new, nothing between."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def encode(value: Any) -> Any:
    """``value`` as strict JSON can hold it: inf and nan as strings, numpy scalars and paths as plain ones.

    Raises:
        TypeError: for anything that is no text, number, None, mapping or sequence.
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
    raise TypeError(f"cannot store a {type(value).__name__}")


def decode(value: Any) -> Any:
    """The inverse of :func:`encode`: the strings "inf", "-inf" and "nan" are floats again, at any depth."""
    if isinstance(value, str):
        return _SPECIAL_FLOATS.get(value, value)
    if isinstance(value, dict):
        return {key: decode(item) for key, item in value.items()}
    if isinstance(value, list):
        return [decode(item) for item in value]
    return value


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _nearest(tree: Mapping[str, Any], name: str) -> Any:
    """The value of the shallowest key ``name`` that is not None, in nested mappings."""
    level: list[Mapping[str, Any]] = [tree]
    while level:
        for section in level:
            if section.get(name) is not None:
                return section[name]
        level = [value for section in level for value in section.values() if isinstance(value, Mapping)]
    return None


def _dump(value: Mapping[str, Any], path: Path, indent: int | None = None) -> bytes:
    try:
        return json.dumps(encode(value), ensure_ascii=False, allow_nan=False, indent=indent).encode()
    except TypeError as error:
        raise ResultsError(f"{path}: {error}") from error


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    replace_file(path, _dump(value, path, indent=2) + b"\n")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = decode(json.loads(path.read_bytes()))
    except FileNotFoundError as error:
        raise ResultsError(f"{path}: is missing; the run folder is incomplete") from error
    except json.JSONDecodeError as error:
        raise ResultsError(f"{path}, line {error.lineno}: is corrupt ({error.msg})") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, or numbers or nesting that no JSON of ours has
        raise ResultsError(f"{path}: is corrupt (not UTF-8, or no JSON of a run)") from error
    if not isinstance(value, dict):
        raise ResultsError(f"{path}: is corrupt (a JSON object is expected)")
    return value


def _read_rows(path: Path) -> tuple[list[dict[str, Any]], str | None]:
    """The rows of a metrics file, and what is wrong with its last line if only that one is unreadable."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError as error:
        raise ResultsError(f"{path}: is missing; the run folder is incomplete") from error
    tail = lines.pop()  # empty when the file ends as every complete write ends, with a newline
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        rows.append(_parse_row(line, path, number, rows))
    if not tail:
        return rows, None
    try:
        rows.append(_parse_row(tail, path, len(lines) + 1, rows))
    except ResultsError:
        return rows, f"{path}, line {len(lines) + 1}: cut off (the run was killed while writing it); left out"
    return rows, None


def _parse_row(line: bytes, path: Path, number: int, earlier: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    try:
        row = decode(json.loads(line))
    except (ValueError, RecursionError) as error:  # no JSON, or no UTF-8
        raise ResultsError(f"{path}, line {number}: is corrupt (no JSON object)") from error
    if not isinstance(row, dict) or not _is_round(row.get("round")):
        raise ResultsError(f"{path}, line {number}: is corrupt (no object with an integer 'round')")
    if earlier and row["round"] <= earlier[-1]["round"]:
        before = earlier[-1]["round"]
        raise ResultsError(f"{path}, line {number}: is corrupt (round {row['round']} after round {before})")
    return row


def _is_round(value: Any) -> TypeGuard[int]:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _sync_folder(folder: Path) -> None:
    """Make a rename in ``folder`` survive a power cut; Windows cannot open folders and needs no such step."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
