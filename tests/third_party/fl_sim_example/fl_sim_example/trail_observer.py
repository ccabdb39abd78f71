"""An observer that keeps the user's ε of every round in a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fl_sim import Observer, RunStart


class Trail(Observer):
    """Writes ``trail.txt`` into the run's folder."""

    def on_start(self, start: RunStart) -> None:
        """Begin the file."""
        self._file = start.path / "trail.txt"
        self._file.write_text("")

    def on_round(self, row: Mapping[str, Any]) -> None:
        """Add a line."""
        with self._file.open("a") as file:
            file.write(f"{row['round']} {row['epsilon_user']!r}\n")
