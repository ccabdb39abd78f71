"""Runs as one page: ε, utility and time first, then all else that was recorded of them.

The page shows what the runs recorded. A run that was cut, refused or is unfinished is shown as far as it came, and the
page says so; an ε that a ledger does not support is not in the facts, and so not on the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from fl_sim.formats import duration, format_at_risk, format_delta, format_epsilon, format_number
from fl_sim.reporting.comparison import ComparedRun, Comparison, end_figures, pair_words
from fl_sim.reporting.held_out import metric_words
from fl_sim.reporting.plots import (
    ROUND,
    Axis,
    Chart,
    Point,
    Table,
    epsilon_chart,
    held_out_charts,
    lines_of,
    overall_chart,
    points,
    utility_axis,
    utility_chart,
)
from fl_sim.reporting.recorded import contribution_in_words, counted, measured_in_words, setting_in_words
from fl_sim.reporting.report import attacker_note, bound_notes, way_in_words, whole_percent_down
from fl_sim.reporting.run_facts import PROVEN, STATES, RunFacts, pooled
from fl_sim.reporting.templates import Card, Shown, render, whole_delta

Runs = Sequence[ComparedRun]


def run_page(compared: Comparison, refresh: int | None = None) -> str:
    """Return the page of a comparison of one run or more as HTML, which loads itself again after so many seconds."""
    runs: Runs = compared.runs
    title = f"{len(runs)} runs side by side"
    if len(runs) == 1:  # needs no letter
        title, runs = f"Run {runs[0].name}", [replace(runs[0], key="")]
    proven = [run for run in runs if run.facts.headline.state == PROVEN]
    facts_of = {run.label: run.facts for run in runs}
    first, over_rounds = _round_charts(facts_of, compared.epsilon_comparable)
    return render(
        "run.html",
        refresh=refresh,
        title=title,
        runs=runs,
        compared=compared,
        cards=[_card(run) for run in runs],
        first=first,
        basis=_basis(runs),
        not_covered=_with_keys({run.key: run.facts.not_covered for run in proven}),
        measured=Table(
            ("run", "measured by its app, at the start and at the end"),
            [[run.label, measured_in_words(run.facts.measured)] for run in runs if run.facts.measured],
        ),
        utility=_utility_table(runs),
        overall=overall_chart(facts_of),
        paired=Table(("run", "difference (95 % interval)"), [(pair.run, pair_words(pair)) for pair in compared.paired]),
        over_rounds=over_rounds,
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


def _card(run: ComparedRun) -> Card:
    facts = run.facts
    epsilon, notes = _epsilon(facts)
    way = way_in_words(facts) if facts.without_privacy else None
    figures = (epsilon, _utility(facts), _time(facts))
    return Card(run.label, f"{facts.strategy}, {facts.ended()}", figures, (*notes, *([way] if way else [])))


def _epsilon(facts: RunFacts) -> tuple[Shown, tuple[str, ...]]:
    """Return the ε that leads, and what it comes with."""
    head = facts.headline
    if head.state != PROVEN:
        large, _, why = STATES[head.state].partition(": ")
        return Shown("ε ∞" if large == "∞" else "no ε", why), ()
    of_unit = f"no guarantee for {head.unit_words}" if head.epsilon == math.inf else head.unit_words
    shown = Shown(f"ε {format_epsilon(head.epsilon)}", f"{of_unit}, {whole_delta(head.delta)}")
    if head.unit == "user":
        return shown, ()
    bounds = (facts.bounds_in_words() or "bounds not recorded").partition(":")[0]
    user = f"ε {format_epsilon(head.epsilon_user)} for any user alone"
    return shown, (f"{user}. Known: {head.known or 'not recorded'}; {bounds[0].lower()}{bounds[1:]}",)


def _utility(facts: RunFacts) -> Shown:
    """Return the last held-out figure, or the first that an app measured."""
    utility, kind, measured = facts.utility, facts.utility.kind, facts.app_figure()
    if utility.final is not None and utility.initial is not None:
        at = "" if utility.measured_round == facts.rounds_done else f" after round {utility.measured_round}"
        twin = facts.without_privacy
        beside = "" if twin is None else f", {kind.show(twin.final)} without privacy ({twin.run})"
        return Shown(kind.show(utility.final), f"{kind.words}{at}; {kind.show(utility.initial)} at the start{beside}")
    if measured is not None:
        name, ends = measured
        return Shown(f"{ends[-1]:.4g}", f"{name}, {ends[0]:.4g} at the start")
    return Shown("–", "no utility is recorded")


def _time(facts: RunFacts) -> Shown:
    if facts.seconds is None:
        return Shown("–", "no time is recorded")
    return Shown(duration(facts.seconds), f"for {counted(facts.rounds_done, 'round')}")


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
    names = dict.fromkeys(name for run in known for name in end_figures(run.facts) if name not in _AT_THE_END)
    for run in known:
        utility, kind, figures = run.facts.utility, run.facts.utility.kind, end_figures(run.facts)
        initial, final = (kind.show(value) for value in (utility.initial, utility.final) if value is not None)
        end = next((figures[name] for name in _AT_THE_END if name in figures), final)
        reference = utility.reference
        words = "–" if reference is None else f"{kind.show(reference)} by {kind.reference_words}"
        cells = [run.label, kind.column, initial, end, words, *(figures.get(name, "–") for name in names)]
        rows.append(
            [cell.replace(" to ", "\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}") for cell in cells]
        )  # of an interval
    return Table(("run", "metric", "at the start", "at the end", "reference", *names), rows)


_AT_THE_END = (metric_words("perplexity_per_token"), metric_words("error"))
"""The figures that are a task's metric, so that their intervals are of the figure at the end."""


# Charts and tables


def _round_charts(facts_of: Mapping[str, RunFacts], comparable: bool) -> tuple[Chart | None, list[Chart]]:
    """Return the chart that a page begins with, and those over rounds.

    The first is utility against ε, where all ε are one statement (``comparable``), else utility over the rounds.
    """
    measured: list[Chart] = []
    kinds = {facts.utility.metric: facts.utility.kind for facts in facts_of.values()}
    if len(kinds) == 1:
        ((metric, kind),) = kinds.items()
        measured += [utility_chart(facts_of)] if comparable else []
        measured.append(_over_rounds(facts_of, metric, utility_axis(facts_of), "Less is better.", kind.show))
    first, *others = [*(chart for chart in measured if not chart.empty), None]
    over_rounds = [*_epsilon_charts(facts_of), *filter(None, others), *_charts_of_training(facts_of)]
    return first, [chart for chart in over_rounds if not chart.empty]


def _epsilon_charts(facts_of: Mapping[str, RunFacts]) -> Iterator[Chart]:
    yield epsilon_chart(facts_of)
    if {facts.headline.unit for facts in facts_of.values()} != {"user"}:
        yield epsilon_chart(facts_of, "user")


def _charts_of_training(facts_of: Mapping[str, RunFacts]) -> Iterator[Chart]:
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
            rows.append(
                (run.label, f"{found.words}{covers}", f"an entity in {contribution_in_words(found.bound)}", *figures)
            )
    return Table(("run", "percentile", "contribution", "ε", "ε robust"), rows)
