"""Show a run in the terminal: notes and a progress bar on stderr, the summary or the JSON result on stdout.

>>> _describe({"perplexity": 212.4, "epsilon_any": 1.25, "epsilon_user": 0.5})
'perplexity 212.4, ε any 1.25, user 0.500'
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.progress import TaskID

from fl_sim.api.runs import Run
from fl_sim.cli.main import EXIT_DIVERGED
from fl_sim.cli.progress_bar import TimeLeft, fitting_bar, say
from fl_sim.experiments.cost import Forecast
from fl_sim.experiments.observers import Observer, RunStart
from fl_sim.formats import epsilon_in_words
from fl_sim.stop_signals import exit_status
from fl_sim.storage.run_folder import UTILITIES, Row, encode, numbers_of, round_of

_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_WITHIN_A_ROUND = 30.0

_LESS = "the model is not finite; try a lower server.learning_rate, or less noise on the sum, in another run"


Start = Callable[[Sequence[Observer]], Run]


def follow(start: Start, *, baseline: bool, as_json: bool, quiet: bool) -> int:
    """Show a run's progress, unless ``quiet``, and print its summary, or its result as one JSON object.

    Args:
        baseline: train the run's noiseless twin, too, before the summary.

    Returns:
        The exit code: 0, 3 if the run diverged, or 128 and the signal's number if it was interrupted (and can be
        resumed).
    """
    run, twin = _shown(start, quiet), None
    if baseline and run.finished and not run.diverged:
        say(f"without privacy, for comparison: {run.path.name}-noiseless", quiet)
        twin = _shown(lambda bar: run.baseline(observers=bar), quiet)
    result = run.result or {}
    if as_json:
        print(json.dumps(encode({"folder": str(run.path), **result})))
    else:
        print(run.report(), end="")
        print(f"\nResults are in {run.path}; fl-sim report {run.path} --full says more")
    if run.diverged:
        print(f"diverged in round {result['rounds']}; {_LESS}", file=sys.stderr)
        return EXIT_DIVERGED
    if not run.finished:
        print(f"interrupted after round {result['rounds']}; continue with: fl-sim resume {run.path}", file=sys.stderr)
        return exit_status(result.get("signal") or "SIGINT")
    if twin is not None and not twin.finished:
        print(f"the run without privacy was interrupted; continue with: fl-sim resume {twin.path}", file=sys.stderr)
        return exit_status((twin.result or {}).get("signal") or "SIGINT")
    return 0


def _shown(start: Start, quiet: bool) -> Run:
    with ProgressBar(quiet) as bar:
        return start([] if quiet else [bar])


class ProgressBar(Observer):
    """Print a run's notes and forecast, and a bar of its rounds, on stderr; use it in a ``with`` statement.

    Within a round the bar follows the sentences that are done. Where stderr is no terminal, rounds are lines: the
    first, the last, and those at least ten seconds apart; a round of more than half a minute has lines of its own.
    """

    def __init__(self, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet, soft_wrap=True)
        self._in_lines = not self._console.is_terminal
        self._progress = fitting_bar(self._console)
        self._time_left = TimeLeft()
        self._task = TaskID(0)
        self._rounds = 0
        self._last_line = self._round_began = -_SECONDS_BETWEEN_LINES
        self._figures: tuple[str, ...] = ()
        self._path = ""

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *error: object) -> None:
        if self._progress.live.is_started:
            self._progress.stop()

    def on_start(self, start: RunStart) -> None:
        """Print the notes and show the bar."""
        for warning in start.warnings:
            self._note(warning)
        self._rounds = start.rounds
        self._path = f"{start.gradient_path} path" if start.gradient_path else ""
        done = start.last_round or 0
        self._task = self._progress.add_task(
            "", total=start.rounds, completed=done, counted="starting", left="", figures=()
        )
        if start.last_round is not None:
            self._time_left.see(time.monotonic(), done)
        self._progress.start()

    def on_reading(self, done: int, total: int) -> None:
        """Show the number of sentences that a frozen encoder has read."""
        words = f"{done:,} of {total:,} sentences"
        self._progress.update(self._task, counted="reading", figures=(words,))
        self._line(f"reading, {words}", due=done == total)

    def on_forecast(self, forecast: Forecast) -> None:
        """Print what the run will cost."""
        self._console.print(forecast.in_words(), markup=False, highlight=False)
        for note in forecast.notes:
            self._note(note)

    def on_progress(self, server_round: int, done: int, expected: float) -> None:
        """Move the bar within the round under way."""
        share = min(done / expected, 1.0) if expected else 0.0
        words = f"{done:,} of about {expected:,.0f} sentences"
        self._show(server_round, server_round - 1 + share, (*self._figures, words))
        now = time.monotonic()
        if self._in_lines and now - max(self._round_began, self._last_line) >= _SECONDS_WITHIN_A_ROUND:
            self._line(f"round {server_round}: {words}", due=True)

    def on_round(self, row: Row) -> None:
        """Move the bar to the round and show its figures."""
        number, self._round_began = round_of(row), time.monotonic()
        self._figures = tuple(filter(None, [*_describe(row).split(", "), self._path]))
        self._time_left.see(self._round_began, number)
        self._show(number, number, self._figures)
        seconds = (f"{row['seconds']:.1f} s",) if "seconds" in row else ()
        left = self._time_left.in_words(number, self._rounds)
        words = ", ".join(filter(None, [*self._figures, *seconds, left]))
        self._line(f"round {number} of {self._rounds}: {words}", due=number in (1, self._rounds))

    def _show(self, server_round: int, done: float, figures: tuple[str, ...]) -> None:
        """Show on the bar the round under way or done, the time left, and figures."""
        count, left = f"{server_round} of {self._rounds}", self._time_left.in_words(done, self._rounds)
        self._progress.update(
            self._task, completed=done, counted=count, left=left.removeprefix("about "), figures=figures
        )

    def _note(self, words: str) -> None:
        self._console.print(f"note: {words}", markup=False, highlight=False, style="yellow")

    def _line(self, words: str, due: bool) -> None:
        """Print progress as a line where there is no terminal, if it is due or the last line is some time ago."""
        now = time.monotonic()
        if self._in_lines and (due or now - self._last_line >= _SECONDS_BETWEEN_LINES):
            self._last_line = now
            self._console.print(words, markup=False, highlight=False)


def _describe(row: Row) -> str:
    figures = numbers_of(row)
    measured = [f"{u.column} {u.show(figures[u.column])}, " for u in UTILITIES.values() if u.column in figures]
    return f"{''.join(measured)}{epsilon_in_words(figures)}"
