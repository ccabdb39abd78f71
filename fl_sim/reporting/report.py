"""The report of a run as text that fits one screen: its guarantee, its utility, and what the guarantee leaves out.

Every ε is rounded up, so that the guarantee is never overstated.

>>> print("\\n".join(table_row("  any user", 2.181)))
  any user                                                         2.19
"""

from __future__ import annotations

import math
import textwrap

from fl_sim.formats import counted, format_delta, format_epsilon, percent_down, percent_up, printable, printable_lines
from fl_sim.reporting.recorded import measured_in_words
from fl_sim.reporting.run_facts import (
    NO_GUARANTEE,
    NO_GUARANTEE_WORDS,
    NO_ROUND,
    SETTINGS_FROM_CORPUS,
    UNTRUSTED,
    RunFacts,
)

_WIDTH = 80
_LABEL = 12


def report_text(facts: RunFacts) -> str:
    """Return the report of a run as text that ends with a newline."""
    head = [
        *_field("Run", f"{printable(facts.run)}: {facts.ended()}"),
        *_field("Protects", facts.protects or "unknown"),
        *_field("Strategy", f"{facts.strategy}: {', '.join(facts.settings_in_words())}"),
        *(_field("Settings", printable(facts.origin)) if facts.origin else []),
        *([] if facts.app else _field("Corpus", facts.corpus.in_words() if facts.corpus else "not recorded")),
        *(_field("Gradients", facts.gradients.in_words()) if facts.gradients else []),
    ]
    warnings = [line for text in facts.warnings for line in _field("Warning", text)]
    blocks = [head, _privacy(facts), _utility(facts), warnings]
    return printable_lines("\n".join("\n".join(block) + "\n" for block in blocks if block))


def bound_notes(facts: RunFacts) -> list[str]:
    """Return the bounds of a run, what they kept and what an attacker can reach, one sentence each."""
    words = [facts.bounds_in_words(), facts.kept and facts.kept.in_words()]
    if facts.public_entities:
        share = facts.mentions_of_public_names or 0
        words.append(
            f"Not protected: entities on a list of public names ({facts.public_entities:,}, "
            f"{percent_up(share)} % of the mentions)."
        )
    if facts.settings_from_corpus:
        words.append(f"{SETTINGS_FROM_CORPUS}.")
    return [text for text in words if text]


def attacker_note(facts: RunFacts) -> str | None:
    """Return what an attacker can reach at most; None if the run did not record it."""
    if facts.attacker is None:
        return None
    return facts.attacker.in_words(facts.delta, facts.settings.population)


def _privacy(facts: RunFacts) -> list[str]:
    state = facts.headline.state
    if state == UNTRUSTED:
        return ["Privacy: no ε can be trusted, because the ledger does not support it (see the warning)."]
    if state == NO_ROUND:
        return ["Privacy: no round is recorded."]
    if state == NO_GUARANTEE:
        return [f"Privacy: {NO_GUARANTEE_WORDS}. Do not release this model, or any of its rounds.", *_claim(facts)]
    corpus = facts.corpus
    notes = [
        *facts.not_covered,
        *([corpus.coverage.in_words(facts.most_mentions)] if corpus and corpus.coverage else []),
        *([f"{facts.unsought}. Plain ε of an entity covers none of these."] if facts.unsought else []),
    ]
    return [*_headline(facts), *_by_contribution(facts), *_claim(facts), *_notes(notes)]


def _headline(facts: RunFacts) -> list[str]:
    """Return the rows of the ε that leads, and what it rests on."""
    head, delta = facts.headline, f"Privacy at δ = {format_delta(facts.delta)}"
    if facts.app:
        return [*_row(delta, "ε", ""), *table_row("  any user", head.epsilon)]
    known = f", {head.known} known" if head.known else ""
    bound = facts.user_sentences
    by_weight = " by weight" if head.known == "counts" else ""
    user = "" if bound is None or bound == math.inf else f", ≤ {counted(bound, 'sentence')}{by_weight}"
    attacker = attacker_note(facts)
    return [
        *_row(f"{delta}{known}", "ε", "ε missed"),
        *_row(f"  {head.unit_words}", format_epsilon(head.epsilon), format_epsilon(head.epsilon_missed)),
        *table_row(f"  any user{user}", head.epsilon_user),
        *_notes([*bound_notes(facts), *([attacker] if attacker else [])]),
    ]


