"""Write runs as one page: ε and what it rests on, utility, rounds, users, entities, settings, warnings.

The page shows what the runs recorded. A run that was cut, refused or is unfinished is shown as far as it came, and the
page says so; an ε that a ledger does not support is not on it.

First the charts: ε, utility, training loss and signal-to-noise over rounds; users; cohorts.

What is not finite or was not measured is left out, and the caption names the runs without a line.

>>> run = {"key": "A", "name": "first", "headline": {"state": "proven", "unit": "any", "epsilon": 1.5},
...        "report": {"utility": {"metric": "perplexity"}, "epsilon": {"epsilon_any": 1.5}}}
>>> rounds = {"round": [0, 1], "epsilon_any": [0.0, 1.5], "perplexity": [90.0, 80.0], "train_loss": [None, 4.5]}
>>> [chart.partition('id="')[2].partition('"')[0] for chart in round_charts([run], [{"rounds": rounds}])]
['epsilon', 'utility', 'tradeoff', 'loss']

>>> facts = {"strategy": "uedp", "rounds_done": 0, "rounds": 3, "stopped": None, "epsilon": {}, "bounds": None,
...          "protects": None, "delta": 1e-5, "kept": None, "public_entities": None, "settings_from_corpus": None,
...          "attacker": None, "settings": {"population": 9}, "corpus": None, "not_covered": [], "warnings": [],
...          "utility": {"metric": "perplexity", "initial": None, "final": None}, "held_out": None, "reach": None,
...          "measured": None,
...          "reach_coverage": None, "ledger": {"problem": None, "notes": []}}
>>> head = {"state": "no round", "unit": "any", "epsilon": None, "delta": 1e-5}
>>> run = {"key": "A", "name": "first", "folder": "runs/first", "headline": head, "report": facts}
>>> record = {"runs": [run], "notes": [], "paired": [], "settings": {}}
>>> page = report_page(record, [{"rounds": {"round": []}, "by_user": None}])
>>> "0 of 3 rounds, not finished" in page and "no round is recorded" in page
True
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fl_sim.formats import format_at_risk, format_delta, format_epsilon, format_number
from fl_sim.reporting.comparison_words import (
    end_figures,
    ended_words,
    pair_words,
    pooled_warnings,
    setting_words,
    state_words,
)
from fl_sim.reporting.pages.charts import (
    Axis,
    IntervalRow,
    Line,
    Scale,
    interval_chart,
    live_chart,
    log_ticks,
    script,
    style,
    style_sheet,
    ticks,
)
from fl_sim.reporting.pages.html_page import Markup, Page, markup
from fl_sim.reporting.report import (
    CONTRIBUTION_QUANTILES,
    PARTS,
    attacker_in_words,
    bounds_in_words,
    format_contribution_bound,
    interval,
    measured_in_words,
    metric_words,
    size_words,
)

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
        _utility_chart(runs, tables),
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


def _utility_chart(runs: Sequence[Record], tables: Sequence[Record]) -> Markup | None:
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


FOR_THE_OWNER = (
    "For the owner of the corpus. Held-out figures, training loss, sizes of cohorts, what the bounds kept and figures "
    "of contribution are computed from private text without noise, and no ε covers them: do not publish this page "
    "where the text may not be known. What holds for everybody is ε with its unit, δ and mention graph."
)
_ROWS_WIDTH, _MOST_LABELS = 520, 200
_RATIO = 20.0


def report_page(record: Record, drawn: Sequence[Record]) -> str:
    """Return the page of a comparison of one run or more as HTML.

    Args:
        record: ``Comparison.record()``.
        drawn: of each run ``rounds``, the columns of its metrics, and ``by_user``, its held-out users.
    """
    runs = record["runs"]
    title = f"{len(runs)} runs side by side"
    if len(runs) == 1:  # needs no letter
        title, runs = f"Run {runs[0]['name']}", [{**runs[0], "key": ""}]
        record = {**record, "runs": runs}
    page = Page(title, script(), style_sheet()).paragraph(FOR_THE_OWNER, "note")
    for run in runs:
        if run["headline"]["state"] == "not trusted":
            page.paragraph(f"{label_of(run)}: no ε. {run['report']['ledger']['problem']}", "note alarm")
    page.heading("Privacy").grid([_card(number, run) for number, run in enumerate(runs)], "cards")
    for note in record["notes"]:
        page.paragraph(note, "note")
    _basis(page, runs)
    _utility(page, record)
    charts = round_charts(runs, drawn, record.get("epsilon_comparable", True))
    if charts:
        page.heading("Over the rounds").paragraph(_HOW_TO_READ, "soft").grid(charts, "charts")
    _users(page, runs, drawn)
    _entities(page, runs)
    _settings(page, record)
    _warnings(page, runs)
    return page.html()


_HOW_TO_READ = (
    "Drag across a chart to zoom, double-click to see all of it; point at it for figures, or use the arrow keys. A "
    "name below a chart hides its line."
)


def _card(number: int, run: Record) -> Markup:
    """Return the box of a run's ε."""
    head, facts = run["headline"], run["report"]
    lines = [f"<h3>{markup(label_of(run))}</h3>", f'<p class="soft">{markup(_subtitle(facts))}</p>']
    if head["state"] == "proven":
        lines.append(f'<p class="big">ε {markup(format_epsilon(head["epsilon"]))}</p>')
        lines += [f"<p>{markup(words)}</p>" for words in _rests_on(run)]
    else:
        lines.append(f'<p class="big">{"ε ∞" if head["state"] == "no guarantee" else "no ε"}</p>')
        lines.append(f"<p>{markup(state_words(head['state']).partition(': ')[2].capitalize())}.</p>")
    return Markup(f'<section style="--run: {style(number)["colour"]}">{"".join(lines)}</section>')


