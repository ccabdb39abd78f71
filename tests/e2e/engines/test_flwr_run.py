"""``flwr run . --stream`` with a real SuperLink on this machine gives the model of the inline engine.

What trains is a new project with a strategy of its own; what is refused, the app of the checkout.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fl_sim.cli.commands.new_command import make_project
from fl_sim.engines import simulation
from fl_sim.storage.run_folder import RunFolder
from tests.e2e.engines.flwr_command import Flower
from tests.e2e.processes import needs_proc, wait_until_none_in
from tests.e2e.small_runs import PLAIN, QUICK_TO_LOAD, SAME_MODEL, UEDP, apart, configuration, settings

pytestmark = needs_proc

CHANGES: dict[str, Any] = {**PLAIN, **UEDP, **QUICK_TO_LOAD, "privacy__strategy": "length_weighted:LengthWeighted"}


class Done(NamedTuple):
    """A run of a new project that succeeds, one that is refused, and their statuses in ``flwr list``."""

    project: Path
    trained: subprocess.CompletedProcess[str]
    refused: subprocess.CompletedProcess[str]
    statuses: list[str]


def run_config(folder: Path, values: dict[str, Any]) -> str:
    """Write settings as a file for ``--run-config``; return its path."""
    toml = folder / "run.toml"
    lines = (f"{key} = {json.dumps(value)}\n" for key, value in values.items() if key != "engine.name")
    toml.write_text("".join(lines), encoding="utf-8")
    return str(toml)


@pytest.fixture(scope="module")
def done(flower: Flower, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Done:
    tracked = {"observers": "csv", "tracking.timeout": 30.0}
    toml = run_config(tmp_path_factory.mktemp("settings"), settings(corpus, Path("tonight"), **CHANGES) | tracked)
    project = tmp_path_factory.mktemp("projects") / "chats"
    make_project(project)
    trained, refused = flower.run(toml, app=project), flower.run('corpus.path="/nowhere/at/all"')
    return Done(project, trained, refused, flower.statuses())


@pytest.mark.system
def test_flwr_run_trains_the_model_of_the_inline_engine_with_its_tracker_and_card(
    done: Done, flower: Flower, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert done.trained.returncode == 0, done.trained.stderr
    folder = flower.home / "fl-sim-runs" / "tonight"
    output = done.trained.stdout + done.trained.stderr
    assert f"fl-sim DONE: results are in {folder}" in output
    assert "fl-sim: round 2/2, perplexity" in output
    assert done.statuses[1:] == ["finished:completed"]
    monkeypatch.syspath_prepend(done.project)
    inline = simulation.run(configuration(corpus, tmp_path / "inline", engine__nodes=2, **CHANGES))
    run = RunFolder.open(folder)
    assert run.config["plan"]["strategy"] == CHANGES["privacy__strategy"]
    assert apart(inline, run) < SAME_MODEL
    assert (run.config["run"]["observers"], run.config["run"]["tracking"]["timeout"]) == (["csv"], 30.0)
    rounds = [line.partition(",")[0] for line in (folder / "rounds.csv").read_text().splitlines()]
    assert rounds == ["round", "0", "1", "2"]
    assert "Rounds: 2 of 2." in (folder / "model" / "README.md").read_text()


@pytest.mark.system
def test_a_refused_run_says_so_although_flower_exits_with_0(done: Done) -> None:
    assert done.refused.returncode == 0  # Flower's exit code; once it reports failures, docs/flower.md can be shorter
    failures = [line for line in (done.refused.stdout + done.refused.stderr).splitlines() if "fl-sim FAILED: " in line]
    assert len(failures) == 1
    assert "/nowhere/at/all: no such folder" in failures[0]
    assert done.statuses[0] == "finished:failed"


@pytest.mark.system
def test_nothing_lives_on_once_the_superlink_is_stopped(flower: Flower) -> None:
    """It is stopped as docs/flower.md says. This test can also run alone."""
    if not flower.superlink():
        flower("list")
    assert flower.superlink()
    flower.stop_superlink()
    assert wait_until_none_in(flower.place) == {}
