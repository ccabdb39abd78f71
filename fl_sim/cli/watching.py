"""Show runs that are at work until they have ended: their report on the terminal, or a page that loads itself again.

>>> import tempfile
>>> from fl_sim.storage.run_folder import RunFolder
>>> with tempfile.TemporaryDirectory() as folder:
...     path = RunFolder.create(f"{folder}/run", config={}, environment={}).path
...     watch([path], None, on_screen=False, quiet=True)  # at once: it is not at work
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from fl_sim.api.runs import Run, compare, open_run
from fl_sim.cli.progress_bar import counting
from fl_sim.reporting.run_facts import RUNNING, state_of
from fl_sim.storage.run_claim import is_starting

_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_OF_A_PAGE = 5


def watch(runs: Sequence[Path], html: Path | None, *, on_screen: bool, quiet: bool) -> None:
    """Return when none of the runs is at work; until then show how far they are, after every round.

    Args:
        html: also write their page there after every round.
        on_screen: show the report on a terminal; elsewhere the rounds are counted on standard error, unless ``quiet``.

    Raises:
        ResultsError: a folder is no run folder, is corrupt or was removed.
    """
    shown: list[tuple[str, int | None]] | None = None
    with _screen(on_screen and sys.stdout.isatty(), quiet) as show:
        while True:
            if not any(map(is_starting, runs)):
                opened = [open_run(path) for path in runs]
                found = [(state_of(run.folder), run.folder.last_round) for run in opened]
                if not any(state == RUNNING for state, _ in found):
                    return
                if found != shown:
                    show(opened)
                    if html is not None:
                        compare(opened).save(html, _SECONDS_OF_A_PAGE)
                shown = found
            time.sleep(_SECONDS_BETWEEN_LOOKS)


@contextmanager
def _screen(on_terminal: bool, quiet: bool) -> Iterator[Callable[[Sequence[Run]], None]]:
    """Give a function that shows runs in place of what it showed before."""
    if on_terminal:
        with Live(console=Console(file=sys.stdout), auto_refresh=False, transient=True) as live:
            yield lambda opened: live.update(Text(_text(opened)), refresh=True)
        return
    with counting("rounds", quiet) as count:
        yield lambda opened: count(
            sum(run.folder.last_round or 0 for run in opened), sum(run.folder.setting("rounds") or 0 for run in opened)
        )


def _text(opened: Sequence[Run]) -> str:
    return opened[0].report() if len(opened) == 1 else compare(opened).text()
