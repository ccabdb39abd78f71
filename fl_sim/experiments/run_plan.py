"""From a configuration and a corpus to the plan of a run: defaults per strategy, the noise for a target, the budget."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from fl_sim.clients.weighted_selection import entity_weights, extended_weight, num_extended, user_weights
from fl_sim.config import ConfigError, PrivacyConfig, RunConfig
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.experiments.guarantees import Guarantees, Protected, epsilon_name
from fl_sim.experiments.unused_settings import idle_settings
from fl_sim.reporting.report import format_epsilon
from fl_sim.strategies.accounting import accountant
from fl_sim.strategies.accounting.adjacency import Adjacency, PrivacyError
from fl_sim.strategies.mechanism import AdaptiveClip, PrivacyPlan
from fl_sim.strategies.published import PublishedTerms

# Rates, clips and noise that a strategy takes where the configuration leaves them out. uedp samples sentences and not
# users, because that is what makes its guarantee strong (docs/privacy.md).
DEFAULTS: dict[str, dict[str, float]] = {
    "uedp": {"q_u": 1.0, "q_e": 0.5, "q_s": 0.1, "clip_norm": 1.0, "user_cap": 2.0, "noise_multiplier": 4.0},
    "user_level": {
        "q_u": 0.05, "q_e": 1.0, "q_s": 1.0, "clip_norm": 1.0, "user_cap": 1.0, "noise_multiplier": 1.0,
    },
    "published": {
        "q_u": 0.05, "q_e": 0.5, "q_s": 1.0, "clip_norm": 0.1, "user_cap": 1.0, "noise_multiplier": 2.0,
    },
    "noiseless": {
        "q_u": 1.0, "q_e": 1.0, "q_s": 0.1, "clip_norm": math.inf, "user_cap": 1.0, "noise_multiplier": 0.0,
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


def plan_run(config: RunConfig, ownership: Ownership, noise_multiplier: float | None = None) -> Planned:
    """Resolve the plan of a run.

    Args:
        config: what is asked for.
        ownership: who owns which sentence of the training split.
        noise_multiplier: z as a run found it for its target when it began; None to find it now.

    Raises:
        ConfigError: for a target or budget that cannot be met, settings that the strategy does not have, or a corpus
            that cannot be trained on privately.
        PrivacyError: for an impossible privacy parameter.
    """
    _check_corpus(config, ownership)
    protected = Protected.of(ownership, config.privacy)
    plan = _untuned_plan(config, ownership)
    target = config.privacy.target_epsilon
    if target is not None:
        found = noise_multiplier
        if found is None:
            found = _noise_for_target(plan, target, protected.target(config.privacy.target_unit))
        plan = replace(plan, noise_multiplier=found)
    guarantees = Guarantees.of(plan, protected)
    rounds = _rounds_within_budget(config.privacy, plan, guarantees)
    warnings = _warnings(config, plan, protected, guarantees) + idle_settings(config)
    return Planned(plan, protected, guarantees, rounds, tuple(warnings))


def mechanism_of(privacy: PrivacyConfig) -> dict[str, Any]:
    """Rates, clips and noise as configured, else the strategy's default; the noise before any target is looked at."""
    given = {name: getattr(privacy, name) for name in DEFAULTS[privacy.strategy]}
    return DEFAULTS[privacy.strategy] | {name: value for name, value in given.items() if value is not None}


def _check_corpus(config: RunConfig, ownership: Ownership) -> None:
    split, population, nodes = config.corpus.train_split, config.privacy.population, config.engine.nodes
    if ownership.num_users < 2:
        raise ConfigError(f"corpus.train_split is '{split}', which has one user; allowed: a split of at least 2 users")
    strategy = config.privacy.strategy
    if strategy in ("uedp", "published") and ownership.num_entities == 0:
        raise ConfigError(
            f"privacy.strategy is {strategy}, but the split '{split}' has no entity; allowed: user_level, noiseless, "
            "or prepare the corpus with a tagger"
        )
    if population is not None and population < ownership.num_users:
        raise ConfigError(
            f"privacy.population is {population}; allowed: at least {ownership.num_users}, the users of the corpus"
        )
    if nodes is not None and nodes > ownership.num_users:
        raise ConfigError(f"engine.nodes is {nodes}; allowed: at most {ownership.num_users}, the users of the corpus")


def _untuned_plan(config: RunConfig, ownership: Ownership) -> PrivacyPlan:
    privacy = config.privacy
    if privacy.strategy == "noiseless":
        _refuse_noise(privacy)
    try:
        return PrivacyPlan(
            strategy=privacy.strategy,
            population=privacy.population or ownership.num_users,
            rounds=config.rounds,
            delta=privacy.delta,
            clipping=privacy.clipping or "sentence",
            adaptive=_adaptive_clip(privacy),
            published=_published_terms(privacy, ownership) if privacy.strategy == "published" else None,
            **mechanism_of(privacy),
        )
    except PrivacyError as error:
        raise ConfigError(f"privacy.{error}") from error


def _adaptive_clip(privacy: PrivacyConfig) -> AdaptiveClip | None:
    if privacy.clip_quantile is None:
        return None
    return AdaptiveClip(
        quantile=privacy.clip_quantile,
        learning_rate=privacy.clip_learning_rate,
        count_noise=privacy.clip_count_noise,
    )


