"""The page of attacks: it stands alone, hides nothing of what was found, escapes every name and rounds bounds up."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from fl_sim.auditing.leakage.attacked_run import Options
from fl_sim.auditing.leakage.canary_exposure import CanaryAttack, CanaryExposures, CanaryGroup
from fl_sim.auditing.leakage.leak import Leakage, RunLeakage
from fl_sim.auditing.leakage.leak_page import label_of, leak_page
from fl_sim.auditing.leakage.leak_words import leak_text
from fl_sim.auditing.leakage.membership import UserAttack
from fl_sim.auditing.leakage.name_ranking import EntityGroup, NameAttack
from fl_sim.auditing.leakage.proven_rates import ProvenRates
from fl_sim.auditing.leakage.rates import Rates, Verdict
from fl_sim.reporting.bootstrap import Figure
from fl_sim.storage.run_folder import UTILITIES

UNKNOWN = Figure(math.nan, math.nan, math.nan)
UTILITY = SimpleNamespace(kind=UTILITIES["next-word"], initial=190.5, final=111.25)
WITHIN = Verdict("within", 9, 1e-3)


def figure(value: float, width: float = 0.05) -> Figure:
    return Figure(value, value - width, value + width)


def bounded(rate: float | None) -> ProvenRates:
    """At most this rate is possible at a false positive rate of 1 %; None without a bound."""
    return ProvenRates("one user", () if rate is None else ((rate - 0.01, 0.0),), "" if rate else "nothing is proven")


def attack(area: float, bound: float | None) -> UserAttack:
    rates = Rates(9, 9, figure(area), figure(2 * area - 1), {0.001: figure(0.1), 0.01: figure(0.2)})
    verdict = WITHIN if bound else Verdict("not tested", 0, 1e-3, "no bound")
    return UserAttack(rates, figure(0.5), 1.0, bounded(bound), verdict)


def run(name: str, strategy: str, **given: Any) -> RunLeakage:
    """The folder has no more than is shown."""
    utility, apart = given.pop("utility", UTILITY), given.pop("apart", "")
    folder = SimpleNamespace(path=Path("runs") / name, last_round=3)
    config = SimpleNamespace(privacy=SimpleNamespace(strategy=strategy, delta=1e-5))
    facts = SimpleNamespace(
        utility=utility,
        seconds=given.pop("run_seconds", 59.0),
        epsilon=given.pop("epsilon", {}),
        apart=lambda unit: apart if unit == "any" else "",
    )
    known: dict[str, Any] = {"raw_text": False, "known": "counts", "left_out": {}, "seconds": {}}
    return RunLeakage(folder, config, facts, **known | given)  # type: ignore[arg-type]


def page_of(*runs: RunLeakage) -> str:
    return leak_page(Leakage(runs, Options()))


def pictures(page: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def test_every_run_and_figure_is_there_and_the_page_stands_alone() -> None:
    runs = (
        run("plain", "noiseless", users=attack(0.8, None)),
        run("dp", "uedp", users=attack(0.52, 0.06712), epsilon={"epsilon_any": 2.0}),
    )
    page = page_of(*runs)
    assert len(pictures(page)) == 2
    for words in (
        "no ε covers their publication",
        "plain: no protection",
        "dp: uedp, ε 2.00",
        "the most that ε allows any attack on one unit, in or out",
        "Two splits differ by exchanges of people",
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
    runs = [run("dp", "uedp", users=attack(0.5, 0.1))]
    if unprotected is not None:
        runs.append(run("plain", "noiseless", users=attack(unprotected, None)))
    assert words in page_of(*runs)


def test_a_rate_that_too_few_people_show_is_a_dash() -> None:
    few = attack(0.5, 0.1)
    few = replace(few, rates=replace(few.rates, at={0.001: None, 0.01: None}))
    page = page_of(run("dp", "uedp", users=few))
    assert "<td>–</td><td>–</td>" in page
    assert len(pictures(page)) == 1


def test_an_attack_beyond_its_bound_is_the_first_thing_said() -> None:
    page = page_of(run("dp", "uedp", users=replace(attack(0.9, 0.1), verdict=replace(WITHIN, state="beyond"))))
    assert page.index("runs/dp: users is beyond its bound") < page.index("<table")


def test_the_page_begins_with_epsilon_utility_and_time() -> None:
    infinite = {"epsilon_any": math.inf, "epsilon_user": 1.0}
    private = run("dp", "uedp", users=attack(0.5, 0.1), seconds={"users": 80.0}, epsilon={"epsilon_any": 1.9999})
    page = page_of(private, run("b", "x", epsilon=infinite))
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
    unmeasured = SimpleNamespace(kind=UTILITIES["classification"], initial=None, final=None)
    empty = page_of(run("c", "x", run_seconds=None, utility=unmeasured))
    assert empty.count('<p class="big">–</p>') == 3


def test_names_are_text_and_nothing_else() -> None:
    hostile = '<script>alert(1)</script>\x1b[31m&"'
    page = page_of(run(hostile, hostile, users=attack(0.5, None), left_out={"entities": hostile}))
    assert "<script" not in page
    assert "\x1b" not in page
    assert pictures(page)


def test_canaries_are_drawn_by_repetitions() -> None:
    def group(owner: Any, r: int | None, included: bool = True) -> CanaryGroup:
        return CanaryGroup(owner, r, included, 4, figure(1.4 + (r or 8) / 8, 0.5), 3.16, figure(1.4))

    sides = [(r, included) for r in (1, 8, 64) for included in (True, False)]
    groups = [group(owner, r, included) for owner in ("user", "entity") for r, included in sides]
    groups.append(replace(group("user", None), canaries=12, most_by_chance=2.4))
    groups.append(replace(group("user", 2), canaries=0, exposure=UNKNOWN, most_by_chance=5.3))
    alone = Figure(2.75, math.nan, math.nan)  # one canary has no interval
    groups.append(replace(groups[0], repetitions=4, canaries=1, exposure=alone))
    bounds = {("user", 8): bounded(0.020001), ("user", 4): bounded(0.020001), ("entity", 2): bounded(None)}
    found = CanaryAttack(CanaryExposures((), 10085, 10**6, 0), tuple(groups), bounds, WITHIN)  # type: ignore[arg-type]
    page = page_of(run("a", "noiseless", canaries=found))
    assert "<td>user</td><td>8 times</td>" in page
    assert "<td>2.75</td>" in page
    assert "No unprotected run is beside these" in page
    free = replace(found, bounds=dict.fromkeys(bounds, bounded(None)))
    assert "The unprotected model remembers" in page_of(run("a", "noiseless", canaries=free))
    few = replace(free, groups=tuple(replace(one, most_by_chance=9.5) for one in groups))
    assert "Nothing can be concluded" in page_of(run("a", "noiseless", canaries=few))
    assert "2.01%" in page
    assert "no bound" in page
    assert re.findall("<h3>(.*?)</h3>", page) == [
        "Secrets of one person", "Secrets about one name, said by several people",
    ]  # fmt: skip
    drawn = [(r, f"{1.4 + r / 8:.2f} ({0.9 + r / 8:.2f}–{1.9 + r / 8:.2f})") for r in (1, 8, 64)]
    for repetitions, words in [*drawn, (4, "2.75")]:
        assert f"<td>{repetitions}</td><td>{words}</td>" in page


def test_names_are_ranked_beside_the_start_and_by_kind() -> None:
    figures = dict.fromkeys(("ahead", "initial_ahead", "ratio_ahead", "gain"), figure(0.6))
    kinds = [(None, None), ("person", None), (None, (2, 3))]
    groups = tuple(EntityGroup(kind, mentions, 7, figures) for kind, mentions in kinds)
    page = page_of(run("a", "uedp", entities=NameAttack((), groups, 5, 9, bounded(None))))
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
    page = page_of(run("a", "uedp", left_out={"users": "one user only"}))
    assert "<td>one user only</td>" in page
    assert pictures(page) == []


def test_a_run_is_named_by_what_protects_it() -> None:
    infinite = {"epsilon_any": math.inf, "epsilon_user": 1.0}
    assert label_of(run("x", "user_level", epsilon=infinite, raw_text=True)) == "x: user-level DP, names removed, ε ∞"


def test_public_names_are_left_out_of_the_leading_epsilon_in_words() -> None:
    found = Leakage(
        (run("x", "uedp", epsilon={"epsilon_any": 2.0, "epsilon_user": 1.0}, apart=", some apart"),), Options()
    )
    assert "any user + any entity, some apart, δ" in leak_page(found)
    assert "; ε any 2.00, some apart, ε user 1.00 at δ = 1e-5" in leak_text(found)


def test_one_mention_has_no_interval_and_nothing_is_concluded_from_it() -> None:
    figures = dict.fromkeys(("ahead", "initial_ahead", "ratio_ahead", "gain"), Figure(0.6, math.nan, math.nan))
    names = NameAttack((), (EntityGroup(None, None, 1, figures),), 5, 9, bounded(None))
    found = Leakage((run("plain", "noiseless", entities=names),), Options())
    assert "Nothing can be concluded" in leak_page(found)
    assert "true name before 60.0 % of 5 candidates, 60.0 % at the start" in leak_text(found)
