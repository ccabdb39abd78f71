"""Rescale a run's noise to a larger population, and forecast the ε that a training there would have.

A run on few users may show what a training on many would reach (``privacy.noise_cohort``, as in pfl-research). The
sum of C users carries C/(q_u·N) times the signal of this run's q_u·N, under the same noise z·β. So this run adds
z·β·q_u·N/C, and its noise-to-signal ratio is that of a round of C users, from a population of C/q_u at the same rates.

Guarantee: none by this module. The plan of such a run has the noise multiplier z·q_u·N/C that is really added, so its
ledger, and every ε that is recorded or printed as one, hold for what it releases. ε at z is a forecast: it is the ε of
a training that did not take place.

>>> from fl_sim.strategies.user_level import UserLevelDP
>>> rates = {"q_u": 0.05, "q_e": 1.0, "q_s": 1.0, "clip_norm": 1.0, "user_cap": 1.0}
>>> own = PrivacyPlan(mechanism=UserLevelDP(population=1000, noise_multiplier=1.0, **rates), rounds=10, delta=1e-5)
>>> larger = LargerPopulation.of(own, noise_cohort=500)
>>> larger.plan.mechanism.population, larger.noise_share
(10000, 0.1)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from fl_sim.config import ConfigError
from fl_sim.experiments.plan.guarantees import Protected
from fl_sim.formats import epsilon_in_words, format_delta, format_number
from fl_sim.strategies.mechanism import PrivacyPlan

_LEAST_NOISE = 1e-3
"""The smallest noise multiplier of a run (privacy.noise_multiplier)."""

_FORECAST = ("epsilon_any", "epsilon_stated", "epsilon_user")


@dataclass(frozen=True, slots=True)
class LargerPopulation:
    """Hold the plan that a larger population would follow.

    Attributes:
        plan: rates, clips, z, T and δ of the run, with N of the larger population.
        noise_cohort: C, the expected users of its rounds.
        noise_share: q_u·N/C in (0, 1], by which the noise of the run is smaller than that of ``plan``.
    """

    plan: PrivacyPlan
    noise_cohort: int
    noise_share: float

    @classmethod
    def of(cls, plan: PrivacyPlan, noise_cohort: int) -> LargerPopulation:
        """Return the larger population of a run.

        Args:
            plan: the run's own, with the noise multiplier of the larger population.
            noise_cohort: C.

        Raises:
            ConfigError: the run's own rounds expect more users than C.
        """
        mechanism = plan.mechanism
        own = mechanism.expected_cohort
        if noise_cohort < own:
            raise ConfigError(
                f"privacy.noise_cohort is {noise_cohort}; allowed: at least {math.ceil(own)}, the expected users of a "
                "round of this run"
            )
        population = math.ceil(noise_cohort / mechanism.q_u * (1 - 1e-12))
        return cls(replace(plan, mechanism=replace(mechanism, population=population)), noise_cohort, own / noise_cohort)

    def noise_of_run(self, noise_multiplier: float) -> float:
        """Return the noise multiplier that the run really adds, for z = ``noise_multiplier`` of the larger population.

        Raises:
            ConfigError: it is smaller than a run may have.
        """
        z = noise_multiplier * self.noise_share
        if z < _LEAST_NOISE:
            most = math.floor(self.noise_cohort * z / _LEAST_NOISE)
            raise ConfigError(
                f"privacy.noise_cohort is {self.noise_cohort}; allowed: at most {most} at z {noise_multiplier:.4g}, so "
                f"that the run's own noise multiplier is at least {_LEAST_NOISE:g}"
            )
        return z

    def forecast(self, released: PrivacyPlan, protected: Protected, rounds: int) -> Forecast:
        """Return the forecast of a run.

        Args:
            released: the plan of the run, with the noise that it adds.
            protected: whom its ε protect.
            rounds: after which ε is stated.
        """
        plan = self.plan.with_noise(released.mechanism.noise_multiplier / self.noise_share)
        units = protected.units(plan.mechanism)
        epsilons = {
            metric: max(float(plan.epsilon_curve(u.adjacency, [rounds], robust=u.robust)[0]) for u in units[metric])
            for metric in _FORECAST
            if metric in units
        }
        return Forecast(plan, self.noise_cohort, self.noise_share, rounds, epsilons)


@dataclass(frozen=True, slots=True)
class Forecast:
    """ε of a training on a larger population that did not take place: no guarantee of anything.

    Attributes:
        plan: of that training.
        noise_cohort: C.
        noise_share: the run's noise, as a share of that training's.
        rounds: after which ε is stated.
        epsilons: by the names of the metrics.
    """

    plan: PrivacyPlan
    noise_cohort: int
    noise_share: float
    rounds: int
    epsilons: dict[str, float]

    def in_words(self) -> str:
        """Return the note for the owner of the run, which comes with its warnings."""
        users = format_number(self.plan.mechanism.population)
        return (
            f"the noise is {self.noise_share:.3g} of z·ŵ·c, as for rounds of {format_number(self.noise_cohort)} users "
            "(privacy.noise_cohort); every ε of this run is that of this smaller noise. Forecast for a population of "
            f"{users} users, no guarantee of anything released: {epsilon_in_words(self.epsilons)} after {self.rounds} "
            f"rounds at δ {format_delta(self.plan.delta)}."
        )

    def record(self) -> dict[str, Any]:
        """Return the forecast for the result of the run, under a key of its own."""
        mechanism = self.plan.mechanism
        figures = {f"forecast_{metric}": value for metric, value in self.epsilons.items()}
        return {
            "forecast": {
                "guarantee": False,
                "population": mechanism.population,
                "noise_cohort": self.noise_cohort,
                "noise_multiplier": mechanism.noise_multiplier,
                "rounds": self.rounds,
                "delta": self.plan.delta,
                **figures,
            }
        }
