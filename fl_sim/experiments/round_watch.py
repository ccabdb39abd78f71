"""Watch the nodes of the round under way from a thread, and announce the number of sentences that they have done.

>>> import tempfile
>>> from fl_sim.clients.round_progress import RoundProgress
>>> with tempfile.TemporaryDirectory() as folder:
...     watch = RoundWatch(Path(folder), expected=100.0, announce=print)
...     watch.server_round = 3
...     RoundProgress(Path(folder), node=2, server_round=3, total=96).add(48)
...     watch.look()
3 0 100.0
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from fl_sim.clients.round_progress import progress_of_round
from fl_sim.private_files import owner_only

Announce = Callable[[int, int, float], None]

_SECONDS = 0.5


class RoundWatch:
    """Announce the progress of rounds twice a second, from a thread of its own; a context manager.

    Args:
        folder: of the nodes' counts; it is created.
        expected: the number of sentences of a round, before its nodes have selected them.
        announce: called with the round, the sentences done, and the sentences of the round.

    Attributes:
        server_round: the round under way; 0 while none is.
    """

    def __init__(self, folder: Path, expected: float, announce: Announce) -> None:
        self.server_round = 0
        self._folder, self._expected, self._announce = folder, expected, announce
        self._last = (0, 0)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="round-watch", daemon=True)

    @owner_only()
    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def look(self) -> None:
        """Announce the sentences done, if their number has changed."""
        server_round = self.server_round
        done, selected = progress_of_round(self._folder, server_round)
        if selected and (server_round, done) != self._last:
            self._last = (server_round, done)
            self._announce(server_round, done, max(self._expected, selected))

    def _watch(self) -> None:
        while not self._ended.wait(_SECONDS):
            self.look()
