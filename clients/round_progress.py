"""Count the sentences that a node has done in the round under way, in a small file that the server's process reads.

A worker may be another process, so it writes three numbers (the round, sentences done, sentences selected) a few times
a second; a message would need a reply that waits. The folder is the run's own, readable by its owner alone, and is
removed at the end. If it does not exist, nobody watches, and nothing is written. No result depends on these files.

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
import time
from contextlib import suppress
from pathlib import Path

from fl_sim.private_files import owner_only

FOLDER = "progress"
_COUNTS = struct.Struct("<qqq")
_SECONDS = 0.25  # between two writes


class RoundProgress:
    """Write the counts of one node's round.

    Args:
        folder: of the files of all nodes; nothing is written if it is None or does not exist.
        node: the id of the node, which names its file.
        server_round: the round.
        total: the sentences that the node has selected.
    """

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
        self._next = time.monotonic() + _SECONDS
        if self._file is not None:
            with suppress(OSError):  # a full disk must not fail the node
                os.pwrite(self._file, _COUNTS.pack(self._round, self._done, self._total), 0)


def progress_of_round(folder: Path, server_round: int) -> tuple[int, int]:
    """Return the sentences that all nodes together have done, and have selected, in a round.

    Args:
        folder: of the nodes' files.
        server_round: the round; files of another round count as nothing.
    """
    done = total = 0
    with suppress(OSError):  # the folder may be removed meanwhile
        for path in folder.iterdir():
            content = path.read_bytes()
            if len(content) == _COUNTS.size:
                of_round, of_node, selected = _COUNTS.unpack(content)
                if of_round == server_round:
                    done, total = done + of_node, total + selected
    return done, total