def _subtitle(facts: Record) -> str:
    return f"{facts['strategy']}, {ended_words(facts)}"


def _rests_on(run: Record) -> Iterator[str]:
    """Yield what a headline ε rests on, briefly."""
    head, bounds = run["headline"], run["report"]["bounds"] or {}
    yield f"{head['unit_words']}, δ = {format_delta(head['delta'])}"
    if head["unit"] == "user":
        return
    yield f"any user alone: ε {format_epsilon(head['epsilon_user'])}"
    how = "stated, not enforced" if bounds.get("bound_by") == "stated" else "enforced"
    limits = any(bounds.get(name) for name in ("entity_bound", "entity_users", "user_sentences"))
    yield f"mention graph {head['mention_graph'] or 'not recorded'}; {f'bounds {how}' if limits else 'no bounds'}"


def _basis(page: Page, runs: Sequence[Record]) -> None:
    """Add what each ε rests on as a table, and what none of them covers."""
    rows = {label_of(run): dict(_basis_of(run)) for run in runs}
    names = dict.fromkeys(name for facts in rows.values() for name in facts)
    page.heading("What ε rests on", 3)
    page.table(["", *rows], [[name, *(facts.get(name, "–") for facts in rows.values())] for name in names], "facts")
    notes = _notes_on_runs(runs)
    if notes:
        page.heading("What ε says, and what it does not cover", 3).points(notes)


def _notes_on_runs(runs: Sequence[Record]) -> list[str]:
    """Return what is not covered by the proven ε, each note once; with its runs where it is not about all of them."""
    proven = [run for run in runs if run["headline"]["state"] == "proven"]
    notes: dict[str, list[str]] = {}
    for run in proven:
        for note in run["report"]["not_covered"]:
            notes.setdefault(note, []).append(run["key"])
    return [note if len(keys) == len(proven) else f"{', '.join(keys)}: {note}" for note, keys in notes.items()]


def _basis_of(run: Record) -> Iterator[tuple[str, str]]:
    """Yield what a run's ε rests on, by subject."""
    head, facts = run["headline"], run["report"]
    yield "Protects", facts["protects"] or "unknown"
    if head["state"] != "proven":
        yield "ε that leads", state_words(head["state"])
        return
    yield "ε that leads", f"{format_epsilon(head['epsilon'])} ({head['unit_words']})"
    at_risk = format_at_risk(head["delta"], facts["settings"]["population"])
    yield "δ (δ·N)", f"{format_delta(head['delta'])} ({at_risk})"
    yield "N, the number of users", format_number(facts["settings"]["population"])
    if head["unit"] == "user":
        yield "Adjacency", "all data of one user, there or not"
        return
    yield "… with missed mentions, as stated", format_epsilon(head["epsilon_missed"])
    yield "ε, any user alone", format_epsilon(head["epsilon_user"])
    yield "Adjacency", f"mention graph {head['mention_graph'] or 'not recorded'}"
    bounds, *others = bounds_in_words(facts) or ["not recorded"]
    yield "Bounds", bounds
    whole = "everything" if facts["stopped"] else "recorded when the run ends"
    yield "What they leave", " ".join(others) or whole
    yield "An attacker", " ".join(attacker_in_words(facts)) or "not recorded"


