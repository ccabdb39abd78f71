"""Pictures of representations: t-SNE by private attribute (DPNR, figure 4).

>>> group_names("Bush")
('no Bush', 'Bush')
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fl_sim.research.representations.client.feed_forward import short_seed
from fl_sim.stop_signals import raise_missed_stop
from fl_sim.storage.run_folder import replace_file
from fl_sim.strategies.primitives import streams

_PERPLEXITY = 30.0
_MOST_POINTS = 2000
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
