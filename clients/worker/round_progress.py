"""Count the sentences that nodes have done in the round under way.

A worker may be another process, so it writes three numbers (the round, sentences done, sentences selected) into a file
of its node a few times a second; a thread of the server's process reads these files and announces the sum. If the
folder does not exist, nobody watches, and nothing is written. No result depends on these files.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     progress = RoundProgress(Path(folder), node=2, server_round=1, total=40)
...     progress.add(25)
...     progress.close()
...     progress_of_round(Path(folder), server_round=1), progress_of_round(Path(folder), server_round=2)
((25, 40), (0, 0))
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from fl_sim.files import owner_only

FOLDER = "progress"
_COUNTS = struct.Struct("<qqq")
_WRITE_SECONDS = 0.25  # between two writes


class RoundProgress:
    """Write the counts of one node's round; nothing is written if the folder is None or does not exist."""

    def __init__(self, folder: Path | None, node: int, server_round: int, total: int) -> None:
        self._round, self._total, self._done = server_round, total, 0
        self._file = None if folder is None else self._opened(folder / str(node))
        self._next = 0.0
        self._write()

    @staticmethod
    @owner_only()
    def _opened(path: Path) -> int | None:
        with suppress(OSError):
            return os.open(path, os.O_CREAT | os.O_WRONLY)
        return None

    def add(self, sentences: int) -> None:
        """Count further sentences as done, and write the count if the last write was some time ago."""
        self._done += sentences
        if time.monotonic() >= self._next:
            self._write()

    def close(self) -> None:
        """Write the last count."""
        self._write()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self) -> None:
        self._next = time.monotonic() + _WRITE_SECONDS
        if self._file is not None:
            with suppress(OSError):  # a full disk must not fail the node
                os.pwrite(self._file, _COUNTS.pack(self._round, self._done, self._total), 0)


def progress_of_round(folder: Path, server_round: int) -> tuple[int, int]:
    """Return the sentences that all nodes together have done, and have selected; another round counts as nothing."""
    done = total = 0
    with suppress(OSError):  # the folder may be removed meanwhile
        for path in folder.iterdir():
            content = path.read_bytes()
            if len(content) == _COUNTS.size:
                of_round, of_node, selected = _COUNTS.unpack(content)
                if of_round == server_round:
                    done, total = done + of_node, total + selected
    return done, total


Announce = Callable[[int, int, float], None]

_LOOK_SECONDS = 0.5


class RoundWatch:
    """Announce the progress of rounds twice a second, from a thread of its own; a context manager.

    ``announce`` is called with the round under way (``server_round``, 0 while none is), the sentences done, and those
    of the round: ``expected`` until its nodes have selected them.
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

    def __exit__(self, *_: object) -> None:
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
        while not self._ended.wait(_LOOK_SECONDS):
            self.look()
