"""The page of attacks: it stands alone, hides nothing of the record, escapes every name and rounds bounds up."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pytest

from fl_sim.reporting.pages.leak_page import label_of, leak_page

NOTE = "Private figures."


def figure(value: float, width: float = 0.05) -> dict[str, float]:
    return {"value": value, "low": value - width, "high": value + width}


def attack(area: float, bound: float | None) -> dict[str, Any]:
    most = 1.0 if bound is None else bound
    return {
        "auc": figure(area),
        "advantage": figure(2 * area - 1),
        "tpr_at_fpr": {"0.001": figure(0.1), "0.01": figure(0.2)},
        "bound": {"proven": bound is not None, "largest_tpr_at_fpr": {"0.01": most}, "largest_advantage": most},
        "verdict": {"state": "within" if bound else "not tested"},
    }


def run(name: str, strategy: str, attacks: dict[str, Any], **facts: Any) -> dict[str, Any]:
    utility = {"metric": "perplexity", "initial": 190.5, "final": 111.25}
    given = {"raw_text": False, "rounds": 3, "delta": 1e-5, "epsilon": {}, "utility": utility, "seconds": 59.0} | facts
    return {"run": f"runs/{name}", "strategy": strategy, "attacks": attacks} | given


def page_of(*runs: dict[str, Any], beyond: tuple[str, ...] = ()) -> str:
    return leak_page({"runs": list(runs), "beyond": list(beyond), "note": NOTE})


def pictures(page: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def test_every_run_and_figure_is_there_and_the_page_stands_alone() -> None:
    runs = (
        run("plain", "noiseless", {"users": attack(0.8, None)}),
        run("dp", "uedp", {"users": attack(0.52, 0.06712)}, epsilon={"epsilon_any": 2.0}),
    )
    page = page_of(*runs)
    assert len(pictures(page)) == 2
    for words in (
        NOTE,
        "plain: no protection",
        "dp: uedp, ε 2.00",
        "the most that ε allows any attack",
        "guessing: 0.5",
        "at most 6.72% is possible",
        "no bound",
        "0.800 (0.750–0.850)",
    ):
        assert words in page
    assert re.findall(r"https?:(?!//www.w3.org/)|<script|@import|url\((?!#)", page) == []
    assert "prefers-color-scheme: dark" in page


@pytest.mark.parametrize(
    ("unprotected", "words"),
    [(0.8, "The unprotected model remembers"), (0.52, "Nothing can be concluded"), (None, "No unprotected run")],
)
def test_no_protection_is_praised_where_nothing_was_remembered(unprotected: float | None, words: str) -> None:
    runs = [run("dp", "uedp", {"users": attack(0.5, 0.1)})]
    if unprotected is not None:
        runs.append(run("plain", "noiseless", {"users": attack(unprotected, None)}))
    assert words in page_of(*runs)


def test_a_rate_that_too_few_people_show_is_a_dash() -> None:
    few = attack(0.5, 0.1)
    few["tpr_at_fpr"] = {"0.001": None, "0.01": None}
    page = page_of(run("dp", "uedp", {"users": few}))
    assert "<td>–</td><td>–</td>" in page
    assert len(pictures(page)) == 1


def test_an_attack_beyond_its_bound_is_the_first_thing_said() -> None:
    page = page_of(run("dp", "uedp", {"users": attack(0.9, 0.1)}), beyond=("runs/dp: users",))
    assert page.index("runs/dp: users is beyond its bound") < page.index("<table")


def test_the_page_begins_with_epsilon_utility_and_time() -> None:
    attacks = {"users": attack(0.5, 0.1) | {"seconds": 80.0}}
    infinite = {"epsilon_any": float("inf"), "epsilon_user": 1.0}
    page = page_of(run("dp", "uedp", attacks, epsilon={"epsilon_any": 1.9999}), run("b", "x", {}, epsilon=infinite))
    begin = page[page.index("<h2>") : page.index("<figure")]
    assert re.findall('<p class="big">(.*?)</p><p>(.*?)</p>', begin) == [
        ("ε 2.00", "any user + any entity, δ\u00a0=\u00a01e\u20115"),
        ("111.2", "held-out perplexity; 190.5 at the start"),
        ("59 s", "for 3 rounds; 80 s for the attacks"),
        ("ε ∞", "no guarantee for any user + any entity"),
        ("111.2", "held-out perplexity; 190.5 at the start"),
        ("59 s", "for 3 rounds; 0 s for the attacks"),
    ]
    assert "Attack on users: within its bound." in begin
    empty = page_of(run("c", "x", {}, seconds=None, utility={"metric": "error", "initial": None, "final": None}))
    assert empty.count('<p class="big">–</p>') == 3


def test_names_are_text_and_nothing_else() -> None:
    hostile = '<script>alert(1)</script>\x1b[31m&"'
    page = page_of(run(hostile, hostile, {"users": attack(0.5, None), "entities": {"left_out": hostile}}))
    assert "<script" not in page
    assert "\x1b" not in page
    assert pictures(page)


def test_canaries_are_drawn_by_repetitions() -> None:
    def group(owner: str, r: int | None, included: bool = True, **changes: Any) -> dict[str, Any]:
        known = {"owner": owner, "repetitions": r, "included": included, "canaries": 4, "most_by_chance": 3.16}
        return known | {"exposure": figure(1.4 + (r or 8) / 8, 0.5), "initial_exposure": figure(1.4)} | changes

    sides = [(r, included) for r in (1, 8, 64) for included in (True, False)]
    groups = [group(owner, r, included) for owner in ("user", "entity") for r, included in sides]
    groups.append(group("user", None, canaries=12, most_by_chance=2.4))
    unknown = {"value": None, "low": None, "high": None}
    groups.append(group("user", 2, canaries=0, exposure=unknown, most_by_chance=5.3))
    alone = {"value": 2.75, "low": None, "high": None}  # one canary has no interval
    groups.append(groups[0] | {"repetitions": 4, "canaries": 1, "exposure": alone})
    bound = {"owner": "user", "repetitions": 8, "proven": True, "largest_tpr_at_fpr": {"0.01": 0.020001}}
    bounds = [bound, bound | {"repetitions": 4}, bound | {"owner": "entity", "repetitions": 2, "proven": False}]
    record = {"groups": groups, "largest_exposure": 13.3, "bounds": bounds, "verdict": {"state": "within"}}
    page = page_of(run("a", "noiseless", {"canaries": record}))
    assert "<td>user</td><td>8 times</td>" in page
    assert "<td>2.75</td>" in page
    assert "No unprotected run is beside these" in page
    free = record | {"bounds": [one | {"proven": False} for one in bounds]}
    assert "The unprotected model remembers" in page_of(run("a", "noiseless", {"canaries": free}))
    few = [one | {"initial_exposure": figure(1.4), "most_by_chance": 9.5} for one in groups]
    assert "Nothing can be concluded" in page_of(run("a", "noiseless", {"canaries": free | {"groups": few}}))
    assert "2.01%" in page
    assert "no bound" in page
    assert re.findall("<h3>(.*?)</h3>", page) == [
        "Secrets of one person", "Secrets about one name, said by several people",
    ]  # fmt: skip
    drawn = [(r, f"{1.4 + r / 8:.2f} ({0.9 + r / 8:.2f}–{1.9 + r / 8:.2f})") for r in (1, 8, 64)]
    for repetitions, words in [*drawn, (4, "2.75")]:
        assert f"<td>{repetitions}</td><td>{words}</td>" in page


def test_names_are_ranked_beside_the_start_and_by_kind() -> None:
    def group(kind: str | None, mentions: list[int] | None) -> dict[str, Any]:
        named = ("ahead", "initial_ahead", "ratio_ahead", "gain")
        return {"kind": kind, "mentions": mentions, "entities": 7} | {name: figure(0.6) for name in named}

    groups = [group(None, None), group("person", None), group(None, [2, 3])]
    bound = {"proven": False, "largest_tpr_at_fpr": {"0.01": 1.0}}
    page = page_of(run("a", "uedp", {"entities": {"groups": groups, "bound": bound}}))
    assert "The unprotected model remembers" in page
    assert len(pictures(page)) == 1
    assert page.count("60.0% (55.0%–65.0%)") > 6
    for words in (
        "<td>all</td><td>any</td>",
        "<td>person</td><td>any</td>",
        "<td>all</td><td>2–3</td>",
        "60.0% (55.0%–65.0%)",
    ):
        assert words in page


def test_what_was_not_tried_has_its_reason() -> None:
    page = page_of(run("a", "uedp", {"users": {"left_out": "one user only"}}))
    assert "<td>one user only</td>" in page
    assert pictures(page) == []


def test_a_run_is_named_by_what_protects_it() -> None:
    assert label_of(
        run("x", "user_level", {}, epsilon={"epsilon_any": float("inf"), "epsilon_user": 1.0}, raw_text=True)
    ) == ("x: user-level DP, names removed, ε ∞")
