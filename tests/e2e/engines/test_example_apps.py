"""``flwr run`` starts each app of ``examples/``, and what it prints is what its ledger says."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from fl_sim.storage.run_folder import RunFolder
from fl_sim.strategies.accounting.adjacency import Adjacency
from fl_sim.strategies.ledger import Ledger, epsilon_of
from tests.conftest import REPOSITORY
from tests.e2e.engines.flwr_command import Flower
from tests.e2e.processes import needs_proc

pytestmark = needs_proc
pytest.importorskip("sklearn", reason="the digits are those of scikit-learn")

EXAMPLES = REPOSITORY / "examples"
NOT_APPS = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")


class Done(NamedTuple):
    """What an app printed, the accuracy and, of a private app, the stated ε, and the folder of its run."""

    printed: str
    accuracy: float
    epsilon: float | None
    run: RunFolder | None


@pytest.fixture
def run_app(flower: Flower) -> Callable[..., Done]:
    """``run_app(folder, 3, "--run-config", "seed=0")`` runs an app on three nodes; all share one SuperLink."""

    def run(app: Path, nodes: int, *words: str) -> Done:
        runs, federation = flower.home / "fl-sim-runs", f"num-supernodes={nodes} client-resources-num-cpus=1"
        before = set(runs.glob("*"))
        words = ("--federation-config", f"{federation} init-args-num-cpus=2", *words)
        done = flower("run", str(app), "--stream", *words)
        printed = done.stdout + done.stderr
        match = re.search(r"^accuracy on [^:]*: ([\d.]+)(?: at ε ([\d.]+), δ)?", printed, re.MULTILINE)
        assert match is not None, printed[-3000:]
        new = set(runs.glob("*")) - before
        run = RunFolder.open(new.pop()) if new else None
        return Done(printed, float(match[1]), float(match[2]) if match[2] else None, run)

    return run


def quickstart(folder: Path, *, private: bool) -> Path:
    """Return a copy of the plain app in ``folder``, with the lines of the patch if it shall be private."""
    shutil.copytree(EXAMPLES / "quickstart", folder / "quickstart", ignore=NOT_APPS)
    if private:
        patch = EXAMPLES / "quickstart_private.patch"
        subprocess.run(["git", "apply", str(patch)], cwd=folder, check=True, timeout=60)
    return folder / "quickstart"


def stated_by_the_ledger(run: RunFolder | None) -> float:
    """Return the ε of any user after all rounds, as computed from the ledger alone."""
    assert run is not None
    assert run.finished
    return epsilon_of(Ledger.read(run.path).entries, Adjacency(), run.config["plan"]["delta"])


@pytest.mark.nightly
def test_the_cnn_learns_digits_at_the_stated_epsilon(run_app: Callable[..., Done]) -> None:
    done = run_app(EXAMPLES / "digits_cnn", 300, "--run-config", "seed=0 num-server-rounds=20")
    assert done.epsilon == pytest.approx(stated_by_the_ledger(done.run), abs=0.01)
    assert 7.9 < done.epsilon <= 8
    assert done.accuracy > 0.8


@pytest.mark.nightly
def test_persons_inside_a_node_are_its_users(run_app: Callable[..., Done]) -> None:
    done = run_app(EXAMPLES / "adult_logistic", 4, "--run-config", "seed=0 num-server-rounds=30")
    assert done.epsilon == pytest.approx(stated_by_the_ledger(done.run), abs=0.01)
    assert 1.9 < done.epsilon <= 2
    assert done.accuracy > 0.7  # 60 % have the more frequent income
    assert done.run is not None
    sampled = done.run.metrics()["cohort_users"].iloc[1:]
    assert 120 < sampled.mean() < 180  # 0.05 of 3,000 persons, from 4 nodes
    assert "of 3000 users" in done.printed


@pytest.mark.nightly
def test_the_patch_makes_the_quickstart_private(run_app: Callable[..., Done], tmp_path: Path) -> None:
    for name in ("plain", "private"):
        (tmp_path / name).mkdir()
    plain = run_app(quickstart(tmp_path / "plain", private=False), 40, "--run-config", "num-server-rounds=8")
    private = run_app(quickstart(tmp_path / "private", private=True), 200)
    assert plain.run is None
    assert plain.accuracy > 0.9
    assert private.accuracy > 0.7
    assert 7.9 < stated_by_the_ledger(private.run) <= 8


@pytest.mark.system
def test_the_patch_adds_three_lines_to_each_side() -> None:
    text = (EXAMPLES / "quickstart_private.patch").read_text(encoding="utf-8")
    files = text.split("\n+++ ")[1:]
    counts = {Path(file.split()[0]).name: file.count("\n+") for file in files}
    assert counts == {"pyproject.toml": 1, "quickstart_client.py": 2, "quickstart_server.py": 3}
