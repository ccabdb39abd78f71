"""Trackers: observers that send a run's figures to CSV, TensorBoard, Weights & Biases or MLflow.

A tracker works through a queue in a thread of its own, so that a run never waits for it. First where trackers write,
and what they note for a resumed run (``trackers.json`` in its folder); then the names and values that they send; then
the four trackers. Nothing leaves this machine unless its user has chosen so.

An ε that holds for any user (with any entity) is under ``epsilon/``. Everything else of a round is under ``private/``:
losses, held-out metrics, counts, times, and ε at percentiles that are read off the corpus. No ε covers those.

A tracker gets the row of a round once the round has a checkpoint. So no round that a resumed run does again was sent
before, and a resumed run first sends what its tracker lacks of the rounds before the checkpoint.

MLflow 3 refuses its older store of plain files, so the database is SQLite's.

>>> import tempfile
>>> from fl_sim.config import RunConfig
>>> with tempfile.TemporaryDirectory() as folder:
...     start = RunStart(Path(folder), RunConfig(), 2, None, ())
...     Place.of(start, "mlflow").note(run_id="0a1b")
...     Place.of(start, "mlflow").noted, Place.of(start, "mlflow").is_new, Place.of(start, "csv").is_new
({'run_id': '0a1b'}, False, True)

>>> figures({"round": 3, "epsilon_any": 1.5, "epsilon_user_entity_p95": 1.2, "loss": 4.0, "note": "text"})
{'epsilon/any_user_and_any_entity': 1.5, 'private/epsilon_user_entity_p95': 1.2, 'private/loss': 4.0}

>>> from pathlib import Path
>>> class Printed(Tracker):
...     def begin(self, start, place, rows): print("begins after", [row["round"] for row in rows])
...     def send(self, row): print("round", row["round"])
...     def finish(self, result): print(result["stopped"])
>>> with tempfile.TemporaryDirectory() as folder:
...     tracker = Printed()
...     tracker.on_start(RunStart(Path(folder), RunConfig(), 2, None, (), checkpoint_every=2))
...     for number in range(3):
...         tracker.on_round({"round": number})
...     tracker.on_end({"stopped": "rounds"})
begins after []
round 0
round 1
round 2
rounds

>>> with tempfile.TemporaryDirectory() as folder:
...     table = Table(Path(folder) / "rounds.csv")
...     table.add({"round": 0, "private/loss": 5.5})
...     table.add({"round": 1, "private/loss": 5.25, "epsilon/any_user": 0.5})
...     print(table.path.read_text(), end="")
round,private/loss,epsilon/any_user
0,5.5,
1,5.25,0.5
"""

from __future__ import annotations

import csv
import importlib
import io
import json
import logging
import os
import queue
import secrets
import shutil
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from numbers import Real
from pathlib import Path, PurePath
from typing import Any

from fl_sim.config import RunConfig
from fl_sim.experiments.observers import Observer, RunStart, mlflow_uri, wandb_mode
from fl_sim.storage.run_folder import DIVERGED, INTERRUPTED, ResultsError, replace_file, rows_of
from fl_sim.strategies.accounting.paper_model import AS_PUBLISHED

NOTES_FILE = "trackers.json"

_lock = threading.Lock()  # the trackers of a run note things in threads of their own


@dataclass(frozen=True)
class Place:
    """Where one tracker of one run writes.

    Attributes:
        run: the run's folder.
        tracker: name of the tracker.
        folder: for its files.
        noted: what it noted when the run began; None of a run that it has not tracked yet.
    """

    run: Path
    tracker: str
    folder: Path
    noted: dict[str, Any] | None

    @classmethod
    def of(cls, start: RunStart, tracker: str) -> Place:
        """Return the place of a tracker; raise ResultsError if what was noted is corrupt."""
        known = _read(start.path)
        base = known.get("folder") or str(_free_folder(start))
        return cls(start.path, tracker, Path(base), known.get(tracker))

    @property
    def is_new(self) -> bool:
        """Return whether the tracker has not begun to track the run."""
        return self.noted is None

    def note(self, **values: Any) -> None:
        """Note values for a resumed run, and the folder."""
        with _lock:
            known = _read(self.run) | {"folder": str(self.folder), self.tracker: values}
            replace_file(self.run / NOTES_FILE, json.dumps(known, indent=2).encode() + b"\n")


