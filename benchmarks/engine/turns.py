"""Let contenders take turns: processes that do rounds on request, so that other load affects all alike."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

SCRIPTS = Path(__file__).resolve().parent


class EndedError(Exception):
    """A contender's process ended too early."""


@dataclass
class Contender:
    """A process that does rounds, and their measured cost.

    Attributes:
        started: clock at its start, in seconds.
        ready: seconds from its start to the end of its first round.
        ready_cpu: the same in CPU-seconds.
        per_cpu: users per CPU-second, one figure per turn.
        per_wall: users per second, one figure per turn.
        round_cpu: CPU-seconds of a round, one figure per turn.
        round_wall: seconds of a round, one figure per turn.
        memory: peak memory in MiB in the second round, which is not timed: to read it takes the processor, and most
            of it for the many processes of Ray.
    """

    name: str
    process: subprocess.Popen[str]
    started: float
    ready: float = 0.0
    ready_cpu: float = 0.0
    per_cpu: list[float] = field(default_factory=list)
    per_wall: list[float] = field(default_factory=list)
    round_cpu: list[float] = field(default_factory=list)
    round_wall: list[float] = field(default_factory=list)
    memory: float = 0.0

    def wait(self) -> int | None:
        """Wait for the requested rounds; return how many users took part, or None if the number is fixed."""
        answer, *users = (self.process.stdout.readline() if self.process.stdout else "").split() or [""]
        if answer != "done":
            raise EndedError(f"{self.name} ended early: {self.process.wait()}")
        return int(users[0]) if users else None

    def ask(self, rounds: int) -> int | None:
        """Request rounds, and return what :meth:`wait` does."""
        print(rounds, file=self.process.stdin, flush=True)
        return self.wait()

    def turn(self, rounds: int, users: int) -> None:
        """Request ``rounds`` rounds of about ``users`` users each, and measure them."""
        cpu_before, began = self.cpu_seconds(), time.monotonic()
        users_done = self.ask(rounds) or rounds * users
        wall, cpu = time.monotonic() - began, max(self.cpu_seconds() - cpu_before, 1e-9)
        self.per_wall.append(users_done / wall)
        self.per_cpu.append(users_done / cpu)
        self.round_wall.append(wall / rounds)
        self.round_cpu.append(cpu / rounds)

    def _tree(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            own = psutil.Process(self.process.pid)
            return [own, *own.children(recursive=True)]
        return []

    def cpu_seconds(self) -> float:
        """Return the CPU-seconds that the process and its descendants have used so far."""
        used = 0.0
        for process in self._tree():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                used += times.user + times.system
        return used

    def memory_of_a_round(self) -> float:
        """Return the peak memory of all processes in a round, in MiB, which is read again and again."""
        with concurrent.futures.ThreadPoolExecutor() as threads:
            done, most = threads.submit(self.ask, 1), 0.0
            while not done.done():
                most = max(most, sum(pss(process.pid) for process in self._tree()))
                time.sleep(0.2)
            done.result()
        return most


def pss(process: int, kind: str = "Pss") -> float:
    """Return the PSS of a process in MiB (a page shared by n processes counts 1/n); 0 after it has ended.

    ``kind`` is ``Pss_Anon`` for what no file backs.
    """
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith(f"{kind}:"):
                return int(line.split()[1]) / 1024
    return 0.0


def spread(values: Sequence[float]) -> str:
    """Return the median with the range, as text."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def start(name: str, script: str, spec: Mapping[str, Any], python: str = sys.executable) -> Contender:
    """Start a contender, a script of this folder, and wait for its first two rounds.

    Raises:
        EndedError: it ended before.
    """
    began = time.monotonic()
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    contender = Contender(name, subprocess.Popen([python, str(SCRIPTS / script), json.dumps(spec)], **pipes), began)
    contender.wait()
    contender.ready, contender.ready_cpu = time.monotonic() - began, contender.cpu_seconds()
    contender.memory = contender.memory_of_a_round()
    return contender


@contextlib.contextmanager
def reported_end() -> Iterator[None]:
    """Print which contender ended early, e.g. because Ray did not start in time on a busy machine; the others go on."""
    try:
        yield
    except EndedError as error:
        print(error, file=sys.stderr)


@contextlib.contextmanager
def all_ended(contenders: Sequence[Contender]) -> Iterator[None]:
    """End all contenders, also those that start inside."""
    try:
        yield
    finally:
        for contender in contenders:
            contender.process.stdin and contender.process.stdin.close()
        for contender in contenders:
            contender.process.wait()
