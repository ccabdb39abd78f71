"""Trackers: observers that send a run's figures to CSV, TensorBoard, Weights & Biases or MLflow.

An ε that holds for any user (with any entity) is under ``epsilon/``. Everything else of a round is under ``private/``:
losses, held-out metrics, counts, times, and ε at percentiles that are read off the corpus. No ε covers those. Nothing
leaves this machine unless its user has chosen so.

A resumed run writes files anew with the rounds before its checkpoint, and asks a server which rounds it has: these are
not sent again. Where a tracker of a run writes is in ``trackers.json`` in the run's folder. A tracker that raises is
left out from then on (:class:`~fl_sim.experiments.observers.Observers`).

>>> figures({"round": 3, "epsilon_any": 1.5, "epsilon_user_entity_p95": 1.2, "loss": 4.0, "note": "text"})
{'epsilon/any_user_and_any_entity': 1.5, 'private/epsilon_user_entity_p95': 1.2, 'private/loss': 4.0}
"""

from __future__ import annotations

import json
import logging
import math
import os
import secrets
import shutil
import time
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import pandas as pd

from fl_sim.config import RunConfig
from fl_sim.experiments.observers import Observer, RunStart, mlflow_uri, wandb_mode
from fl_sim.files import replace_file
from fl_sim.settings_origin import leaves
from fl_sim.storage.run_folder import DIVERGED, INTERRUPTED, ResultsError, Row, numbers_of, round_of, rows_of
from fl_sim.strategies.accounting.paper_model import AS_PUBLISHED

NOTES_FILE = "trackers.json"
ROUNDS_FILE = "rounds.csv"

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

_NOT_SENT = ("out", "anchor", "observers", "tracking", "origin")
_ADDRESS = "engine.address"  # names a machine

Notes = dict[str, str]


def figures(row: Row) -> dict[str, float]:
    """Return the figures of a round by the names that trackers see; text and what was not measured is left out."""
    numbers = {name: value for name, value in numbers_of(row).items() if name != "round"}
    return {_NAMES.get(name, f"private/{name}"): value for name, value in numbers.items()}


def settings(config: RunConfig) -> dict[str, object]:
    """Return the settings that trackers see by their full names: folders without their parents, no file of the run.

    >>> settings(RunConfig.from_mapping({"corpus.path": "/home/ada/notes"}))["corpus.path"]
    'notes'
    """
    tree = {name: value for name, value in config.model_dump(mode="json").items() if name not in _NOT_SENT}
    return {
        name: PurePath(value).name if isinstance(value, str) and PurePath(value).is_absolute() else value
        for name, value in leaves(tree)
        if value is not None and name != _ADDRESS
    }


class Tracker(Observer):
    """An observer that sends rounds, and goes on where it was when a run is resumed; a configuration gives its name."""

    name = ""

    @abstractmethod
    def begin(self, start: RunStart, noted: Notes | None) -> Notes:
        """Begin to track a run, or go on with one of which this ``noted``; return what a resumed run must know.

        The rounds before the first that is to come follow; a server may have some or all of them, and later ones.
        """

    def on_start(self, start: RunStart) -> None:
        """Begin, and note how to go on."""
        file = start.path / NOTES_FILE
        try:
            known = dict(json.loads(file.read_bytes())) if file.exists() else {}
        except (ValueError, TypeError) as error:
            raise ResultsError(f"{file}: is corrupt (no JSON object)") from error
        self.folder = start.path
        known[self.name] = self.begin(start, known.get(self.name))
        for row in [] if start.last_round is None else rows_of(start.path, start.last_round):
            self.on_round(row)
        replace_file(file, json.dumps(known, indent=2).encode() + b"\n")


class CSVTracker(Tracker):
    """Write ``rounds.csv`` into the run's folder."""

    name = "csv"

    def begin(self, start: RunStart, noted: Notes | None) -> Notes:
        """Begin without a row."""
        self._rows: list[dict[str, float]] = []
        return {"file": ROUNDS_FILE}

    def on_round(self, row: Row) -> None:
        """Add the round; columns that come later are empty before."""
        self._rows.append({"round": round_of(row), **figures(row)})
        pd.DataFrame(self._rows).to_csv(self.folder / ROUNDS_FILE, index=False)


class TensorBoardTracker(Tracker):
    """Write scalars by round, and the settings as text, into ``tensorboard/``."""

    name = "tensorboard"

    def begin(self, start: RunStart, noted: Notes | None) -> Notes:
        """Write the events anew."""
        from torch.utils.tensorboard import SummaryWriter

        folder = self.folder / "tensorboard"
        if noted is not None:
            shutil.rmtree(folder, ignore_errors=True)
        self._writer = SummaryWriter(str(folder))
        table = json.dumps(settings(start.config), indent=2, ensure_ascii=False)
        self._writer.add_text("settings", f"```json\n{table}\n```")
        return {"folder": str(folder)}

    def on_round(self, row: Row) -> None:
        """Write the figures of a round to disk."""
        for name, value in figures(row).items():
            self._writer.add_scalar(name, value, round_of(row))
        self._writer.flush()

    def on_end(self, result: Mapping[str, object]) -> None:
        """Close the file."""
        self._writer.close()


