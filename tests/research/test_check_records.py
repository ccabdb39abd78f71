"""Records are computed again and compared, and none is made from sources that nobody can check out."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fl_sim.cli.main import main
from fl_sim.research import study_files
from fl_sim.research.check_records import (
    DIFFERS,
    FAILED,
    ROUNDING,
    SAME,
    SKIPPED,
    UNDECIDED,
    Check,
    _judged,
    check,
    compared,
)
from fl_sim.research.figure_points import _parts_of
from fl_sim.research.study_files import Point, check_commits, made_from
from fl_sim.research.uedp_paper.figure_records import Parts, TableRecord, read_record, spread, write_record
from fl_sim.research.uedp_paper.figures import EpsilonFigure
from fl_sim.research.uedp_paper.make_figure import epsilon_record
from fl_sim.storage.environment import describe
from fl_sim.storage.run_folder import ResultsError
from tests.research.uedp_paper.test_comparisons import point

RESULTS = Path(__file__).resolve().parents[2] / "results"
FIGURE = EpsilonFigure.model_validate(
    {
        "title": "Demo", "shows": "ε", "kind": "epsilon", "rounds": 4, "noise_multiplier": 2.0, "q_e": 0.5,
        "delta": 1e-5, "entity_users": 3,
        "panels": [
            {"name": "a", "title": "a", "users": 100, "users_per_round": 10, "sentences": 1000,
             "curves": [{"name": "user", "label": "user", "estimator": "user_level"}]},
        ],
    }
)  # fmt: skip


@pytest.fixture
def asked(tmp_path: Path) -> Check:
    """A check of the record of a small figure of ε."""
    results = tmp_path / "results"
    write_record(epsilon_record("demo", FIGURE), results / "demo.json")
    return Check(results, (), 1, 0, tmp_path / "data", tmp_path / "corpora", tmp_path / "runs")


def change(file: Path, factor: float) -> None:
    """Multiply the last proven ε of the record by a factor."""
    values = json.loads(file.read_bytes())
    values["panels"][0]["curves"][0]["proven_user"][-1] *= factor
    file.write_text(json.dumps(values), encoding="utf-8")


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, SAME), (1.0000005, ROUNDING), (1.0005, DIFFERS)])
def test_a_record_that_does_not_come_out_again_is_found(asked: Check, factor: float, verdict: str) -> None:
    change(asked.folder / "demo.json", factor)
    (checked,) = check(asked)
    assert checked.verdict == verdict
    comparison = checked.comparison
    assert comparison is not None
    assert comparison.difference == pytest.approx(1 - 1 / factor, abs=1e-12)
    if factor != 1.0:
        assert comparison.name == "0.curves.0.proven_user.3"
        assert comparison.recorded == pytest.approx(comparison.again * factor)  # type: ignore[operator]


def test_the_command_says_what_it_found_and_exits_with_one(asked: Check, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["reproduce", "check", str(asked.folder), "demo", "--out", str(asked.out), "--seed", "7"]
    assert main(command) == 0
    shown = capsys.readouterr()
    assert "1 point drawn with --seed 7: 0 s when recorded, and 1 of unknown time\n" in shown.err
    assert shown.out.splitlines()[1].split()[-1] == "same"
    assert "by at most 0.001" in shown.out
    change(asked.folder / "demo.json", 2.0)
    assert main([*command, "--json"]) == 1
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["record"], row["verdict"], row["comparison"]["difference"]) == ("demo", DIFFERS, 0.5)
    assert list(asked.out.iterdir()) == [], "runs are removed"
    assert main(["reproduce", "check", str(asked.folder), "fig99"]) == 2
    assert "NAME is 'fig99'; allowed: demo" in capsys.readouterr().err
    assert main([*command, "--points", "0"]) == 2
    assert main(["reproduce", "check", str(asked.out)]) == 2
    assert "allowed: a folder with records" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("x.json", "[1]", "x.json: format is None; allowed: 1"),
        ("x.json", "{", "x.json: cannot be read as JSON"),
        ("representations/x.json", "{}", "x.json: name is None; allowed: adult, ag-study, dpnr-ag, words"),
        ("representations/x.json", '["adult"]', "x.json: name is None"),
        ("representations/x.json", '{"name": ["adult"]}', "x.json: name is ['adult']"),
        ("representations/x.json", '{"name": "adult"}', "x.json: format is None"),
        ("representations/x.json", '{"name": "adult", "format": 2}', "x.json: has no paper"),
        ("representations/x.json", "{", "x.json: cannot be read as JSON"),
    ],
)
@pytest.mark.parametrize("command", ["check", "readme"])
def test_a_file_that_is_no_record_is_refused_in_one_line(
    command: str, name: str, text: str, said: str, asked: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    (asked.folder / "representations").mkdir()
    (asked.folder / name).write_text(text, encoding="utf-8")
    out = ["--out", str(asked.out)] if command == "check" else []
    assert main(["reproduce", command, str(asked.folder), *out]) == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_what_cannot_be_computed_is_told_from_what_differs(asked: Check) -> None:
    """The corpora of table 2 are absent, and a figure's setting may have been taken out since."""
    record = read_record(RESULTS / "table2.json")
    assert isinstance(record, TableRecord)
    write_record(record, asked.folder / "table2.json")
    small = epsilon_record("demo", FIGURE)
    write_record(small.model_copy(update={"config": {**small.config, "q_e": 2.0}}), asked.folder / "demo.json")
    failed, skipped = check(asked)
    assert (failed.verdict, skipped.verdict) == (FAILED, SKIPPED)
    assert "q_e" in failed.reasons[0]
    assert "is not there (--data names the folder" in skipped.reasons[0]


