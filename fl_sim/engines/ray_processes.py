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
        servers, found = _of_ray(_parents())
        self._servers |= servers
        self._noted |= found

    def kill(self) -> None:
        """Kill what Ray has started so far, also while it is starting more.

        A raylet that is killed leaves the agents that it started a moment ago to themselves. Every process is stopped
        before those below it are looked for, so that none can start another that is missed.
        """
        frozen: set[Process] = set()
        while new := _of_ray(_parents())[1] - frozen:
            _send(signal.SIGSTOP, new)
            frozen |= new
        _send(signal.SIGKILL, frozen)
        self._noted |= frozen

    @property
    def server_ended(self) -> bool:
        """Return whether a process that Ray started from this one has ended: its raylet, for example."""
        return not self._servers <= self._alive()

    def end(self) -> None:
        """Wait for the noted processes to end, and kill those that do not."""
        deadline = time.monotonic() + _GRACE_SECONDS
        while (left := self._alive()) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        _send(signal.SIGKILL, left)

    def _alive(self) -> set[Process]:
        return {process for process in self._noted if _start_time(process[0]) == process[1]}


def _of_ray(parents: dict[int, tuple[int, str]]) -> tuple[set[Process], set[Process]]:
    """Return this process's children from Ray, and these with all processes below them."""
    found = {pid for pid, (parent, _) in parents.items() if parent == os.getpid() and _is_of_ray(pid)}
    servers = {(pid, parents[pid][1]) for pid in found}
    below = found
    while below:
        below = {pid for pid, (parent, _) in parents.items() if parent in below} - found
        found |= below
    return servers, {(pid, parents[pid][1]) for pid in found}


def _send(number: signal.Signals, processes: set[Process]) -> None:
    for pid, _ in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


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
