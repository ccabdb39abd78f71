"""The grid points of each system of FEDERATE's table 3, and the network of its published code.

Network, split and sum of code lengths are those of FEDERATE's published code, not those of its paper (two layers,
dropout 0.1, a linear classifier, 60 : 20 : 20). With the code's, Random and Unconstrained reproduce; with the paper's
they do not (docs/representations.md has both).

>>> len(THIN.weights), len(FULL.weights), len(FULL.orthogonal)
(4, 15, 10)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fl_sim.research.representations.config import ExperimentConfig, load_mapping
from fl_sim.research.representations.studies.study_tables import Options

SYSTEMS = ("random", "unconstrained", "inlp", "noise", "adversarial", "adversarial-multiple", "federate")
NOISY = ("noise", "federate")

_WEIGHTS = tuple(round(0.1 + 0.2 * step, 1) for step in range(15))
_ORTHOGONAL = tuple(round(0.1 * step, 1) for step in range(1, 11))
_EPSILONS = (8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 20.0)


@dataclass(frozen=True)
class Grid:
    """The grid points of each system.

    Attributes:
        weights: λ.
        orthogonal: λ_ort.
        epsilons: ε of noise.
        federate_epsilons: ε of federate, combined with λ.
        inlp_rounds: classifiers of INLP.
        epochs: of systems without noise.
        noisy_epochs: of systems with noise.
    """

    weights: tuple[float, ...]
    orthogonal: tuple[float, ...]
    epsilons: tuple[float, ...]
    federate_epsilons: tuple[float, ...]
    inlp_rounds: tuple[int, ...]
    epochs: int = 30
    noisy_epochs: int = 45


THIN = Grid((0.1, 0.3, 1.0, 2.9), (0.5,), (12.0, 20.0), (20.0,), (2, 7))
"""The default: seventeen points per seed. Model selection prefers the least noise."""

FULL = Grid(_WEIGHTS, _ORTHOGONAL, _EPSILONS, _EPSILONS, (2, 3, 4, 5, 6, 7))
"""Appendix D.4: 333 points per seed."""

NETWORK: dict[str, Any] = {
    "encoder": {"kind": "mlp", "width": 50, "layers": 3, "first_width": 100, "dropout": 0.5},
    "server": {
        "classifier": [50, 25],
        "adversary": [50],
        "dropout": 0.5,
        "adversary_dropout": 0.4,
        "weighed": "loss",
    },
}
"""The network of the published code for Adult."""


def grid_points(system: str, seed: int, grid: Grid, options: Options) -> Iterator[ExperimentConfig]:
    """Yield the grid points of a system, without attacks."""
    noisy = system in NOISY
    base = load_mapping(
        {
            "method": system,
            "seed": seed,
            "data": {"name": "adult", "source": str(options.source), "split": "code"},
            **NETWORK,
            "training": {"epochs": grid.noisy_epochs if noisy else grid.epochs},
            "privacy": {"layer": options.layer, "epsilon": 1.0} if noisy else {},
            "attacks": {"leakage": False, "mdl": False},
        }
    )
    axes: dict[str, Sequence[Any]] = {}
    if system in ("adversarial", "adversarial-multiple", "federate"):
        axes["server.weight"] = grid.weights
    if system == "adversarial-multiple":
        axes["server.orthogonal"] = grid.orthogonal
    if noisy:
        axes["privacy.epsilon"] = grid.epsilons if system == "noise" else grid.federate_epsilons
    if system == "inlp":
        axes["training.inlp_rounds"] = grid.inlp_rounds
    for values in itertools.product(*axes.values()):
        yield base.with_values(dict(zip(axes, values, strict=True)))
