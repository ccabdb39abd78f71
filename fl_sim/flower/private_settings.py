"""Hold and check the privacy settings of a Flower app, and turn them into the plan that noise and ε are computed from.

>>> settings = PrivateSettings(population=1000, sampling_rate=0.05, clip_norm=1.0, target_epsilon=2.0)
>>> plan = settings.plan(rounds=50)
>>> round(plan.mechanism.noise_multiplier, 2), plan.mechanism.denominator
(1.15, 50.0)
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from fl_sim.experiments.plan.lineage import Earlier
from fl_sim.strategies.accounting.adjacency import Adjacency
from fl_sim.strategies.accounting.guarantee import ProtectedUnit
from fl_sim.strategies.ledger import LEAST_NOISE
from fl_sim.strategies.mechanism import PrivacyPlan
from fl_sim.strategies.primitives.limits import check_delta, check_rate, require
from fl_sim.strategies.user_level import UserLevelDP

USER = Adjacency()
"""The protected unit: one user, with any number of examples."""

USER_METRIC, USER_UNIT = "user", ProtectedUnit(USER, robust=False)
"""The same unit, with the name of its ε, for releases of several runs together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateSettings:
    """Hold the privacy settings of a Flower app.

    Attributes:
        population: N, a public estimate of the number of users. ε does not depend on it; sums are divided by q·N.
        sampling_rate: q, the probability that a user takes part in a round.
        clip_norm: C, the bound on the L2 norm of one user's update.
        noise_multiplier: z, the standard deviation of the noise on the sum, divided by C; None with a target.
        target_epsilon: ε of any user after all rounds, for which the smallest z is computed; None with a z.
        delta: δ, at which ε is stated.
        epsilon_budget: training stops before ε exceeds it; None for no budget.
        seed: of samples and noise, for simulations that can be repeated: whoever knows it can subtract the noise. None
            takes both from the operating system.
        forward_metrics: whether metrics of the app's train and evaluate functions leave the nodes, unprotected.

    Raises:
        PrivacyError: a value is out of range.
    """

    population: int
    sampling_rate: float
    clip_norm: float
    noise_multiplier: float | None = None
    target_epsilon: float | None = None
    delta: float = 1e-5
    epsilon_budget: float | None = None
    seed: int | None = None
    forward_metrics: bool = False

    def __post_init__(self) -> None:
        for name in ("sampling_rate", "clip_norm", "noise_multiplier", "target_epsilon", "delta", "epsilon_budget"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            require(value is None or number, name, repr(value), "a number")
        require(type(self.population) is int and self.population >= 1, "population", self.population, "an integer ≥ 1")
        check_rate("sampling_rate", self.sampling_rate)
        require(0 < self.clip_norm < math.inf, "clip_norm", self.clip_norm, "a number above 0")
        one = (self.noise_multiplier is None) != (self.target_epsilon is None)
        given = "missing" if self.noise_multiplier is None else "given with target_epsilon"
        require(one, "noise_multiplier", given, "one of noise_multiplier and target_epsilon")
        if self.noise_multiplier is not None:
            least = f"at least {LEAST_NOISE:g}"
            require(LEAST_NOISE <= self.noise_multiplier < math.inf, "noise_multiplier", self.noise_multiplier, least)
        for name in ("target_epsilon", "epsilon_budget"):
            value = getattr(self, name)
            require(value is None or 0 < value < math.inf, name, value, "a number above 0")
        check_delta(self.delta)
        seeded = type(self.seed) is int and self.seed >= 0
        require(self.seed is None or seeded, "seed", self.seed, "an integer of at least 0, or None")

    @property
    def secure_noise(self) -> bool:
        """Return whether noise and samples come from the operating system."""
        return self.seed is None

    def plan(self, rounds: int, earlier: Earlier | None = None) -> PrivacyPlan:
        """Return the plan of a training.

        Args:
            rounds: T, the number of rounds.
            earlier: the releases on which the initial model rests, which a target includes; None for none.

        Raises:
            PrivacyError: no noise meets the target, or ``rounds`` is impossible.
        """
        plan = PrivacyPlan(mechanism=self._mechanism(self.noise_multiplier or 1.0), rounds=rounds, delta=self.delta)
        if self.target_epsilon is None:
            return plan
        least = (earlier or Earlier()).noise_for(plan, self.target_epsilon, USER_METRIC, USER_UNIT)
        return plan.with_noise(max(LEAST_NOISE, least))

    def warnings(self) -> list[str]:
        """Return what the owner of a run should know of its settings, one sentence each."""
        found = []
        if self.delta >= 1 / self.population:
            found.append(
                f"δ is {self.delta:g}, not below 1/N = {1 / self.population:.3g}: a mechanism that publishes one user's"
                " data would satisfy it."
            )
        if not self.secure_noise:
            found.append(
                "Samples and noise follow from the seed: whoever knows it can subtract the noise. Leave seed out where "
                "the data are real."
            )
        if self.forward_metrics:
            found.append("Metrics of the app leave the nodes unprotected (forward_metrics); no ε covers them.")
        return found

    def record(self) -> dict[str, Any]:
        """Return the settings as a JSON object."""
        return asdict(self)

    def _mechanism(self, noise_multiplier: float) -> UserLevelDP:
        return UserLevelDP(
            population=self.population,
            q_u=float(self.sampling_rate),
            q_e=1.0,
            q_s=1.0,
            clip_norm=float(self.clip_norm),
            user_cap=1.0,
            noise_multiplier=float(noise_multiplier),
        )
