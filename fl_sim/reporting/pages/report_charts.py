"""The charts of a page of runs: ε, utility, training loss and signal-to-noise over rounds; users; cohorts.

What is not finite or was not measured is left out, and the caption names the runs without a line.

>>> run = {"key": "A", "name": "first", "headline": {"state": "proven", "unit": "any", "epsilon": 1.5},
...        "report": {"utility": {"metric": "perplexity"}, "epsilon": {"epsilon_any": 1.5}}}
>>> rounds = {"round": [0, 1], "epsilon_any": [0.0, 1.5], "perplexity": [90.0, 80.0], "train_loss": [None, 4.5]}
>>> [chart.partition('id="')[2].partition('"')[0] for chart in round_charts([run], [{"rounds": rounds}])]
['epsilon', 'utility', 'tradeoff', 'loss']
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fl_sim.formats import format_epsilon
from fl_sim.reporting.pages.html_page import Markup
from fl_sim.reporting.pages.live_charts import Axis, Line, live_chart

Record = Mapping[str, Any]
Points = Iterator[tuple[float, float, str]]

_ROUND = Axis("round", whole=True, said="round")
_QUANTILES = 100


def round_charts(runs: Sequence[Record], drawn: Sequence[Record], comparable: bool = True) -> list[Markup]:
    """Return the charts over rounds of those figures that any run has.

    Args:
        runs: of ``Comparison.record()``.
        drawn: of each run ``rounds``, the columns of its metrics.
        comparable: whether the ε of all runs are one statement, so that utility may be drawn against them.
    """
    tables = [one["rounds"] for one in drawn]
    leads_user = all(run["headline"]["unit"] == "user" for run in runs)  # then the first chart is that of any user
    charts = [
        _epsilon(runs, tables, "epsilon", _leading_title(runs), _leading),
        None if leads_user else _epsilon(runs, tables, "user", "ε of any user alone", lambda run: "epsilon_user"),
        _utility(runs, tables),
        _tradeoff(runs, tables) if comparable else None,
        _chart(
            "loss", "Training loss", runs, _of_column(tables, "train_loss", "{:.3f}"), Axis("nats per target"),
            "Mean over the sentences of the round's cohort. Computed from private text; no ε covers it.",
        ),
        _chart(
            "signal", "Signal to noise", runs, lambda n: _signal(tables[n]), Axis("ratio of norms", log=True),
            "Norm of the clipped sum over the norm of the noise that was added to it, in each round.",
        ),
    ]  # fmt: skip
    return [chart for chart in charts if chart is not None]


def user_charts(runs: Sequence[Record], drawn: Sequence[Record]) -> list[Markup]:
    """Return the charts over users: held-out figures of single users, and cohorts.

    Args:
        runs: of ``Comparison.record()``.
        drawn: of each run ``rounds`` and ``by_user``.
    """
    charts = []
    for name, title, axis in (
        ("bits", "Held-out text of every user", Axis("bits per token")),
        ("wrong", "Held-out error of every user", Axis("error", percent=True, zero=True)),
    ):
        kind = "error" if name == "wrong" else "perplexity"
        chosen = [run["report"]["utility"]["metric"] == kind for run in runs]
        charts.append(
            _chart(
                name, title, runs, _of_users(drawn, chosen, name), axis,
                "Users from the best to the worst predicted, without names: a share of them has at most this figure.",
                Axis("share of users", percent=True, said="users up to"),
            )
        )  # fmt: skip
    for column, title in (("cohort_sentences", "Sentences in a round"), ("cohort_users", "Users in a round")):
        charts.append(
            _chart(
                column, title, runs, _of_column([one["rounds"] for one in drawn], column), Axis("number", zero=True),
                "Realised sizes of the cohorts, which no ε covers.",
            )
        )  # fmt: skip
    return [chart for chart in charts if chart is not None]


def label_of(run: Record) -> str:
    """Return the letter and the name of a run; the name alone where it has no letter."""
    return f"{run['key']} · {run['name']}" if run["key"] else str(run["name"])


def _leading_title(runs: Sequence[Record]) -> str:
    units = {run["headline"]["unit"] for run in runs}
    words = {
        "any": "ε of any user + any entity",
        "stated": "ε of any user + an entity within the stated bound",
        "user": "ε of any user",
    }
    return words[units.pop()] if len(units) == 1 else "ε of the unit that each run states"


def _leading(run: Record) -> str:
    return f"epsilon_{run['headline']['unit']}"


def _epsilon(
    runs: Sequence[Record], tables: Sequence[Record], name: str, title: str, column: Callable[[Record], str]
) -> Markup | None:
    """Return ε over rounds of the runs whose ε is proven."""

    def points(number: int) -> Points:
        name = column(runs[number])
        if _is_finite(runs[number]["report"]["epsilon"].get(name)) and _is_proven(runs[number]):
            for at, value in _pairs(tables[number], "round", name):
                yield at, value, f"ε {format_epsilon(value)}"

    return _chart(name, title, runs, points, Axis("ε", zero=True), "Upper bounds; figures are rounded up.")


def _utility(runs: Sequence[Record], tables: Sequence[Record]) -> Markup | None:
    kinds = {run["report"]["utility"]["metric"] for run in runs}
    if len(kinds) > 1:
        return None
    metric = kinds.pop()
    axis = Axis(f"held-out {metric}", percent=metric == "error", log=metric != "error")
    points = _of_column(tables, metric, _form(metric))
    return _chart("utility", f"Held-out {metric}", runs, points, axis, "Less is better.")


def _form(metric: str) -> str:
    return "{:.1%}" if metric == "error" else "{:,.1f}"


def _tradeoff(runs: Sequence[Record], tables: Sequence[Record]) -> Markup | None:
    """Return utility against ε, of runs whose ε are finite."""
    kinds = {run["report"]["utility"]["metric"] for run in runs if _is_finite_epsilon(run)}
    if len(kinds) != 1:
        return None
    metric = kinds.pop()

    def points(number: int) -> Points:
        run, table = runs[number], tables[number]
        if not _is_finite_epsilon(run) or _leading(run) not in table or metric not in table:
            return
        for at, epsilon, value in zip(table["round"], table[_leading(run)], table[metric], strict=True):
            if _is_finite(epsilon) and _is_finite(value):
                words = f"{metric} {_form(metric).format(value)} at ε {format_epsilon(epsilon)}, round {at}"
                yield float(epsilon), float(value), words

    axis = Axis(f"held-out {metric}", percent=metric == "error", log=metric != "error")
    caption = "One point a round; lower and further left is better."
    return _chart("tradeoff", f"Held-out {metric} against ε", runs, points, axis, caption, Axis("ε"))


def _is_proven(run: Record) -> bool:
    return bool(run["headline"]["state"] == "proven")


def _is_finite_epsilon(run: Record) -> bool:
    """Return whether the ε that leads is proven and finite."""
    return _is_proven(run) and _is_finite(run["headline"]["epsilon"])


def _signal(table: Record) -> Points:
    if "update_norm" not in table or "noise_norm" not in table:
        return
    for at, norm, noise in zip(table["round"], table["update_norm"], table["noise_norm"], strict=True):
        if _is_finite(norm) and _is_finite(noise) and noise > 0:
            yield float(at), norm / noise, f"{norm / noise:.3g}"


def _of_column(tables: Sequence[Record], column: str, form: str = "{:,.0f}") -> Callable[[int], Points]:
    return lambda number: _column(tables[number], column, form)


def _of_users(drawn: Sequence[Record], chosen: Sequence[bool], name: str) -> Callable[[int], Points]:
    """Return the quantiles over users of the figures of each run whose task they are of."""

    def points(number: int) -> Points:
        sums = drawn[number].get("by_user")
        if not chosen[number] or not sums:
            return
        wanted, per = (sums["wrong"], 1.0) if name == "wrong" else (sums["nats"], math.log(2))
        figures = sorted(w / p / per for w, p in zip(wanted, sums["predictions"], strict=True) if p)
        if not figures or not all(map(math.isfinite, figures)):
            return
        form = "{:.1%}" if name == "wrong" else "{:.2f}"
        for step in range(_QUANTILES + 1):
            value = figures[min(math.ceil(step / _QUANTILES * len(figures)), len(figures)) - 1 if step else 0]
            yield step / _QUANTILES, value, form.format(value)

    return points


def _column(table: Record, column: str, form: str) -> Points:
    for at, value in _pairs(table, "round", column):
        yield at, value, form.format(value)


def _pairs(table: Record, first: str, second: str) -> Iterator[tuple[float, float]]:
    """Yield the rows in which both columns have a finite number."""
    for x, y in zip(table.get(first, ()), table.get(second, ()), strict=False):
        if _is_finite(x) and _is_finite(y):
            yield float(x), float(y)


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _chart(
    name: str,
    title: str,
    runs: Sequence[Record],
    points: Callable[[int], Points],
    y: Axis,
    caption: str,
    x: Axis = _ROUND,
) -> Markup | None:
    """Return a chart with a line per run that has points; None if none has."""
    found = [tuple(points(number)) for number in range(len(runs))]
    lines = [
        Line(label_of(run), number, line) for number, (run, line) in enumerate(zip(runs, found, strict=True)) if line
    ]
    if not lines:
        return None
    absent = [run["key"] for run, line in zip(runs, found, strict=True) if not line]
    left_out = f" No line: {', '.join(absent)} (not recorded, or not finite)." if absent else ""
    return live_chart(name, title, lines, x, y, caption + left_out)
