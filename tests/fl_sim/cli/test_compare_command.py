"""Runs side by side: what is said of ε that are other statements, differences user by user, table, JSON, CSV, page."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fl_sim
from fl_sim.cli.main import main
from fl_sim.reporting.bootstrap import paired_difference
from fl_sim.reporting.comparison import compare_runs
from fl_sim.storage.run_folder import ResultsError, RunFolder, encode
from tests.fl_sim.conftest import GUARANTEE, Capture, MakeRun, Printed, Refusal, cut_ledger

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
