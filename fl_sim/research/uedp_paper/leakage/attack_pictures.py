"""The picture of a record of attacks: users and names by method, and planted secrets by how often they were said.

A mark is the mean over the seeds, its line runs from the lowest to the highest end of the seeds' intervals. Red bars
are the most that any attack on a user could reach: the area under the curve of the ledger's trade-off function is at
most ½ + the largest advantage (it is the mean of TPR over all FPR, and TPR − FPR is at most the advantage).

>>> largest_area(0.2)
0.7
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fl_sim.reporting.plots import GREY, looks, styles
from fl_sim.research.uedp_paper.figure_records import AttackedPanelRecord, LeakageRecord
from fl_sim.research.uedp_paper.leakage.attack_tables import Method, at_start, exposure, methods

Interval = tuple[float, float, float]
"""Value, and the ends of its interval."""

_BOUND = "#B3261E"


def draw_attacks(record: LeakageRecord) -> Figure:
    """Return the picture: a row of three per panel."""
    figure = Figure(figsize=(13.0, 4.4 * len(record.panels)), layout="constrained")
    grid: Any = figure.subplots(len(record.panels), 3, squeeze=False)
    for panel, axes in zip(record.panels, grid, strict=True):
        _draw_panel(panel, axes)
    return figure


def largest_area(advantage: float) -> float:
    """Return the largest area under the curve of any attack whose advantage TPR − FPR is at most ``advantage``."""
    return min(1.0, 0.5 + advantage)


def _draw_panel(panel: AttackedPanelRecord, axes: Sequence[Axes]) -> None:
    users, secrets, names = axes
    drawn = methods(panel)
    _draw_rows(users, drawn, _area_of_users, "area under the curve", 0.5)
    for row, method in enumerate(drawn):
        bounds = [one["bound"] for one in method.attacks("users")]
        if bounds and all(bound["proven"] for bound in bounds):
            most = largest_area(max(bound["largest_advantage"] for bound in bounds))
            users.plot([most, most], [row - 0.3, row + 0.3], color=_BOUND, linewidth=2.0)
    users.set_title("Is this user in the text?", loc="left", fontsize="medium")
    users.set_yticks(range(len(drawn)), [_label(method) for method in drawn])
    _draw_secrets(secrets, panel, drawn)
    _draw_rows(names, drawn, _names_ahead, "the true name before other names", 0.5)
    for row, method in enumerate(drawn):
        start = _interval([one["inference"]["groups"][0]["initial_ahead"] for one in method.attacks("entities")])
        if start:
            names.plot(start[0], row, marker="|", markersize=12, color=GREY)
    names.set_title("Which name stood here? (grey: before training)", loc="left", fontsize="medium")
    names.set_yticks(range(len(drawn)), [])


def _draw_rows(
    axes: Axes, drawn: Sequence[Method], figure: Callable[[Method], Interval | None], words: str, chance: float
) -> None:
    """Draw a mark with its interval per method."""
    for row, (method, (colour, _)) in enumerate(zip(drawn, styles(), strict=False)):
        interval = figure(method)
        if interval:
            value, low, high = interval
            axes.plot([low, high], [row, row], color=colour, linewidth=2.0)
            axes.plot(value, row, marker="o", color=colour)
    axes.axvline(chance, color=GREY, linestyle=":", linewidth=1.2)
    axes.set_xlabel(words)
    axes.invert_yaxis()
    _tidy(axes)


def _draw_secrets(axes: Axes, panel: AttackedPanelRecord, drawn: Sequence[Method]) -> None:
    """Draw the mean exposure of a user's secrets by how often they were said, at the start, and what chance allows."""
    chance: dict[int, float] = {}
    for method, look in zip(drawn, looks(len(drawn)), strict=True):
        attacks = method.attacks("canaries")
        known = {group["repetitions"] for one in attacks for group in one["groups"] if group["repetitions"]}
        points = []
        for number in sorted(known):
            interval = _interval([exposure(one, "user", number) for one in attacks])
            if interval:
                points.append((number, interval[0]))
                chance[number] = _most_by_chance(attacks[0], number)
        if points:
            every_point = look.line(len(points)) | {"markevery": 1}
            axes.plot(*zip(*points, strict=True), label=_label(method), **every_point)
    starts = {number: _interval(at_start(panel, "user", number)) for number in chance}
    before = [(number, start[0]) for number, start in sorted(starts.items()) if start]
    if before:
        axes.plot(*zip(*before, strict=True), color=GREY, linewidth=2.5, alpha=0.5, label="before training")
    if chance:
        axes.plot(list(chance), list(chance.values()), color=GREY, linestyle=":", linewidth=1.2)
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(chance), [str(number) for number in chance])
        axes.minorticks_off()
        axes.legend(frameon=False, fontsize="small")
    axes.set_xlabel("how often the secret was said")
    axes.set_ylabel("exposure, bits")
    axes.set_title("Secrets of a user (dotted: chance, 97.5 %)", loc="left", fontsize="medium")
    _tidy(axes)


def _tidy(axes: Axes) -> None:
    axes.grid(color="#E3E3E3", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _label(method: Method) -> str:
    return f"{method.label}, ε {method.epsilon}" if method.is_protected else method.label


def _area_of_users(method: Method) -> Interval | None:
    return _interval([one["auc"] for one in method.attacks("users")])


def _names_ahead(method: Method) -> Interval | None:
    return _interval([one["inference"]["groups"][0]["ahead"] for one in method.attacks("entities")])


def _most_by_chance(attack: Any, repetitions: int) -> float:
    wanted = ("user", repetitions, True)
    groups = attack["groups"]
    return next(
        float(group["most_by_chance"])
        for group in groups
        if (group["owner"], group["repetitions"], group["included"]) == wanted
    )


def _interval(seeds: Sequence[Any]) -> Interval | None:
    """Return the mean of the seeds' values with the lowest and the highest end of their intervals; None for none."""
    known = [one for one in seeds if one is not None and one["value"] is not None]
    if not known:
        return None
    mean = statistics.fmean(one["value"] for one in known)
    ends = [one[end] for one in known for end in ("low", "high") if one[end] is not None]
    return mean, min([mean, *ends]), max([mean, *ends])
