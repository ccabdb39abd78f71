"""Attacks of a record as tables and as a page: nothing is left out, and nothing is concluded without memory."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from fl_sim.research.uedp_paper.attack_tables import (
    canary_table,
    conclusions,
    membership_table,
    methods,
    name_table,
    verdicts,
)
from fl_sim.research.uedp_paper.figure_document import README, picture_of, write_document
from fl_sim.research.uedp_paper.figure_records import (
    AttackedRunRecord,
    CorpusRecord,
    CurveRecord,
    PanelRecord,
    TrainingRecord,
    write_record,
)
from tests.research.uedp_paper.records import plain_point

SEEDS = (0, 1, 2)
CORPUS = CorpusRecord(name="small", users=9, sentences=99, entities=5, tagger="gold", fingerprint="f")


def figure(value: float, width: float = 0.05) -> dict[str, float]:
    return {"value": value, "low": value - width, "high": value + width}


def attacks(strength: float, bound: float | None) -> dict[str, dict[str, Any]]:
    """Records of all attacks, of a model that gives away ``strength`` more than guessing."""
    most = {"0.001": 0.01, "0.01": bound or 1.0}
    proven = {"proven": bound is not None, "largest_tpr_at_fpr": most, "largest_advantage": bound or 1.0}
    verdict = {"state": "within" if bound else "not tested"}
    found = {
        "auc": figure(0.5 + strength),
        "tpr_at_fpr": {"0.001": None, "0.01": figure(0.01 + strength, 0.01)},
        "bound": proven,
        "verdict": verdict,
        "seconds": 2.0,
    }
    groups = [
        {"owner": owner, "repetitions": number, "included": included, "canaries": 4, "most_by_chance": 3.2}
        | {"exposure": figure(1.4 + (20 * strength if included else 0.0), 0.5), "initial_exposure": figure(1.5)}
        for owner in ("user", "entity")
        for number in (1, 64, None)
        for included in (True, False)
    ]
    bounds = [{"owner": owner, "repetitions": 64, **proven} for owner in ("user", "entity")]
    names = {"groups": [{"ahead": figure(0.5 + strength), "initial_ahead": figure(0.5), "gain": figure(strength)}]}
    return {
        "users": found,
        "canaries": {"groups": groups, "bounds": bounds, "verdict": verdict, "seconds": 3.0},
        "entities": names | {"seconds": 4.0},
    }


def attacked(strength: float) -> tuple[AttackedRunRecord, ...]:
    """Return the attacked runs of an unprotected and a protected method."""
    return tuple(
        AttackedRunRecord(
            curve=curve, label=label, strategy=curve, deidentified=False, joint=joint, seed=seed, epsilon_any=joint,
            utility=90.0 + seed, initial=300.0, attacks=attacks(own, bound),
        )
        for curve, label, joint, own, bound in (
            ("noiseless", "no protection", None, strength, None), ("uedp", "ours", 2.0, 0.01, 0.0312)
        )
        for seed in SEEDS
    )  # fmt: skip


def test_every_method_has_its_figures_intervals_and_bounds() -> None:
    runs = attacked(0.2)
    assert [len(method.runs) for method in methods(runs)] == [3, 3]
    _, rows = membership_table("perplexity", runs)
    assert rows[0][:4] == ["no protection", "–", "91.0", "0.700 (0.650–0.750)"]
    assert rows[1] == ["ours", "2.00", "91.0", "0.510 (0.460–0.560)", "2.0% (1.0%–3.0%)", "3.12%"]
    assert rows[0][5] == "no bound"
    head, rows = canary_table(runs)
    assert head[3:5] == ["said 1×", "said 64×"]
    assert [row[:3] for row in rows] == [
        ["no protection", "–", "a user"], ["no protection", "–", "an entity"],
        ["ours", "2.00", "a user"], ["ours", "2.00", "an entity"],
        ["the model before training", "", "a user"],
        ["a secret never seen stays below, 97.5 %", "", "a user"],
        ["the model before training", "", "an entity"],
        ["a secret never seen stays below, 97.5 %", "", "an entity"],
    ]  # fmt: skip
    assert rows[0][3:5] == ["5.4 (4.9–5.9)"] * 2
    assert rows[4][3] == "1.5 (1.4–1.6)"
    assert rows[5][3] == "3.2"
    _, rows = name_table(runs)
    assert rows[0][2:5] == ["70.0% (65.0%–75.0%)", "50.0% (45.0%–55.0%)", "20.0% (15.0%–25.0%)"]
    assert verdicts(runs)[0] == "Tests against the ledgers: 6 not tested, 6 within."
    assert "canaries 3 s" in verdicts(runs)[1]


@pytest.mark.parametrize(("strength", "remembers"), [(0.2, True), (0.04, False)])
def test_nothing_is_concluded_where_the_unprotected_model_is_not_told_from_guessing(
    strength: float, remembers: bool
) -> None:
    lines = conclusions(attacked(strength))
    assert len(lines) == 3
    for line in lines:
        assert ("better than guessing with every seed on: no protection." in line) == remembers
        assert ("nothing can be concluded" in line) == (not remembers)


def attacked_comparison(strength: float) -> TrainingRecord:
    """Return a comparison of the same two methods on two corpora, whose models were attacked."""

    def curve(name: str, joint: float | None, user: float, name_alone: float | None, end: float) -> CurveRecord:
        epsilons = {"claimed": joint, "user": user, "any_name": name_alone, "any_entity": joint}
        point = plain_point([end, end], 300.0, x=joint, **epsilons)
        return CurveRecord(name=name, label=name, strategy=name, budget="joint" if joint else None, points=(point,))

    panels = tuple(
        PanelRecord(
            name=name, title=name.title(), corpus=CORPUS, references={}, failed={},
            curves=(curve("noiseless", None, math.inf, None, 75.0), curve("uedp", 2.0, most, 0.5, 150.0)),
            attacked=attacked(strength),
        )
        for name, most in (("one", 1.0), ("two", 1.5))
    )  # fmt: skip
    return TrainingRecord(
        figure="decide_none", title="Small", size="default", commit="c", config={"shows": "S."}, versions={},
        when="2026-01-02T00:00:00+00:00", skipped={}, seeds=SEEDS, metric="perplexity", delta=1e-5, x="joint",
        x_words="", joint=(2.0,), reference="uedp", baseline="noiseless", panels=panels, published=(),
    )  # fmt: skip


def test_an_attacked_comparison_has_a_page_with_every_method_on_every_corpus(tmp_path: Path) -> None:
    write_record(attacked_comparison(0.2), tmp_path / "decide_none.json")
    files = {path.name for path in write_document(tmp_path)}
    assert files == {README, "decide_none.png", "decide_none.md", "decide_none-tables.md"}
    page = (tmp_path / "decide_none.md").read_text(encoding="utf-8")
    assert "| no protection | none | ∞ | ∞ | ∞ | – |" in page
    assert "| ours | 2.00 | 1.50 | 0.500 | 2.00 | counts |" in page  # the largest over the corpora
    assert "| no protection | 75.0; **5.4**; **5.4** | 75.0; **5.4**; **5.4** |" in page
    assert "| ours | 150.0; 1.6; 1.6 | 150.0; 1.6; 1.6 |" in page
    assert "found at 1 %" in (tmp_path / "decide_none-tables.md").read_text(encoding="utf-8")
    assert "found at 1 %" not in (tmp_path / README).read_text(encoding="utf-8")


def test_a_method_that_a_corpus_leaves_out_has_the_reason_on_the_page(tmp_path: Path) -> None:
    made = attacked_comparison(0.2)
    bare = made.panels[1].model_copy(
        update={
            "curves": made.panels[1].curves[:1],
            "attacked": made.panels[1].attacked[: len(SEEDS)],
            "left_out": {"ours": "two: keeps no sentence"},
        }
    )
    write_record(made.model_copy(update={"panels": (made.panels[0], bare)}), tmp_path / "decide_none.json")
    write_document(tmp_path)
    page = (tmp_path / "decide_none.md").read_text(encoding="utf-8")
    assert "| ours | 150.0; 1.6; 1.6 | – |" in page
    assert "Left out of Two: ours: two: keeps no sentence.\n\n" in page
    tables = (tmp_path / "decide_none-tables.md").read_text(encoding="utf-8")
    assert "Left out: ours: two: keeps no sentence  \n" in tables


def test_an_attacked_comparison_without_canaries_has_a_page(tmp_path: Path) -> None:
    made = attacked_comparison(0.2)

    def without(panel: PanelRecord) -> PanelRecord:
        left_out = {"canaries": {"left_out": "the corpus has no canaries"}}
        runs = tuple(run.model_copy(update={"attacks": {**run.attacks, **left_out}}) for run in panel.attacked)
        return panel.model_copy(update={"attacked": runs})

    bare = made.model_copy(update={"panels": tuple(map(without, made.panels))})
    write_record(bare, tmp_path / "decide_none.json")
    write_document(tmp_path)
    page = (tmp_path / "decide_none.md").read_text(encoding="utf-8")
    assert "| ours | 150.0; –; – | 150.0; –; – |" in page
    assert "secrets that one user said" not in page


def test_the_picture_tells_how_far_methods_go_what_is_proven_of_them_and_what_they_lose() -> None:
    picture = picture_of(attacked_comparison(0.2))
    assert picture is not None
    (axes,) = picture.axes
    free, ours = axes.get_yticklabels()
    assert [free.get_text(), ours.get_text()] == ["no protection", "ours"]
    assert free.get_color() != ours.get_color()
    drawn = [(*line.get_xydata()[0], line.get_fillstyle()) for line in axes.lines if len(line.get_xdata()) == 1]
    half = math.log(300 / 150) / math.log(300 / 75)
    places = [(1.0, -0.125), (1.0, 0.125), (half, 0.875), (half, 1.125)]
    assert [place for *place, fill in drawn if fill == "full"] == [pytest.approx(place) for place in places]
    assert [place for *place, fill in drawn if fill == "none"] == [pytest.approx(place) for place in places[:2]]
