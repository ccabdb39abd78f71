"""From a configuration and a corpus to the plan of a run: defaults per strategy, the noise for a target, the budget."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from data_prep.ownership import Ownership
from fl_sim.config import ConfigError, PrivacyConfig, RunConfig
from fl_sim.guarantees import Guarantees, Protected
from strategies import accounting
from strategies.plan import PrivacyPlan

# Rates, clips and noise that a strategy takes where the configuration leaves them out. uedp samples sentences and not
# users, because that is what makes its guarantee strong (docs/privacy.md).
DEFAULTS: dict[str, dict[str, float]] = {
    "uedp": {"q_u": 1.0, "q_e": 0.5, "q_s": 0.05, "clip_norm": 1.0, "user_cap": 5.0, "noise_multiplier": 3.0},
    "user_level": {
        "q_u": 0.05, "q_e": 1.0, "q_s": 1.0, "clip_norm": 1.0, "user_cap": 1.0, "noise_multiplier": 1.0,
    },
    "noiseless": {
        "q_u": 1.0, "q_e": 1.0, "q_s": 0.05, "clip_norm": math.inf, "user_cap": 1.0, "noise_multiplier": 0.0,
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Planned:
    """What a run will do and promise.

    Attributes:
        plan: the mechanism, with the noise found for a target.
        protected: whom the ε speak of.
        guarantees: ε after every round.
        rounds: how many rounds will be released; fewer than the plan's where a budget ends the run.
        warnings: what the owner should know, each a sentence.
    """

    plan: PrivacyPlan
    protected: Protected
    guarantees: Guarantees
    rounds: int
    warnings: tuple[str, ...]


def plan_run(config: RunConfig, ownership: Ownership) -> Planned:
    """Resolve the plan of a run.

    Raises:
        ConfigError: for a target or budget that cannot be met, or settings the strategy does not have.
        PrivacyError: for an impossible privacy parameter.
    """
    if config.privacy.strategy == "uedp" and ownership.num_entities == 0:
        raise ConfigError(
            "privacy.strategy is uedp, but the corpus has no entity; allowed: user_level, noiseless, "
            "or prepare the corpus with a tagger"
        )
    protected = Protected.of(ownership, config.privacy)
    plan = _with_noise(_untuned_plan(config, ownership.num_users), config.privacy, protected)
    guarantees = Guarantees.of(plan, protected)
    rounds = _rounds_within_budget(config.privacy, plan, guarantees)
    return Planned(plan, protected, guarantees, rounds, tuple(_warnings(config, plan, protected)))


def _untuned_plan(config: RunConfig, num_users: int) -> PrivacyPlan:
    privacy = config.privacy
    chosen: dict[str, Any] = {}
    for name, default in DEFAULTS[privacy.strategy].items():
        value = getattr(privacy, name)
        chosen[name] = default if value is None else value
    if privacy.strategy == "noiseless":
        _refuse_noise(privacy)
    return PrivacyPlan(
        strategy=privacy.strategy,
        population=privacy.population or num_users,
        rounds=config.rounds,
        delta=privacy.delta,
        **chosen,
    )


def _refuse_noise(privacy: PrivacyConfig) -> None:
    for name in ("clip_norm", "user_cap", "noise_multiplier", "target_epsilon", "epsilon_budget"):
        if getattr(privacy, name) is not None:
            raise ConfigError(f"privacy.{name} is {getattr(privacy, name)}; allowed: nothing under noiseless")


def _with_noise(plan: PrivacyPlan, privacy: PrivacyConfig, protected: Protected) -> PrivacyPlan:
    if privacy.target_epsilon is None:
        return plan
    adjacency = protected.target(privacy.target_unit)
    multiplier = accounting.calibrate_noise_multiplier(
        plan.event(), [adjacency], plan.rounds, plan.delta, privacy.target_epsilon
    )
    return replace(plan, noise_multiplier=multiplier)


def _rounds_within_budget(privacy: PrivacyConfig, plan: PrivacyPlan, guarantees: Guarantees) -> int:
    if privacy.epsilon_budget is None:
        return plan.rounds
    rounds = guarantees.rounds_within(privacy.epsilon_budget, privacy.target_unit)
    if rounds == 0:
        first = guarantees.after(1)
        epsilon = first["epsilon_user" if privacy.target_unit == "user" else "epsilon_user_entity_p95"]
        raise ConfigError(
            f"privacy.epsilon_budget is {privacy.epsilon_budget:g}; allowed: at least {epsilon:.3g}, "
            f"which the first round spends at noise_multiplier {plan.noise_multiplier:g}"
        )
    return rounds


def _warnings(config: RunConfig, plan: PrivacyPlan, protected: Protected) -> list[str]:
    if not plan.private:
        return ["noiseless protects nobody: its ε is infinite."]
    warnings = []
    if plan.delta >= 1 / plan.population:
        warnings.append(
            f"δ = {plan.delta:g} is not below 1/N = {1 / plan.population:.2g}: a mechanism that publishes one "
            "user's text outright could satisfy it."
        )
    if config.privacy.population is None:
        warnings.append("N is the corpus's number of users; the guarantee takes it as public (privacy.population).")
    if config.privacy.user_sentences == "corpus":
        warnings.append(
            f"n' = {protected.user_sentences:g} is the corpus's largest user; a user with more sentences has the "
            "unbounded ε (privacy.user_sentences)."
        )
    return warnings