def _utility(page: Page, record: Record) -> None:
    """Add the held-out figures at the end, with intervals, and the differences between runs."""
    runs = record["runs"]
    measured = [run for run in runs if run["report"]["utility"]["final"] is not None]
    page.heading("Utility")
    own = [[label_of(run), words] for run in runs if (words := measured_in_words(run["report"]["measured"]))]
    if own:
        page.table(("run", "measured by its app, at the start and at the end"), own)
    if not measured and not own:
        page.paragraph("No held-out figure is recorded.")
    if not measured:
        return
    drawn = _interval_rows(runs, _main_figures)
    if drawn:
        metric, rows = drawn
        page.grid([_rows_figure(rows, metric, "95 % intervals by bootstrap over users; less is better.")], "charts")
    names = dict.fromkeys(name for run in measured for name in end_figures(run["report"]))
    page.table(
        ("run", "metric", "at the start", "at the end", "reference", *names),
        [[*_utility_row(run), *(end_figures(run["report"]).get(name, "–") for name in names)] for run in measured],
    )
    if record["paired"]:
        page.heading(f"Difference to {record['paired'][0]['baseline']} on the same held-out users", 3)
        page.table(
            ("run", "difference (95 % interval); below 0 is better"),
            [(p["run"], pair_words(p)) for p in record["paired"]],
        )


def _utility_row(run: Record) -> list[str]:
    utility = run["report"]["utility"]
    form = "{:.1%}" if utility["metric"] == "error" else "{:,.1f}"
    figures = ("–" if utility[name] is None else form.format(utility[name]) for name in ("initial", "final"))
    reference = utility["reference"]
    words = "–" if reference is None else f"{form.format(reference)} by {utility['reference_words']}"
    return [label_of(run), utility["metric"], *figures, words]


def _main_figures(held_out: Record) -> Iterator[tuple[str, Record]]:
    yield "", held_out["figures"][held_out["deciles"]["metric"]]


def _by_size(held_out: Record) -> Iterator[tuple[str, Record]]:
    for row in held_out["by_sentences"]:
        yield size_words(row), row[held_out["deciles"]["metric"]]


def _by_mention(held_out: Record) -> Iterator[tuple[str, Record]]:
    for part, figures in held_out["by_mention"].items():
        yield PARTS[part], figures[held_out["deciles"]["metric"]]


def _interval_rows(runs: Sequence[Record], figures_of: Any) -> tuple[str, list[IntervalRow]] | None:
    """Return the name of the common figure and its rows; None if no run has any, or their tasks differ."""
    known = [run for run in runs if run["report"]["held_out"]]
    metrics = {run["report"]["held_out"]["deciles"]["metric"] for run in known}
    if len(metrics) != 1:
        return None
    metric = metrics.pop()
    by_subject: dict[str, list[IntervalRow]] = {}
    for run in known:
        for words, figure in figures_of(run["report"]["held_out"]):
            label = _of_run(words, run) if words else label_of(run)
            row = IntervalRow(label, *_ends(figure), words=interval(figure, metric), colour=runs.index(run))
            by_subject.setdefault(words, []).append(row)
    rows = [row for subject in by_subject.values() for row in subject]
    return (metric_words(metric), rows) if rows else None


def _of_run(words: str, run: Record) -> str:
    """Return words with the letter of the run that they are about."""
    return f"{words} · {run['key']}" if run["key"] else words


def _rows_figure(rows: Sequence[IntervalRow], name: str, caption: str, scale: Scale | None = None) -> Markup:
    """Return a picture of figures with their intervals, and the figures as a table behind it."""
    title = name[0].upper() + name[1:] if name[0].isascii() else name  # ε has a capital that is no ε
    labels = min(_MOST_LABELS, 20 + 7 * max(len(row.label) for row in rows))
    picture = interval_chart(rows, scale or _fitting(rows, name), _ROWS_WIDTH, labels)
    body = "".join(f'<tr><th scope="row">{markup(row.label)}</th><td>{markup(row.words)}</td></tr>' for row in rows)
    head = f'<thead><tr><th></th><th scope="col">{markup(name)}</th></tr></thead>'
    table = f'<div class="wide high" tabindex="0"><table>{head}<tbody>{body}</tbody></table></div>'
    return Markup(
        f'<figure class="rows"><h3>{markup(title)}</h3>{picture}'
        f"<figcaption>{markup(caption)}</figcaption><details><summary>Figures</summary>{table}</details></figure>"
    )


def _ends(figure: Record) -> tuple[float, float, float]:
    value, low, high = figure["value"], figure["low"], figure["high"]
    return (value, value, value) if low != low else (value, low, high)


