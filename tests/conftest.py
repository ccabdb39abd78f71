"""Fixtures that every test may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

# A slow machine is no failure; what must be fast is measured in benchmarks/.
settings.register_profile("fl_sim", deadline=None)
settings.load_profile("fl_sim")

REPOSITORY = Path(__file__).resolve().parents[1]

# With ``--dist loadfile`` a file is one worker's: the longest come first, so that none of them is the last to end, and
# files that wait for other processes run beside files that compute.
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
    """Put the longest files first, and leave all else in its order."""
    places = {REPOSITORY / "tests" / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real corpora beside the checkout; tests that want it skip where it is absent."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the real corpora (../shared/data) are not on this machine")
    return folder


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes longer than a small run does, and is tested elsewhere: ``pytest.mark.usefixtures("no_plots")``."""
    monkeypatch.setattr("fl_sim.reporting.plots.write_run_plots", lambda run: None)