def _published_terms(privacy: PrivacyConfig, ownership: Ownership) -> PublishedTerms:
    """Estimator, noise and weights; sums of weights that are not given are those of the corpus.

    Without a cap W_u is N. With one some user must reach it, so that max(w_u), which scales the noise, is 1 whoever
    joins or leaves.
    """
    users = privacy.population or ownership.num_users
    cap = privacy.user_weight_cap
    largest = int(ownership.sentences_per_user.max())
    if cap is not None and cap > largest:
        raise ConfigError(
            f"privacy.user_weight_cap is {cap:g}; allowed: at most {largest}, the sentences of the corpus's largest "
            "user, so that the largest weight is 1"
        )
    entities, extended = privacy.entity_weights, privacy.extended_weights
    if entities is None:
        entities = float(entity_weights(ownership, privacy.entity_weight_cap).sum())
    if extended is None:
        extended = num_extended(ownership) * extended_weight(ownership, privacy.extended_weight_cap)
    return PublishedTerms(
        estimator=privacy.estimator or "f_e_plus",
        noise=privacy.noise or "as-stated",
        user_weights=float(users if cap is None else user_weights(ownership, cap).sum()),
        entity_weights=entities,
        extended_weights=float(extended),
        sentences=ownership.num_sentences,
        sensitive_sentences=ownership.num_sentences - num_extended(ownership),
        user_cap=cap,
        entity_cap=privacy.entity_weight_cap,
        extended_cap=privacy.extended_weight_cap,
    )


def _refuse_noise(privacy: PrivacyConfig) -> None:
    for name in ("clip_norm", "user_cap", "noise_multiplier", "target_epsilon", "epsilon_budget"):
        if getattr(privacy, name) is not None:
            raise ConfigError(f"privacy.{name} is {getattr(privacy, name)}; allowed: nothing under noiseless")


def _noise_for_target(plan: PrivacyPlan, target: float, adjacency: Adjacency) -> float:
    event, meant = plan.event(), [plan.exposed(adjacency)]
    try:
        found = accountant.calibrate_noise_multiplier(event, meant, plan.rounds, plan.delta, target)
        # Of the published algorithm the accountant sees a multiple of z, which grows in step with it.
        return found * plan.noise_multiplier / event.noise_multiplier
    except PrivacyError as error:
        raise ConfigError(f"privacy.target_epsilon is {target:g}; allowed: what noise can reach ({error})") from error


def _rounds_within_budget(privacy: PrivacyConfig, plan: PrivacyPlan, guarantees: Guarantees) -> int:
    if privacy.epsilon_budget is None:
        return plan.rounds
    rounds = guarantees.rounds_within(privacy.epsilon_budget, privacy.target_unit)
    if rounds == 0:
        first = guarantees.after(1)[epsilon_name(privacy.target_unit)]
        raise ConfigError(
            f"privacy.epsilon_budget is {privacy.epsilon_budget:g}; allowed: at least {format_epsilon(first)}, "
            f"which the first round spends at noise_multiplier {plan.noise_multiplier:g}"
        )
    return rounds


def _published_warnings(privacy: PrivacyConfig, plan: PrivacyPlan) -> list[str]:
    terms = plan.published
    if terms is None:
        return []
    warnings = [
        "epsilon_as_published is what the paper's accountant says of these settings. It is a claim and no guarantee "
        "(docs/privacy.md, section 3)."
    ]
    if terms.noise == "as-coded":
        warnings.append(
            f"privacy.noise is as-coded: the noise is {plan.noise_per_clip:.2g} of a user's clip where the paper "
            f"states {plan.noise_multiplier * (plan.expected_cohort + 1):.4g}, and protects nobody."
        )
    if None in (privacy.entity_weights, privacy.extended_weights):
        warnings.append(
            "W_e and W_s are the corpus's; the guarantee takes them as public (privacy.entity_weights, "
            "privacy.extended_weights)."
        )
    if terms.weights_from_data:
        warnings.append(
            "the weights depend on other users' data, so that every ε is that of an entity which all users mention."
        )
    return warnings


def _warnings(config: RunConfig, plan: PrivacyPlan, protected: Protected, guarantees: Guarantees) -> list[str]:
    if not plan.private:
        return ["noiseless protects nobody: its ε is infinite."]
    warnings = _published_warnings(config.privacy, plan)
    if plan.delta >= 1 / plan.population:
        warnings.append(
            f"δ = {plan.delta:g} is not below 1/N = {1 / plan.population:.2g}: a mechanism that publishes one "
            "user's text outright could satisfy it."
        )
    if math.isinf(guarantees.after(plan.rounds)["epsilon_user"]):
        warnings.append(f"no finite ε can be computed at δ = {plan.delta:g}: nothing is promised (privacy.delta).")
    if config.privacy.population is None:
        warnings.append("N is the corpus's number of users; the guarantee takes it as public (privacy.population).")
    if config.privacy.user_sentences == "corpus":
        warnings.append(
            f"n' = {protected.user_sentences:g} is the corpus's largest user; a user with more sentences has the "
            "unbounded ε (privacy.user_sentences)."
        )
    elif protected.user_sentences < protected.largest_user:
        warnings.append(
            f"n' = {protected.user_sentences:g} is below the corpus's largest user ({protected.largest_user} "
            "sentences): users with more than n' have the unbounded ε (privacy.user_sentences)."
        )
    return warnings
