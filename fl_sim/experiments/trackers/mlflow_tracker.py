"""Log a run to MLflow: to the tracking URI that its user has chosen, else to a database in the run's folder.

MLflow 3 refuses its older store of plain files, so the database is SQLite's.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from fl_sim.experiments.observers import RunStart
from fl_sim.experiments.tracker_names import mlflow_uri
from fl_sim.experiments.trackers.places import Place
from fl_sim.experiments.trackers.sent_figures import figures, settings
from fl_sim.experiments.trackers.tracker import Row, Tracker
from fl_sim.storage.run_folder import DIVERGED, INTERRUPTED

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
