"""The report of a run as text: the answer in some twenty lines, or all that is known of its guarantee and its utility.

Every ε is rounded up, so that the guarantee is never overstated.

>>> print("\\n".join(table_row("  any user", 2.181)))
  any user                                                         2.19
"""

from __future__ import annotations

import math
import textwrap

from fl_sim.formats import (
    counted,
    duration,
    format_delta,
    format_epsilon,
    hanging,
    percent_down,
    percent_up,
    printable,
    printable_lines,
)
from fl_sim.reporting.recorded import contribution_in_words, measured_in_words
from fl_sim.reporting.run_facts import NO_GUARANTEE, NO_GUARANTEE_WORDS, NO_ROUND, UNTRUSTED, RunFacts

_WIDTH = 80


def report_text(facts: RunFacts) -> str:
    """Return what a run costs and what it guarantees: utility and ε, what ε hides, the attacker's odds, warnings."""
    name = f"{printable(facts.run)} ({facts.strategy})"
    head = [*_field("Run", f"{name}: {_ended(facts)}"), *_field("Protects", facts.protects or "unknown")]
    return text_of([head, _utility_table(facts), _privacy_in_short(facts), _warnings(facts)])


def full_report_text(facts: RunFacts) -> str:
    """Return all that is said of a run: besides its settings, what ε rests on and leaves out, and utility by user."""
    head = [
        *_field("Run", f"{printable(facts.run)}: {_ended(facts)}"),
        *_field("Protects", facts.protects or "unknown"),
        *_field("Strategy", f"{facts.strategy}: {', '.join(facts.settings_in_words())}"),
        *(_field("Settings", printable(facts.origin)) if facts.origin else []),
        *([] if facts.app else _field("Corpus", facts.corpus.in_words() if facts.corpus else "not recorded")),
        *(_field("Gradients", facts.gradients.in_words()) if facts.gradients else []),
    ]
    return text_of([head, _privacy(facts), _utility(facts), _warnings(facts)])


def text_of(blocks: list[list[str]]) -> str:
    """Return blocks of lines with an empty line between them, of which a terminal obeys nothing."""
    return printable_lines("\n".join("\n".join(block) + "\n" for block in blocks if block))


def _ended(facts: RunFacts) -> str:
    """Return how far the run came, and how long that took."""
    return facts.ended() + ("" if facts.seconds is None else f"; its rounds took {duration(facts.seconds)}")


def _warnings(facts: RunFacts) -> list[str]:
    return [line for text in facts.warnings for line in _field("Warning", text)]


def bound_notes(facts: RunFacts) -> list[str]:
    """Return the bounds of a run, what they kept and whom they leave out, one sentence each."""
    words = [facts.bounds_in_words(), facts.kept and facts.kept.in_words(), public_names_note(facts)]
    return [text for text in words if text]


def public_names_note(facts: RunFacts) -> str | None:
    """Return which entities are not protected because their names are public; None if there are none."""
    if not facts.public_entities:
        return None
    share = percent_up(facts.mentions_of_public_names or 0)
    return f"Not protected: entities on a list of public names ({facts.public_entities:,}, {share} % of the mentions)."


def attacker_note(facts: RunFacts) -> str | None:
    """Return what an attacker can reach at most; None if the run did not record it."""
    if facts.attacker is None:
        return None
    return facts.attacker.in_words(facts.delta, facts.settings.population)


def _without_epsilon(facts: RunFacts) -> list[str]:
    """Return why no ε is shown; nothing where one is proven."""
    state = facts.headline.state
    if state == UNTRUSTED:
        return ["Privacy: no ε can be trusted, because the ledger does not support it (see the warning)."]
    if state == NO_ROUND:
        return ["Privacy: no round is recorded."]
    if state == NO_GUARANTEE:
        return [f"Privacy: {NO_GUARANTEE_WORDS}. Do not release this model, or any of its rounds.", *_claim(facts)]
    return []


def _privacy_in_short(facts: RunFacts) -> list[str]:
    """Return the ε that lead, what they hide and take as known, and the attacker's odds."""
    if nothing := _without_epsilon(facts):
        return nothing
    # Where no bound makes the leading ε finite, those at percentiles of contribution are all that is known of entities.
    unbounded = not facts.app and math.isinf(facts.headline.epsilon or math.inf)
    # What an app's ε assumes of its nodes is nothing that this program enforces, so it is said wherever that ε is.
    own = facts.not_covered if facts.app else facts.in_short()
    return [
        *_headline(facts),
        *(_by_contribution(facts) if unbounded else []),
        *_claim(facts),
        *_notes(*own, public_names_note(facts), attacker_note(facts)),
    ]


def _privacy(facts: RunFacts) -> list[str]:
    if nothing := _without_epsilon(facts):
        return nothing
    corpus = facts.corpus
    return [
        *_headline(facts),
        *_notes(*bound_notes(facts), attacker_note(facts)),
        *_by_contribution(facts),
        *_claim(facts),
        *_notes(
            *facts.not_covered,
            corpus.coverage.in_words(facts.most_mentions) if corpus and corpus.coverage else None,
            f"{facts.unsought}. Plain ε of an entity covers none of these." if facts.unsought else None,
        ),
    ]


