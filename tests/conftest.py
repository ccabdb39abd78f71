"""Fixtures for all tests."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

os.environ["XDG_STATE_HOME"] = str(Path(tempfile.gettempdir()) / "fl-sim-tests")  # not the user's own state
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

# A slow machine is not a failure; benchmarks/ measures speed.
settings.register_profile("fl_sim", deadline=None)
settings.load_profile("fl_sim")

REPOSITORY = Path(__file__).resolve().parents[1]

# With ``--dist loadfile`` one worker runs all tests of a file. The longest files come first, so that none of them ends
# last and those that wait for other processes overlap with those that compute.
LONGEST = (
    "e2e/engines/test_flwr_run.py",
    "data_prep/taggers/test_taggers.py",
    "strategies/accounting/test_entity_profiles.py",
    "e2e/engines/test_ray.py",
    "e2e/test_installed.py",
    "e2e/test_notebooks.py",
    "e2e/engines/test_same_on_every_engine.py",
    "e2e/engines/test_cluster.py",
    "research/representations/test_representation_experiment.py",
    "e2e/test_strategies.py",
    "e2e/test_sweep.py",
    "fl_sim/cli/test_audit_command.py",
    "strategies/accounting/test_accountant.py",
    "data_prep/ner/test_shipped_pipeline.py",
    "data_prep/ner/test_pipeline_training.py",
)


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


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the plots of runs, which take longer than a small run and are tested elsewhere."""
    monkeypatch.setattr("fl_sim.reporting.plots.write_run_plots", lambda run: None)
