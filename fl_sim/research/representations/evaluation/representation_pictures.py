"""Pictures of representations: t-SNE by private attribute (DPNR, figure 4).

>>> group_names("Bush")
('no Bush', 'Bush')
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fl_sim.research.representations.client.feed_forward import short_seed
from fl_sim.stop_signals import raise_missed_stop
from fl_sim.storage.run_folder import replace_file
from fl_sim.strategies.primitives import streams

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEAST_POINTS = 3
"""Rows of which a picture can be drawn."""
PICTURES = (".png", ".svg")
_PERPLEXITY = 30.0
_MOST_POINTS = 2000
_VALUES = {"sex": ("female", "male")}


def tsne(vectors: NDArray[np.float32], seed: int) -> NDArray[np.float32]:
    """Return t-SNE points, float32 (n, 2), of vectors, float32 (n, k), n ≥ 3 (van der Maaten and Hinton 2008)."""
    from sklearn.manifold import TSNE

    perplexity = min(_PERPLEXITY, (len(vectors) - 1) / 3)
    has_axes = vectors.shape[1] > 1 and vectors.std(axis=0).any()
    init = "pca" if has_axes else "random"  # one number, or the same vector for all, has no two principal axes
    model = TSNE(perplexity=perplexity, init=init, random_state=short_seed(seed, "t-SNE", bits=32))
    points = np.asarray(model.fit_transform(vectors), dtype=np.float32)
    raise_missed_stop()
    return points


def group_names(attribute: str) -> tuple[str, str]:
    """Return the names of the values 0 and 1 of a private attribute; for most: absent and present."""
    return _VALUES.get(attribute, (f"no {attribute}", attribute))


def scatter(panels: Mapping[str, NDArray[Any]], groups: NDArray[np.int64], attribute: str) -> Figure:
    """Return a panel for each set of points, (n, 2), of the same examples, by their private attribute.

    ``panels`` are points by title, ``groups`` the attribute's values, 0 or 1, int64 (n,).
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(panels), 4.3), layout="constrained")
    row = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (title, points) in zip(row, panels.items(), strict=True):
        for value, name in enumerate(group_names(attribute)):
            axes.scatter(*points[groups == value].T, s=5, alpha=0.6, label=name)
        axes.set_title(title, fontsize="medium")
        axes.set_xticks([])
        axes.set_yticks([])
    row[0].legend(markerscale=3, fontsize="small")
    return figure


def draw_tsne(
    title: str, vectors: NDArray[np.float32], groups: NDArray[np.int64], attribute: str, path: Path, seed: int
) -> None:
    """Draw a picture of vectors, float32 (n, k), as a PNG or SVG; ``seed`` is that of sampled rows and of t-SNE."""
    rows = np.sort(streams.generator(seed, "t-SNE rows").permutation(len(groups))[:_MOST_POINTS])
    figure = scatter({title: tsne(vectors[rows], seed)}, groups[rows], attribute)
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix.lstrip(".") or "png")
    replace_file(path, buffer.getvalue())
