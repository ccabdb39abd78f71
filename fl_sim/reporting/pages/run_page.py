"""Runs as one page: ε and what it rests on, utility, rounds, users, entities, settings, warnings.

The page shows what the runs recorded. A run that was cut, refused or is unfinished is shown as far as it came, and the
page says so; an ε that a ledger does not support is not in the facts, and so not on the page.

>>> columns = {"round": [0, 1], "train_loss": [None, 4.5]}
>>> list(points(columns, "train_loss", "{:.2f}"))
[Point(x=1.0, y=4.5, words='4.50', low=None, high=None)]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fl_sim.formats import format_at_risk, format_delta, format_epsilon, format_number
from fl_sim.reporting.bootstrap import Figure
from fl_sim.reporting.comparison import ComparedRun, Comparison
from fl_sim.reporting.comparison_text import end_figures, pair_words
from fl_sim.reporting.held_out import HeldOutFigures, interval, metric_words
from fl_sim.reporting.pages.charts import Axis, Chart, Line, Point, Row, interval_chart, line_chart
from fl_sim.reporting.pages.templates import Table, render
from fl_sim.reporting.recorded import measured_in_words, setting_in_words
from fl_sim.reporting.report import attacker_note, bound_notes, whole_percent_down
from fl_sim.reporting.run_facts import PROVEN, STATES, UNITS, RunFacts, pooled

Runs = Sequence[ComparedRun]

_QUANTILES = 100
_ROUND = Axis("round", whole=True)


def run_page(compared: Comparison) -> str:
    """Return the page of a comparison of one run or more as HTML."""
    runs: Runs = compared.runs
    title = f"{len(runs)} runs side by side"
    if len(runs) == 1:  # needs no letter
        title, runs = f"Run {runs[0].name}", [replace(runs[0], key="")]
    proven = [run for run in runs if run.facts.headline.state == PROVEN]
    return render(
        "run.html",
        title=title,
        runs=runs,
        compared=compared,
        cards=[(run, _card(run.facts)) for run in runs],
        basis=_basis(runs),
        not_covered=_with_keys({run.key: run.facts.not_covered for run in proven}),
        measured=_measured_by_apps(runs),
        utility=_utility_table(runs),
        main=_of_runs(runs, lambda held_out: {"": held_out.figures[held_out.metric]}, "", _INTERVALS),
        paired=Table(("run", "difference (95 % interval)"), [(pair.run, pair_words(pair)) for pair in compared.paired]),
        over_rounds=_present(_round_charts(runs, compared.epsilon_comparable)),
        of_users=_present(_user_charts(runs)),
        at_percentiles=_entity_chart(runs),
        entities=_entity_table(runs),
        settings=_settings_table(compared),
        warnings=_with_keys({run.key: run.facts.warnings for run in runs}),
    )


def _present(charts: Iterable[Chart | None]) -> list[Chart]:
    return [chart for chart in charts if chart is not None]


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
    graph = f"mention graph {head.mention_graph or 'not recorded'}"
    bounds = (facts.bounds_in_words() or "bounds not recorded").partition(":")[0]
    return [
        *lines,
        f"any user alone: ε {format_epsilon(head.epsilon_user)}",
        f"{graph}; {bounds[0].lower()}{bounds[1:]}",
    ]


def _basis(runs: Runs) -> Table:
    """Return what each ε rests on, a column per run."""
    columns = {run.label: dict(_basis_of(run.facts)) for run in runs}
    names = dict.fromkeys(name for column in columns.values() for name in column)
    return Table(["", *columns], [[name, *(column.get(name, "–") for column in columns.values())] for name in names])


def _basis_of(facts: RunFacts) -> Iterator[tuple[str, str]]:
    """Yield what a run's ε rests on, by subject."""
    head, population = facts.headline, facts.settings["population"]
    yield "Protects", facts.protects or "unknown"
    if head.state != PROVEN:
        yield "ε that leads", STATES[head.state]
        return
    yield "ε that leads", f"{format_epsilon(head.epsilon)} ({head.unit_words})"
    yield "δ (δ·N)", f"{format_delta(head.delta)} ({format_at_risk(head.delta, population)})"
    yield "N, the number of users", format_number(population)
    if head.unit == "user":
        yield "Adjacency", "all data of one user, there or not"
        return
    yield "… with missed mentions, as stated", format_epsilon(head.epsilon_missed)
    yield "ε, any user alone", format_epsilon(head.epsilon_user)
    yield "Adjacency", f"mention graph {head.mention_graph or 'not recorded'}"
    bounds, *others = bound_notes(facts) or ["not recorded"]
    yield "Bounds", bounds
    yield "What they leave", " ".join(others) or ("everything" if facts.stopped else "recorded when the run ends")
    yield "An attacker", attacker_note(facts) or "not recorded"


