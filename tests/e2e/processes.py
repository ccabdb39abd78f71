"""Processes started by a test: told from all others by their working folder, which children and grandchildren share."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

needs_proc = pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="finds processes by /proc, which is absent")


def processes_in(folder: Path, named: str = "") -> dict[int, str]:
    """The living processes whose working folder is ``folder`` and command line has ``named``: id and command line."""
    found = {}
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                if (process / "cwd").readlink() == folder:
                    command = (process / "cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(process.name)] = command.decode(errors="replace").strip()
            except OSError:  # it has ended meanwhile, or is not ours
                continue
    return {process: command for process, command in found.items() if named in command}


def wait_until_none_in(folder: Path, seconds: float = 30, named: str = "") -> dict[int, str]:
    """What still lives in ``folder`` after ``seconds``; ends at once when nothing does."""
    deadline = time.monotonic() + seconds
    while (left := processes_in(folder, named)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left


def end_all_in(folder: Path) -> None:
    """End whatever a failed test left behind in ``folder``."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes_in(folder):
            try:
                os.kill(process, number)
            except ProcessLookupError:
                continue
        if not wait_until_none_in(folder, 10):
            return


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def forked(work: Callable[[], int], said: Path) -> tuple[int, str]:
    """Exit code and stderr, which goes to the file ``said``, of a process that is a copy of this one and ends with what
    ``work`` returns.

    It spares the imports of a new one, which take longer than a small run.
    """
    process = os.fork()
    if process == 0:
        code = 70
        try:
            os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT, 0o666), 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            code = work()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), said.read_text()
