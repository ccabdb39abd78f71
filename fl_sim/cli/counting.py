"""Show the progress of work that is counted: a bar on a terminal, a line every few seconds elsewhere.

>>> with counting("texts", quiet=True) as show:
...     show(1, 2)
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_SECONDS_BETWEEN_LINES = 10.0

Show = Callable[[int, int], None]


@contextmanager
def counting(words: str, quiet: bool = False) -> Iterator[Show]:
    """Give a function that shows how many of how many are done, on standard error.

    Args:
        words: what is counted.
        quiet: show nothing.
    """
    console = Console(stderr=True, quiet=quiet)
    if quiet:
        yield lambda done, total: None
    elif console.is_terminal:
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(words, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
    else:
        yield _lines(words)


def _lines(words: str) -> Show:
    last = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            print(f"{words}: {done:,} of {total:,}", file=sys.stderr, flush=True)

    return show
