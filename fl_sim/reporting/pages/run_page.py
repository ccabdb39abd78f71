"""Runs as one page: ε and what it rests on, utility, rounds, users, entities, settings, warnings.

The page shows what the runs recorded. A run that was cut, refused or is unfinished is shown as far as it came, and the
page says so; an ε that a ledger does not support is not in the facts, and so not on the page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from fl_sim.formats import format_at_risk, format_delta, format_epsilon, format_number
from fl_sim.reporting.comparison import ComparedRun, Comparison, end_figures, pair_words
from fl_sim.reporting.pages.templates import render
from fl_sim.reporting.plots import (
    ROUND,
    Axis,
    Chart,
    Point,
    Table,
    epsilon_chart,
    held_out_charts,
    interval_chart,
    lines_of,
    points,
    utility_axis,
    utility_chart,
)
from fl_sim.reporting.recorded import measured_in_words, setting_in_words
from fl_sim.reporting.report import attacker_note, bound_notes, whole_percent_down
from fl_sim.reporting.run_facts import PROVEN, STATES, RunFacts, pooled

Runs = Sequence[ComparedRun]


def run_page(compared: Comparison, refresh: int | None = None) -> str:
    """Return the page of a comparison of one run or more as HTML, which loads itself again after so many seconds."""
    runs: Runs = compared.runs
    title = f"{len(runs)} runs side by side"
    if len(runs) == 1:  # needs no letter
        title, runs = f"Run {runs[0].name}", [replace(runs[0], key="")]
    proven = [run for run in runs if run.facts.headline.state == PROVEN]
    facts_of = {run.label: run.facts for run in runs}
    return render(
        "run.html",
        refresh=refresh,
        title=title,
        runs=runs,
        compared=compared,
        cards=[(run, _card(run.facts)) for run in runs],
        basis=_basis(runs),
        not_covered=_with_keys({run.key: run.facts.not_covered for run in proven}),
        measured=Table(
            ("run", "measured by its app, at the start and at the end"),
            [[run.label, measured_in_words(run.facts.measured)] for run in runs if run.facts.measured],
        ),
        utility=_utility_table(runs),
        main=interval_chart(
            facts_of, "Over all held-out text", lambda held_out: {"": held_out.figures[held_out.metric]}
        ),
        paired=Table(("run", "difference (95 % interval)"), [(pair.run, pair_words(pair)) for pair in compared.paired]),
        over_rounds=[c for c in _round_charts(facts_of, compared.epsilon_comparable) if not c.empty],
        of_users=[c for c in held_out_charts(facts_of) if not c.empty],
        entities=_entity_table(runs),
        settings=Table(
            ["", *(run.label for run in compared.runs)],
            [[name, *map(setting_in_words, values)] for name, values in compared.settings.items()],
        ),
        warnings=_with_keys({run.key: run.facts.warnings for run in runs}),
    )


def _with_keys(texts_of: Mapping[str, Sequence[str]]) -> list[str]:
    """Return every text once, with the letters of its runs where it is not about all of them."""
    found = pooled(texts_of)
    return [text if len(keys) == len(texts_of) else f"{', '.join(keys)}: {text}" for text, keys in found.items()]


def _card(facts: RunFacts) -> list[str]:
    """Return the lines of the box of a run's ε, the large one first."""
    head = facts.headline
    if head.state != PROVEN:
        large, _, why = STATES[head.state].partition(": ")
        return ["ε ∞" if large == "∞" else "no ε", f"{why[0].upper()}{why[1:]}."]
    lines = [f"ε {format_epsilon(head.epsilon)}", f"{head.unit_words}, δ = {format_delta(head.delta)}"]
    if head.unit == "user":
        return lines
    known = f"known: {head.known or 'not recorded'}"
    bounds = (facts.bounds_in_words() or "bounds not recorded").partition(":")[0]
    return [
        *lines,
        f"any user alone: ε {format_epsilon(head.epsilon_user)}",
        f"{known}; {bounds[0].lower()}{bounds[1:]}",
    ]


def _basis(runs: Runs) -> Table:
    """Return what each ε rests on, a column per run."""
    columns = {run.label: dict(_basis_of(run.facts)) for run in runs}
    names = dict.fromkeys(name for column in columns.values() for name in column)
    return Table(["", *columns], [[name, *(column.get(name, "–") for column in columns.values())] for name in names])


