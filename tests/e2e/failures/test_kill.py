"""Runs that are killed, run out of disk or may not write: nothing is lost, and one line says what is wrong.

``benchmarks/kill_runs.py`` kills more often; ``benchmarks/inject_faults.py`` lets every write, sync and rename fail.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.kill_runs import kill
from fl_sim.cli.main import main
from fl_sim.engines import simulation
from fl_sim.storage.run_folder import RunFolder
from tests.conftest import REPOSITORY
from tests.e2e.processes import forked
from tests.e2e.small_runs import configuration, crashed, measured, model_of, settings
from tests.tiny import command_line

pytestmark = pytest.mark.usefixtures("no_plots")

SMALL_FILES = 100_000
"""Bytes: every file of a small run stays below, except its checkpoints and its model."""


@pytest.mark.nightly
def test_killed_runs_end_as_if_they_had_not_been(tmp_path: Path) -> None:
    first = kill(5, seed=3, folder=tmp_path)[0]
    assert first.startswith("5 kills in ")


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("cc") is None or sys.platform != "linux", reason="needs a C compiler, and Linux")
def test_faults_lose_nothing_and_are_said_in_one_line() -> None:
    words = [sys.executable, "benchmarks/inject_faults.py", "--what", "run", "prepare", "--every", "250"]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    seeded, secure, prepared = done.stdout.splitlines()
    for line in (seeded, secure, prepared):
        operations, faults = (int(number) for number in re.findall(r"(\d+) (?:operations|faults)", line))
        assert operations > 100
        assert faults >= 2


def limited(words: list[str], folder: Path, restrict: Callable[[], None]) -> tuple[int, str]:
    """Run ``fl-sim`` in a forked process after ``restrict``; return its exit code and stderr."""

    def work() -> int:
        restrict()
        return main(words)

    return forked(work, folder / "errors")


@pytest.mark.system
def test_a_file_that_cannot_grow_leaves_the_run_as_it_was(corpus: Path, tmp_path: Path) -> None:
    whole = simulation.run(configuration(corpus, tmp_path / "whole", rounds=4, privacy__q_s=0.5))
    run = crashed(corpus, tmp_path / "run", 1, checkpoint_every=1)
    state = (run / "checkpoint" / "latest.safetensors").read_bytes()
    assert len(state) > SMALL_FILES
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL_FILES, SMALL_FILES))  # noqa: E731
    code, errors = limited(["resume", str(run), "--quiet"], tmp_path, limit)
    assert (code, errors.count("\n")) == (2, 1), errors
    assert "File too large" in errors
    assert (run / "checkpoint" / "latest.safetensors").read_bytes() == state
    assert not list(run.rglob(".*.tmp"))
    resumed = simulation.resume(run)
    assert np.array_equal(model_of(whole), model_of(resumed))
    assert measured(whole) == measured(resumed)


@pytest.mark.system
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_disk_behind_standard_output(corpus: Path, tmp_path: Path) -> None:
    words = ["run", "--quiet", *command_line(settings(corpus, tmp_path / "run"))]
    code, errors = limited(words, tmp_path, lambda: os.dup2(os.open("/dev/full", os.O_WRONLY), 1) and None)
    assert (code, errors) == (2, "fl-sim run: No space left on device\n")
    assert RunFolder.open(tmp_path / "run").result is not None


@pytest.mark.system
@pytest.mark.skipif(os.geteuid() != 0, reason="needs the right to become a user who may not write")
def test_a_folder_that_may_only_be_read(corpus: Path, tmp_path: Path) -> None:
    run = crashed(corpus, tmp_path / "run", 1, checkpoint_every=1)
    (run / "checkpoint").chmod(0o755)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    (tmp_path / "errors").touch(0o666)

    def become_nobody() -> None:
        os.chdir(run)
        os.setresuid(65534, 65534, 65534)

    code, errors = limited(["resume", ".", "--quiet"], tmp_path, become_nobody)
    assert (code, errors.count("\n")) == (2, 1), errors
    assert "Permission denied" in errors
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.system
def test_a_run_killed_while_it_finished_can_finish(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result is written last, so that a run with a result is complete."""

    def die(run: RunFolder) -> None:
        raise KeyboardInterrupt

    run = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr("fl_sim.reporting.plots.write_run_plots", die)
        with pytest.raises(KeyboardInterrupt):
            simulation.run(configuration(corpus, run))
    assert (run / "summary.txt").exists()
    assert RunFolder.open(run).result is None
    assert (simulation.resume(run).result or {})["stopped"] == "rounds"