def _fitting(rows: Sequence[IntervalRow], name: str) -> Scale:
    """Return an axis on which all intervals fit."""
    low, high = min(row.low for row in rows), max(row.high for row in rows)
    margin = 0.05 * ((high - low) or abs(high) or 1.0)
    form = "{:.0%}" if name.startswith("error") else "{:,.4g}"
    return Scale(low - margin, high + margin, ticks(low - margin, high + margin), form)


def _from_zero(rows: Sequence[IntervalRow]) -> Scale:
    """Return an axis from zero; one of equal ratios where a figure is more than twenty times another."""
    low, high = min(row.value for row in rows), max(row.value for row in rows)
    if low > 0 and high > _RATIO * low:
        return Scale(0.8 * low, 1.2 * high, log_ticks(0.8 * low, 1.2 * high), "{:,.4g}", log=True)
    return Scale(0.0, 1.08 * high or 1.0, ticks(0.0, 1.08 * high or 1.0), "{:,.4g}")


def _users(page: Page, runs: Sequence[Record], drawn: Sequence[Record]) -> None:
    """Add how utility and work are spread over users."""
    charts = user_charts(runs, drawn)
    sizes, parts = _interval_rows(runs, _by_size), _interval_rows(runs, _by_mention)
    if not charts and not sizes:
        return
    for found, words in (
        (sizes, "by a user's number of sentences"),
        (parts, "where entities are named, and elsewhere"),
    ):
        if found:
            charts.append(
                _rows_figure(found[1], f"{found[0]} {words}", "Held-out text, 95 % intervals; less is better.")
            )
    page.heading("Users").grid(charts, "charts")


def _entities(page: Page, runs: Sequence[Record]) -> None:
    """Add ε at percentiles of the entities' contributions."""
    rows = [row for run in runs for row in _entity_rows(run)]
    if not rows:
        return
    page.heading("Entities").paragraph(
        "ε of any user together with an entity of this corpus, at percentiles of what entities contribute. It is read "
        "off the corpus, so it is no guarantee for others; robust ε holds also where the tagger missed the entity. For "
        "every single entity: fl-sim entities --run."
    )
    bars = [bar for number, run in enumerate(runs) for bar in _entity_bars(run, number)]
    if bars:
        name, caption = "ε at percentiles of contribution", "Upper bounds, rounded up."
        page.grid([_rows_figure(bars, name, caption, _from_zero(bars))], "charts")
    page.table(("run", "percentile", "contribution", "ε", "ε robust"), rows)


def _contributions(run: Record) -> Iterator[tuple[str, str, Record]]:
    """Yield the percentiles of contribution of a run with a proven ε: key, words, and the contribution."""
    for name, words in CONTRIBUTION_QUANTILES.items():
        contribution = (run["report"]["reach"] or {}).get(name)
        if contribution and contribution.get("users") != 0 and run["headline"]["state"] == "proven":
            yield name, words, contribution


def _entity_bars(run: Record, number: int) -> Iterator[IntervalRow]:
    """Yield the finite ε at percentiles of contribution."""
    for name, words, _ in _contributions(run):
        epsilon = run["report"]["epsilon"].get(f"epsilon_user_entity_{name}")
        if epsilon is not None and epsilon < float("inf"):
            said = format_epsilon(epsilon)
            yield IntervalRow(_of_run(words, run), epsilon, epsilon, epsilon, words=said, colour=number)


def _entity_rows(run: Record) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield run, percentile, contribution and both ε in words."""
    facts = run["report"]
    for name, words, contribution in _contributions(run):
        plain, robust = (facts["epsilon"].get(f"epsilon_user_entity{kind}_{name}") for kind in ("", "_robust"))
        share = (facts["reach_coverage"] or {}).get(name)
        covers = "" if share is None else f", covers {int(100 * share)} %"
        shown = format_epsilon(plain), format_epsilon(robust)
        yield label_of(run), f"{words}{covers}", format_contribution_bound(contribution), *shown


def _settings(page: Page, record: Record) -> None:
    """Add the settings that differ between runs."""
    if len(record["runs"]) == 1:
        return
    page.heading("Settings that differ")
    if not record["settings"]:
        page.paragraph("None.")
        return
    rows = [[name, *map(setting_words, values)] for name, values in record["settings"].items()]
    page.table(["", *(label_of(run) for run in record["runs"])], rows, "differ")


def _warnings(page: Page, runs: Sequence[Record]) -> None:
    """Add the warnings, each once with the runs that have it."""
    pooled = pooled_warnings(runs)
    page.heading("Warnings")
    if pooled:
        page.points([f"{', '.join(keys)}: {warning}" if any(keys) else warning for warning, keys in pooled.items()])
    else:
        page.paragraph("None.")
