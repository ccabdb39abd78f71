"""The plan of a run, from its configuration and corpus: mechanism, noise for a target, rounds within a budget.

>>> import numpy as np
>>> offsets, entities = np.arange(0, 9, 4), np.zeros(8, dtype=np.int32)  # 2 users with 4 sentences on entity 0 each
>>> ownership = Ownership(offsets, np.arange(9), entities, num_entities=1)
>>> planned = plan_run(RunConfig.from_mapping({"rounds": 2, "privacy.noise_multiplier": 50.0}), ownership)
>>> planned.rounds, planned.guarantees.after(2)["epsilon_user"] < 1
(2, True)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from fl_sim.clients.weighted_selection import num_extended, sentences_per_entity
from fl_sim.config import ConfigError, PrivacyConfig, RunConfig
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.experiments.guarantees import NOTHING_EARLIER, Guarantees, Protected, epsilon_name
from fl_sim.experiments.lineage import Earlier, Unit
from fl_sim.experiments.unused_settings import idle_settings
from fl_sim.formats import format_epsilon
from fl_sim.strategies.accounting.adjacency import PrivacyError
from fl_sim.strategies.mechanism import CorpusCounts, PrivacyPlan, Settings
from fl_sim.strategies.registry import built_in_strategies, load_strategy


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan and the guarantees of a run.

    Attributes:
        plan: the mechanism, with the noise for a target filled in.
        protected: the user and the entity that ε protects.
        guarantees: ε after every round.
        rounds: number of rounds to release; fewer than the plan's if a budget ends the run.
        warnings: for the owner, each a sentence.
        earlier: the releases on which the initial model rests.
    """

    plan: PrivacyPlan
    protected: Protected
    guarantees: Guarantees
    rounds: int
    warnings: tuple[str, ...]
    earlier: Earlier = NOTHING_EARLIER


def plan_run(
    config: RunConfig,
    ownership: Ownership,
    noise_multiplier: float | None = None,
    earlier: Earlier = NOTHING_EARLIER,
) -> Planned:
    """Return the plan of a run.

    Args:
        config: of the run.
        ownership: users, sentences and entities of the training split.
        noise_multiplier: z that a resumed run recorded for its target; None to calibrate it now.
        earlier: the releases on which the initial model rests.

    Raises:
        ConfigError: for a target or budget that cannot be met, settings that the strategy does not have, or a corpus
            that cannot be trained on privately.
        PrivacyError: for a privacy parameter that is not allowed.
    """
    _check_corpus(config, ownership)
    protected = Protected.of(ownership, config.privacy)
    plan = _untuned_plan(config, ownership)
    target = config.privacy.target_epsilon
    if target is not None:
        if noise_multiplier is None:
            noise_multiplier = _noise_for_target(plan, target, config.privacy.target_unit, protected, earlier)
        plan = plan.with_noise(noise_multiplier)
    guarantees = Guarantees.of(plan, protected, earlier)
    rounds = _rounds_within_budget(config.privacy, plan, guarantees)
    warnings = (*earlier.warnings(), *_warnings(config, plan, protected, guarantees), *idle_settings(config))
    return Planned(plan, protected, guarantees, rounds, warnings, earlier)


def _check_corpus(config: RunConfig, ownership: Ownership) -> None:
    split, population, nodes = config.corpus.train_split, config.privacy.population, config.engine.nodes
    if ownership.num_users < 2:
        raise ConfigError(f"corpus.train_split is '{split}', which has one user; allowed: a split of at least 2 users")
    strategy = config.privacy.strategy
    if load_strategy(strategy).needs_entities and ownership.num_entities == 0:
        others = [name for name, other in built_in_strategies().items() if not other.needs_entities]
        raise ConfigError(
            f"privacy.strategy is {strategy}, but the split '{split}' has no entity; allowed: {', '.join(others)}, "
            "or prepare the corpus with a tagger"
        )
    if population is not None and population < ownership.num_users:
        raise ConfigError(
            f"privacy.population is {population}; allowed: at least {ownership.num_users}, the users of the corpus"
        )
    if nodes is not None and nodes > ownership.num_users:
        raise ConfigError(f"engine.nodes is {nodes}; allowed: at most {ownership.num_users}, the users of the corpus")


