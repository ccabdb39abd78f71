"""Plots of a run's utility by user: deciles, users by size, entity tokens, and the run beside personal models.

They show figures of held-out users' text, without noise, so they are for the corpus's owner, as all held-out metrics.

>>> from pathlib import Path
>>> held_out_figure(RunFolder(Path("runs/first"), config={}, environment={}))
Traceback (most recent call last):
fl_sim.storage.run_folder.ResultsError: runs/first: has recorded nothing by user; allowed: a run that has ended
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fl_sim.reporting.held_out_words import PARTS, metric_words, size_words
from fl_sim.storage.run_folder import ResultsError, RunFolder

_COLOURS = {"start": "#666666", "run": "#0072B2", "alone": "#E69F00", "continued": "#CC79A7", "personal": "#009E73"}
_WORDS = {"start": "start", "run": "this run", "alone": "user alone", "continued": "run + user"}
_POINT = "#0072B2"


def held_out_figure(run: RunFolder) -> Figure:
    """Draw a run's utility by user; lower is better in every panel.

    Raises:
        ResultsError: the run has recorded nothing by user.
    """
    facts, personal = (run.result or {}).get("held_out"), run.personal
    if not facts:
        raise ResultsError(f"{run.path}: has recorded nothing by user; allowed: a run that has ended")
    metric = facts["deciles"]["metric"]
    figure = Figure(figsize=(12.0 if personal else 9.6, 4.2), layout="constrained")
    axes = figure.subplots(1, 4 if personal else 3, sharey=True, width_ratios=[4, 4, 2, *([3] if personal else [])])
    _draw_deciles(axes[0], facts["deciles"]["values"], facts["figures"][metric])
    sizes = {size_words(row): row[metric] for row in facts["by_sentences"]}
    _draw_points(axes[1], sizes, "sentences of a user")
    parts = {PARTS[name].replace(" ", "\n", 1): row[metric] for name, row in facts["by_mention"].items()}
    _draw_points(axes[2], parts, "entities" if parts else "no places of tokens")
    if personal:
        _draw_personal(axes[3], personal)
    for panel in axes:
        panel.grid(axis="y", color="#E3E3E3", linewidth=0.7)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel(f"held-out {metric_words(metric)}")
    figure.suptitle(
        f"Utility by user: {facts['sentences']:,} held-out sentences of {facts['users']:,} users, 95 % intervals",
        x=0.01, ha="left", fontsize="medium",
    )  # fmt: skip
    return figure


def _draw_deciles(axes: Axes, values: Sequence[float], overall: Mapping[str, float]) -> None:
    axes.axhspan(*_ends(overall), color=_POINT, alpha=0.15, linewidth=0)
    axes.axhline(overall["value"], color=_POINT, linewidth=1, linestyle="--")
    axes.plot(10 * np.arange(1, len(values) + 1), values, color=_POINT, marker="o", markersize=4)
    axes.set_xlabel("users, % (dashed: over all text)")
    axes.set_xlim(0, 100)


def _draw_points(axes: Axes, figures: Mapping[str, Mapping[str, float]], label: str) -> None:
    """Draw figures side by side, with their intervals where they have one."""
    places = np.arange(len(figures))
    values = np.array([figure["value"] for figure in figures.values()])
    ends = np.array([_ends(figure) for figure in figures.values()]).reshape(-1, 2)
    errors = np.abs(ends.T - values)
    axes.errorbar(places, values, yerr=errors, color=_POINT, fmt="o", markersize=4, capsize=3, linewidth=1.4)
    axes.set_xticks(places, list(figures), fontsize="small")
    axes.set_xlim(-0.6, max(len(figures), 1) - 0.4)
    axes.set_xlabel(label)


def _draw_personal(axes: Axes, personal: Mapping[str, Any]) -> None:
    """Draw one line per user over the four models, and the figures over all users."""
    names = list(personal["figures"])
    places = np.arange(len(names))
    words = _WORDS | {"personal": personal["trained"].get("personal", "").replace("of rank ", "")}
    for values in zip(*(personal["by_user"][name] for name in names), strict=True):
        axes.plot(places, values, color="#BBBBBB", linewidth=0.6, zorder=1)
    for place, name in zip(places, names, strict=True):
        figure = personal["figures"][name]
        errors = [[abs(end - figure["value"])] for end in _ends(figure)]
        axes.errorbar(
            place, figure["value"], yerr=errors, color=_COLOURS[name], fmt="o", markersize=5, capsize=3, zorder=3
        )
    axes.set_xticks(places, [words[name].replace(" ", "\n", 1) for name in names], fontsize="small")
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_xlabel(f"{personal['users']:,} users, second halves")


def _ends(figure: Mapping[str, float]) -> tuple[float, float]:
    """Return the ends of an interval; the figure itself where there is none."""
    value = figure["value"]
    low, high = (value if math.isnan(figure[end]) else figure[end] for end in ("low", "high"))
    return low, high
