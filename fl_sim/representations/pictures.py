"""t-SNE pictures of representations, coloured by a private attribute (DPNR, figure 4)."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fl_sim.results import replace_file
from strategies import streams

_PERPLEXITY = 30.0
_MOST_POINTS = 2000


def tsne(vectors: NDArray[np.float32], seed: int) -> NDArray[np.float32]:
    """The plane's points (n, 2) of vectors (n, k), n at least 3 (van der Maaten and Hinton 2008)."""
    from sklearn.manifold import TSNE

    perplexity = min(_PERPLEXITY, (len(vectors) - 1) / 3)
    state = streams.derived_seed(seed, "t-SNE") >> 96
    model = TSNE(perplexity=perplexity, init="pca", random_state=state)
    return np.asarray(model.fit_transform(vectors), dtype=np.float32)


def draw_tsne(
    panels: dict[str, NDArray[np.float32]], groups: NDArray[np.int64], names: tuple[str, str], path: Path, seed: int
) -> None:
    """One panel for each set of vectors (n, k), all of the same examples, as a PNG or SVG at ``path``.

    Args:
        panels: title to vectors. groups: 0 or 1 (n,), named by ``names``. seed: of the rows drawn and of t-SNE.
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
