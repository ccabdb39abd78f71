"""Runs side by side: ε that are other statements, differences user by user, tables; and a run that is at work."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fl_sim
from fl_sim.cli.commands import report_command
from fl_sim.cli.main import main
from fl_sim.reporting.bootstrap import paired_difference
from fl_sim.reporting.comparison import compare_runs
from fl_sim.storage.run_claim import RunClaim
from fl_sim.storage.run_folder import ResultsError, RunFolder, encode
from tests.fl_sim.conftest import GUARANTEE, Capture, MakeRun, Printed, Refusal, cut_ledger, metrics_row

USERS = 40
FIGURE = {"value": 2.4, "low": 2.3, "high": 2.5}
HELD_OUT = {
    "users": USERS, "sentences": 400, "figures": {"bits_per_byte": FIGURE},
    "metric": "bits_per_byte", "deciles": [], "by_sentences": [], "by_mention": {}, "by_training_mentions": [],
}  # fmt: skip


def sums(shift: float = 0.0, targets: int = 50) -> dict[str, list[float]]:
    """Sums of 40 users, whose cross-entropies are spread widely and alike in all runs."""
    spread = np.random.default_rng(0).normal(5.0, 1.0, USERS)
    counts = np.full(USERS, float(targets))
    return {
        "predictions": counts.tolist(),
        "nats": (counts * (spread + shift)).tolist(),
        "wrong": (0.8 * counts).tolist(),
    }


def measured(make_run: MakeRun, shift: float = 0.0, corpus: str = "c0ffee", **facts: Any) -> RunFolder:
    """A run on a named corpus whose noise was left open, with figures by user."""
    open_noise = {"strategy": "uedp", "noise_multiplier": None}
    run = make_run("uedp", rounds=3, result={"held_out": HELD_OUT}, corpus=corpus, privacy=open_noise, **facts)
    run.write_held_out_users(sums(shift))
    return run


@pytest.fixture
def two(make_run: MakeRun) -> list[RunFolder]:
    return [measured(make_run), measured(make_run, shift=0.1, z=2.0)]


def test_the_text_has_every_run_and_fits_a_terminal(two: list[RunFolder], capsys: Capture) -> None:
    assert main(["report", *(str(run.path) for run in two)]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    rows = [line.split() for line in text.splitlines() if line.startswith(("  A  ", "  B  "))]
    assert rows[0] == ["A", "15.02", "33.40", "2.19", "1e-5", "counts", "any", "entity"]
    assert rows[1][:4] == ["B", "7.51", "16.70", "1.10"]
    assert "noise_multiplier: 1 in A; 2 in B" in text
    assert "bits per byte 2.40 (2.30 to 2.50)" in text
    assert "not comparable" not in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"delta": 1e-6}, "δ is 1e-5 in A and 1e-6 in B"),
        (
            {"result": {"guarantee": GUARANTEE | {"known": "graph", "counts": ""}}},
            "what is known is counts in A and graph in B",
        ),
    ],
)
def test_epsilons_of_other_statements_are_not_compared(make_run: MakeRun, changes: Any, words: str) -> None:
    runs = [make_run("uedp", rounds=3, name="a"), make_run("uedp", rounds=3, name="b", **changes)]
    found = compare_runs(runs)
    assert any(words in note for note in found.notes)
    assert found.record()["epsilon_comparable"] is False
    assert compare_runs(runs[:1]).record()["epsilon_comparable"] is True


def test_runs_on_other_corpora_protect_and_measure_other_people(make_run: MakeRun) -> None:
    runs = [measured(make_run, name=name, corpus=name) for name in ("a", "b")]
    notes = " ".join(compare_runs(runs).notes)
    assert "ε protect different people" in notes
    assert "different corpora" in notes
    assert compare_runs(runs).paired[0].reason == "not the same held-out text and tokens"


def test_a_paired_interval_is_narrower_than_the_spread_of_users(two: list[RunFolder]) -> None:
    found = compare_runs(two).paired[0]
    assert (found.run, found.baseline) == ("B", "A")
    pair = found.difference
    assert (pair.users, pair.better_for) == (USERS, 0.0)
    nats = np.array(sums()["nats"]).sum() / np.array(sums()["predictions"]).sum()
    assert pair.value == pytest.approx(math.exp(nats + 0.1) - math.exp(nats))
    assert 0 < pair.low < pair.value < pair.high
    assert pair.high - pair.low < 0.3 * math.exp(nats)
    assert paired_difference(sums(), sums(), "perplexity").high == 0


def test_a_difference_of_errors_is_one_of_shares() -> None:
    better = sums() | {"wrong": [0.7 * 50] * USERS}
    found = paired_difference(sums(), better, "error")
    assert (found.value, found.better_for) == (pytest.approx(-0.1), 1.0)


def test_json_csv_and_dataframe_say_the_same(two: list[RunFolder], tmp_path: Path, printed: Printed) -> None:
    file = tmp_path / "runs.csv"
    record = printed("report", *(run.path for run in two), "--csv", file)
    table = pd.read_csv(file)
    assert (
        table["epsilon"].tolist() == [run["report"]["headline"]["epsilon"] for run in record["runs"]] == [15.02, 7.51]
    )
    assert table["difference"].tolist()[1] == record["paired"][0]["value"]
    assert table["epsilon_unit"].tolist() == ["any user + any entity"] * 2
    assert table["setting privacy.noise_multiplier"].tolist() == [1.0, 2.0]
    assert file.stat().st_mode & 0o077 == 0
    own = fl_sim.compare([run.path for run in two])
    assert own.table()["bits_per_byte_low"].tolist() == table["bits_per_byte_low"].tolist() == [2.3, 2.3]
    assert encode(own.record()) == record


def test_a_run_whose_ledger_was_cut_has_no_epsilon_beside_the_others(
    two: list[RunFolder], tmp_path: Path, capsys: Capture
) -> None:
    cut_ledger(two[1].path)
    table = tmp_path / "table.csv"
    assert main(["report", *(str(run.path) for run in two), "--csv", str(table)]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "is cut off" in captured.err
    assert ("15.02" in captured.out, " 7.51" in captured.out) == (True, False)
    assert ",7.51," not in table.read_text()
    assert math.isnan(pd.read_csv(table)["epsilon"][1])


def test_runs_without_a_guarantee_and_unfinished_ones_are_shown(make_run: MakeRun, capsys: Capture) -> None:
    runs = [make_run("noiseless", rounds=3), make_run("uedp", rounds=3, finish=False)]
    assert main(["report", *(str(run.path) for run in runs)]) == 0
    text = capsys.readouterr().out
    assert "∞: no guarantee" in text
    assert "3 of 3 rounds, interrupted" in text
    assert fl_sim.compare([run.path for run in runs]).table()["epsilon"][0] == math.inf


def test_bad_input_is_one_line(two: list[RunFolder], tmp_path: Path, refusal: Refusal) -> None:
    first, second = (run.path for run in two)
    for words, said in (
        ([first], "is given twice"),
        ([tmp_path / "none"], "there is no such folder"),
        (["--html", tmp_path / "none" / "page.html"], "allowed: a file in a folder that exists"),
        (["--html", tmp_path / "one", "--csv", tmp_path / "one"], "allowed: a file for each"),
        ([second, "--users"], "--users is given with 2 runs; allowed: with one"),
    ):
        assert said in refusal("report", first, *words)
    with pytest.raises(ResultsError, match="0 runs are given"):
        compare_runs([])


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
