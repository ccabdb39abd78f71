"""Fixtures for all tests."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.command_server import CommandServer, serving

os.environ["XDG_STATE_HOME"] = str(Path(tempfile.gettempdir()) / "fl-sim-tests")  # not the user's own state
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

# A slow machine is not a failure; benchmarks/ measures speed. The same examples in every run, so that no chance decides
# what a test notices; benchmarks/fuzz.py looks for others.
settings.register_profile("fl_sim", deadline=None, derandomize=True)
settings.load_profile("fl_sim")

REPOSITORY = Path(__file__).resolve().parents[1]

# With ``--dist loadfile`` one worker runs all tests of a file. The longest files come first, so that none of them ends
# last and those that wait for other processes overlap with those that compute.
LONGEST = (
    "e2e/failures/test_stops.py",
    "e2e/engines/test_ray.py",
    "e2e/engines/test_flwr_run.py",
    "e2e/engines/test_cluster.py",
    "e2e/failures/test_lying_nodes.py",
    "e2e/test_strategies.py",
    "data_prep/taggers/test_taggers.py",
    "e2e/test_notebooks.py",
    "fl_sim/experiments/plan/test_public_settings.py",
    "e2e/test_installed.py",
    "strategies/test_add_a_strategy.py",
    "research/representations/test_representation_experiment.py",
    "e2e/failures/test_faults.py",
    "e2e/test_enforced_runs.py",
    "e2e/test_run.py",
    "fl_sim/search/test_planner.py",
    "fl_sim/auditing/real_rounds/test_canary_audit.py",
    "e2e/engines/test_same_on_every_engine.py",
    "strategies/test_ledger.py",
    "fl_sim/experiments/plan/test_lineage.py",
    "strategies/accounting/losses/test_convolution.py",
)


@pytest.hookimpl(optionalhook=True)  # also without xdist
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return one worker more than there are processors: one often waits for Ray, for a disk or for a signal."""
    return len(os.sched_getaffinity(0)) + 1 if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first and keep the order of the others."""
    ranks = {REPOSITORY / "tests" / name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of real corpora next to the checkout; skip the test if it is absent."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the real corpora (../shared/data) are not on this machine")
    return folder


@pytest.fixture(scope="session")
def command_server() -> Iterator[CommandServer]:
    """Return the server that runs command lines without a start of their own (tests/command_server.py)."""
    with serving() as server:
        yield server


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the plots of runs, which take longer than a small run and are tested elsewhere."""
    monkeypatch.setattr("fl_sim.reporting.plots.write_run_plots", lambda run: None)
