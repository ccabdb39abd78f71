"""What a notebook shows of a run: one line and a few rows, of any run there can be."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fl_sim.reporting.run_facts import RunFacts, read_facts
from fl_sim.reporting.run_summary import as_html, in_one_line
from fl_sim.strategies.ledger import LEDGER_FILE
from tests.fl_sim.conftest import MakeRun


def facts_of(make_run: MakeRun, strategy: str = "uedp", **epsilon: float) -> RunFacts:
    facts = read_facts(make_run(strategy))
    return facts.model_copy(update={"epsilon": {f"epsilon_{unit}": value for unit, value in epsilon.items()}})


def test_a_proven_run(make_run: MakeRun) -> None:
    facts = read_facts(make_run("uedp"))
    assert in_one_line(facts) == (
        "uedp-1-0: uedp, ε 15.02 for any user + any entity at δ 1e-5, 30 of 30 rounds, finished, "
        "perplexity 4,000.0 → 655.0"
    )
    html = as_html(facts)
    for row in ("ε, any user + any entity</th><td", ">15.02 at δ 1e-5<", ">33.40 at δ 1e-5<", ">2.19 at δ 1e-5<"):
        assert row in html


@pytest.mark.parametrize(
    ("epsilon", "words"),
    [
        ({"any": math.inf, "user": 2.181}, "ε 2.19 for any user at δ"),
        ({"stated": 4.001, "user": 2.181}, "ε 4.01 for any user + an entity within the stated bound at δ"),
        ({"any": math.inf, "user": math.inf}, "ε ∞ for any user + any entity at δ"),
        ({"user_entity_p95": 2.0}, "no ε is recorded"),
    ],
)
def test_the_epsilon_that_leads(make_run: MakeRun, epsilon: dict[str, float], words: str) -> None:
    line = in_one_line(facts_of(make_run, **epsilon))
    assert words in line
    assert line.count("ε") == 1


def test_delta_is_rounded_up(make_run: MakeRun) -> None:
    facts = read_facts(make_run("uedp")).model_copy(update={"delta": 1.00000001e-5})
    assert "at δ 1.00001e-5," in in_one_line(facts)


def test_runs_without_an_epsilon(make_run: MakeRun) -> None:
    noiseless, untrusted = make_run("noiseless"), make_run("uedp")
    (untrusted.path / LEDGER_FILE).unlink()
    words: dict[Any, str] = {noiseless: "ε ∞: no guarantee", untrusted: "ε none: the ledger does not support one"}
    for run, said in words.items():
        facts = read_facts(run)
        for view in (in_one_line(facts), as_html(facts)):
            assert said in view
            assert "δ" not in view


def test_an_app_has_what_it_measured(make_run: MakeRun) -> None:
    facts = facts_of(make_run, user=2.181).model_copy(update={"app": "flower", "measured": {"acc <1>": [0.5, 0.75]}})
    assert "ε 2.19 for any user at δ 1e-5" in in_one_line(facts)
    assert in_one_line(facts).endswith("acc <1> 0.5 → 0.75")
    assert "acc &lt;1&gt; 0.5 → 0.75" in as_html(facts)
    assert as_html(facts).count("ε, ") == 1


def test_names_are_escaped_and_stay_on_one_line(make_run: MakeRun) -> None:
    facts = read_facts(make_run("uedp")).model_copy(update={"run": "<script>\nx\x1b[2J"})
    assert "\n" not in in_one_line(facts)
    assert "\x1b" not in in_one_line(facts)
    assert "<script>" not in as_html(facts)
