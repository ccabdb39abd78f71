"""Find and end the processes of a test by their working folder, which their descendants share."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

needs_proc = pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="needs /proc to find processes")


def processes_in(folder: Path, named: str = "") -> dict[int, str]:
    """Return id and command line of the processes in or below ``folder`` whose command line contains ``named``."""
    commands = {}
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                if (process / "cwd").readlink().is_relative_to(folder):
                    command = (process / "cmdline").read_bytes().replace(b"\0", b" ")
                    commands[int(process.name)] = command.decode(errors="replace").strip()
            except OSError:  # it ended meanwhile or belongs to another user
                continue
    return {process: command for process, command in commands.items() if named in command}


def printed_by(*words: str | Path, folder: Path, paths: Sequence[Path] = ()) -> str:
    """Return what a command prints, run in ``folder``, with ``paths`` as PYTHONPATH in place of this process's."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PYTHONPATH": os.pathsep.join(map(str, paths))} if paths else {}
    done = subprocess.run(
        [*map(str, words)], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def wait_while_running(
    process: subprocess.Popen[Any], holds: Callable[[], bool], seconds: float, look_seconds: float = 0.1
) -> str | None:
    """Wait until ``holds()``; return the reason if it does not: ``process`` ended, or it took too long.

    Time is counted in looks, so minutes in which the whole machine stands still are one look.
    """
    for _ in range(round(seconds / look_seconds)):
        if holds():
            return None
        if process.poll() is not None:
            return f"ended with {process.returncode}"
        time.sleep(look_seconds)
    return "took too long"


def wait_until_none_in(folder: Path, seconds: float = 30, named: str = "") -> dict[int, str]:
    """Wait until no such process is left; return those that remain after ``seconds``."""
    deadline = time.monotonic() + seconds
    while (remaining := processes_in(folder, named)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return remaining


def end_all_in(folder: Path) -> None:
    """End the processes that a failed test left in ``folder``."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes_in(folder):
            try:
                os.kill(process, number)
            except ProcessLookupError:
                continue
        if not wait_until_none_in(folder, 10):
            return


def free_port() -> int:
    """Return a port of this machine on which no process listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def forked(work: Callable[[], int], errors: Path) -> tuple[int, str]:
    """Run ``work`` in a fork of this process, which saves the imports of a new one.

    Args:
        work: its return value is the exit code.
        errors: file for the fork's stderr.

    Returns:
        The exit code and the content of stderr.
    """
    process = os.fork()
    if process == 0:
        code = 70
        try:
            os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT, 0o666), 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            code = work()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), errors.read_text()