def _basis_of(facts: RunFacts) -> Iterator[tuple[str, str]]:
    """Yield what a run's ε rests on, by subject."""
    head, population = facts.headline, facts.settings.population
    yield "Protects", facts.protects or "unknown"
    if head.state != PROVEN:
        return
    yield "δ (δ·N)", f"{format_delta(head.delta)} ({format_at_risk(head.delta, population)})"
    yield "N, the number of users", format_number(population)
    if head.unit == "user":
        yield "Adjacency", "all data of one user, there or not"
        return
    yield "ε with missed mentions, as stated", format_epsilon(head.epsilon_missed)
    yield "Known", head.known or "not recorded"
    bounds, *others = bound_notes(facts) or ["not recorded"]
    yield "Bounds", bounds
    yield "What they leave", " ".join(others) or ("everything" if facts.stopped else "recorded when the run ends")
    yield "An attacker", attacker_note(facts) or "not recorded"


# Utility


def _utility_table(runs: Runs) -> Table:
    """Return the held-out figures at the start and at the end, of the runs that have any."""
    rows = []
    known = [run for run in runs if run.facts.utility.initial is not None and run.facts.utility.final is not None]
    names = dict.fromkeys(name for run in known for name in end_figures(run.facts))
    for run in known:
        utility, kind = run.facts.utility, run.facts.utility.kind
        ends = [kind.show(value) for value in (utility.initial, utility.final) if value is not None]
        reference = utility.reference
        words = "–" if reference is None else f"{kind.show(reference)} by {kind.reference_words}"
        figures = end_figures(run.facts)
        rows.append([run.label, kind.column, *ends, words, *(figures.get(name, "–") for name in names)])
    return Table(("run", "metric", "at the start", "at the end", "reference", *names), rows)


# Charts and tables


def _round_charts(facts_of: Mapping[str, RunFacts], comparable: bool) -> Iterator[Chart]:
    """Yield the charts over rounds; utility against ε only where all ε are one statement (``comparable``)."""
    yield epsilon_chart(facts_of)
    if {facts.headline.unit for facts in facts_of.values()} != {"user"}:
        yield epsilon_chart(facts_of, "user")
    kinds = {facts.utility.metric: facts.utility.kind for facts in facts_of.values()}
    if len(kinds) == 1:
        ((metric, kind),) = kinds.items()
        axis = utility_axis(facts_of)
        yield _over_rounds(facts_of, metric, axis, "Less is better.", kind.show)
        if comparable:
            yield utility_chart(facts_of)
    loss = "Mean over the sentences of the round's cohort. Computed from private text; no ε covers it."
    yield _over_rounds(facts_of, "train_loss", Axis("training loss, nats per target"), loss, "{:.3f}")
    signal = "Norm of the clipped sum over the norm of the noise that was added to it, in each round."
    ratio = Axis("ratio of norms", log_from=4.0)
    yield Chart("Signal to noise", ROUND, ratio, signal, lines_of(facts_of, _signal))
    size = "Realised size of the cohort, which no ε covers."
    yield _over_rounds(facts_of, "cohort_sentences", Axis("sentences in a round", zero=True), size, "{:,.0f}")


def _over_rounds(
    facts_of: Mapping[str, RunFacts], column: str, y: Axis, caption: str, form: str | Callable[[float], str]
) -> Chart:
    title = f"{y.words[0].upper()}{y.words[1:].partition(',')[0]}"
    return Chart(title, ROUND, y, caption, lines_of(facts_of, lambda facts: points(facts.by_round, column, form)))


def _signal(facts: RunFacts) -> Iterator[Point]:
    noises = {point.x: point.y for point in points(facts.by_round, "noise_norm", "")}
    for at, norm, *_ in points(facts.by_round, "update_norm", ""):
        if noises.get(at, 0) > 0:
            yield Point(at, norm / noises[at], f"{norm / noises[at]:.3g}")


def _entity_table(runs: Runs) -> Table:
    rows = []
    for run in runs:
        for found in run.facts.contributions():
            if not (run.facts.guarantee and found.bound):
                continue
            covers = "" if found.share is None else f", covers {whole_percent_down(found.share)} %"
            figures = format_epsilon(found.epsilon), format_epsilon(found.robust)
            rows.append((run.label, f"{found.words}{covers}", f"an entity in {found.bound.in_words()}", *figures))
    return Table(("run", "percentile", "contribution", "ε", "ε robust"), rows)
