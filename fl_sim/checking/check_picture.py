"""Draw what a user's presence does to the released model, beside what ε allows.

>>> false, true = _rates(np.array([0.0, 1.0]), np.array([1.0, 2.0]))
>>> true.tolist()
[0.0, 0.5, 1.0, 1.0]
"""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fl_sim.checking.measurements import Measured
from fl_sim.checking.stated import Stated
from fl_sim.formats import format_epsilon
from fl_sim.reporting.plots import RUN_COLOURS

_WITHOUT, _WITH, _ALLOWED = RUN_COLOURS[0], RUN_COLOURS[1], RUN_COLOURS[2]


def check_picture(app: str, found: Measured, proven: float | None) -> Figure:
    """Return the picture of what was measured: the attack's scores, and its true against its false positives.

    Args:
        proven: ε of any user for what was seen; None if unknown.
    """
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    scores, errors = figure.subplots(1, 2)
    without, present = found.scores or (np.empty(0), np.empty(0))
    _draw_scores(scores, without, present)
    _draw_allowed(errors, found.stated, proven)
    if len(without):
        errors.plot(*_rates(without, present), color=_WITH, label="the attack")
    errors.legend(loc="lower right", fontsize=8)
    figure.suptitle(f"{app}: one user in or out", fontsize=10)
    return figure


def _draw_scores(axes: Axes, without: np.ndarray, present: np.ndarray) -> None:
    axes.set(xlabel="move along the user's effect / noise", ylabel="trials")
    if not len(without):
        axes.text(0.5, 0.5, "no noise to hide a user", ha="center", va="center", transform=axes.transAxes)
        return
    edges = np.histogram_bin_edges(np.concatenate([without, present]), bins=40).tolist()
    axes.hist(without, edges, color=_WITHOUT, alpha=0.6, label="without the user")
    axes.hist(present, edges, color=_WITH, alpha=0.6, label="with the user")
    axes.legend(fontsize=8)


def _draw_allowed(axes: Axes, stated: Stated, proven: float | None) -> None:
    """Draw the largest rates of true positives that the stated and the proven ε allow."""
    false, delta = np.linspace(0, 1, 400), stated.delta
    axes.set(xlabel="taken for present though away", ylabel="found when present", xlim=(0, 1), ylim=(0, 1.02))
    for name, epsilon, dash in (("stated", stated.epsilon, "-"), ("seen", proven, ":")):
        if epsilon is None:
            continue
        allowed = np.ones_like(false)
        if math.isfinite(epsilon):
            grown = np.exp(min(epsilon, 700.0)) * false + delta
            allowed = np.minimum(np.minimum(grown, 1 - np.exp(-epsilon) * (1 - delta - false)), 1.0)
        axes.plot(
            false, allowed, color=_ALLOWED, linestyle=dash, label=f"allowed by ε {format_epsilon(epsilon)}, {name}"
        )


def _rates(without: np.ndarray, present: np.ndarray) -> np.ndarray:
    """Return the rates of false and of true positives at every threshold, float64 (2, thresholds)."""
    thresholds = np.unique(np.concatenate([without, present, [np.inf]]))[::-1]
    return np.array([(scores >= thresholds[:, None]).mean(axis=1) for scores in (without, present)])
