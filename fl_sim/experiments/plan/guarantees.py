"""The guarantee of a run after every round: ε of any user with any entity, and by what entities contribute.

The curves follow from the plan alone, so they are computed once, before the first round. Only the headline and the
figures of users rest on public bounds; those by percentile of contribution are for the corpus's owner.

>>> import numpy as np
>>> from fl_sim.config import RunConfig
>>> from fl_sim.data_prep.store.ownership import Ownership
>>> from fl_sim.strategies.uedp import UserEntityDP
>>> rates = {"q_u": 1.0, "q_e": 0.5, "q_s": 0.1}
>>> mechanism = UserEntityDP(population=2, **rates, clip_norm=1.0, user_cap=2.0, noise_multiplier=4.0)
>>> plan = PrivacyPlan(mechanism=mechanism, rounds=2, delta=1e-5)
>>> ownership = Ownership(np.arange(0, 9, 4), np.arange(9), np.zeros(8, dtype=np.int32), num_entities=1)
>>> bounds = EnforcedBounds.of(RunConfig().privacy, ownership, seed=0)
>>> epsilon = Guarantees.of(plan, Protected.of(bounds)).after(2)
>>> 0 < epsilon["epsilon_user"] < epsilon["epsilon_any"]
True
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fl_sim.experiments.plan.enforced_bounds import EnforcedBounds
from fl_sim.experiments.plan.lineage import Earlier
from fl_sim.strategies.accounting.adjacency import NO_ENTITY, Adjacency, ContributionBound
from fl_sim.strategies.accounting.guarantee import Guarantee, ProtectedUnit
from fl_sim.strategies.accounting.losses.composition import SHORT_CURVE
from fl_sim.strategies.mechanism import Mechanism, PrivacyPlan

CONTRIBUTION_QUANTILES = {"median": 0.5, "p95": 0.95, "max": 1.0}

# ε is computed for at most this many numbers of rounds; between two of them the later, larger ε holds.
_MOST_COUNTS = 2000

NOTHING_EARLIER = Earlier()
"""The lineage of a public initial model."""


@dataclass(frozen=True, slots=True)
class Protected:
    """Whom the reported ε protect.

    Attributes:
        guarantee: the public bounds, on which the headline rests.
        entity_bounds: what the corpus's entities contribute under the bounds at the median, the 95th percentile and the
            maximum; read off the corpus and so for its owner alone.
        coverage: share of the corpus's entities within each of ``entity_bounds``.
        settings_from_corpus: whether targets may rest on ``entity_bounds``, which no ε covers.
    """

    guarantee: Guarantee
    entity_bounds: Mapping[str, ContributionBound]
    coverage: Mapping[str, float]
    settings_from_corpus: bool = False

    @classmethod
    def of(cls, enforced: EnforcedBounds, *, settings_from_corpus: bool = False) -> Protected:
        """Return whom a run on a corpus protects."""
        contributions = enforced.contributions()
        bounds = dict.fromkeys(CONTRIBUTION_QUANTILES, NO_ENTITY)
        coverage = dict.fromkeys(CONTRIBUTION_QUANTILES, 1.0)
        for name, quantile in CONTRIBUTION_QUANTILES.items() if len(contributions.users) else ():
            users, per_user, sentences = contributions.quantile(quantile)
            weighted = enforced.guarantee.weighted
            bounds[name] = ContributionBound(users, per_user, sentences, weighted=weighted)
            within = (contributions.users <= users) & (contributions.max_per_user <= per_user)
            coverage[name] = float(np.mean(within & (contributions.sentences <= sentences)))
        return cls(enforced.guarantee, bounds, coverage, settings_from_corpus)

    @property
    def user_sentences(self) -> float:
        """Return n', the bound on the protected user's sentences; ``inf`` for no bound."""
        return self.guarantee.user.user_sentences

    def targets(self, unit: str, mechanism: Mechanism) -> tuple[ProtectedUnit, ...]:
        """Return the units of a target or budget, of which the largest ε counts; none if no bound is set.

        Args:
            unit: ``user``, or ``user_entity`` for any user with any entity.
            mechanism: of the run.
        """
        event = mechanism.event()
        clips_sentences = event is not None and event.clips_sentences
        return self.planned_units(unit, clips_sentences=clips_sentences, population=mechanism.population)

    def planned_units(self, unit: str, *, clips_sentences: bool, population: int) -> tuple[ProtectedUnit, ...]:
        """Return the units of a target as :meth:`targets`, before there is a mechanism."""
        if unit == "user":
            return (ProtectedUnit(self.guarantee.user, robust=False),)
        units = self.guarantee.units(clips_sentences=clips_sentences, population=population)
        if units or not self.settings_from_corpus:
            return units
        return (ProtectedUnit(self.guarantee.with_entity(self.entity_bounds["p95"]), robust=False),)

    def target_name(self, unit: str, mechanism: Mechanism) -> str:
        """Return the name of the metric that a target or budget for ``unit`` limits."""
        if unit == "user":
            return "epsilon_user"
        if not _units(self.guarantee, mechanism):
            return "epsilon_user_entity_p95"
        return "epsilon_any" if self.guarantee.covers_any_entity else "epsilon_stated"

    def units(self, mechanism: Mechanism) -> dict[str, tuple[ProtectedUnit, ...]]:
        """Return the protected units of every metric of a run, of which the largest ε counts; the headline first."""
        kind = "any" if self.guarantee.covers_any_entity else "stated"
        units = {
            f"epsilon_{kind}": _units(self.guarantee, mechanism),
            f"epsilon_{kind}_robust": _units(self.guarantee, mechanism, missed=True),
            "epsilon_user": (ProtectedUnit(self.guarantee.user, robust=False),),
            "epsilon_user_unbounded": (ProtectedUnit(Adjacency(), robust=False),),
        }
        for name, entity_bound in self.entity_bounds.items():
            adjacency = self.guarantee.with_entity(entity_bound)
            units[f"epsilon_user_entity_{name}"] = (ProtectedUnit(adjacency, robust=False),)
            units[f"epsilon_user_entity_robust_{name}"] = (ProtectedUnit(adjacency, robust=True),)
        return {metric: protected for metric, protected in units.items() if protected}

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
        """Return all curves of a plan whose initial model rests on ``earlier`` releases: the headline first."""
        event = plan.mechanism.event()
        relies_on_detection = bool(earlier.composed) or (event is not None and event.q_e < 1)
        unknown = np.concatenate(([math.inf if earlier.composed else 0.0], np.full(plan.rounds, math.inf)))
        curves: dict[str, npt.NDArray[np.float64]] = {"epsilon_any": unknown}
        for metric, units in protected.units(plan.mechanism).items():
            detected = curves.get(metric.replace("_robust", ""))
            if "_entity_robust_" in metric and detected is not None and not relies_on_detection:
                curves[metric] = detected
                continue
            named = unit_names({metric: units})
            curves[metric] = np.max([_curve(plan, earlier, name, unit) for name, unit in named.items()], axis=0)
        # A claim is of one training; nobody claims anything of several together.
        return cls(curves | ({} if earlier.composed else plan.mechanism.claims(plan.rounds, plan.delta)))

    def after(self, rounds: int) -> dict[str, float]:
        """Return every ε after ``rounds`` rounds, by name."""
        return {name: float(curve[rounds]) for name, curve in self.curves.items()}

    def rounds_within(self, budget: float, name: str) -> int:
        """Return the number of rounds in which the ε ``name`` stays within ``budget``."""
        return int(np.count_nonzero(self.curves[name][1:] <= budget))


def _units(guarantee: Guarantee, mechanism: Mechanism, *, missed: bool = False) -> tuple[ProtectedUnit, ...]:
    """Return the units of the headline ε under a mechanism; none without a bound or without a guarantee."""
    event = mechanism.event()
    if event is None:
        return ()
    return guarantee.units(clips_sentences=event.clips_sentences, population=mechanism.population, missed=missed)


def unit_names(units: Mapping[str, Sequence[ProtectedUnit]]) -> dict[str, ProtectedUnit]:
    """Return the units of metrics, each under a name of its own, by which an earlier run's units are found."""
    return {
        metric if len(several) == 1 else f"{metric}, unit {number}": unit
        for metric, several in units.items()
        for number, unit in enumerate(several)
    }


def _curve(plan: PrivacyPlan, earlier: Earlier, metric: str, unit: ProtectedUnit) -> npt.NDArray[np.float64]:
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
