"""Fixtures of the end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fl_sim.engines import simulation
from tests.e2e.engines.flwr_command import Flower
from tests.e2e.processes import end_all_in
from tests.e2e.small_runs import Run, configuration


@pytest.fixture(scope="session")
def corpus(small: Path) -> Path:
    """Return the small corpus, whose users differ in size, in place of the tiny one."""
    return small


@pytest.fixture
def run(corpus: Path, tmp_path: Path) -> Run:
    """``run("name", rounds=3)`` does an inline run in this process and returns the run folder."""
    return lambda name, **changes: simulation.run(configuration(corpus, tmp_path / name, **changes))


@pytest.fixture(scope="module")
def flower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flower]:
    """Yield Flower's command with a SuperLink of the module's own."""
    place = tmp_path_factory.mktemp("flower") / "place"
    place.mkdir()
    yield Flower(place)
    end_all_in(place)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Yield a working folder for commands; processes that a failed test leaves in it are ended."""
    folder = tmp_path / "place"
    folder.mkdir()
    yield folder
    end_all_in(folder)
