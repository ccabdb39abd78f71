"""A run in one line, and as a table of a few rows for a notebook: whose ε it has, or why none, its rounds and utility.

Every ε and δ is rounded up.

>>> import tempfile
>>> from fl_sim.storage.run_folder import RunFolder
>>> from fl_sim.reporting.run_facts import read_facts
>>> with tempfile.TemporaryDirectory() as folder:
...     in_one_line(read_facts(RunFolder.create(f"{folder}/first", config={}, environment={})))
'first: unknown, ε none: no round is recorded, ? of ? rounds, not started, no perplexity'
"""

from __future__ import annotations

import math

from fl_sim.formats import format_epsilon, html_table, printable, round_up
from fl_sim.reporting.recorded import measured_in_words
from fl_sim.reporting.run_facts import PROVEN, STATES, UNITS, RunFacts


def in_one_line(facts: RunFacts) -> str:
    """Return name, strategy, the first finite ε with its unit and δ, rounds and utility."""
    finite = [(words, epsilon) for words, epsilon in _epsilon(facts) if math.isfinite(epsilon)]
    words, epsilon = (finite or _epsilon(facts) or [("", math.inf)])[0]
    privacy = f"ε {format_epsilon(epsilon)} for {words} at δ {_delta(facts)}" if words else _no_epsilon(facts)
    return f"{printable(facts.run)}: {facts.strategy}, {privacy}, {facts.ended()}, {_utility(facts)}"


def as_html(facts: RunFacts) -> str:
    """Return the same as a table in HTML, with every ε that leads a report."""
    epsilon = [(f"ε, {words}", f"{format_epsilon(value)} at δ {_delta(facts)}") for words, value in _epsilon(facts)]
    rows = [
        ("Run", facts.run),
        ("Strategy", f"{facts.strategy}; protects {facts.protects or 'unknown'}"),
        *(epsilon or [("Privacy", _no_epsilon(facts))]),
        ("Rounds", facts.ended()),
        ("Utility", _utility(facts)),
    ]
    return html_table(rows)


def _epsilon(facts: RunFacts) -> list[tuple[str, float]]:
    """Return the proven ε by whom they protect, the headline first; none without a guarantee."""
    head = facts.headline
    missed = UNITS.get(f"{head.unit}_robust", "")
    values = {head.unit_words: head.epsilon, missed: head.epsilon_missed, UNITS["user"]: head.epsilon_user}
    return [(words, value) for words, value in values.items() if value is not None] if head.state == PROVEN else []


def _no_epsilon(facts: RunFacts) -> str:
    state = facts.headline.state
    return f"ε {STATES[state]}" if state in STATES else "no ε is recorded"


def _delta(facts: RunFacts) -> str:
    return "?" if facts.delta is None else round_up(facts.delta)


def _utility(facts: RunFacts) -> str:
    """Return the figure at the start and at the end."""
    utility, kind = facts.utility, facts.utility.kind
    if facts.app:
        return measured_in_words(facts.measured) or "nothing measured"
    if utility.initial is None or utility.final is None:
        return f"no {kind.column}"
    return f"{kind.column} {kind.show(utility.initial)} → {kind.show(utility.final)}"
