"""Keep the figures of a run in ``rounds.csv``: a row per round, a column per figure, which any tool reads.

>>> import tempfile
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
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fl_sim.experiments.observers import RunStart
from fl_sim.experiments.trackers.places import Place
from fl_sim.experiments.trackers.sent_figures import figures
from fl_sim.experiments.trackers.tracker import Row, Tracker
from fl_sim.storage.run_folder import replace_file

FILE = "rounds.csv"


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
        place.note(file=FILE)
        (place.folder / FILE).unlink(missing_ok=True)
        self._table = Table(place.folder / FILE, [_cells(row) for row in rows])

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
