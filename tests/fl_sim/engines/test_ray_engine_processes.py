"""Processes of Ray are found and ended: its servers, what is below them, and what they leave behind."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fl_sim.engines import ray_engine
from fl_sim.engines.ray_engine import RayProcesses
from tests.e2e.processes import needs_proc, processes_in, wait_until_none_in

pytestmark = needs_proc

SERVER = """
import subprocess, sys, time
agent = "import time; time.sleep({lives})"
subprocess.Popen([sys.executable, "-c", agent, "of-this-test"])
time.sleep({serves})
"""


@pytest.fixture(autouse=True)
def ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "_GRACE_SECONDS", 0.2)
    monkeypatch.setattr(
        ray_engine, "_is_of_ray", lambda pid: b"of-this-test" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )


@pytest.fixture
def processes() -> Iterator[RayProcesses]:
    with RayProcesses() as processes:
        yield processes


def serve(folder: Path, serves: float, lives: float = 60.0) -> subprocess.Popen[bytes]:
    """Start a server that starts an agent."""
    program = [sys.executable, "-c", SERVER.format(serves=serves, lives=lives), "of-this-test"]
    server = subprocess.Popen(program, cwd=folder)
    deadline = time.monotonic() + 30
    while len(processes_in(folder)) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    return server


@pytest.mark.system
def test_servers_and_what_they_started_are_ended(processes: RayProcesses, tmp_path: Path) -> None:
    serve(tmp_path, serves=60)
    processes.note()
    assert not processes.server_ended
    processes.end()
    assert wait_until_none_in(tmp_path, 1) == {}


@pytest.mark.system
def test_an_agent_that_nobody_noted_is_ended_too(processes: RayProcesses, tmp_path: Path) -> None:
    """As that of a raylet that ends a moment after it has started one."""
    first = serve(tmp_path, serves=0.1, lives=0.1)
    processes.note()
    first.wait()
    assert processes.server_ended
    serve(tmp_path, serves=0.1).wait()
    assert len(processes_in(tmp_path)) == 1
    processes.end()
    assert wait_until_none_in(tmp_path, 1) == {}


@pytest.mark.system
def test_an_orphan_is_no_server(processes: RayProcesses, tmp_path: Path) -> None:
    server = serve(tmp_path, serves=60, lives=1.0)
    processes.note()
    other = serve(tmp_path, serves=0.1, lives=0.3)
    other.wait()
    processes.note()
    time.sleep(0.5)
    assert not processes.server_ended
    server.kill()