def _untuned_plan(config: RunConfig, ownership: Ownership) -> PrivacyPlan:
    """Return the plan with the configured noise multiplier, or the strategy's default."""
    privacy = config.privacy
    settings = Settings(
        strategy=privacy.strategy,
        population=privacy.population or ownership.num_users,
        privacy=dict(privacy),
        options=privacy.options,
        local=config.local,
        corpus=CorpusCounts(
            sentences_per_user=ownership.sentences_per_user,
            sentences_per_entity=sentences_per_entity(ownership),
            sentences=ownership.num_sentences,
            sentences_without_entity=num_extended(ownership),
        ),
    )
    try:
        mechanism = load_strategy(privacy.strategy).from_settings(settings)
        if mechanism.event() is None:
            _refuse_targets(privacy)
        return PrivacyPlan(mechanism=mechanism, rounds=config.rounds, delta=privacy.delta)
    except PrivacyError as error:
        raise ConfigError(f"privacy.{error}") from error


def _refuse_targets(privacy: PrivacyConfig) -> None:
    """Refuse a target or a budget under a strategy without a guarantee."""
    for name in ("target_epsilon", "epsilon_budget"):
        if getattr(privacy, name) is not None:
            raise PrivacyError(f"{name} is {getattr(privacy, name)}; allowed: nothing under {privacy.strategy}")


def _noise_for_target(plan: PrivacyPlan, target: float, unit: str, protected: Protected, earlier: Earlier) -> float:
    try:
        return earlier.noise_for(plan, target, epsilon_name(unit), Unit(protected.target(unit)))
    except PrivacyError as error:
        raise ConfigError(f"privacy.target_epsilon is {target:g}; allowed: what noise can reach ({error})") from error


def _rounds_within_budget(privacy: PrivacyConfig, plan: PrivacyPlan, guarantees: Guarantees) -> int:
    if privacy.epsilon_budget is None:
        return plan.rounds
    rounds = guarantees.rounds_within(privacy.epsilon_budget, privacy.target_unit)
    if rounds == 0:
        before, first = (guarantees.after(count)[epsilon_name(privacy.target_unit)] for count in (0, 1))
        together = f" together with the {format_epsilon(before)} of the initial model" if before else ""
        raise ConfigError(
            f"privacy.epsilon_budget is {privacy.epsilon_budget:g}; allowed: at least {format_epsilon(first)}, "
            f"which the first round spends at noise_multiplier {plan.mechanism.noise_multiplier:g}{together}"
        )
    return rounds


def _warnings(config: RunConfig, plan: PrivacyPlan, protected: Protected, guarantees: Guarantees) -> Iterator[str]:
    yield from plan.mechanism.describe().warnings
    if plan.mechanism.event() is None:
        return
    population = plan.mechanism.population
    if plan.delta >= 1 / population:
        yield (
            f"δ = {plan.delta:g} is not below 1/N = {1 / population:.2g}: a mechanism that publishes one user's text "
            "outright could satisfy it."
        )
    if math.isinf(guarantees.after(plan.rounds)["epsilon_user"]):
        yield f"no finite ε can be computed at δ = {plan.delta:g}: nothing is guaranteed (privacy.delta)."
    if config.privacy.population is None:
        yield "N is the corpus's number of users; the guarantee takes it as public (privacy.population)."
    if config.privacy.user_sentences == "corpus":
        yield (
            f"n' = {protected.user_sentences:g} is the corpus's largest user; a user with more sentences has the "
            "unbounded ε (privacy.user_sentences)."
        )
    elif protected.user_sentences < protected.largest_user:
        yield (
            f"n' = {protected.user_sentences:g} is below the corpus's largest user ({protected.largest_user} "
            "sentences): users with more than n' have the unbounded ε (privacy.user_sentences)."
        )
