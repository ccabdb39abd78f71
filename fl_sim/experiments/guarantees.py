"""The guarantee after every round: ε of a user, and of a user with an entity at the corpus's contribution bounds.

The curves follow from the plan and the number of rounds alone, so they are computed once, before the first round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fl_sim.config import PrivacyConfig, user_sentence_bound
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.strategies.accounting.adjacency import NO_ENTITY, Adjacency, ContributionBound
from fl_sim.strategies.accounting.composition import SHORT_CURVE
from fl_sim.strategies.mechanism import PrivacyPlan

CONTRIBUTION_QUANTILES = {"median": 0.5, "p95": 0.95, "max": 1.0}

# ε is computed after at most so many numbers of rounds; between two of them the later, larger one holds.
_MOST_COUNTS = 2000


@dataclass(frozen=True, slots=True)
class Protected:
    """Whom the printed ε speak of, read off the corpus (and therefore for its owner's eyes).

    Attributes:
        user_sentences: n' of the protected user; ``inf`` where none is assumed.
        reach: the reach of the protected entity at the corpus's median, 95th percentile and maximum.
        coverage: the share of the corpus's entities that lie within each reach.
        largest_user: the most sentences that a user of the corpus has.
    """

    user_sentences: float
    entity_bounds: Mapping[str, ContributionBound]
    coverage: Mapping[str, float]
    largest_user: int

    @classmethod
    def of(cls, ownership: Ownership, privacy: PrivacyConfig) -> Protected:
        """The protected parties of a corpus."""
        largest = int(ownership.sentences_per_user.max(initial=0))
        contributions = ownership.entity_contributions()
        bounds = dict.fromkeys(CONTRIBUTION_QUANTILES, NO_ENTITY)
        coverage = dict.fromkeys(CONTRIBUTION_QUANTILES, 1.0)
        for name, quantile in CONTRIBUTION_QUANTILES.items() if ownership.num_entities else ():
            users, per_user, sentences = contributions.quantile(quantile)
            bounds[name] = ContributionBound(users=users, sentences_per_user=per_user, sentences=sentences)
            within = (contributions.users <= users) & (contributions.max_per_user <= per_user)
            coverage[name] = float(np.mean(within & (contributions.sentences <= sentences)))
        return cls(user_sentence_bound(privacy.user_sentences, largest), bounds, coverage, largest)

    def target(self, unit: str) -> Adjacency:
        """The adjacency that a target or a budget means."""
        entity_bound = self.entity_bounds["p95"] if unit == "user_entity" else NO_ENTITY
        return Adjacency(user_sentences=self.user_sentences, entity_bound=entity_bound)

    def record(self) -> dict[str, Any]:
        """For the run's record."""
        return {
            "user_sentences": self.user_sentences,
            "reach": {name: asdict(entity_bound) for name, entity_bound in self.entity_bounds.items()},
            "reach_coverage": dict(self.coverage),
        }


@dataclass(frozen=True, slots=True)
class Guarantees:
    """ε after 0, 1, …, T rounds under the names that metrics use.

    Each is proven, but for the claims that a mechanism has besides
    (:meth:`~fl_sim.strategies.mechanism.Mechanism.claims`).
    """

    curves: Mapping[str, npt.NDArray[np.float64]]

    @classmethod
    def of(cls, plan: PrivacyPlan, protected: Protected) -> Guarantees:
        """All curves of a plan."""
        event = plan.mechanism.event()
        curves = {
            "epsilon_user": _curve(plan, Adjacency(protected.user_sentences)),
            "epsilon_user_unbounded": _curve(plan, Adjacency()),
        }
        for name, entity_bound in protected.entity_bounds.items():
            adjacency = Adjacency(protected.user_sentences, entity_bound)
            detected = _curve(plan, adjacency)
            relies_on_detection = event is not None and event.q_e < 1
            curves[f"epsilon_user_entity_{name}"] = detected
            curves[f"epsilon_user_entity_robust_{name}"] = (
                _curve(plan, adjacency, robust=True) if relies_on_detection else detected
            )
        return cls(curves | plan.mechanism.claims(plan.rounds, plan.delta))

    def after(self, rounds: int) -> dict[str, float]:
        """ε of every kind after ``rounds`` rounds."""
        return {name: float(curve[rounds]) for name, curve in self.curves.items()}

    def rounds_within(self, budget: float, unit: str) -> int:
        """How many rounds may be released before ε of ``unit`` would exceed ``budget``."""
        return int(np.count_nonzero(self.curves[epsilon_name(unit)][1:] <= budget))


def epsilon_name(unit: str) -> str:
    """The metric that a target or a budget for ``unit`` means."""
    return "epsilon_user" if unit == "user" else "epsilon_user_entity_p95"


def _curve(plan: PrivacyPlan, adjacency: Adjacency, *, robust: bool = False) -> npt.NDArray[np.float64]:
    """ε after 0, 1, …, T rounds: at each the smallest figure that is proven."""
    last = plan.rounds
    counts = np.unique(np.linspace(1, last, min(last, _MOST_COUNTS)).round().astype(np.int64))
    epsilons = plan.epsilon_curve(adjacency, counts.tolist(), robust=robust)
    if len(counts) > SHORT_CURVE:  # on its own the last has a finer grid, and targets are met on that
        epsilons[-1] = min(epsilons[-1], plan.epsilon_curve(adjacency, [last], robust=robust)[0])
    # Fewer rounds are a part of what more rounds release, so a later bound also holds earlier.
    monotone = np.minimum.accumulate(epsilons[::-1])[::-1]
    return np.concatenate(([0.0], monotone[np.searchsorted(counts, np.arange(1, last + 1))]))
