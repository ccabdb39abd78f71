"""A run at work is shown until it has ended: on the terminal, on a page that loads itself again, or counted."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fl_sim.cli.commands import report_command
from fl_sim.cli.main import main
from fl_sim.storage.run_claim import RunClaim
from fl_sim.storage.run_folder import RunFolder
from tests.fl_sim.conftest import Capture, MakeRun, metrics_row

REFRESH = '<meta http-equiv="refresh" content="5">'


@pytest.fixture
def at_work(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunFolder]:
    """A run whose process does something between two looks at it, and ends after the last of these."""

    def begin(*between: Callable[[], object]) -> RunFolder:
        run = make_run("uedp", rounds=3, finish=False)
        run.truncate_metrics(1)
        claim, steps = RunClaim.hold(run.path), iter([*between])

        def work(seconds: float) -> None:
            for step in steps:
                step()
                return
            for number in (2, 3):
                run.append_metrics(metrics_row("uedp", number, 3))
            claim.release()

        monkeypatch.setattr(report_command.time, "sleep", work)
        return run

    return begin


def test_a_page_loads_itself_again_until_the_run_has_ended(
    at_work: Callable[..., RunFolder], tmp_path: Path, capsys: Capture
) -> None:
    page, pages = tmp_path / "page.html", []
    run = at_work(lambda: pages.append(page.read_text()))
    assert main(["report", "--watch", str(run.path), "--html", str(page), "--quiet"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("Run         uedp-1-0 (uedp): 3 of 3 rounds, interrupted;")
    assert said.err == ""
    assert len(pages) == 1
    assert REFRESH in pages[0]
    assert "1 of 3 rounds, running" in pages[0]
    assert "refresh" not in re.sub(r"<style>.*?</style>", "", page.read_text(), flags=re.DOTALL)
    assert "3 of 3 rounds, interrupted" in page.read_text()


def test_the_terminal_shows_every_round_and_the_end_stays(
    at_work: Callable[..., RunFolder], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    run = at_work(lambda: None)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert main(["report", "--watch", str(run.path)]) == 0
    shown = capsys.readouterr().out
    assert shown.index("1 of 3 rounds, running") < shown.rindex("3 of 3 rounds, interrupted")
    assert shown.count("running") == 2  # drawn once for both looks, and once more as it gives way to the end


def test_a_run_that_is_not_at_work_is_shown_at_once(make_run: MakeRun, tmp_path: Path, capsys: Capture) -> None:
    run = str(make_run("uedp", rounds=2).path)
    assert main(["report", run]) == 0
    once = capsys.readouterr().out
    assert main(["report", run, "--watch"]) == 0
    assert capsys.readouterr().out == once
    assert main(["report", str(tmp_path / "none"), "--watch"]) == 2
    assert capsys.readouterr().err.endswith("none: there is no such folder\n")


def test_a_run_that_has_written_nothing_yet_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    claim = RunClaim.claim(tmp_path / "new")
    monkeypatch.setattr(report_command.time, "sleep", lambda seconds: claim.discard())
    assert main(["report", "--watch", str(tmp_path / "new")]) == 2
    assert "there is no such folder" in capsys.readouterr().err