def _headline(facts: RunFacts) -> list[str]:
    """Return the rows of the ε that leads."""
    head, delta = facts.headline, f"Privacy at δ = {format_delta(facts.delta)}"
    if facts.app:
        return [*_row(delta, "ε", ""), *table_row("  any user", head.epsilon)]
    known = f", {head.known} known" if head.known else ""
    bound = facts.user_sentences
    by_weight = " by weight" if head.known == "counts" else ""
    user = "" if bound is None or bound == math.inf else f", ≤ {counted(bound, 'sentence')}{by_weight}"
    return [
        *_row(f"{delta}{known}", "ε", "ε missed"),
        *_row(f"  {head.unit_words}", format_epsilon(head.epsilon), format_epsilon(head.epsilon_missed)),
        *table_row(f"  any user{user}", head.epsilon_user),
    ]


def _by_contribution(facts: RunFacts) -> list[str]:
    """Return ε of a user with an entity at percentiles of the corpus; nothing where no entity is mentioned."""
    rows = []
    for figures in facts.contributions():
        entity = (
            contribution_in_words(figures.bound)
            if figures.bound
            else "an entity (its contribution bound is not recorded)"
        )
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


def _utility_table(facts: RunFacts) -> list[str]:
    """Return the held-out figures of the run beside those of its start and of its noiseless twin."""
    utility, twin = facts.utility, facts.without_privacy
    if facts.app or utility.initial is None or utility.final is None:
        return _utility(facts)
    beside = [] if twin is None else ["without privacy"]
    label, end = ("Utility, for the owner (outside ε)", "private") if facts.guarantee else ("Utility", "end")
    rows = [_figures(label, [end, "start", *beside])]
    kind = utility.kind
    ends = [utility.final, utility.initial, *([] if twin is None else [twin.final])]
    rows.append(_figures(f"  {kind.words}", [kind.show(value) for value in ends]))
    bits = [utility.bits_per_byte, utility.initial_bits_per_byte, *([] if twin is None else [twin.bits_per_byte])]
    if all(value is not None for value in bits[:2]):
        rows.append(_figures("  bits per byte", ["–" if value is None else f"{value:.2f}" for value in bits]))
    is_older = utility.measured_round != facts.rounds_done
    older = f"Measured after round {utility.measured_round}." if is_older else None
    return [*rows, *_notes(older, way_in_words(facts))]


def way_in_words(facts: RunFacts) -> str | None:
    """Return how far a private run came from its start towards its noiseless twin; None where none is to be had."""
    twin = facts.without_privacy
    if twin is None:
        is_private = facts.guarantee and not facts.app
        return "Without privacy: not known; fl-sim resume RUN --baseline trains it." if is_private else None
    if twin.share is not None:
        measure = " in log perplexity" if facts.utility.metric == "perplexity" else ""
        return f"{math.floor(100 * twin.share)} % of the way from the start to {printable(twin.run)}{measure}."
    if twin.as_long:
        return f"{printable(twin.run)} did not learn either."
    read = f"{counted(twin.rounds, 'round')} of {twin.sentences:,.0f} sentences"
    return f"{printable(twin.run)} is longer or shorter: {read}."


def _utility(facts: RunFacts) -> list[str]:
    if facts.app:
        words = f"Measured by the app: {measured_in_words(facts.measured) or 'nothing'}"
        return textwrap.wrap(words, _WIDTH, subsequent_indent="  ")
    by_user = facts.held_out.lines() if facts.held_out else []
    way = way_in_words(facts) if facts.without_privacy else None
    return [*textwrap.wrap(_ends(facts), _WIDTH, subsequent_indent="  "), *_notes(way, *by_user)]


def _ends(facts: RunFacts) -> str:
    """Return the held-out figure at the start and at the end, and that of a reference."""
    utility, kind = facts.utility, facts.utility.kind
    if utility.initial is None or utility.final is None:
        return f"Utility: no {kind.column} is recorded."
    ends = f"{kind.show(utility.initial)} at the start, {kind.show(utility.final)} at the end"
    if facts.without_privacy is not None:
        ends += f", {kind.show(facts.without_privacy.final)} without privacy"
    reference = "" if utility.reference is None else f"; {kind.show(utility.reference)} by {kind.reference_words}"
    return f"Utility: {kind.words} {ends}{reference}"


def table_row(words: str, epsilon: float | None) -> list[str]:
    """Return a row with one ε, rounded up."""
    return _row(words, format_epsilon(epsilon), "")


def _figures(label: str, figures: list[str]) -> str:
    """Return a row of figures in columns."""
    return f"{label:<38}" + "".join(f"{figure:>{width}}" for figure, width in zip(figures, (10, 10, 20), strict=False))


def _row(words: str, epsilon: str, robust: str) -> list[str]:
    """Return a row of the table of ε; words that leave no room for the figures begin a line above them."""
    figures = f"{epsilon:>7}{robust:>9}"
    room = _WIDTH - len(f"{'':>7}{'':>9}")
    *above, last = textwrap.wrap(words, room - 1, subsequent_indent=" " * 6, break_on_hyphens=False)
    return [*above, f"{last:<{room}}{figures}".rstrip()]


def _field(label: str, text: str) -> list[str]:
    """Return lines with ``label`` in the margin and ``text`` wrapped beside it."""
    return hanging(f"{label:<12}", text, width=_WIDTH)


def _notes(*notes: str | None) -> list[str]:
    return [line for note in notes if note for line in hanging("  · ", note, width=_WIDTH)]
