"""The grid points of each of FEDERATE's systems on a corpus, and the models that a rule selects from them.

Every epoch of every grid point is a candidate; of INLP and random the end alone. docs/representations.md has the rule.
Unfairness is the largest gap of the corpus's private attributes.

>>> models = [Candidate("a", 1, 0.84, 0.10), Candidate("b", 2, 0.835, 0.03), Candidate("c", 1, 0.80, 0.0)]
>>> select(models, relaxation=0.01).point
'b'
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from fl_sim.research.representations.config import ExperimentConfig, load_mapping
from fl_sim.research.representations.experiment_record import ExperimentRecord

GapName = Literal["tpr_gap", "grms"]
"""The measure of unfairness: |TPR-gap| of the positive class, or GRMS of all classes."""
SYSTEMS = ("random", "unconstrained", "inlp", "noise", "adversarial", "adversarial-multiple", "federate")
NOISY = ("noise", "federate")

_WEIGHTS = tuple(round(0.1 + 0.2 * step, 1) for step in range(15))
_ORTHOGONAL = tuple(round(0.1 * step, 1) for step in range(1, 11))
_EPSILONS = (8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 20.0)


@dataclass(frozen=True)
class Grid:
    """The grid points of each system: λ, λ_ort, ε of noise, ε of federate (combined with λ), classifiers of INLP.

    Systems with noise train for ``noisy_epochs``, unless the settings have the epochs of all systems.
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


def grid_points(settings: Mapping[str, Any], system: str, grid: Grid, layer: str) -> Iterator[ExperimentConfig]:
    """Yield the grid points of a system, without attacks.

    ``settings`` are those of all systems, nested: seed, data, encoder, server; ``layer`` is that of systems with noise.
    """
    noisy = system in NOISY
    base = load_mapping(
        {
            **settings,
            "method": system,
            "training": {"epochs": grid.noisy_epochs if noisy else grid.epochs, **settings.get("training", {})},
            "privacy": settings.get("privacy", {}) | ({"layer": layer, "epsilon": 1.0} if noisy else {}),
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


RELAXATIONS = (0.0, 0.01, 0.03, 0.1)
"""The relaxation thresholds of the paper's figure 2 and tables 4 to 6, shares of accuracy; ascending."""
RELAXATION = 0.01
"""That of the paper's table 3, 1.0 point."""
_WITH_MDL = (0.0, RELAXATION)  # as in the paper; MDL costs most of an attack's time

Point = tuple[ExperimentConfig, ExperimentRecord]
"""A grid point and its record."""
Trained = Mapping[str, Sequence[Point]]
"""The grid points of each system."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A grid point's model after an epoch, from 1, with its accuracy and |TPR-gap| (or GRMS) on validation, shares."""

    point: Any
    epoch: int
    accuracy: float
    unfairness: float


def select(candidates: Sequence[Candidate], relaxation: float) -> Candidate:
    """Return the least unfair candidate with an accuracy in [α* − relaxation, α*], α* the best accuracy, both shares.

    Ties go to the more accurate candidate, then to the earlier epoch.
    """
    best = max(candidate.accuracy for candidate in candidates)
    near = [c for c in candidates if c.accuracy >= best - relaxation - 1e-12]
    return min(near, key=lambda c: (math.inf if math.isnan(c.unfairness) else c.unfairness, -c.accuracy, c.epoch))


class Selected(NamedTuple):
    """A final training up to the selected epoch, with the thresholds that select it; none for the choice of one ε."""

    system: str
    relaxations: tuple[float, ...]
    config: ExperimentConfig


def candidates_of(points: Sequence[Point], gap: GapName) -> list[Candidate]:
    """Return the models of some grid points, each with the index of its point."""
    return [candidate for number, (_, record) in enumerate(points) for candidate in _candidates(number, record, gap)]


def selected_by_threshold(trained: Trained, gap: GapName) -> Iterator[Selected]:
    """Yield the models of each system that the relaxation thresholds select, each once."""
    for system, points in trained.items():
        candidates = candidates_of(points, gap)
        thresholds: dict[Candidate, list[float]] = {}
        for relaxation in RELAXATIONS:
            thresholds.setdefault(select(candidates, relaxation), []).append(relaxation)
        for candidate, relaxations in thresholds.items():
            whole = any(relaxation in _WITH_MDL for relaxation in relaxations)
            yield Selected(system, tuple(relaxations), final(points[candidate.point][0], candidate.epoch, mdl=whole))


def selected_by_epsilon(trained: Trained, attacked: Collection[ExperimentConfig], gap: GapName) -> Iterator[Selected]:
    """Yield the model of each ε of each system with noise, selected at the threshold of table 3 (figure 4).

    Final trainings that are ``attacked`` anyhow serve here if they are of the same model.
    """
    for system in NOISY:
        epsilons = {config.privacy.epsilon for config, _ in trained[system]}
        for epsilon in sorted(epsilon for epsilon in epsilons if epsilon is not None):
            points = [point for point in trained[system] if point[0].privacy.epsilon == epsilon]
            best = select(candidates_of(points, gap), RELAXATION)
            whole, light = (final(points[best.point][0], best.epoch, mdl=mdl) for mdl in (True, False))
            yield Selected(system, (), whole if whole in attacked else light)


def final(config: ExperimentConfig, epoch: int, *, mdl: bool) -> ExperimentConfig:
    """Return the final training of a grid point: up to an epoch, and attacked."""
    values = {"attacks.leakage": True, "attacks.mdl": mdl, "training.stop_after": epoch}
    return config.with_values(values)


def _candidates(number: int, record: ExperimentRecord, gap: GapName) -> list[Candidate]:
    if record["config"]["method"] in ("inlp", "random"):
        metrics = record["metrics"]["validation"]
        last = record["config"]["training"]["epochs"]
        worst = max(abs(group[gap]) for group in metrics["groups"].values())
        return [Candidate(number, last, metrics["accuracy"], worst)]
    return [Candidate(number, int(row["epoch"]), row["accuracy"], abs(row[gap])) for row in record["epochs"]]
