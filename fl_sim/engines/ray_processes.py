"""Find and end the processes of a Ray that this process started: some outlive Ray's own shutdown by many seconds.

The agents of a raylet notice only by polling that it is gone, and a raylet that ends may just have started them. So
this process adopts what its descendants leave behind. Where there is no ``/proc``, Ray is left to end its processes.

>>> with RayProcesses() as processes:  # no Ray was started
...     processes.server_ended
False
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress
from importlib import util
from pathlib import Path

_PROC = Path("/proc")
_GRACE_SECONDS = 1.5
_LOOK_SECONDS = 0.05
_SET_CHILD_SUBREAPER, _GET_CHILD_SUBREAPER = 36, 37  # of prctl(2)

Process = tuple[int, str]
"""The id of a process, and its start time, by which another process with the same id is told from it."""


class RayProcesses:
    """The processes of Ray below this one, from their start to :meth:`end`, which the ``with`` statement calls."""

    def __init__(self) -> None:
        self._noted: set[Process] = set()
        self._servers: set[Process] = set()
        self._adopted_before = _adopt_orphans(True)

    def __enter__(self) -> RayProcesses:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def note(self) -> None:
        """Remember the processes that Ray has started so far: this process's children from Ray, and all below them.

        The first children are Ray's servers; later ones may be orphans of these.
        """
        parents = _parents()
        found = {pid for pid, (parent, _) in parents.items() if parent == os.getpid() and _is_of_ray(pid)}
        self._servers = self._servers or {(pid, parents[pid][1]) for pid in found}
        below = found
        while below:
            below = {pid for pid, (parent, _) in parents.items() if parent in below} - found
            found |= below
        self._noted |= {(pid, parents[pid][1]) for pid in found}

    @property
    def server_ended(self) -> bool:
        """Return whether a process that Ray started from this one has ended: its raylet, for example."""
        return not self._servers <= self._alive()

    def end(self) -> None:
        """Wait for the noted processes and their orphans to end, and kill those that do not."""
        deadline = time.monotonic() + _GRACE_SECONDS
        while self._alive() and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        if self._noted:
            self.note()
        while left := self._alive():
            for pid, _ in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_LOOK_SECONDS)
            self.note()
        for pid, _ in self._noted:
            with suppress(ChildProcessError):  # those that this process adopted are its to bury
                os.waitpid(pid, os.WNOHANG)
        _adopt_orphans(self._adopted_before)

    def _alive(self) -> set[Process]:
        return {process for process in self._noted if _start_time(process[0]) == process[1]}


def _adopt_orphans(adopt: bool) -> bool:
    """Become the parent of descendants whose parent ends, or not any more; return what was so before."""
    if sys.platform != "linux":
        return False
    libc, before = ctypes.CDLL(None), ctypes.c_int()
    libc.prctl(_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    libc.prctl(_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0)
    return bool(before.value)


def _parents() -> dict[int, tuple[int, str]]:
    """Return the parent and the start time of every process."""
    parents = {}
    for entry in _PROC.iterdir() if _PROC.is_dir() else ():
        if entry.name.isdigit() and (fields := _fields(int(entry.name))) is not None:
            parents[int(entry.name)] = (int(fields[1]), fields[19])
    return parents


def _start_time(pid: int) -> str | None:
    """Return when a process started; None if it is gone."""
    fields = _fields(pid)
    return None if fields is None or fields[0] == "Z" else fields[19]


def _fields(pid: int) -> list[str] | None:
    """Return the fields of ``/proc/PID/stat`` from the third on: state, parent, …; None if there is no such process."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _is_of_ray(pid: int) -> bool:
    """Return whether a process runs a program of Ray's package, perhaps under the title that Ray gave it."""
    spec = util.find_spec("ray")
    package = str(Path(spec.origin).parent) if spec and spec.origin else "ray"
    try:
        command = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return False
    return package.encode() in command or command.startswith(b"ray::")