# Utility


def _measured_by_apps(runs: Runs) -> Table:
    rows = [[run.label, measured_in_words(run.facts.measured)] for run in runs if run.facts.measured]
    return Table(("run", "measured by its app, at the start and at the end"), rows)


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


_INTERVALS = "95 % intervals by bootstrap over users; less is better."


def _of_runs(
    runs: Runs, figures_of: Callable[[HeldOutFigures], Mapping[str, Figure]], words: str, caption: str
) -> Chart | None:
    """Return figures of held-out text with intervals, by subject and run; None if tasks differ or none has any."""
    known = [(number, run, run.facts.held_out) for number, run in enumerate(runs) if run.facts.held_out]
    metrics = {held_out.metric for _, _, held_out in known}
    if len(metrics) != 1:
        return None
    metric = metrics.pop()
    by_subject: dict[str, list[Row]] = {}
    for number, run, held_out in known:
        for subject, figure in figures_of(held_out).items():
            label = _of_run(subject, run) if subject else run.label
            row = Row(label, figure.value, *figure.ends(), words=interval(figure, metric), number=number)
            by_subject.setdefault(subject, []).append(row)
    rows = [row for subject in by_subject.values() for row in subject if math.isfinite(row.value)]
    name = metric_words(metric)
    axis = Axis(name, percent=metric == "error")
    return interval_chart(f"{name[0].upper()}{name[1:]}{words}", rows, axis, caption) if rows else None


def _of_run(words: str, run: ComparedRun) -> str:
    return f"{words} · {run.key}" if run.key else words


# Charts over rounds and users


def _round_charts(runs: Runs, comparable: bool) -> Iterator[Chart | None]:
    """Yield the charts over rounds of those figures that any run has.

    Args:
        runs: to draw.
        comparable: whether the ε of all runs are one statement, so that utility may be drawn against them.
    """
    units = {run.facts.headline.unit for run in runs}
    leading = f"ε of {UNITS[next(iter(units))]}" if len(units) == 1 else "ε of the unit that each run states"
    rounded = "Upper bounds; figures are rounded up."
    yield _chart(leading, runs, _leading_epsilon, Axis("ε"), rounded)
    if units != {"user"}:
        yield _chart("ε of any user alone", runs, lambda run: _epsilon(run, "epsilon_user"), Axis("ε"), rounded)
    kinds = {run.facts.utility.metric for run in runs}
    if len(kinds) == 1:
        (metric,) = kinds
        axis = Axis(f"held-out {metric}", percent=metric == "error", log=metric != "error")
        yield _chart(f"Held-out {metric}", runs, _column(metric, _form(metric)), axis, "Less is better.")
        if comparable:
            title, caption = f"Held-out {metric} against ε", "One point a round; lower and further left is better."
            yield _chart(title, runs, _utility_by_epsilon, axis, caption, Axis("ε"))
    loss = "Mean over the sentences of the round's cohort. Computed from private text; no ε covers it."
    yield _chart("Training loss", runs, _column("train_loss", "{:.3f}"), Axis("nats per target"), loss)
    signal = "Norm of the clipped sum over the norm of the noise that was added to it, in each round."
    yield _chart("Signal to noise", runs, _signal, Axis("ratio of norms", log=True), signal)


def _user_charts(runs: Runs) -> Iterator[Chart | None]:
    """Yield how utility and work are spread over users."""
    ranked = "Users from the best to the worst predicted, without names: a share of them has at most this figure."
    share = Axis("share of users", percent=True)
    bits, errors = Axis("bits per token"), Axis("error", percent=True, zero=True)
    yield _chart("Held-out text of every user", runs, lambda run: _users(run, "bits"), bits, ranked, share)
    yield _chart("Held-out error of every user", runs, lambda run: _users(run, "wrong"), errors, ranked, share)
    for column, title in (("cohort_sentences", "Sentences in a round"), ("cohort_users", "Users in a round")):
        caption = "Realised sizes of the cohorts, which no ε covers."
        yield _chart(title, runs, _column(column), Axis("number", zero=True), caption)
    yield _of_runs(runs, HeldOutFigures.by_size, " by a user's number of sentences", f"Held-out text, {_INTERVALS}")
    yield _of_runs(
        runs, HeldOutFigures.by_part, " where entities are named, and elsewhere", f"Held-out text, {_INTERVALS}"
    )


