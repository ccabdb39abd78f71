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
from typing import cast

from fl_sim.clients.selection import num_extended, sentences_per_entity
from fl_sim.config import ConfigError, PrivacyConfig, RunConfig
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.experiments.plan.enforced_bounds import DeclaredNames, EnforcedBounds
from fl_sim.experiments.plan.guarantees import NOTHING_EARLIER, Guarantees, Protected, unit_names
from fl_sim.experiments.plan.larger_population import Forecast, LargerPopulation
from fl_sim.experiments.plan.lineage import Earlier
from fl_sim.experiments.plan.unused_settings import idle_settings
from fl_sim.formats import format_epsilon
from fl_sim.strategies.accounting.adjacency import PrivacyError
from fl_sim.strategies.accounting.guarantee import Guarantee, ProtectedUnit
from fl_sim.strategies.mechanism import CorpusCounts, PrivacyPlan, Settings
from fl_sim.strategies.registry import built_in_strategies, load_strategy

_MANY_PUBLIC = 0.5  # share of mentions from which on a list of public names is worth a warning


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan and the guarantees of a run.

    Attributes:
        plan: the mechanism, with the noise for a target filled in.
        bounds: what users and entities contribute at most, and how the corpus keeps it.
        protected: the user and the entity that ε protects.
        guarantees: ε after every round.
        rounds: number of rounds to release; fewer than the plan's if a budget ends the run.
        warnings: for the owner, each a sentence.
        earlier: the releases on which the initial model rests.
        forecast: ε of a training on a larger population, whose noise-to-signal ratio this run has; None without one.
    """

    plan: PrivacyPlan
    bounds: EnforcedBounds
    protected: Protected
    guarantees: Guarantees
    rounds: int
    warnings: tuple[str, ...]
    earlier: Earlier = NOTHING_EARLIER
    forecast: Forecast | None = None


def plan_run(
    config: RunConfig,
    ownership: Ownership,
    noise_multiplier: float | None = None,
    names: DeclaredNames | None = None,
    earlier: Earlier = NOTHING_EARLIER,
    order_seed: int | None = None,
) -> Planned:
    """Return the plan of a run.

    Args:
        config: of the run.
        ownership: users, sentences and entities of the training split.
        noise_multiplier: z that a resumed run recorded for its target; None to calibrate it now.
        names: the entities that the owner declares public, and public weights; None for none.
        earlier: the releases on which the initial model rests.
        order_seed: of a resumed run with secure noise and a private mention graph (:meth:`EnforcedBounds.of`).

    Raises:
        ConfigError: for a target or budget that cannot be met, settings that the strategy does not have, or a corpus
            that cannot be trained on privately.
        PrivacyError: for a privacy parameter that is not allowed.
    """
    _check_corpus(config, ownership)
    bounds = EnforcedBounds.of(config.privacy, ownership, config.seed, names or DeclaredNames(), order_seed)
    protected = Protected.of(bounds, settings_from_corpus=config.privacy.settings_from_corpus)
    plan = untuned_plan(config, ownership)
    _check_bounds(config.privacy, plan, bounds.guarantee)
    larger = _larger_population(config.privacy, plan, earlier)
    if noise_multiplier is None or config.privacy.target_epsilon is None:
        noise_multiplier = _noise_of_run(plan, config.privacy, protected, earlier, larger)
    plan = plan.with_noise(noise_multiplier)
    guarantees = Guarantees.of(plan, protected, earlier)
    rounds = _rounds_within_budget(config.privacy, plan, protected, guarantees)
    forecast = larger.forecast(plan, protected, rounds) if larger else None
    rescaled = (forecast.in_words(),) if forecast else ()
    warnings = (*rescaled, *earlier.warnings(), *_warnings(config, plan, bounds, guarantees), *idle_settings(config))
    return Planned(plan, bounds, protected, guarantees, rounds, warnings, earlier, forecast)


def check_settings(config: RunConfig, ownership: Ownership) -> None:
    """Check corpus, strategy and settings of a run as far as no ε has to be computed; arguments as of :func:`plan_run`.

    Raises:
        ConfigError, PrivacyError: as :func:`plan_run`.
    """
    _check_corpus(config, ownership)
    untuned_plan(config, ownership)


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


def untuned_plan(config: RunConfig, ownership: Ownership) -> PrivacyPlan:
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


def _check_bounds(privacy: PrivacyConfig, plan: PrivacyPlan, guarantee: Guarantee) -> None:
    """Refuse bounds that the mechanism cannot use."""
    event = plan.mechanism.event()
    clips = event is not None and event.clips_sentences
    if guarantee.bound_by == "weights" and not clips:
        raise ConfigError(
            f"privacy.entity_bound_by is weights under {privacy.strategy}; allowed: with a clip on every sentence, "
            "because all users who mention an entity keep a weight"
        )
    if clips and guarantee.entity_users is not None and guarantee.entity_bound is None:
        raise ConfigError(
            f"privacy.entity_users is {guarantee.entity_users} without privacy.entity_bound; allowed: both, because "
            f"{privacy.strategy} bounds sentences"
        )


def _larger_population(privacy: PrivacyConfig, plan: PrivacyPlan, earlier: Earlier) -> LargerPopulation | None:
    """Return the larger population to whose rounds the noise is rescaled; None without one."""
    if privacy.noise_cohort is None:
        return None
    if earlier.composed:
        raise ConfigError(
            f"privacy.noise_cohort is {privacy.noise_cohort} with an initial model that a private run trained; "
            "allowed: a public initial model, because a forecast has no earlier releases"
        )
    return LargerPopulation.of(plan, privacy.noise_cohort)


def _noise_of_run(
    plan: PrivacyPlan, privacy: PrivacyConfig, protected: Protected, earlier: Earlier, larger: LargerPopulation | None
) -> float:
    """Return the noise multiplier that a run adds: as configured or for its target, rescaled to a larger population."""
    noise_multiplier = plan.mechanism.noise_multiplier
    if privacy.target_epsilon is not None:
        noise_multiplier = noise_for_target(larger.plan if larger else plan, privacy, protected, earlier)
    return larger.noise_of_run(noise_multiplier) if larger else noise_multiplier


def noise_for_target(plan: PrivacyPlan, privacy: PrivacyConfig, protected: Protected, earlier: Earlier) -> float:
    units = _target_units("target_epsilon", privacy, plan, protected)
    named = unit_names({protected.target_name(privacy.target_unit, plan.mechanism): units})
    target = cast(float, privacy.target_epsilon)
    try:
        return max(earlier.noise_for(plan, target, name, unit) for name, unit in named.items())
    except PrivacyError as error:
        raise ConfigError(f"privacy.target_epsilon is {target:g}; allowed: what noise can reach ({error})") from error


def _target_units(
    name: str, privacy: PrivacyConfig, plan: PrivacyPlan, protected: Protected
) -> tuple[ProtectedUnit, ...]:
    """Return the units of a target or budget; refuse one that no public bound supports."""
    units = protected.targets(privacy.target_unit, plan.mechanism)
    if not units:
        bound = "entity_bound" if "clipping" in plan.mechanism.keys else "entity_users"
        raise ConfigError(
            f"privacy.{name} is {getattr(privacy, name):g} for any user with any entity, but no bound on entities is "
            f"set; allowed: privacy.{bound}, privacy.target_unit = user, or privacy.settings_from_corpus = true (for "
            "the 95th percentile of this corpus)"
        )
    return units


def _rounds_within_budget(
    privacy: PrivacyConfig, plan: PrivacyPlan, protected: Protected, guarantees: Guarantees
) -> int:
    if privacy.epsilon_budget is None:
        return plan.rounds
    _target_units("epsilon_budget", privacy, plan, protected)
    name = protected.target_name(privacy.target_unit, plan.mechanism)
    rounds = guarantees.rounds_within(privacy.epsilon_budget, name)
    if rounds == 0:
        before, first = (guarantees.after(count)[name] for count in (0, 1))
        together = f" together with the {format_epsilon(before)} of the initial model" if before else ""
        raise ConfigError(
            f"privacy.epsilon_budget is {privacy.epsilon_budget:g}; allowed: at least {format_epsilon(first)}, "
            f"which the first round spends at noise_multiplier {plan.mechanism.noise_multiplier:g}{together}"
        )
    return rounds


def _warnings(config: RunConfig, plan: PrivacyPlan, bounds: EnforcedBounds, guarantees: Guarantees) -> Iterator[str]:
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
    listed = bounds.share_of_public_names
    if listed >= _MANY_PUBLIC:
        yield f"the public names are {listed:.0%} of the corpus's mentions: none of them is protected."
    if config.privacy.settings_from_corpus:
        yield "settings chosen on this corpus: not covered by ε (privacy.settings_from_corpus)."
    elif config.privacy.population is None:
        yield "N is the corpus's number of users, which a public mention graph makes public (privacy.population)."
    if not bounds.guarantee.covers_any_entity and load_strategy(config.privacy.strategy).needs_entities:
        yield "no bound on entities is enforced, so ε of any user with any entity is infinite (privacy.entity_bound)."
