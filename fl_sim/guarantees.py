"""What a run may promise after every round: ε of a user, and of a user and an entity at the corpus's reach.

The curves follow from the plan and the number of rounds alone, so they are computed once, before the first round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from data_prep.ownership import Ownership
from fl_sim.config import PrivacyConfig, user_sentence_bound
from strategies.plan import PrivacyPlan
from strategies.units import NO_ENTITY, Adjacency, Reach

REACH_QUANTILES = {"median": 0.5, "p95": 0.95, "max": 1.0}


@dataclass(frozen=True, slots=True)
class Protected:
    """Whom the printed ε speak of, read off the corpus (and therefore for its owner's eyes).

    Attributes:
        user_sentences: n' of the protected user; ``inf`` where none is assumed.
        reach: the reach of the protected entity at the corpus's median, 95th percentile and maximum.
        coverage: the share of the corpus's entities that lie within each reach.
    """

    user_sentences: float
    reach: Mapping[str, Reach]
    coverage: Mapping[str, float]

    @classmethod
    def of(cls, ownership: Ownership, privacy: PrivacyConfig) -> Protected:
        """The protected parties of a corpus."""
        largest = int(ownership.sentences_per_user.max(initial=0))
        profiles = ownership.entity_profiles()
        reach, coverage = {}, {}
        for name, quantile in REACH_QUANTILES.items():
            users, per_user, sentences = profiles.quantile(quantile)
            reach[name] = Reach(users=users, sentences_per_user=per_user, sentences=sentences)
            within = (profiles.users <= users) & (profiles.max_per_user <= per_user)
            coverage[name] = float(np.mean(within & (profiles.sentences <= sentences)))
        return cls(user_sentence_bound(privacy.user_sentences, largest), reach, coverage)

    def target(self, unit: str) -> Adjacency:
        """The adjacency that a target or a budget means."""
        reach = self.reach["p95"] if unit == "user_entity" else NO_ENTITY
        return Adjacency(user_sentences=self.user_sentences, reach=reach)

    def record(self) -> dict[str, Any]:
        """For the run's record."""
        return {
            "user_sentences": self.user_sentences,
            "reach": {name: asdict(reach) for name, reach in self.reach.items()},
            "reach_coverage": dict(self.coverage),
        }


@dataclass(frozen=True, slots=True)
class Guarantees:
    """ε after 0, 1, …, T rounds under the names that metrics use."""

    curves: Mapping[str, npt.NDArray[np.float64]]

    @classmethod
    def of(cls, plan: PrivacyPlan, protected: Protected) -> Guarantees:
        """All curves of a plan."""
        rounds = range(1, plan.rounds + 1)

        def curve(adjacency: Adjacency, robust: bool = False) -> npt.NDArray[np.float64]:
            epsilons = plan.epsilon_curve(adjacency, rounds, robust=robust)
            # Fewer rounds are a part of what more rounds release, so a later bound also holds earlier.
            return np.concatenate(([0.0], np.minimum.accumulate(epsilons[::-1])[::-1]))

        curves = {
            "epsilon_user": curve(Adjacency(protected.user_sentences)),
            "epsilon_user_unbounded": curve(Adjacency()),
        }
        for name, reach in protected.reach.items():
            adjacency = Adjacency(protected.user_sentences, reach)
            detected = curve(adjacency)
            relies_on_detection = plan.private and plan.q_e < 1
            curves[f"epsilon_user_entity_{name}"] = detected
            curves[f"epsilon_user_entity_robust_{name}"] = (
                curve(adjacency, robust=True) if relies_on_detection else detected
            )
        return cls(curves)

    def after(self, rounds: int) -> dict[str, float]:
        """ε of every kind after ``rounds`` rounds."""
        return {name: float(curve[rounds]) for name, curve in self.curves.items()}

    def rounds_within(self, budget: float, unit: str) -> int:
        """How many rounds may be released before ε of ``unit`` would exceed ``budget``."""
        curve = self.curves["epsilon_user" if unit == "user" else "epsilon_user_entity_p95"]
        return int(np.count_nonzero(curve[1:] <= budget))
