"""A part's module in the working directory: found here, and by worker processes that start elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fl_sim import plugins
from fl_sim.config import EngineConfig
from fl_sim.engines import ray_engine
from fl_sim.plugins import Registry

REGISTRY = Registry("fl_sim.examples", "example", {"path": "pathlib:Path"})


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "_used", [])
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])


@pytest.mark.system
@pytest.mark.parametrize("file", ["part_of_mine.py", "part_of_mine/__init__.py"])
def test_workers_find_what_was_found_in_the_working_directory(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("part = 7\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "part_of_mine", raising=False)
    assert plugins.worker_environment() == {}
    assert REGISTRY.load("part_of_mine:part") == 7
    assert plugins.worker_environment() == {"FL_SIM_PLUGIN_FOLDERS": str(tmp_path)}
    assert ray_engine._worker_environment(EngineConfig())["FL_SIM_PLUGIN_FOLDERS"] == str(tmp_path)
    code = f"from tests.fl_sim.{Path(__file__).stem} import REGISTRY; print(REGISTRY.load('part_of_mine:part'))"
    root = Path(plugins.__file__).parents[1]
    environment = os.environ | plugins.worker_environment() | {"PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd="/", env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "7", done.stderr
