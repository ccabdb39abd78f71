"""Pictures of representations: t-SNE by private attribute (DPNR, figure 4), and utility, fairness, leakage against ε.

>>> group_names("Bush")
('no Bush', 'Bush')
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fl_sim.research.representations.client.feed_forward import short_seed
from fl_sim.stop_signals import raise_missed_stop
from fl_sim.storage.run_folder import replace_file
from fl_sim.strategies.primitives import streams

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fl_sim.reporting.plots import Look

_PERPLEXITY = 30.0
_MOST_POINTS = 2000
_FEW = 3
_BESIDE = 1.03  # the factor between the positions of two systems at one ε, which would hide each other
_VALUES = {"sex": ("female", "male")}


def tsne(vectors: NDArray[np.float32], seed: int) -> NDArray[np.float32]:
    """Return t-SNE points, float32 (n, 2), of vectors, float32 (n, k), n ≥ 3 (van der Maaten and Hinton 2008)."""
    from sklearn.manifold import TSNE

    perplexity = min(_PERPLEXITY, (len(vectors) - 1) / 3)
    model = TSNE(perplexity=perplexity, init="pca", random_state=short_seed(seed, "t-SNE", bits=32))
    points = np.asarray(model.fit_transform(vectors), dtype=np.float32)
    raise_missed_stop()
    return points


def group_names(attribute: str) -> tuple[str, str]:
    """Return the names of the values 0 and 1 of a private attribute; for most: absent and present."""
    return _VALUES.get(attribute, (f"no {attribute}", attribute))


def draw_tsne(
    panels: dict[str, NDArray[np.float32]], groups: NDArray[np.int64], names: tuple[str, str], path: Path, seed: int
) -> None:
    """Draw a panel for each set of vectors of the same examples, as a PNG or SVG.

    Args:
        panels: title to vectors, float32 (n, k).
        groups: 0 or 1, int64 (n,).
        names: of the groups 0 and 1.
        path: of the picture.
        seed: of the sampled rows and of t-SNE.
    """
    from matplotlib.figure import Figure

    rows = np.sort(streams.generator(seed, "t-SNE rows").permutation(len(groups))[:_MOST_POINTS])
    figure = Figure(figsize=(4 * len(panels), 4), layout="constrained")
    for number, (title, vectors) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(1, len(panels), number)
        points = tsne(vectors[rows], seed)
        for value, name in enumerate(names):
            of_group = points[groups[rows] == value]
            axes.scatter(of_group[:, 0], of_group[:, 1], s=4, alpha=0.6, label=name)
        axes.set_title(title)
        axes.set_xticks([])
        axes.set_yticks([])
    figure.axes[0].legend(markerscale=3)
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix.lstrip(".") or "png")
    replace_file(path, buffer.getvalue())


@dataclass(frozen=True)
class Point:
    """A system's metrics at an ε, in percent.

    Attributes:
        system: its name.
        epsilon: proven ε, inf without noise.
        figures: name to mean and deviation; the same names for all points of a picture.
    """

    system: str
    epsilon: float
    figures: dict[str, tuple[float, float]]


def draw_tradeoff(points: Sequence[Point]) -> Figure:
    """Return a figure with a panel per metric against ε, on a log axis; a system without noise is a horizontal line."""
    from matplotlib.figure import Figure

    from fl_sim.reporting.plots import looks

    names = list(points[0].figures)
    systems = list(dict.fromkeys(point.system for point in points))
    figure = Figure(figsize=(2 + 4.2 * len(names), 3.6), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        _set_epsilon_axis(axes, sorted({point.epsilon for point in points if math.isfinite(point.epsilon)}))
        for look in looks(len(systems)):
            system = systems[look.number]
            curve = sorted((p for p in points if p.system == system), key=lambda p: p.epsilon)
            _draw_system(axes, name, curve, look, len(systems))
        axes.set_title(f"{name[0].upper()}{name[1:]} against ε", loc="left", fontsize="medium")
        axes.set_xlabel("ε, proven")
        axes.set_ylabel(f"{name}, percent")
    # Outside the panels, where it hides no line.
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    return figure


def _set_epsilon_axis(axes: Axes, epsilons: Sequence[float]) -> None:
    """Set a log axis with plain numbers; with the ε themselves where there are few."""
    from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

    if not epsilons:
        return
    axes.set_xscale("log")
    axes.set_xlim(min(epsilons) / 1.5, max(epsilons) * 1.5)
    few = len(epsilons) <= _FEW
    axes.xaxis.set_major_locator(FixedLocator(list(epsilons)) if few else LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())


def _draw_system(axes: Axes, name: str, curve: Sequence[Point], look: Look, systems: int) -> None:
    """Draw the metric ``name`` of one system, beside those of the others at the same ε."""
    system = curve[0].system
    if all(math.isinf(p.epsilon) for p in curve):
        dash = ("--", "-.", ":")[look.number % 3]
        axes.axhline(curve[0].figures[name][0], color=look.colour, linestyle=dash, label=f"{system} (ε = ∞)")
        return
    means, deviations = zip(*(p.figures[name] for p in curve), strict=True)
    positions = [p.epsilon * _BESIDE ** (look.number - (systems - 1) / 2) for p in curve]
    drawn: dict[str, Any] = {"color": look.colour, "marker": look.marker, "fillstyle": "none", "linestyle": look.dash}
    axes.errorbar(positions, means, deviations, capsize=3, label=system, **drawn)
