"""A few hostile inputs of every kind; ``benchmarks/fuzz.py`` makes a thousand of each."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from benchmarks.fuzz import KINDS, fuzz

EXAMPLES = {"configurations": 12, "corpora": 25, "ledgers": 40, "checkpoints": 60, "messages": 40}


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_hostile_input_is_taken_or_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    logging.disable()
    try:
        found = fuzz(kind, EXAMPLES[kind], tmp_path, first=1)
    finally:
        logging.disable(logging.NOTSET)
    assert found["refused"] > EXAMPLES[kind] / 4
    assert found.keys() <= {"taken", "refused"}
