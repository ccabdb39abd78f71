"""Text, page, card, table and plots are views of one set of facts: no view shows an ε that the facts do not have."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping

import pytest

from fl_sim.formats import format_epsilon
from fl_sim.reporting import plots
from fl_sim.reporting.comparison import Comparison, compare_runs
from fl_sim.reporting.model_card import card_of
from fl_sim.reporting.report import full_report_text, report_text
from fl_sim.reporting.run_facts import RunFacts, read_facts
from fl_sim.reporting.run_list import in_one_line
from fl_sim.storage.run_folder import RunFolder
from fl_sim.strategies.ledger import LEDGER_FILE
from tests.fl_sim.conftest import AFTER_LAST_ROUND, MakeRun, cut_ledger, rewritten

CLAIM = 4.56
OTHER = 3.7
"""By what every ε of the facts is multiplied, so that those of the folder are told from them."""


def compared(run: RunFolder, facts: RunFacts) -> Comparison:
    found = compare_runs([run])
    return dataclasses.replace(found, runs=(dataclasses.replace(found.runs[0], facts=facts),))


def card(run: RunFolder, facts: RunFacts) -> str:
    run.model_dir.mkdir(exist_ok=True)
    (run.model_dir / "spec.json").write_text(json.dumps({}))
    return card_of(run, facts)


def plot(run: RunFolder, facts: RunFacts) -> str:
    drawn = [plots.run_picture({run.path.name: facts}, x) for x in ("round", "epsilon", None)]
    return "\n".join(
        [text.get_text() for figure in drawn for legend in figure.legends for text in legend.get_texts()]
        + [f"{value:.5g}" for axes in drawn[0].axes for line in axes.lines for value in line.get_ydata()]
    )


VIEWS: Mapping[str, Callable[[RunFolder, RunFacts], str]] = {
    "text": lambda run, facts: report_text(facts),
    "full text": lambda run, facts: full_report_text(facts),
    "comparison": lambda run, facts: compared(run, facts).text(),
    "page": lambda run, facts: compared(run, facts).page(),
    "table": lambda run, facts: compared(run, facts).table().to_csv(),
    "card": card,
    "plots": plot,
    "line": lambda run, facts: in_one_line(facts),
}


def changed(facts: RunFacts) -> RunFacts:
    """The same facts with other ε, as if the folder had them."""
    columns = {
        name: [OTHER * value for value in values] if name.startswith("epsilon_") else values
        for name, values in facts.by_round.items()
    }
    epsilon = {name: OTHER * value for name, value in facts.epsilon.items()}
    return facts.model_copy(update={"epsilon": epsilon, "epsilon_as_published": OTHER * CLAIM, "by_round": columns})


def shown(value: float, text: str) -> bool:
    """Whether a text has an ε, rounded up or as it is."""
    figures = re.findall(r"(?<![\d.#-])(?<!\d,)\d+(?:\.\d+)?", text)
    return format_epsilon(value) in figures or f"{value:.5g}" in figures


@pytest.fixture
def run(make_run: MakeRun) -> RunFolder:
    return rewritten(make_run("uedp", rounds=3, finish=False), lambda row: row | {"epsilon_as_published": CLAIM})


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_shows_the_epsilon_of_the_facts_and_no_other(view: str, run: RunFolder) -> None:
    facts = read_facts(run)
    text = VIEWS[view](run, changed(facts))
    assert shown(OTHER * AFTER_LAST_ROUND["epsilon_any"], text)
    assert [name for name, value in AFTER_LAST_ROUND.items() if shown(value, text)] == []
    assert not shown(CLAIM, text)


@pytest.mark.parametrize("view", [name for name in VIEWS if name != "card"])
def test_a_view_shows_no_epsilon_where_the_ledger_supports_none(view: str, run: RunFolder) -> None:
    cut_ledger(run.path)
    text = VIEWS[view](run, read_facts(run))
    assert [name for name, value in AFTER_LAST_ROUND.items() if shown(value, text)] == []


def test_a_picture_of_a_run_without_a_trusted_ledger_says_so(run: RunFolder) -> None:
    (run.path / LEDGER_FILE).unlink()
    facts = read_facts(run)
    assert [name for name in facts.by_round if name.startswith("epsilon_")] == []
    assert "no ε can be trusted" in plot(run, facts)
