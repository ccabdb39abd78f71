"""Where the trackers of a run write, and what they note for a resumed run: ``trackers.json`` in the run's folder.

>>> import tempfile
>>> from fl_sim.config import RunConfig
>>> with tempfile.TemporaryDirectory() as folder:
...     start = RunStart(Path(folder), RunConfig(), 2, None, ())
...     Place.of(start, "mlflow").note(run_id="0a1b")
...     Place.of(start, "mlflow").noted, Place.of(start, "mlflow").is_new, Place.of(start, "csv").is_new
({'run_id': '0a1b'}, False, True)
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_sim.experiments.observers import RunStart
from fl_sim.storage.run_folder import ResultsError, replace_file

FILE = "trackers.json"

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
            replace_file(self.run / FILE, json.dumps(known, indent=2).encode() + b"\n")


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
        return dict(json.loads((run / FILE).read_bytes()))
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError) as error:
        raise ResultsError(f"{run / FILE}: is corrupt (no JSON object)") from error
