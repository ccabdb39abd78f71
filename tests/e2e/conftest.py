"""Fixtures of the end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.processes import end_all_in


@pytest.fixture(scope="session")
def corpus(small: Path) -> Path:
    """Return the small corpus, whose users differ in size, in place of the tiny one."""
    return small


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Yield a working folder for commands; processes that a failed test leaves in it are ended."""
    folder = tmp_path / "place"
    folder.mkdir()
    yield folder
    end_all_in(folder)
