"""Log a run to Weights & Biases: offline into the run's folder, unless its user has chosen to send it to the server."""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fl_sim.experiments.observers import RunStart
from fl_sim.experiments.tracker_names import wandb_mode
from fl_sim.experiments.trackers.places import Place
from fl_sim.experiments.trackers.sent_figures import figures, settings
from fl_sim.experiments.trackers.tracker import Row, Tracker
from fl_sim.storage.run_folder import DIVERGED

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
