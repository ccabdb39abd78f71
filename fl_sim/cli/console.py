"""Show a run in the terminal: notes and a progress bar on stderr, the summary or the JSON result on stdout.

>>> with ProgressBar(quiet=True) as bar:
...     isinstance(bar, Observer)
True
>>> _describe({"perplexity": 212.4, "epsilon_any": 1.25, "epsilon_user": 0.5})
'perplexity 212.4, ε any 1.25, user 0.500'
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fl_sim.api.runs import Run
from fl_sim.cli.main import EXIT_DIVERGED
from fl_sim.experiments.observers import Observer, RunObserver, RunStart
from fl_sim.formats import epsilon_in_words
from fl_sim.stop_signals import exit_status
from fl_sim.storage.run_folder import encode
from fl_sim.storage.utility import UTILITIES

_LESS = "the model is not finite; try a lower server.learning_rate, or less noise on the sum, in another run"


def follow(start: Callable[[Sequence[RunObserver]], Run], *, as_json: bool, quiet: bool) -> int:
    """Show a run's progress and print its summary, or its result as one JSON object.

    Args:
        start: starts or resumes a run with the given observers, and returns the run when it ends.
        as_json: print the result instead of the summary.
        quiet: show no notes and no progress.

    Returns:
        The exit code: 0, 3 if the run diverged, or 128 and the signal's number if it was interrupted (and can be
        resumed).
    """
    with ProgressBar(quiet) as bar:
        run = start([bar])
    result = run.result or {}
    if as_json:
        print(json.dumps(encode({"folder": str(run.path), **result})))
    else:
        print(run.report(), end="")
        print(f"\nResults are in {run.path}")
    if run.diverged:
        print(f"diverged in round {result['rounds']}; {_LESS}", file=sys.stderr)
        return EXIT_DIVERGED
    if not run.finished:
        print(f"interrupted after round {result['rounds']}; continue with: fl-sim resume {run.path}", file=sys.stderr)
        return exit_status(result.get("signal") or "SIGINT")
    return 0


class ProgressBar(Observer):
    """Print a run's notes and a bar of its rounds on stderr; use it in a ``with`` statement.

    Args:
        quiet: show nothing.
    """

    def __init__(self, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet, soft_wrap=True)
        self._progress = _progress(self._console)
        self._task = TaskID(0)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *error: object) -> None:
        if self._progress.live.is_started:
            self._progress.stop()

    def on_start(self, start: RunStart) -> None:
        """Print the notes and show the bar."""
        for warning in start.warnings:
            self._console.print(f"note: {warning}", markup=False, highlight=False, style="yellow")
        self._task = self._progress.add_task("starting", total=start.rounds, completed=start.last_round or 0)
        self._progress.start()

    def on_reading(self, done: int, total: int) -> None:
        """Show the number of sentences that a frozen encoder has read."""
        self._progress.update(self._task, description=f"reading, {done:,} of {total:,} sentences")

    def on_round(self, row: Mapping[str, Any]) -> None:
        """Move the bar to the round and show its figures."""
        self._progress.update(self._task, completed=row["round"], description=_describe(row))


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=console.quiet,
    )


def _describe(row: Mapping[str, Any]) -> str:
    measured = [f"{u.column} {u.show(row[u.column])}, " for u in UTILITIES.values() if u.column in row]
    return f"{''.join(measured)}{epsilon_in_words(row)}"