def _by_contribution(facts: RunFacts) -> list[str]:
    """Return ε of a user with an entity at percentiles of the corpus; nothing where no entity is mentioned."""
    rows = []
    for figures in facts.contributions():
        entity = figures.bound.in_words() if figures.bound else "an entity (its contribution bound is not recorded)"
        share = "" if figures.share is None else f" ({whole_percent_down(figures.share)} %)"
        shown = format_epsilon(figures.epsilon), format_epsilon(figures.robust)
        rows += _row(f"  {figures.words}{share}: {entity}", *shown)
    head = _row("  + an entity, by contribution, read off this corpus (covers)", "ε", "ε robust")
    return [*head, *rows] if rows else []


def whole_percent_down(share: float) -> str:
    """Return a share in whole percent, rounded down; below one percent as :func:`percent_down` writes it."""
    return str(math.floor(100 * share)) if share >= 0.01 else percent_down(share)


def _claim(facts: RunFacts) -> list[str]:
    """Return the row of the paper's own figure, which always follows the proven ones; none without such a figure."""
    if facts.epsilon_as_published is None:
        return []
    return table_row("  as published, any user + any entity: a claim, no guarantee", facts.epsilon_as_published)


def _utility(facts: RunFacts) -> list[str]:
    if facts.app:
        words = f"Measured by the app: {measured_in_words(facts.measured) or 'nothing'}"
        return textwrap.wrap(words, _WIDTH, subsequent_indent="  ")
    by_user = facts.held_out.lines() if facts.held_out else []
    return [*textwrap.wrap(_ends(facts), _WIDTH, subsequent_indent="  "), *_notes(by_user)]


def _ends(facts: RunFacts) -> str:
    """Return the held-out figure at the start and at the end, and that of a reference."""
    utility, kind = facts.utility, facts.utility.kind
    if utility.initial is None or utility.final is None:
        return f"Utility: no {kind.column} is recorded."
    ends = f"{kind.show(utility.initial)} at the start, {kind.show(utility.final)} at the end"
    if utility.perplexity_per_word is not None:
        ends += f" ({kind.show(utility.perplexity_per_word)} per word)"
    reference = "" if utility.reference is None else f"; {kind.show(utility.reference)} by {kind.reference_words}"
    return f"Utility: {kind.words} {ends}{reference}"


def table_row(words: str, epsilon: float | None) -> list[str]:
    """Return a row with one ε, rounded up."""
    return _row(words, format_epsilon(epsilon), "")


def _row(words: str, epsilon: str, robust: str) -> list[str]:
    """Return a row of the table of ε; words that leave no room for the figures begin a line above them."""
    figures = f"{epsilon:>7}{robust:>9}"
    room = _WIDTH - len(f"{'':>7}{'':>9}")
    *above, last = textwrap.wrap(words, room - 1, subsequent_indent=" " * 6, break_on_hyphens=False)
    return [*above, f"{last:<{room}}{figures}".rstrip()]


def _field(label: str, text: str) -> list[str]:
    """Return lines with ``label`` in the margin and ``text`` wrapped beside it."""
    indent = " " * _LABEL
    first = f"{label:<{_LABEL}}"
    return textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False)


def _notes(notes: list[str]) -> list[str]:
    wrap = textwrap.TextWrapper(_WIDTH, initial_indent="  · ", subsequent_indent="    ", break_on_hyphens=False)
    return [line for note in notes for line in wrap.wrap(note)]
