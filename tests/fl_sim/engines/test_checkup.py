"""The doctor finds what is wrong: versions, arithmetic, and engines that end with another model."""

from __future__ import annotations

import json
import signal
import time
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from fl_sim.cli.main import main
from fl_sim.engines import checkup
from fl_sim.engines.checkup import Finding


def verdicts(findings: list[Finding]) -> dict[str, str]:
    return {finding.name: finding.verdict for finding in findings}


def test_libraries_out_of_range_or_absent_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"flwr": "0.1"}

    def version(name: str) -> str:
        if name == "rich":
            raise metadata.PackageNotFoundError(name)
        return versions.get(name) or real(name)

    real = metadata.version
    monkeypatch.setattr(metadata, "version", version)
    found = {finding.name: finding for finding in checkup.installed()}
    assert (found["flwr"].verdict, found["rich"].verdict, found["numpy"].verdict) == ("failed", "failed", "ok")
    assert found["rich"].value == "absent"
    assert ">=" in found["flwr"].advice


def test_little_memory_and_disk_are_warnings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(checkup, "cores_here", lambda: 3)  # of 64, say, in a container with a quota
    assert checkup.machine(tmp_path)[0].value.startswith("3 cores, ")
    monkeypatch.setattr(checkup, "free_memory", lambda: 10)
    monkeypatch.setattr(checkup.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 10}))
    found = verdicts(checkup.machine(tmp_path))
    assert (found["free memory"], found["free disk"]) == ("warning", "warning")


def test_engines_that_end_with_another_model_or_with_none_fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(engine: str, device: str, out: Path) -> np.ndarray:
        if (engine, device) == ("ray", "cuda"):
            raise ValueError("no room\nfor a worker")
        return np.ones(4, np.float32) + np.float32(1e-6 * (engine == "ray") + 1e-5 * (device == "cuda"))

    asked: list[str] = []
    monkeypatch.setattr(checkup, "_run", run)
    found = checkup.check_engines(["cpu", "cuda"], tmp_path, asked.append)
    assert verdicts(found) == {
        "inline on cpu": "ok",
        "ray on cpu": "failed",  # other bits on the same device
        "inline on cuda": "ok",  # within the tolerance between devices
        "ray on cuda": "failed",
    }
    assert found[-1].advice == "ValueError: no room for a worker"
    assert len(asked) == 4


def test_runs_that_take_long_are_cut_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cleaned: list[str] = []

    def run(engine: str, device: str, out: Path) -> np.ndarray:
        try:
            time.sleep(0 if engine == "inline" else 60)
        except Exception:  # a run may handle errors of its own
            cleaned.append("as an error")
        finally:
            cleaned.append(engine)
        return np.ones(4, np.float32)

    monkeypatch.setattr(checkup, "_run", run)
    handler = signal.getsignal(signal.SIGALRM)
    inline, ray = checkup.check_engines(["cpu"], tmp_path, lambda what: None, seconds=0.5)
    assert (inline.verdict, ray.verdict) == ("ok", "warning")
    assert ray.value.startswith("not checked: cut off after")
    assert cleaned == ["inline", "ray"]
    assert signal.getsignal(signal.SIGALRM) is handler
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


@pytest.mark.nightly
def test_the_inline_engine_runs_on_this_machine(tmp_path: Path) -> None:
    model = checkup._run("inline", "cpu", tmp_path / "run")
    assert model.dtype == np.float32
    assert np.isfinite(model).all()


@pytest.mark.parametrize(("verdict", "status"), [("warning", 0), ("failed", 1)])
def test_the_command_says_by_its_status_what_it_found(
    verdict: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    findings = [Finding("disk", "[1 GiB]", "ok"), Finding("memory", "1 GiB", verdict, "buy some")]  # type: ignore[arg-type]
    asked: list[float] = []
    monkeypatch.setattr(checkup, "checkup", lambda **options: asked.append(options["seconds"]) or findings)
    assert main(["doctor", "--quiet"]) == status
    assert 0 < asked[0] <= 40, "which leaves the rest of a minute to what is not checked"
    assert "[1 GiB]" in capsys.readouterr().out
    assert main(["doctor", "--json", "--quiet"]) == status
    out = json.loads(capsys.readouterr().out)
    assert out["verdict"] == verdict
    assert out["findings"][1] == {"name": "memory", "value": "1 GiB", "verdict": verdict, "advice": "buy some"}
