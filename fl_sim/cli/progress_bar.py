"""Show the progress of long work on standard error: a bar on a terminal, lines elsewhere, so that no log is silent.

>>> lines = Lines("trials", clock=iter([0.0, 1.0, 4.0, 6.0, 20.0]).__next__)
>>> [lines.line(done, 9) for done in (1, 2, 3, 9)]
[None, 'trials: 2 of 9, about 21 s left', None, 'trials: 9 of 9']
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from fl_sim.formats import duration

_SECONDS_BEFORE_LINES = 3.0
_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_OF_SILENCE = 60.0
_LONGEST_BAR = 16
_POINTS = 100  # in time, of which the time left is estimated


class Show(Protocol):
    """What :func:`counting` gives: a function that shows how far the work is."""

    def __call__(self, done: float, total: float | None, words: str | None = None) -> None:
        """Show that ``done`` of ``total`` is done (None: nobody knows of how many), or ``words`` in place of that."""


@contextmanager
def counting(what: str, quiet: bool = False) -> Iterator[Show]:
    """Give a function that shows how much is done of ``what``, such as "texts", on standard error.

    Where that is no terminal, lines appear: the first after three seconds, then one every ten while work goes on, and
    one a minute while a single step takes longer.
    """
    console = Console(stderr=True, quiet=quiet)
    if quiet:
        yield lambda done, total, words=None: None
    elif console.is_terminal:
        with fitting_bar(console, transient=True) as bar:
            task, time_left = bar.add_task("", total=None, counted=what, left="", figures=()), TimeLeft()

            def show(done: float, total: float | None, words: str | None = None) -> None:
                time_left.see(time.monotonic(), done)
                count, *figures = (words or counted(done, total)).split(", ")
                left = time_left.in_words(done, total).removeprefix("about ")
                bar.update(task, completed=done, total=total, counted=count, left=left, figures=(what, *figures))

            yield show
    else:
        with _never_silent(lines := Lines(what)):
            yield lines.show


class Say(Protocol):
    """What :func:`said_in_lines` gives: a function that says a line of long work."""

    def __call__(self, words: str, left: float | None = None) -> None:
        """Say what is done, and the seconds that are left if somebody knows."""


@contextmanager
def said_in_lines(what: str, quiet: bool = False) -> Iterator[Say]:
    """Give a function that says a line of long work on standard error; a minute without one has a line of its own."""
    if quiet:
        yield lambda words, left=None: None
        return
    with _never_silent(lines := Lines(what)):
        yield lines.say


@contextmanager
def _never_silent(lines: Lines) -> Iterator[None]:
    ended = threading.Event()
    threading.Thread(target=lines.break_silence, args=(ended,), daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def fitting_bar(console: Console, *, transient: bool = False) -> Progress:
    """Return a bar whose tasks have the fields ``counted``, ``left`` and ``figures``, for terminals of any width.

    Bar, count and time left come first; figures that do not fit are left out, the last first.
    """
    bar = BarColumn(bar_width=_bar_width(console))
    counts = (TextColumn(f"{{task.fields[{name}]}}", table_column=Column(no_wrap=True)) for name in ("counted", "left"))
    disable = console.quiet or not console.is_terminal
    return Progress(bar, *counts, _Figures(console), console=console, transient=transient, disable=disable)


class _Figures(ProgressColumn):
    """The figures of a task, as many as there is room for."""

    max_refresh = None

    def __init__(self, console: Console) -> None:
        super().__init__(Column(no_wrap=True))
        self._console = console

    def render(self, task: Task) -> Text:
        """Return the figures that fit beside bar, count and time left."""
        taken = _bar_width(self._console) + len(task.fields["counted"]) + len(task.fields["left"]) + 3  # and spaces
        return Text(fitting(task.fields["figures"], self._console.width - taken))


def _bar_width(console: Console) -> int:
    return max(min(console.width // 5, _LONGEST_BAR), 4)


def fitting(parts: Sequence[str], room: int) -> str:
    """Return the first parts that fit into so many columns, with commas between them."""
    kept = [", ".join(parts[:number]) for number in range(len(parts), 0, -1)]
    return next((words for words in kept if len(words) <= room), "")


class TimeLeft:
    """Estimate the time left by the pace of the later half of what is done, which a slow start does not move.

    While nothing more is done it grows.

    >>> left = TimeLeft()
    >>> for now, done in ((0.0, 0), (60.0, 1), (64.0, 2), (68.0, 3)):
    ...     left.see(now, done)
    >>> left.in_words(3, 10), left.in_words(10, 10), TimeLeft().in_words(0, 10)
    ('about 28 s left', '', '')
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()  # (time, done), the first at half of what was seen or before
        self._first: float | None = None  # what was done before
        self._now = 0.0

    def see(self, now: float, done: float) -> None:
        """Take in that ``done`` is done at a time in seconds."""
        seen, self._now = self._seen, now
        if seen and done <= seen[-1][1]:
            return
        if len(seen) > 2 and now - seen[-2][0] < (now - seen[0][0]) / _POINTS:
            seen.pop()  # so close to the one before that it tells nothing: a hundred points are enough for any work
        seen.append((now, done))
        self._first = done if self._first is None else self._first
        while len(seen) > 2 and seen[1][1] <= (self._first + done) / 2:
            seen.popleft()

    def in_words(self, done: float, total: float | None) -> str:
        """Return the time left in words; nothing if it is not known, or none is."""
        if len(self._seen) < 2 or total is None or done >= total:
            return ""
        (began, before), (_, last) = self._seen[0], self._seen[-1]
        return f"about {duration((self._now - began) / (last - before) * (total - done))} left"


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
        self._state, self._time_left = "begun", TimeLeft()
        self._end: float | None = None
        self._time_left.see(self._began, 0)

    def show(self, done: float, total: float | None, words: str | None = None) -> None:
        """Print a line if it is time for one."""
        line = self.line(done, total, words)
        if line is not None:
            say(line)

    def say(self, words: str, left: float | None = None) -> None:
        """Print a line, which is the state of the work from now on, and the seconds that are left if they are known."""
        self._state, self._last = words.strip(), self._clock()
        self._end = None if left is None else self._last + left
        say(words if not left else f"{words}, about {duration(left)} left")

    def line(self, done: float, total: float | None, words: str | None = None) -> str | None:
        """Return the line that is due now; None if none is."""
        now = self._clock()
        self._state = words or counted(done, total)
        self._time_left.see(now, done)
        if now - self._last < (_SECONDS_BEFORE_LINES if self._last == self._began else _SECONDS_BETWEEN_LINES):
            return None
        self._last = now
        return ", ".join(filter(None, [f"{self._what}: {self._state}", self._time_left.in_words(done, total)]))

    def break_silence(self, ended: threading.Event) -> None:
        """Print a line for every minute without one, until the work has ended."""
        while not ended.wait(max(self._last + _SECONDS_OF_SILENCE - self._clock(), 0.0)):
            if (line := self.late_line()) is not None:
                say(line)

    def late_line(self) -> str | None:
        """Return the line that is due because nothing was said for a minute; None if none is."""
        now = self._clock()
        if now - self._last < _SECONDS_OF_SILENCE:
            return None
        self._last = now
        left = f", about {duration(self._end - now)} left" if self._end is not None and self._end > now else ""
        return f"{self._what}: {self._state}, at work for {duration(now - self._began)}{left}"