_SECOND = 1.0  # wandb names the folder of an offline run by the second
_open: dict[str, Any] = {}  # runs of wandb that this process has not finished, by id


class WandbTracker(Tracker):
    """Log figures by round, and the settings; nothing of the machine, the code or the terminal."""

    name = "wandb"

    def begin(self, start: RunStart, noted: Notes | None) -> Notes:
        """Open the run, or go on with the run of the same id.

        The server knows the rounds that it has. An offline run is one file, which ``wandb sync`` sends as a whole: a
        resumed run writes it anew and removes the one before.
        """
        import wandb

        mode, timeout = wandb_mode(start.config), start.config.tracking.timeout
        noted = noted or {"id": secrets.token_hex(8)}
        if noted["id"] in _open:  # a run that failed in this process left it
            _open.pop(noted["id"]).finish()
        if noted.get("mode") == mode == "offline":
            shutil.rmtree(noted["files"], ignore_errors=True)
            time.sleep(_SECOND)
        self._run = wandb.init(
            project=start.config.tracking.project,
            id=noted["id"],
            name=start.path.name,
            group=start.path.parent.name,
            dir=str(self.folder),
            config=settings(start.config),
            resume=None if mode == "offline" else "allow",
            reinit="create_new",
            settings=wandb.Settings(
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
            ),
        )
        _open[noted["id"]] = self._run
        self._first = 0 if mode == "offline" else int(self._run.starting_step)
        return {"id": noted["id"], "mode": mode, "files": str(self._run.settings.sync_dir)}

    def on_round(self, row: Row) -> None:
        """Log a round that the server does not have, at its number as the step."""
        if round_of(row) >= self._first:
            self._run.log(figures(row), step=round_of(row))

    def on_end(self, result: Mapping[str, object]) -> None:
        """Close the run; that of a model that is not finite counts as failed."""
        self._run.summary["stopped"] = result["stopped"]
        _open.pop(self._run.id).finish(exit_code=int(result["stopped"] == DIVERGED))


_LONGEST_VALUE = 500
_MOST_PARAMS = 100  # in one request
_STATUS = {DIVERGED: "FAILED", INTERRUPTED: "KILLED"}


class MLflowTracker(Tracker):
    """Log figures by round, and the settings as parameters, through a client of its own.

    MLflow 3 refuses its older store of plain files, so a local database is SQLite's.
    """

    name = "mlflow"

    def begin(self, start: RunStart, noted: Notes | None) -> Notes:
        """Create the run, or go on with it after the last round that the store has."""
        # Read when MLflow is imported: no reports on its use, and no long wait for a server that does not answer.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(math.ceil(start.config.tracking.timeout)))
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        from mlflow.tracking import MlflowClient

        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # "Creating initial MLflow database…"
        folder = self.folder / "mlflow"
        uri = (noted or {}).get("uri") or mlflow_uri(start.config)
        if uri is None:
            folder.mkdir(parents=True, exist_ok=True)
            uri = f"sqlite:///{folder / 'mlflow.db'}"
        self._client = MlflowClient(tracking_uri=uri)
        self._last_sent = -1
        if noted is None:
            # An artifact folder of its own: MLflow's default would be in the working folder.
            artifacts = (folder / "artifacts").as_uri() if uri.startswith(f"sqlite:///{folder}") else None
            self._id = self._created(start, artifacts)
        else:
            self._id = noted["run_id"]
            self._client.update_run(self._id, status="RUNNING")
            history = self._client.get_metric_history(self._id, "releases")
            self._last_sent = max((kept.step for kept in history), default=-1)
        return {"uri": uri, "run_id": self._id}

    def on_round(self, row: Row) -> None:
        """Log the figures of a round that the store does not have, all at once."""
        from mlflow.entities import Metric

        now, step = int(time.time() * 1000), round_of(row)
        if step <= self._last_sent:
            return
        metrics = [Metric(name, value, now, step) for name, value in figures(row).items()]
        self._client.log_batch(self._id, metrics=metrics)

    def on_end(self, result: Mapping[str, object]) -> None:
        """Set the status of the run."""
        self._client.set_tag(self._id, "stopped", result["stopped"])
        self._client.set_terminated(self._id, _STATUS.get(str(result["stopped"]), "FINISHED"))

    def _created(self, start: RunStart, artifacts: str | None) -> str:
        """Create the run in the experiment of the project, with the settings as its parameters; return its id."""
        from mlflow.entities import Param

        project = start.config.tracking.project
        known = self._client.get_experiment_by_name(project)
        experiment = known.experiment_id if known else self._client.create_experiment(project, artifacts)
        run = str(self._client.create_run(experiment, run_name=start.path.name).info.run_id)
        params = [Param(key, str(value)[:_LONGEST_VALUE]) for key, value in settings(start.config).items()]
        for first in range(0, len(params), _MOST_PARAMS):
            self._client.log_batch(run, params=params[first : first + _MOST_PARAMS])
        return run
