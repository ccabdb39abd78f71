"""The guarantee of a run after every round: ε of a user, and of a user and an entity within a contribution bound.

The curves follow from the plan alone, so they are computed once, before the first round.

>>> from fl_sim.strategies.uedp import UserEntityDP
>>> rates = {"q_u": 1.0, "q_e": 0.5, "q_s": 0.1}
>>> mechanism = UserEntityDP(population=50, **rates, clip_norm=1.0, user_cap=2.0, noise_multiplier=4.0)
>>> plan = PrivacyPlan(mechanism=mechanism, rounds=2, delta=1e-5)
>>> bounds = dict.fromkeys(CONTRIBUTION_QUANTILES, ContributionBound(users=2, sentences_per_user=1))
>>> guarantees = Guarantees.of(plan, Protected(12, bounds, dict.fromkeys(bounds, 1.0), largest_user=12))
>>> epsilon = guarantees.after(2)
>>> 0 < epsilon["epsilon_user"] < epsilon["epsilon_user_entity_max"] < epsilon["epsilon_user_entity_robust_max"]
True
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fl_sim.config import PrivacyConfig, user_sentence_bound
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.experiments.lineage import Earlier, Unit
from fl_sim.strategies.accounting.adjacency import NO_ENTITY, Adjacency, ContributionBound
from fl_sim.strategies.accounting.composition import SHORT_CURVE
from fl_sim.strategies.mechanism import PrivacyPlan

CONTRIBUTION_QUANTILES = {"median": 0.5, "p95": 0.95, "max": 1.0}

# ε is computed for at most this many numbers of rounds; between two of them the later, larger ε holds.
_MOST_COUNTS = 2000

NOTHING_EARLIER = Earlier()
"""The lineage of a public initial model."""


@dataclass(frozen=True, slots=True)
class Protected:
    """The user and the entity that the reported ε protect, computed from the corpus and so for its owner alone.

    Attributes:
        user_sentences: n' of the protected user; ``inf`` if no bound is assumed.
        entity_bounds: contribution bounds of the protected entity at the corpus's median, 95th percentile and
            maximum.
        coverage: share of the corpus's entities within each bound.
        largest_user: number of sentences of the corpus's largest user.
    """

    user_sentences: float
    entity_bounds: Mapping[str, ContributionBound]
    coverage: Mapping[str, float]
    largest_user: int

    @classmethod
    def of(cls, ownership: Ownership, privacy: PrivacyConfig) -> Protected:
        """Return the protected user and entity of a corpus."""
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
        """Return the adjacency of a target or budget for ``unit``."""
        entity_bound = self.entity_bounds["p95"] if unit == "user_entity" else NO_ENTITY
        return Adjacency(user_sentences=self.user_sentences, entity_bound=entity_bound)

    def units(self) -> dict[str, Unit]:
        """Return the protected unit of every metric of a run, by name."""
        units = {
            "epsilon_user": Unit(Adjacency(self.user_sentences)),
            "epsilon_user_unbounded": Unit(Adjacency()),
        }
        for name, entity_bound in self.entity_bounds.items():
            adjacency = Adjacency(self.user_sentences, entity_bound)
            units[f"epsilon_user_entity_{name}"] = Unit(adjacency)
            units[f"epsilon_user_entity_robust_{name}"] = Unit(adjacency, robust=True)
        return units

    def record(self) -> dict[str, Any]:
        """Return the bounds and their coverage, JSON-ready, for the result of the run."""
        return {
            "user_sentences": self.user_sentences,
            "reach": {name: asdict(entity_bound) for name, entity_bound in self.entity_bounds.items()},
            "reach_coverage": dict(self.coverage),
        }


@dataclass(frozen=True, slots=True)
class Guarantees:
    """ε after 0, 1, …, T rounds, under the names of the metrics.

    Every curve is proven except the mechanism's claims (:meth:`~fl_sim.strategies.mechanism.Mechanism.claims`).

    Attributes:
        curves: float64 (T+1,) by name.
    """

    curves: Mapping[str, npt.NDArray[np.float64]]

    @classmethod
    def of(cls, plan: PrivacyPlan, protected: Protected, earlier: Earlier = NOTHING_EARLIER) -> Guarantees:
        """Return all curves of a plan whose initial model rests on ``earlier`` releases."""
        event = plan.mechanism.event()
        relies_on_detection = bool(earlier.composed) or (event is not None and event.q_e < 1)
        curves: dict[str, npt.NDArray[np.float64]] = {}
        for name, unit in protected.units().items():
            detected = curves.get(name.replace("_robust", ""))
            same = unit.robust and detected is not None and not relies_on_detection
            curves[name] = detected if same and detected is not None else _curve(plan, earlier, name, unit)
        # A claim is of one training; nobody claims anything of several together.
        return cls(curves | ({} if earlier.composed else plan.mechanism.claims(plan.rounds, plan.delta)))

    def after(self, rounds: int) -> dict[str, float]:
        """Return every ε after ``rounds`` rounds, by name."""
        return {name: float(curve[rounds]) for name, curve in self.curves.items()}

    def rounds_within(self, budget: float, unit: str) -> int:
        """Return the number of rounds within ``budget``, an ε of ``unit``."""
        return int(np.count_nonzero(self.curves[epsilon_name(unit)][1:] <= budget))


def epsilon_name(unit: str) -> str:
    """Return the name of the metric that a target or budget for ``unit`` limits."""
    return "epsilon_user" if unit == "user" else "epsilon_user_entity_p95"


def _curve(plan: PrivacyPlan, earlier: Earlier, metric: str, unit: Unit) -> npt.NDArray[np.float64]:
    """Return ε after 0, 1, …, T rounds, float64 (T+1,): the smallest proven value at each."""
    last = plan.rounds
    counts = earlier.counts(last, _MOST_COUNTS)
    epsilons = earlier.epsilon_curve(plan, metric, unit, counts.tolist())
    if len(counts) > SHORT_CURVE:  # alone, the last has a finer grid, which targets are calibrated on
        epsilons[-1] = min(epsilons[-1], earlier.epsilon_curve(plan, metric, unit, [last])[0])
    # Fewer rounds are a part of what more rounds release, so a later bound also holds earlier.
    monotone = np.minimum.accumulate(epsilons[::-1])[::-1]
    before = min(earlier.epsilon_before(metric, plan.delta), monotone[0])
    return np.concatenate(([before], monotone[np.searchsorted(counts, np.arange(1, last + 1))]))
