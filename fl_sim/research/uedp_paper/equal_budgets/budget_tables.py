"""The tables of a comparison at equal ε: one for any user with any entity, one for any user alone.

>>> show_difference("error", Estimate(value=0.021, standard_error=0.004, low=0.013, high=0.029))
'+2.1 ± 0.4 (+1.3 to +2.9)'
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from fl_sim.formats import format_epsilon
from fl_sim.research.uedp_paper.figure_pictures import METRIC_WORDS, show_utility
from fl_sim.research.uedp_paper.figure_records import CurveRecord, Estimate, PanelRecord, PointRecord, TrainingRecord

Row = list[str]
_CLEAR = 2.0
"""Standard errors from which on a difference is called clear."""


def budget_tables(record: TrainingRecord, panel: PanelRecord) -> list[tuple[str, Row, list[Row]]]:
    """Return the tables of a panel: heading, names of the columns, rows.

    Args:
        record: of a figure with x = "joint".
        panel: of the record.
    """
    start, baseline = panel.curves[0].points[0].initial.mean, _baseline(record, panel)
    columns = _columns(record)
    unbounded = [
        [curve.label, *_row(record, panel, curve, curve.points[0])] for curve in panel.curves if not curve.budget
    ]
    first = ["start", "", "", show_utility(record.metric, start), "0%", *([""] * (len(columns) - 5))]
    joint = [first, *unbounded, *_budget_rows(record, panel, "joint")]
    tables = [("At the same ε of any user with any entity.", columns, joint)]
    user = _budget_rows(record, panel, "user")
    if user and baseline is not None:
        tables.append(("At the same ε of any user.", columns, user))
    return tables


def budget_sentences(record: TrainingRecord, panel: PanelRecord) -> list[str]:
    """Return sentences that say how to read the tables."""
    against = next((curve.label for curve in panel.curves if curve.name == record.reference), "")
    lines = [
        f"Differences: a method's figure minus that of {against} in the same comparison ± its standard error (and 95 % "
        "interval), by paired bootstrap over held-out users and seeds; above 0 the method is worse, and **bold** means "
        "more than two standard errors."
    ]
    if record.baseline is not None:
        lines.append(
            "The way is from the start to noiseless; in accuracy (which for an error is the same) it is the measure of "
            "POPri (arXiv 2504.16438): the share of the gap between ε = 0 and ε = ∞ that a method closes."
        )
    if any(curve.deidentified for curve in panel.curves):
        lines.append(
            "De-identified text has no detected entity, so no ε of an entity is proven for it. In brackets: ε for an "
            "entity that the tagger missed in the text of at most as many users as user-level DP on raw text admits, "
            "which nothing enforces."
        )
    return lines


def show_difference(metric: str, difference: Estimate) -> str:
    """Return a difference with standard error and interval as text, in points of per cent for an error."""
    scale = 100.0 if metric == "error" else 1.0
    low, high = scale * difference.low, scale * difference.high
    return f"{scale * difference.value:+.1f} ± {scale * difference.standard_error:.1f} ({low:+.1f} to {high:+.1f})"


def _columns(record: TrainingRecord) -> Row:
    shares = ["way to noiseless"]
    if record.metric == "perplexity":
        shares += ["in log perplexity", "in accuracy"]
    names = ["", "ε any user + any entity", "ε user", METRIC_WORDS[record.metric] + " (95 %)", *shares]
    return [*names, f"− {record.reference}"]


def _budget_rows(record: TrainingRecord, panel: PanelRecord, budget: str) -> list[Row]:
    """Return the rows of the methods with a budget, ε by ε; the reference leads each."""
    rows = []
    for x in record.joint:
        for curve in panel.curves:
            shown = curve.budget == budget or (curve.name == record.reference and budget == "user")
            rows += [
                [curve.label, *_row(record, panel, curve, point)] for point in curve.points if shown and point.x == x
            ]
    has_others = any(curve.budget == budget and curve.name != record.reference for curve in panel.curves)
    return rows if has_others else []


def _row(record: TrainingRecord, panel: PanelRecord, curve: CurveRecord, point: PointRecord) -> Row:
    cells = [_joint_words(curve, point), _number(point.epsilon.user), _utility_words(record.metric, point)]
    cells += [_share(share) for share in _shares(record, panel, point)]
    difference = None if point.comparison is None else point.comparison.difference
    if difference is None:
        return [*cells, ""]
    words = show_difference(record.metric, difference)
    return [*cells, f"**{words}**" if abs(difference.value) > _CLEAR * difference.standard_error else words]


def _joint_words(curve: CurveRecord, point: PointRecord) -> str:
    epsilon = point.epsilon
    if curve.deidentified:
        missed = epsilon.missed_entity
        return "none" if missed is None or curve.budget == "user" else f"none ({format_epsilon(missed)} if missed)"
    if epsilon.any_entity is not None:
        return format_epsilon(epsilon.any_entity)
    most = epsilon.user_entity_max
    return "∞" if most is None or math.isinf(most) else f"{format_epsilon(most)} (this corpus's)"


def _utility_words(metric: str, point: PointRecord) -> str:
    if point.comparison is None:
        return show_utility(metric, point.utility.mean)
    utility = point.comparison.utility
    ends = f"{show_utility(metric, utility.low)} to {show_utility(metric, utility.high)}"
    return f"{show_utility(metric, utility.value)} ({ends})"


def _shares(record: TrainingRecord, panel: PanelRecord, point: PointRecord) -> Iterable[float | None]:
    """Return the shares of the way from the start to the baseline: in the metric, its logarithm and the accuracy."""
    baseline = _baseline(record, panel)
    if baseline is None:
        return [None] * (3 if record.metric == "perplexity" else 1)
    start, end, best = point.initial.mean, point.utility.mean, baseline.utility.mean
    shares = [_part(start, end, best)]
    if record.metric == "perplexity":
        shares.append(_part(math.log(start), math.log(end), math.log(best)))
        here, there = point.comparison, baseline.comparison
        shares.append(
            None if here is None or there is None else _part(here.initial_accuracy, here.accuracy, there.accuracy)
        )
    return shares


def _part(start: float, end: float, best: float) -> float | None:
    return None if start == best else (start - end) / (start - best)


def _baseline(record: TrainingRecord, panel: PanelRecord) -> PointRecord | None:
    return next((curve.points[-1] for curve in panel.curves if curve.name == record.baseline), None)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _number(value: float) -> str:
    return "∞" if math.isinf(value) else format_epsilon(value)
