"""Find and end the processes of a Ray that this process started: some outlive Ray's own shutdown by many seconds.

The agents of a raylet notice only by polling that it is gone. Where there is no ``/proc``, Ray is left to end them.

>>> RayProcesses().end()  # no Ray was started
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from importlib import util
from pathlib import Path

_PROC = Path("/proc")
_GRACE_SECONDS = 1.5
_LOOK_SECONDS = 0.05

Process = tuple[int, str]
"""The id of a process, and its start time, by which another process with the same id is told from it."""


class RayProcesses:
    """The processes of Ray below this one; :meth:`note` them before Ray shuts down, :meth:`end` them afterwards."""

    def __init__(self) -> None:
        self._noted: set[Process] = set()
        self._servers: set[Process] = set()

    def note(self) -> None:
        """Remember the processes that Ray has started so far: this process's children from Ray, and all below them."""
        parents = _parents()
        found = {pid for pid, (parent, _) in parents.items() if parent == os.getpid() and _is_of_ray(pid)}
        self._servers |= {(pid, parents[pid][1]) for pid in found}
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
        """Wait for the noted processes to end, and kill those that do not."""
        deadline = time.monotonic() + _GRACE_SECONDS
        while (left := self._alive()) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        for pid, _ in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _alive(self) -> set[Process]:
        return {process for process in self._noted if _start_time(process[0]) == process[1]}


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
    """Return whether a process runs a program of Ray's package."""
    spec = util.find_spec("ray")
    package = str(Path(spec.origin).parent) if spec and spec.origin else "ray"
    try:
        return package.encode() in (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return False
