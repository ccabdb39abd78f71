"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from strategies.plan import PrivacyPlan
from strategies.units import Adjacency
from tests.e2e.processes import end_all_in


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A working folder for commands; whatever process a failed test leaves in it is ended."""
    folder = tmp_path / "place"
    folder.mkdir()
    yield folder
    end_all_in(folder)


@pytest.fixture(autouse=True, scope="session")
def every_curve_once() -> Iterator[None]:
    """ε by rounds is a pure function of plan and adjacency, and half of what a small run takes; few plans are run."""
    computed = functools.lru_cache(maxsize=None)(PrivacyPlan.epsilon_curve)

    def epsilon_curve(
        plan: PrivacyPlan, adjacency: Adjacency, rounds: Sequence[int], *, robust: bool = False
    ) -> npt.NDArray[np.float64]:
        return computed(plan, adjacency, tuple(rounds), robust=robust).copy()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PrivacyPlan, "epsilon_curve", epsilon_curve)
        yield
