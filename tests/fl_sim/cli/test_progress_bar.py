"""Progress goes to standard error: lines where that is no terminal, nothing with --quiet, and results stay clean."""

from __future__ import annotations

import io
import itertools
import json
import threading

import pytest
from rich.console import Console

from fl_sim.cli import console, progress_bar
from fl_sim.cli.main import main

ENTITIES = ["entities", "corpus", "bundled", "--z", "4", "--rounds", "2", "--q-s", "0.05", "--json"]


def test_lines_come_at_sensible_intervals() -> None:
    times = iter([0.0, *range(1, 40)])
    lines = progress_bar.Lines("steps", clock=lambda: float(next(times)))
    assert [second for second in range(1, 40) if lines.line(second, 1000)] == [3, 13, 23, 33]


@pytest.mark.parametrize(
    ("width", "figures"),
    [
        (100, "perplexity 228.3, ε any 0.700, user 0.600, fast path"),
        (80, "perplexity 228.3, ε any 0.700, user 0.600"),
        (60, "perplexity 228.3"),
        (40, ""),
    ],
)
def test_bar_count_and_time_left_come_first_and_figures_fit(
    width: int, figures: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, now = io.StringIO(), itertools.count(0.0, 30.0)
    terminal = Console(file=out, width=width, force_terminal=True, color_system=None)
    monkeypatch.setattr(console, "Console", lambda **settings: terminal)
    monkeypatch.setattr(console.time, "monotonic", lambda: next(now))
    bar = console.ProgressBar()
    bar._rounds, bar._path = 30, "fast path"
    bar._task = bar._progress.add_task("", total=30, counted="", left="", figures=())
    for number in range(3):
        bar.on_round({"round": number, "perplexity": 228.3, "epsilon_any": 0.7, "epsilon_user": 0.6})
    terminal.print(bar._progress.get_renderable())
    (line,) = out.getvalue().splitlines()
    _, _, shown = line.partition("2 of 30 ")
    assert shown.strip() == f"28 min left {figures}".strip()
    assert len(line) <= width


def test_a_long_step_is_not_silent() -> None:
    times = iter([0.0, 5.0, 50.0, 70.0, 100.0, 131.0])
    lines = progress_bar.Lines("runs", clock=lambda: next(times))
    assert lines.line(1, 12, "1 of 12, first done") == "runs: 1 of 12, first done, about 55 s left"
    assert [lines.late_line() for _ in range(4)] == [
        None, "runs: 1 of 12, first done, at work for 70 s", None, "runs: 1 of 12, first done, at work for 2 min"
    ]  # fmt: skip


@pytest.mark.parametrize("resumed_at", [0, 1000])
def test_the_time_left_holds_for_steps_of_uneven_length(resumed_at: int) -> None:
    left, now = progress_bar.TimeLeft(), 0.0
    for step in range(401):  # a slow start, then one step in ten takes ten times as long
        now += 500.0 if step == 1 else 10.0 if step % 10 == 0 else 1.0
        left.see(now, resumed_at + step)
    assert left.in_words(resumed_at + 400, resumed_at + 1400) == "about 32 min left"  # 1,900 s


def test_the_time_left_grows_while_nothing_is_done() -> None:
    left = progress_bar.TimeLeft()
    for now, done in ((0.0, 0), (10.0, 80), (40.0, 80)):
        left.see(now, done)
    assert left.in_words(80, 100) == "about 10 s left", "20 of 100 at 80 in 40 s; the pace of the first 10 s says 2.5"


def test_a_minute_of_silence_begins_with_the_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    times, waits = iter([0.0, 20.0, 30.0, 80.0, 81.0]), []
    lines, ended = progress_bar.Lines("runs", clock=lambda: next(times)), threading.Event()
    ended.wait = lambda timeout=None: waits.append(timeout) or len(waits) > 1  # type: ignore[method-assign,func-returns-value]
    lines.say("begun")
    lines.break_silence(ended)
    assert waits == [50.0, 59.0]
    assert capsys.readouterr().err == "begun\nruns: begun, at work for 80 s\n"


def test_what_is_done_is_said_beside_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(ENTITIES) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["entities"] > 0
    assert "computing ε of every entity from its mentions\n" in shown.err
    assert main([*ENTITIES, "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_a_line_of_a_study_is_its_state(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 1.0, 62.0, 63.0, 130.0, 360.0])
    lines = progress_bar.Lines("words", clock=lambda: next(times))
    lines.say("  seed 0")
    assert lines.late_line() == "words: seed 0, at work for 62 s"
    lines.say("  seed 1, 3 to go", 240.0)
    assert lines.late_line() == "words: seed 1, 3 to go, at work for 2 min, about 3 min left"
    assert lines.late_line() == "words: seed 1, 3 to go, at work for 6 min", "it takes longer than was expected"
    assert capsys.readouterr().err == "  seed 0\n  seed 1, 3 to go, about 4 min left\n"
