"""Progress goes to standard error: lines where that is no terminal, nothing with --quiet, and results stay clean."""

from __future__ import annotations

import json

import pytest

from fl_sim.cli import progress_bar
from fl_sim.cli.main import main

ENTITIES = ["entities", "corpus", "bundled", "--z", "4", "--rounds", "2", "--q-s", "0.05", "--json"]


def test_lines_come_at_sensible_intervals() -> None:
    times = iter([0.0, *range(1, 40)])
    lines = progress_bar.Lines("steps", clock=lambda: float(next(times)))
    assert [second for second in range(1, 40) if lines.line(second, 1000)] == [3, 13, 23, 33]


def test_what_is_done_is_said_beside_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(ENTITIES) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["entities"] > 0
    assert "computing ε of every entity from its mentions\n" in shown.err
    assert main([*ENTITIES, "--quiet"]) == 0
    assert capsys.readouterr().err == ""
