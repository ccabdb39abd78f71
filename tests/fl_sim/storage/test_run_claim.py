"""What a killed run left goes with the next look at its folder, but never what another process works on."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
from pathlib import Path

import pytest

from fl_sim.api.runs import open_run
from fl_sim.config import RunConfig
from fl_sim.search.sweep import DONE, claim_folder, run_one
from fl_sim.storage.run_claim import ENCODED, RunClaim, is_held, tidy
from fl_sim.storage.run_folder import ResultsError, RunFolder


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A finished run whose process was killed before it had cleared up."""
    run = RunFolder.create(tmp_path / "run", config={}, environment={})
    run.append_metrics({"round": 0})
    run.finish({"stopped": "rounds"})
    (run.path / ENCODED / "train").mkdir(parents=True)
    (run.path / ENCODED / "train" / "tokens.npy").write_bytes(b"private")
    (run.path / "plots").mkdir(exist_ok=True)
    (run.path / "plots" / ".epsilon.png.0123abcd.tmp").touch()
    return run.path


def left(run: Path) -> list[str]:
    return [path.name for path in run.rglob("*") if path.name == ENCODED or path.suffix == ".tmp"]


def test_a_report_removes_what_a_killed_run_left(killed: Path) -> None:
    before = {path.name: path.read_bytes() for path in killed.iterdir() if path.is_file()}
    assert left(killed)
    open_run(killed)
    assert left(killed) == []
    assert {path.name: path.read_bytes() for path in killed.iterdir() if path.is_file()} == before


def test_a_batch_removes_it_from_a_finished_run(killed: Path) -> None:
    assert run_one("run", RunConfig(out=str(killed))).status == DONE
    assert left(killed) == []


def refuse(descriptor: int, operation: int) -> None:
    raise OSError(errno.ENOLCK, "no locks")


def test_what_a_process_works_on_stays(killed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = RunClaim(killed, new=False)
    claim._take_lock()
    tidy(killed)
    assert left(killed)
    claim.release()
    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", refuse)  # a file system without locks: a process may be at work
        tidy(killed)
        assert left(killed)
    tidy(killed)
    assert left(killed) == []


def test_the_folder_of_many_runs_is_cleared_of_killed_writes(tmp_path: Path) -> None:
    described = {"grid": [1, 2]}
    claim_folder(tmp_path / "sweep", "sweep.json", described, "sweep")
    (tmp_path / "sweep" / ".table.json.0123abcd.tmp").touch()
    claim_folder(tmp_path / "sweep", "sweep.json", described, "sweep")
    assert sorted(path.name for path in (tmp_path / "sweep").iterdir()) == ["runs", "sweep.json"]
    assert json.loads((tmp_path / "sweep" / "sweep.json").read_text()) == described


def test_a_folder_with_something_in_it_is_refused_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ResultsError, match="exists and is not empty"):
        RunClaim.claim(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_place_where_no_folder_can_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in ("file", "file/run"):
        with pytest.raises(ResultsError, match="is a file, or lies below one; a run needs a folder"):
            RunClaim.claim(tmp_path / place)
    if os.geteuid() != 0:  # root may write anywhere
        tmp_path.chmod(0o500)
        with pytest.raises(ResultsError, match="cannot be written"):
            RunClaim.claim(tmp_path / "run")


def test_a_look_at_the_lock_keeps_no_run_from_its_folder(tmp_path: Path) -> None:
    look = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(look, fcntl.LOCK_SH)
    threading.Timer(0.03, os.close, [look]).start()
    claim = RunClaim.hold(tmp_path)
    assert is_held(tmp_path)
    claim.release()
    assert is_held(tmp_path) is False
