"""Show the progress of long work on standard error: a bar on a terminal, lines elsewhere, so that no log is silent.

>>> with counting("texts", quiet=True) as show:
...     show(1, 2)
>>> lines = Lines("trials", clock=iter([0.0, 1.0, 4.0, 6.0, 20.0]).__next__)
>>> [lines.line(done, 9) for done in (1, 2, 3, 9)]
[None, 'trials: 2 of 9, about 14 s left', None, 'trials: 9 of 9']
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fl_sim.formats import duration

_SECONDS_BEFORE_LINES = 3.0
_SECONDS_BETWEEN_LINES = 10.0


class Show(Protocol):
    """What :func:`counting` gives: a function that shows how far the work is."""

    def __call__(self, done: float, total: float | None, words: str | None = None) -> None:
        """Show that ``done`` of ``total`` is done (None: nobody knows of how many), or ``words`` in place of that."""


@contextmanager
def counting(what: str, quiet: bool = False) -> Iterator[Show]:
    """Give a function that shows how much is done of ``what``, such as "texts", on standard error.

    Where that is no terminal, lines appear: the first after three seconds, then one every ten.
    """
    console = Console(stderr=True, quiet=quiet)
    if quiet:
        yield lambda done, total, words=None: None
    elif console.is_terminal:
        words_and_bar = (TextColumn("{task.description} {task.fields[counted]}"), BarColumn())
        times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
        with Progress(*words_and_bar, *times, console=console, transient=True) as bar:
            task = bar.add_task(what, total=None, counted="")

            def show(done: float, total: float | None, words: str | None = None) -> None:
                bar.update(task, completed=done, total=total, counted=words or counted(done, total))

            yield show
    else:
        yield Lines(what).show


def say(words: str, quiet: bool = False) -> None:
    """Say on standard error what is done now, before work of which no progress can be counted."""
    if not quiet:
        print(words, file=sys.stderr, flush=True)


def counted(done: float, total: float | None) -> str:
    """Return what is done in words.

    >>> counted(1200, 3000), counted(7, None)
    ('1,200 of 3,000', '7')
    """
    return f"{done:,.0f}" if total is None else f"{done:,.0f} of {total:,.0f}"


class Lines:
    """The lines that stand for a bar."""

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._what, self._clock = what, clock
        self._began = self._last = clock()

    def show(self, done: float, total: float | None, words: str | None = None) -> None:
        """Print a line if it is time for one."""
        line = self.line(done, total, words)
        if line is not None:
            say(line)

    def line(self, done: float, total: float | None, words: str | None = None) -> str | None:
        """Return the line that is due now; None if none is."""
        now = self._clock()
        if now - self._last < (_SECONDS_BEFORE_LINES if self._last == self._began else _SECONDS_BETWEEN_LINES):
            return None
        self._last = now
        left = f", about {duration((now - self._began) * (total - done) / done)} left" if total and done else ""
        return f"{self._what}: {words or counted(done, total)}{left if total and done < total else ''}"