def _chart(
    title: str, runs: Runs, points_of: Callable[[ComparedRun], Iterable[Point]], y: Axis, caption: str, x: Axis = _ROUND
) -> Chart | None:
    """Return a chart of the runs that have points, which names the others; None if no run has any."""
    drawn = {run.label: tuple(sorted(points_of(run), key=lambda point: point.x)) for run in runs}
    lines = [Line(label, number, found) for number, (label, found) in enumerate(drawn.items()) if found]
    missing = [run.key for run in runs if not drawn[run.label]]
    if not lines:
        return None
    return line_chart(
        title,
        lines,
        x,
        y,
        f"{caption} No line: {', '.join(missing)} (not recorded, or not finite)." if missing else caption,
    )


def points(columns: Mapping[str, Sequence[Any]], name: str, form: str | Callable[[float], str]) -> Iterator[Point]:
    """Yield a column of the metrics over rounds, where it was measured and is finite."""
    for at, value in zip(columns.get("round", ()), columns.get(name, ()), strict=False):
        if _is_finite(value):
            yield Point(float(at), float(value), form.format(value) if isinstance(form, str) else form(value))


def _column(name: str, form: str = "{:,.0f}") -> Callable[[ComparedRun], Iterable[Point]]:
    return lambda run: points(run.facts.by_round, name, form)


def _epsilon(run: ComparedRun, name: str) -> Iterator[Point]:
    """Yield an ε after every round, of a run in which it is finite at the end."""
    if math.isfinite(run.facts.epsilon.get(name, math.inf)):
        yield from points(run.facts.by_round, name, lambda value: f"ε {format_epsilon(value)}")


def _leading_epsilon(run: ComparedRun) -> Iterator[Point]:
    return _epsilon(run, f"epsilon_{run.facts.headline.unit}")


def _utility_by_epsilon(run: ComparedRun) -> Iterator[Point]:
    metric = run.facts.utility.metric
    spent = {point.x: point for point in _leading_epsilon(run)}
    for point in points(run.facts.by_round, metric, _form(metric)):
        if point.x in spent:
            words = f"{metric} {point.words} at {spent[point.x].words}, round {point.x:.0f}"
            yield Point(spent[point.x].y, point.y, words)


def _signal(run: ComparedRun) -> Iterator[Point]:
    columns = run.facts.by_round
    named = (columns.get(name, ()) for name in ("round", "update_norm", "noise_norm"))
    for at, norm, noise in zip(*named, strict=False):
        if _is_finite(norm) and _is_finite(noise) and noise > 0:
            yield Point(float(at), norm / noise, f"{norm / noise:.3g}")


def _users(run: ComparedRun, name: str) -> Iterator[Point]:
    """Yield the figures of single users, sorted and without names, at no more than a hundred shares of them."""
    kind = "error" if name == "wrong" else "perplexity"
    if run.by_user is None or run.facts.utility.metric != kind:
        return
    targets = np.array(run.by_user["predictions"], dtype=float)
    losses = np.array(run.by_user["wrong" if name == "wrong" else "nats"], dtype=float)
    known = (targets > 0) & np.isfinite(losses)
    figures = np.sort(losses[known] / targets[known]) / (1.0 if name == "wrong" else math.log(2))
    places = np.unique(np.linspace(0, max(len(figures) - 1, 0), min(len(figures), _QUANTILES)).astype(int))
    for place in places:
        value = float(figures[place])
        yield Point((place + 1) / len(figures), value, f"{value:.1%}" if name == "wrong" else f"{value:.2f}")


def _form(metric: str) -> str:
    return "{:.1%}" if metric == "error" else "{:,.1f}"


def _is_finite(value: Any) -> bool:
    return value is not None and math.isfinite(value)


# Entities and settings


def _entity_chart(runs: Runs) -> Chart | None:
    """Return ε at percentiles of the entities' contributions, where it is finite."""
    rows = [
        Row(
            _of_run(found.words, run),
            found.epsilon,
            found.epsilon,
            found.epsilon,
            format_epsilon(found.epsilon),
            number,
        )
        for number, run in enumerate(runs)
        for found in run.facts.contributions()
        if run.facts.guarantee and found.bound and found.epsilon is not None and math.isfinite(found.epsilon)
    ]
    axis = Axis("ε", zero=True, log=True)
    return interval_chart("ε at percentiles of contribution", rows, axis, "Upper bounds, rounded up.") if rows else None


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


def _settings_table(compared: Comparison) -> Table:
    rows = [[name, *map(setting_in_words, values)] for name, values in compared.settings.items()]
    return Table(["", *(run.label for run in compared.runs)], rows)