def test_the_seed_draws_the_points_and_their_cost_is_said_before(asked: Check) -> None:
    """Of figures of trainings, whose corpora are not there."""
    drawn: list[list[str]] = []
    said: list[Any] = []
    for seed in (1, 1, 2):
        say = lambda words, left=None: said.append((words, left))  # noqa: E731
        of_seed = replace(asked, folder=RESULTS, names=("fig2", "words"), points=3, seed=seed, say=say)
        checked = list(check(of_seed))
        assert {one.verdict for one in checked} == {SKIPPED}
        drawn.append([f"{one.record} {one.point}" for one in checked])
    assert drawn[0] == drawn[1] != drawn[2]
    assert [len(set(points)) for points in drawn] == [6, 6, 6]
    cost = re.fullmatch(r"6 points drawn with --seed 1: (\S+) (s|min) when recorded, and 3 of unknown time", said[0][0])
    assert cost is not None, said[0][0]
    assert float(cost[1]) > 0


def test_parts_of_the_text_are_compared_seed_by_seed() -> None:
    """But a part that not every seed has: a record does not say of which it is."""
    parts = Parts(
        metric="error", by_text={"all text": spread([1.0, 2.0]), "names": spread([3.0])}, by_sentences={},
        by_mentions={"0": spread([4.0, 5.0])}, kept={"sentences": spread([0.5, 0.6])},
    )  # fmt: skip
    two = spread([0.1, 0.2])
    of_two = point("noiseless", None).model_copy(update={"parts": parts, "utility": two})
    expected = {"by_text": {"all text": 2.0}, "by_sentences": {}, "by_mentions": {"0": 5.0}, "kept": {"sentences": 0.6}}
    assert _parts_of(of_two, 1) == expected
    assert _parts_of(point("noiseless", None), 0) == {}


@pytest.mark.parametrize(("z", "verdict"), [(2.0, DIFFERS), (2.0000000001, UNDECIDED), (2.1, DIFFERS)])
def test_what_is_measured_under_other_seeded_noise_is_undecided(z: float, verdict: str) -> None:
    point = Point("a run", None, lambda: ({"z": 2.0, "error": 0.2}, {"z": z, "error": 0.3}))
    found, _, reasons = _judged(point, ())
    assert found == verdict
    assert len(reasons) == (z != 2.0)


def test_every_figure_counts_and_times_do_not() -> None:
    before = {"a": [1.0, math.inf], "ε": {"x": None}, "seconds": 3.0, "corpus": "1f"}
    after = {"a": [1.0, math.inf], "ε": {"x": None}, "seconds": 9.0, "corpus": "2e", "new": 1.0}
    comparison = compared(before, after)
    assert (comparison.figures, comparison.difference) == (2, 0.0)
    assert comparison.reasons == ("corpus was 1f, and is 2e",)
    assert compared({"a": None}, {"a": 1.0}).figures == 0
    assert compared({"a": 1.0}, {"a": None}).difference == math.inf
    assert compared({"a": math.inf}, {"a": 1.0}).difference == math.inf
    assert compared({"a": math.nan}, {"a": math.nan}).difference == 0.0, "of a part without a token"
    assert compared(None, {"a": 1.0}).figures == 0


def test_a_record_of_sources_that_nobody_can_check_out_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(study_files, "history", lambda: frozenset({"a" * 40, "b" * 40}))
    check_commits("fig1", f"{'a' * 40}, {'b' * 40}")
    for commit, words in {
        "unknown": "the code was no git checkout",
        f"{'a' * 40}, {'a' * 40} dirty": "its sources had changes",
        f"{'a' * 40}, {'c' * 40}": "the history of this checkout does not have it",
    }.items():
        with pytest.raises(ResultsError, match=words):
            check_commits("fig1", commit)
    assert made_from("unknown") == "made from unknown"
    assert made_from(f"{'a' * 40} dirty") == "made from aaaaaaaaaaaa dirty"
    dirty = describe() | {"git": {"commit": "a" * 40, "dirty": True}}
    monkeypatch.setattr("fl_sim.storage.environment.describe", lambda: dirty)
    for name in ("fig4", "words"):
        assert main(["reproduce", "make", name, "--out", str(tmp_path), "--record", str(tmp_path / "results")]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{name}: commit is '{'a' * 40} dirty': its sources had changes that are not committed" in line
    assert list(tmp_path.iterdir()) == []
