"""Fixtures of the end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.processes import end_all_in
from tests.e2e.small_runs import shared_corpus


@pytest.fixture(scope="session")
def corpus() -> Path:
    """Return the small corpus of :mod:`tests.e2e.small_runs`, which all tests share: it is only read."""
    return shared_corpus()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Yield a working folder for commands; processes that a failed test leaves in it are ended."""
    folder = tmp_path / "place"
    folder.mkdir()
    yield folder
    end_all_in(folder)
