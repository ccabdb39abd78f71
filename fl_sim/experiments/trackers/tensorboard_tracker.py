"""Write the figures of a run as TensorBoard's event files: ``tensorboard --logdir runs`` shows all runs of a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fl_sim.experiments.observers import RunStart
from fl_sim.experiments.trackers.places import Place
from fl_sim.experiments.trackers.sent_figures import figures, settings
from fl_sim.experiments.trackers.tracker import Row, Tracker


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
