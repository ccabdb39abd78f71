"""Pictures of FEDERATE's table 3 on Adult: every figure, both trade-offs, the relaxation thresholds, and ε.

>>> [metric for metric, _ in _METRICS]
['accuracy', 'tpr_gap', 'leakage', 'mdl']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fl_sim.research.representations.studies.agreement import Published
from fl_sim.research.representations.studies.study_pictures import Curve, Panel, Picture, draw_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]

_METRICS = (
    ("accuracy", "accuracy, percent"),
    ("tpr_gap", "TPR-gap, percent"),
    ("leakage", "leakage, percent"),
    ("mdl", "MDL, kbit (the code's sum)"),
)
_APART = 0.16  # between ours and the published figure, in rows
_BARS: dict[str, Any] = {"linestyle": "none", "capsize": 2, "linewidth": 1}


def draw(table: dict[str, Any]) -> list[Picture]:
    """Return the pictures of a table of `adult_study.reproduce`."""
    thresholds = [{**row, "rows": _with_a_model(row["rows"])} for row in table["selections"]]
    return [
        Picture("figures", "Every figure of table 3 with its 95 % interval, ours and published", _figures(table)),
        Picture("tradeoff", "TPR-gap and leakage against accuracy, ours and published", _tradeoff(table["rows"])),
        Picture("thresholds", "Accuracy, TPR-gap and leakage against the relaxation threshold", _sweep(thresholds)),
        Picture("epsilon", "Accuracy, leakage and TPR-gap against proven ε", _by_epsilon(table["by_epsilon"])),
        Picture("fairness", "The fairest model of each accuracy", _fairness(table)),
    ]


def _figures(table: Row) -> Figure:
    """Draw a panel per metric and a row per system: ours by both rules of selection, and published."""
    from matplotlib.figure import Figure

    rows = {selection["relaxation"]: _with_a_model(selection["rows"]) for selection in table["selections"]}
    series = {"ours, relaxation threshold 1.0": rows[table["relaxation"]], "ours, best accuracy": rows[0.0]}
    figure = Figure(figsize=(12.5, 4.2), layout="constrained")
    for axes, (metric, label) in zip(figure.subplots(1, len(_METRICS), sharey=True), _METRICS, strict=True):
        _draw_metric(axes, series, metric)
        axes.set_xlabel(label)
    systems = list(rows[0.0])
    figure.axes[0].set_yticks(range(len(systems)), systems)
    figure.axes[0].invert_yaxis()
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize="small")
    return figure


def _draw_metric(axes: Axes, series: Mapping[str, Row], metric: str) -> None:
    from fl_sim.reporting.plots import looks

    for look, (label, rows) in zip(looks(len(series) + 1), [*series.items(), ("published", None)], strict=True):
        of = next(iter(series.values())) if rows is None else rows
        bars = [_bar(row.get(metric), published=rows is None) for row in of.values()]
        drawn = [(at, *bar) for at, bar in enumerate(bars) if bar is not None]
        at, means, widths = zip(*drawn, strict=True)
        y = [row + (look.number - 1) * _APART for row in at]
        fill = "full" if rows is None else "none"
        axes.errorbar(
            means,
            y,
            xerr=widths,
            label=label,
            color=look.colour,
            marker=look.marker,
            fillstyle=fill,
            markersize=5,
            **_BARS,
        )
    axes.grid(axis="x", alpha=0.3)


def _bar(figure: Row | None, *, published: bool) -> tuple[float, float] | None:
    """Return the mean and half width of a figure, ours or published; None if there is none."""
    if figure is None or (published and figure["published"] is None):
        return None
    if published:
        of = Published(*figure["published"])
        return of.mean, of.half_width(figure["measured"]["sampling_error"])
    return figure["measured"]["mean"], figure["measured"]["half_width"]


def _tradeoff(rows: Row) -> Figure:
    """Draw TPR-gap and leakage against accuracy: hollow marks are ours, full ones published."""
    from matplotlib.figure import Figure

    from fl_sim.reporting.plots import looks

    shown = _with_a_model(rows)
    figure = Figure(figsize=(10.5, 4.2), layout="constrained")
    panels = zip(figure.subplots(1, 2), (("tpr_gap", "TPR-gap"), ("leakage", "leakage")), strict=True)
    for axes, (metric, label) in panels:
        for look, (system, row) in zip(looks(len(shown)), shown.items(), strict=True):
            for published in (False, True):
                x, y = (_bar(row[name], published=published) for name in ("accuracy", metric))
                if x is None or y is None:
                    continue
                style = {"color": look.colour, "marker": look.marker, "fillstyle": "full" if published else "none"}
                name = f"{system}, published" if published else system
                axes.errorbar(x[0], y[0], xerr=x[1], yerr=y[1], label=name, **style, **_BARS)
        axes.set_xlabel("accuracy, percent")
        axes.set_ylabel(f"{label}, percent")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    return figure


def _sweep(selections: Sequence[Row]) -> Figure:
    thresholds = tuple(100 * selection["relaxation"] for selection in selections)
    panels = []
    for metric, label in _METRICS[:3]:
        curves = [
            Curve(system, thresholds, tuple(selection["rows"][system][metric]["measured"] for selection in selections))
            for system in selections[0]["rows"]
        ]
        panels.append(Panel(_titled(label), tuple(curves)))
    return draw_panels(panels, "relaxation threshold, points of accuracy", "percent", log=False)


def _by_epsilon(rows: Sequence[Row]) -> Figure:
    systems = dict.fromkeys(row["system"] for row in rows)
    panels = []
    for metric, label in _METRICS[:3]:
        curves = []
        for system in systems:
            own = [row for row in rows if row["system"] == system]
            curves.append(Curve(system, tuple(r["epsilon_proven"] for r in own), tuple(r[metric] for r in own)))
        panels.append(Panel(_titled(label), tuple(curves)))
    return draw_panels(panels, "ε, proven", "percent")


def _fairness(table: Row) -> Figure:
    """Draw the accuracies that at least half of the seeds reach: a mean of few says little."""
    rows = [row for row in table["fairness_by_accuracy"] if 2 * row["seeds"] >= len(table["seeds"])]
    curves = []
    for system in dict.fromkeys(row["system"] for row in rows):
        own = [row for row in rows if row["system"] == system]
        curves.append(Curve(system, tuple(row["accuracy"] for row in own), tuple(row["tpr_gap"] for row in own)))
    title = "The smallest validation TPR-gap within half a point of an accuracy"
    return draw_panels([Panel(title, tuple(curves))], "validation accuracy, percent", "TPR-gap, percent", log=False)


def _titled(label: str) -> str:
    """Return a label of an axis as the title of a panel, whose axis has the unit."""
    subject = label.partition(",")[0]
    return subject[0].upper() + subject[1:]


def _with_a_model(rows: Row) -> dict[str, Any]:
    return {system: row for system, row in rows.items() if system != "random"}