def _free_folder(start: RunStart) -> Path:
    """Return the run's own folder, or a new one of its name in ``tracking.folder``."""
    if start.config.tracking.folder is None:
        return start.path
    first = path = Path(start.config.tracking.folder) / start.path.name
    number = 1
    while path.exists():
        number += 1
        path = first.with_name(f"{first.name}-{number}")
    return path


def _read(run: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((run / NOTES_FILE).read_bytes()))
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError) as error:
        raise ResultsError(f"{run / NOTES_FILE}: is corrupt (no JSON object)") from error


_NAMES = {
    "epsilon_any": "epsilon/any_user_and_any_entity",
    "epsilon_any_robust": "epsilon/any_user_and_any_entity_missed_by_the_tagger",
    "epsilon_stated": "epsilon/any_user_and_an_entity_within_the_stated_bound",
    "epsilon_stated_robust": "epsilon/any_user_and_an_entity_within_the_stated_bound_missed_by_the_tagger",
    "epsilon_user": "epsilon/any_user",
    "epsilon_user_unbounded": "epsilon/any_user_without_a_bound",
    AS_PUBLISHED: "claimed/epsilon_as_published_is_no_guarantee",
    "releases": "releases",
}
"""Names of what a run guarantees, of what a paper claims, and of the number of releases; the others are private."""

_NOT_FIGURES = ("round",)
_NOT_SENT = ("out", "anchor", "observers", "tracking", "origin")


