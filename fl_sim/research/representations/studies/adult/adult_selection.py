"""The models that a seed's grid offers, those that are selected, and their final trainings with attacks.

Every epoch of every grid point is a candidate (the paper's Unconstrained has no grid but changes with the relaxation
threshold, so its epochs are candidates, too); of INLP and random the end alone. Of the candidates whose validation
accuracy is at most the relaxation threshold below the best, the one with the smallest |TPR-gap| on validation is
selected, trained again up to its epoch, measured on the test split and attacked. A threshold of 0 selects the best
validation accuracy.

>>> RELAXATIONS[0], RELAXATION
(0.0, 0.01)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fl_sim.research.representations.config import ExperimentConfig
from fl_sim.research.representations.evaluation.model_selection import Candidate, select
from fl_sim.research.representations.studies.adult.adult_grid import NOISY

RELAXATIONS = (0.0, 0.01, 0.03, 0.1)
"""The relaxation thresholds of the paper's figure 2 and tables 4 to 6, shares of accuracy; ascending."""
RELAXATION = 0.01
"""That of the paper's table 3, 1.0 point."""
_WITH_MDL = (0.0, RELAXATION)  # as in the paper; MDL costs most of an attack's time

_ATTRIBUTE = "sex"

Trained = Mapping[str, Sequence[tuple[ExperimentConfig, dict[str, Any]]]]
"""Of each system: its grid points and their records."""


class Selected(NamedTuple):
    """A selected model's final training.

    Attributes:
        system: its name.
        relaxations: the thresholds that select it; none if it is the choice of one ε.
        config: stopped after the selected epoch, with attacks.
    """

    system: str
    relaxations: tuple[float, ...]
    config: ExperimentConfig


def candidates_of(points: Sequence[tuple[ExperimentConfig, dict[str, Any]]]) -> list[Candidate]:
    """Return the models of some grid points, each with the index of its point."""
    return [candidate for number, (_, record) in enumerate(points) for candidate in _candidates(number, record)]


def selected_by_threshold(trained: Trained) -> Iterator[Selected]:
    """Yield the models of each system that the relaxation thresholds select, each once."""
    for system, points in trained.items():
        candidates = candidates_of(points)
        thresholds: dict[Candidate, list[float]] = {}
        for relaxation in RELAXATIONS:
            thresholds.setdefault(select(candidates, relaxation), []).append(relaxation)
        for candidate, relaxations in thresholds.items():
            whole = any(relaxation in _WITH_MDL for relaxation in relaxations)
            yield Selected(system, tuple(relaxations), _final(points[candidate.point][0], candidate, mdl=whole))


def selected_by_epsilon(trained: Trained, attacked: Collection[ExperimentConfig]) -> Iterator[Selected]:
    """Yield the model of each ε of each system with noise, selected at the threshold of table 3 (figure 4).

    Args:
        trained: all systems.
        attacked: final trainings that are made anyhow, which serve here if they are of the same model.
    """
    for system in NOISY:
        epsilons = {config.privacy.epsilon for config, _ in trained[system]}
        for epsilon in sorted(epsilon for epsilon in epsilons if epsilon is not None):
            points = [point for point in trained[system] if point[0].privacy.epsilon == epsilon]
            best = select(candidates_of(points), RELAXATION)
            whole, light = (_final(points[best.point][0], best, mdl=mdl) for mdl in (True, False))
            yield Selected(system, (), whole if whole in attacked else light)


def _final(config: ExperimentConfig, candidate: Candidate, *, mdl: bool) -> ExperimentConfig:
    values = {"attacks.leakage": True, "attacks.mdl": mdl, "training.stop_after": candidate.epoch}
    return config.with_values(values)


def _candidates(number: int, record: dict[str, Any]) -> list[Candidate]:
    if record["config"]["method"] in ("inlp", "random"):
        metrics = record["metrics"]["validation"]
        last = record["config"]["training"]["epochs"]
        return [Candidate(number, last, metrics["accuracy"], abs(metrics["groups"][_ATTRIBUTE]["tpr_gap"]))]
    return [Candidate(number, row["epoch"], row["accuracy"], abs(row["tpr_gap"])) for row in record["epochs"]]