def figures(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a round by the names that trackers see; text and what was not measured is left out."""
    numbers = {name: value for name, value in row.items() if isinstance(value, Real) and name not in _NOT_FIGURES}
    return {_NAMES.get(name, f"private/{name}"): float(value) for name, value in numbers.items()}


def settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings that trackers see by their full names: folders without their parents, no file of the run.

    >>> settings(RunConfig.from_mapping({"corpus.path": "/home/ada/notes"}))["corpus.path"]
    'notes'
    """
    tree = {name: value for name, value in config.model_dump(mode="json").items() if name not in _NOT_SENT}
    return dict(_leaves(tree, ""))


def _leaves(tree: Mapping[str, Any], section: str) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{section}{name}.")
        elif value is not None:
            yield f"{section}{name}", _without_parents(value)


def _without_parents(value: Any) -> Any:
    return PurePath(value).name if isinstance(value, str) and PurePath(value).is_absolute() else value


Row = Mapping[str, Any]

_at_work: dict[tuple[Path, str], Tracker] = {}
"""The trackers of this process whose runs have not ended, by the run's folder and the tracker's name."""


class Tracker(Observer):
    """An observer whose calls are made in order by a thread of its own.

    An exception in the thread is raised by the next call from the run, which then leaves the tracker out.
    """

    name = ""
    """By which a configuration names the tracker."""

    package = ""
    """What the tracker imports, before its thread starts: of two threads that import parts of a package at once, one
    may see a module that is not yet complete."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], None], Future[None]] | None] = queue.SimpleQueue()
        self._pending: list[Future[None]] = []
        self._held: list[Row] = []
        self._every, self._last = 1, 0
        self._timeout = 0.0

    @abstractmethod
    def begin(self, start: RunStart, place: Place, rows: Sequence[Row]) -> None:
        """Begin to track a run, or go on with it.

        Args:
            start: what observers learn of the run.
            place: where the tracker writes, and what it noted when the run began.
            rows: of the rounds before the first that will be sent; the tracker may have some or all of them.
        """

    @abstractmethod
    def send(self, row: Row) -> None:
        """Send the row of a round, which the tracker does not have; round 0 may be sent again by a resumed run."""

    @abstractmethod
    def finish(self, result: Mapping[str, Any]) -> None:
        """End with the content of result.json; a run that was interrupted may go on later."""

    def on_start(self, start: RunStart) -> None:
        """Begin, in the thread."""
        if self.package:
            importlib.import_module(self.package)
        self._every, self._last = start.checkpoint_every, start.rounds
        self._timeout = start.config.tracking.timeout
        self._key = start.path, self.name
        if self._key in _at_work:  # the run has failed in this process, and goes on
            _at_work[self._key]._leave()
        _at_work[self._key] = self
        place = Place.of(start, self.name)
        place.folder.mkdir(parents=True, exist_ok=True)  # here, where files and folders are the owner's alone
        rows = [] if start.last_round is None else rows_of(start.path, start.last_round)
        threading.Thread(target=self._work, name=f"tracker-{self.name}", daemon=True).start()
        self._call(lambda: self.begin(start, place, rows))

    def on_round(self, row: Row) -> None:
        """Send what has a checkpoint, in the thread."""
        self._held.append(row)
        if row["round"] % self._every == 0 or row["round"] >= self._last:
            self._send_held()
        self._raise_errors()

    def on_end(self, result: Mapping[str, Any]) -> None:
        """Send the rest and end; wait for it no longer than ``tracking.timeout``.

        Raises:
            TimeoutError: it takes longer.
        """
        self._send_held()
        self._call(lambda: self.finish(result))
        if not self._leave():
            raise TimeoutError(f"no answer within {self._timeout:g} s")
        self._raise_errors()

    def _leave(self) -> bool:
        """End the thread after its calls; return whether they are done in time."""
        _at_work.pop(self._key, None)
        self._calls.put(None)
        _, waiting = wait(self._pending[-1:], self._timeout)
        return not waiting

    def _send_held(self) -> None:
        """Send the rows that wait for a checkpoint."""
        for row in self._held:
            self._call(partial(self.send, row))
        self._held = []

    def _call(self, function: Callable[[], None]) -> None:
        done: Future[None] = Future()
        self._pending.append(done)
        self._calls.put((function, done))

    def _raise_errors(self) -> None:
        """Raise the first error of calls that are done, and forget those."""
        while self._pending and self._pending[0].done():
            self._pending.pop(0).result()

    def _work(self) -> None:
        """Make the calls until one of them fails."""
        while (call := self._calls.get()) is not None:
            function, done = call
            try:
                function()
            except BaseException as error:  # a tracker's own code may raise anything, SystemExit included
                self._fail(done, error)
                return
            done.set_result(None)

    def _fail(self, done: Future[None], error: BaseException) -> None:
        """Give the error to the call that raised it, and to those that come after."""
        done.set_exception(error)
        while (call := self._calls.get()) is not None:
            call[1].set_exception(error)


ROUNDS_FILE = "rounds.csv"


class Table:
    """A CSV file of rounds; a new column lets it be written again, with empty cells in earlier rows."""

    def __init__(self, path: Path, rows: Sequence[Mapping[str, Any]] = ()) -> None:
        self.path = path
        self._rows = list(rows)
        self._columns = list(dict.fromkeys(name for row in self._rows for name in row))
        if rows:
            self._rewrite()

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a round."""
        new = [name for name in row if name not in self._columns]
        self._rows.append(row)
        if new or not self.path.exists():
            self._columns += new
            self._rewrite()
        else:
            with self.path.open("a", encoding="utf-8", newline="") as file:
                file.write(_lines(self._columns, [row]))

    def _rewrite(self) -> None:
        head = ",".join(self._columns) + "\n"
        replace_file(self.path, (head + _lines(self._columns, self._rows)).encode())


class CSVTracker(Tracker):
    """Write ``rounds.csv`` into the run's folder, or its folder in ``tracking.folder``."""

    name = "csv"

    def begin(self, start: RunStart, place: Place, rows: Sequence[Row]) -> None:
        """Write the file anew with the rounds before a checkpoint."""
        place.note(file=ROUNDS_FILE)
        (place.folder / ROUNDS_FILE).unlink(missing_ok=True)
        self._table = Table(place.folder / ROUNDS_FILE, [_cells(row) for row in rows])

    def send(self, row: Row) -> None:
        """Add the round."""
        self._table.add(_cells(row))

    def finish(self, result: Mapping[str, Any]) -> None:
        """Leave the file as it is."""


def _cells(row: Row) -> dict[str, Any]:
    return {"round": row["round"], **figures(row)}


def _lines(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    csv.DictWriter(text, columns, restval="", lineterminator="\n").writerows(rows)
    return text.getvalue()


class TensorBoardTracker(Tracker):
    """Write scalars by round, and the settings as text, into ``tensorboard/``."""

    name = "tensorboard"
    package = "torch.utils.tensorboard"

    def begin(self, start: RunStart, place: Place, rows: Sequence[Row]) -> None:
        """Open the events; of a resumed run, add a file with the rounds that the others lack."""
        from torch.utils.tensorboard import SummaryWriter

        folder = place.folder / "tensorboard"
        self._written = set() if place.is_new else _written(folder)
        self._writer = SummaryWriter(str(folder))
        if place.is_new:
            table = json.dumps(settings(start.config), indent=2, ensure_ascii=False)
            self._writer.add_text("settings", f"```json\n{table}\n```")
        place.note(folder=str(folder))
        for row in rows:
            self.send(row)

    def send(self, row: Row) -> None:
        """Write the figures of a round that no file has yet, to disk."""
        for name, value in figures(row).items():
            if (name, row["round"]) not in self._written:
                self._writer.add_scalar(name, value, row["round"])
        self._writer.flush()

    def finish(self, result: Mapping[str, Any]) -> None:
        """Close the file."""
        self._writer.close()


def _written(folder: Path) -> set[tuple[str, int]]:
    """Return the figures in the event files of a folder, by name and round; a line that a kill cut off is none."""
    from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={SCALARS: 0}, purge_orphaned_data=False)
    events.Reload()
    return {(name, event.step) for name in events.Tags()[SCALARS] for event in events.Scalars(name)}


_SECOND = 1.0  # wandb names the folder of an offline run by the second
_open: dict[str, Any] = {}  # runs that this process has not finished, by id


class WandbTracker(Tracker):
    """Log figures by round, and the settings; nothing of the machine, the code or the terminal."""

    name = "wandb"
    package = "wandb"

    def begin(self, start: RunStart, place: Place, rows: Sequence[Row]) -> None:
        """Open the run, or go on with the run of the same id.

        The server knows the rounds that it has. An offline run is one file, which ``wandb sync`` sends as a whole: a
        resumed run writes it anew and removes the one before.
        """
        import wandb

        mode = wandb_mode(start.config)
        noted = place.noted or {"id": secrets.token_hex(8)}
        if noted["id"] in _open:  # a run that failed in this process left it
            _open.pop(noted["id"]).finish()
        if noted.get("mode") == mode == "offline":
            shutil.rmtree(Path(noted["files"]), ignore_errors=True)
            time.sleep(_SECOND)
        self._run = wandb.init(
            project=start.config.tracking.project,
            id=noted["id"],
            name=start.path.name,
            group=start.path.parent.name,
            dir=str(place.folder),
            config=settings(start.config),
            resume=None if mode == "offline" else "allow",
            reinit="create_new",
            settings=_settings(wandb, mode, start.config.tracking.timeout),
        )
        _open[noted["id"]] = self._run
        self._first = 0 if mode == "offline" else int(self._run.starting_step)
        place.note(id=noted["id"], mode=mode, files=str(self._run.settings.sync_dir))
        for row in rows:
            self.send(row)

    def send(self, row: Row) -> None:
        """Log a round that the server does not have, at its number as the step."""
        if row["round"] >= self._first:
            self._run.log(figures(row), step=row["round"])

    def finish(self, result: Mapping[str, Any]) -> None:
        """Close the run; that of a model that is not finite counts as failed."""
        self._run.summary["stopped"] = result["stopped"]
        _open.pop(self._run.id).finish(exit_code=int(result["stopped"] == DIVERGED))


def _settings(wandb: Any, mode: str, timeout: float) -> Any:
    """Return settings with which only settings and figures are logged, and no call waits longer than ``timeout``."""
    return wandb.Settings(
        mode=mode,
        console="off",
        silent=True,
        disable_git=True,
        disable_code=True,
        save_code=False,
        x_disable_meta=True,
        x_disable_stats=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
        host="",
        init_timeout=timeout,
        finish_timeout=timeout,
    )


_LONGEST_VALUE = 500
_STATUS = {DIVERGED: "FAILED", INTERRUPTED: "KILLED"}


class MLflowTracker(Tracker):
    """Log figures by round, and the settings as parameters, through a client of its own."""

    name = "mlflow"
    package = "mlflow.tracking"

    def on_start(self, start: RunStart) -> None:
        """Begin, without the reports on its use that MLflow sends to its makers."""
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read when MLflow is imported
        super().on_start(start)

    def begin(self, start: RunStart, place: Place, rows: Sequence[Row]) -> None:
        """Create the run, or go on with it: the store is asked which rounds it has."""
        from mlflow.tracking import MlflowClient

        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # "Creating initial MLflow database…"
        noted = place.noted or {}
        folder = place.folder / "mlflow"
        uri = noted.get("uri") or mlflow_uri(start.config)
        self._local = uri is None
        if uri is None:
            folder.mkdir(parents=True, exist_ok=True)
            uri = f"sqlite:///{folder / 'mlflow.db'}"
        self._client = MlflowClient(tracking_uri=uri)
        if place.is_new:
            self._create(start, place, uri)
            self._written: set[tuple[str, int]] = set()
        else:
            self._id = noted["run_id"]
            self._client.update_run(self._id, status="RUNNING")
            self._written = self._stored()
        for row in rows:
            self.send(row)

    def send(self, row: Row) -> None:
        """Log the figures of a round that the store lacks."""
        from mlflow.entities import Metric

        now, step = int(time.time() * 1000), row["round"]
        new = {name: value for name, value in figures(row).items() if (name, step) not in self._written}
        self._client.log_batch(self._id, metrics=[Metric(name, value, now, step) for name, value in new.items()])

    def finish(self, result: Mapping[str, Any]) -> None:
        """Set the status of the run."""
        self._client.set_tag(self._id, "stopped", result["stopped"])
        self._client.set_terminated(self._id, _STATUS.get(result["stopped"], "FINISHED"))

    def _create(self, start: RunStart, place: Place, uri: str) -> None:
        """Create the run in the experiment of the project, with the settings as its parameters."""
        from mlflow.entities import Param

        run = self._client.create_run(self._experiment(start.config.tracking.project, place), run_name=start.path.name)
        self._id = run.info.run_id
        place.note(uri=uri, run_id=self._id)
        params = [Param(key, str(value)[:_LONGEST_VALUE]) for key, value in settings(start.config).items()]
        for first in range(0, len(params), 100):  # the most that a batch may hold
            self._client.log_batch(self._id, params=params[first : first + 100])

    def _experiment(self, project: str, place: Place) -> str:
        """Return the id of the project's experiment, which is created if need be."""
        known = self._client.get_experiment_by_name(project)
        if known is not None:
            return str(known.experiment_id)
        artifacts = (place.folder / "mlflow" / "artifacts").as_uri()  # else it would be in the working folder
        return str(self._client.create_experiment(project, artifact_location=artifacts if self._local else None))

    def _stored(self) -> set[tuple[str, int]]:
        """Return the figures that the store has, by name and round."""
        names = self._client.get_run(self._id).data.metrics
        return {(name, kept.step) for name in names for kept in self._client.get_metric_history(self._id, name)}
