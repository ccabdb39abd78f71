"""The plan of a run, from its configuration and corpus: mechanism, noise for a target, rounds within a budget.

>>> idle_settings(RunConfig.from_mapping({"server.optimizer": "adam", "server.momentum": 0.9}))
['server.momentum has no effect: server.optimizer is adam.']
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import cast

import numpy as np
from pydantic import BaseModel

from fl_sim.clients.models.architectures.model_source import source_of
from fl_sim.clients.selection import num_extended, sentences_per_entity
from fl_sim.config import ConfigError, RunConfig
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.experiments.plan.guarantees import NOTHING_EARLIER, Declared, EnforcedBounds, EpsilonCurves, Units
from fl_sim.experiments.plan.lineage import Earlier
from fl_sim.formats import format_epsilon, format_number
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.accounting.adjacency import PrivacyError
from fl_sim.strategies.accounting.guarantee import Guarantee
from fl_sim.strategies.mechanism import CorpusCounts, Mechanism, PrivacyPlan, Settings
from fl_sim.strategies.primitives.limits import SMALLEST_NOISE, require
from fl_sim.strategies.privacy_config import GaussianSumConfig, PrivacyConfig
from fl_sim.strategies.registry import built_in_strategies, load_strategy, target_unit

_SIZES = ("hidden", "layers", "heads", "embedding")
_DROPOUT = ("drop_embedding", "drop_input", "drop_hidden", "drop_output", "drop_weight")
_RAY = ("cpus_per_node", "gpus_per_node", "num_cpus", "num_gpus", "address")


def idle_settings(config: RunConfig) -> list[str]:
    """Return one sentence per reason why settings that differ from their default have no effect."""
    return [
        f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} no effect: {reason}."
        for section, fields, reason in _unread(config)
        if (names := [f"{section}.{name}" for name in fields if _is_changed(getattr(config, section), name)])
    ]


def _unread(config: RunConfig) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Yield sections with their fields that this configuration does not read, and the reason."""
    strategy = config.privacy.strategy
    yield from load_strategy(strategy).unread(strategy, config.local)
    if config.server.optimizer == "adam":
        yield "server", ("momentum",), "server.optimizer is adam"
    else:
        yield "server", ("beta_1", "beta_2", "stabilizer"), "server.optimizer is sgd"
    if config.server.schedule == "constant":
        yield "server", ("final_share",), "server.schedule is constant"
    if config.averaging.kind != "exponential":
        yield "averaging", ("decay",), f"averaging.kind is {config.averaging.kind}"
    if config.averaging.kind != "tail":
        yield "averaging", ("tail",), f"averaging.kind is {config.averaging.kind}"
    if isinstance(config.privacy, GaussianSumConfig) and config.privacy.clip_quantile is None:
        yield "privacy", ("clip_learning_rate", "clip_count_noise"), "privacy.clip_quantile is not given"
    read = source_of(config.model.name).settings
    unread = tuple(name for name in _SIZES if name not in read)
    yield "model", unread, f"model.name is {config.model.name}" if read else "model.name has sizes of its own"
    if config.model.dropout == 0:
        yield "model", _DROPOUT, "model.dropout is 0"
    if config.task == "next-word":
        yield "model", ("pooling", "normalize"), "task is next-word"
    keeps_features = config.task == "classification" and config.model.tune == "head"
    if not keeps_features and config.model.lora_layers is None:
        yield "corpus", ("feature_cache",), "the model reads the sentences in every round"
    if config.model.lora_rank == 0:
        yield "model", ("lora_alpha", "lora_targets"), "model.lora_rank is 0"
    if config.engine.name == "inline":
        yield "engine", _RAY, "engine.name is inline"
    if config.privacy.target_epsilon is None and config.privacy.epsilon_budget is None:
        yield "privacy", ("target_unit",), "neither privacy.target_epsilon nor privacy.epsilon_budget is given"


def _is_changed(values: BaseModel, name: str) -> bool:
    return bool(getattr(values, name) != getattr(type(values)(), name))


_OTHER = CorpusCounts(np.ones(1, np.int64), np.ones(1, np.int64), sentences=1, sentences_without_entity=0)
"""Counts of another corpus: a strategy must not build its mechanism from them."""

_MANY_PUBLIC = 0.5  # share of mentions from which on a list of public names is worth a warning


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan and the guarantees of a run.

    Attributes:
        plan: the mechanism, with the noise for a target filled in.
        rounds: number of rounds to release; fewer than the plan's if a budget ends the run.
        warnings: for the owner, each a sentence.
    """

    plan: PrivacyPlan
    bounds: EnforcedBounds
    guarantees: EpsilonCurves
    rounds: int
    warnings: tuple[str, ...]
    earlier: Earlier = NOTHING_EARLIER


def plan_run(
    config: RunConfig,
    ownership: Ownership,
    noise_multiplier: float | None = None,
    declared: Declared | None = None,
    earlier: Earlier = NOTHING_EARLIER,
) -> Planned:
    """Return the plan of a run.

    Args:
        noise_multiplier: z that a resumed run recorded for its target; None to calibrate it now.

    Raises:
        CorpusError: the corpus exceeds its declared counts.
        ConfigError: for a target or budget that cannot be met, settings that the strategy does not have, a corpus that
            cannot be trained on privately, or earlier releases that this run's guarantee does not cover.
        PrivacyError: for a privacy parameter that is not allowed.
    """
    declared = declared or Declared()
    population = config.privacy.population or (declared.counts.population if declared.counts else None)
    bounds = EnforcedBounds.of(config.privacy, ownership, declared)
    earlier.check_guarantee(bounds.guarantee)
    _check_corpus(config, bounds.ownership)
    _check_target(config, has_entities=bounds.has_entities)
    _check_population(config.privacy, bounds.counts.population)
    plan = untuned_plan(config, ownership, population)
    _check_bounds(config.privacy, plan, bounds.guarantee)
    plan, rescaled = _with_larger_cohort(config.privacy, plan)
    if config.privacy.target_epsilon is not None:
        if noise_multiplier is None:
            noise_multiplier = noise_for_target(plan, config.privacy, _target(config.privacy, plan, bounds)[1], earlier)
        plan = plan.with_noise(noise_multiplier)
    guarantees = EpsilonCurves.of(plan, bounds.units(plan.mechanism), earlier)
    rounds = rounds_within_budget(config.privacy, plan, bounds, guarantees)
    warnings = (*rescaled, *earlier.warnings(), *_warnings(config, plan, bounds, guarantees), *idle_settings(config))
    return Planned(plan, bounds, guarantees, rounds, warnings, earlier)


def check_settings(config: RunConfig, ownership: Ownership) -> None:
    """Check corpus, strategy and settings of a run as far as no ε has to be computed; arguments as of :func:`plan_run`.

    Raises:
        ConfigError, PrivacyError: as :func:`plan_run`.
    """
    _check_corpus(config, ownership)
    _check_target(config, has_entities=ownership.num_entities > 0)
    _check_population(config.privacy, ownership.num_users)
    untuned_plan(config, ownership)


def _check_population(privacy: PrivacyConfig, users: int) -> None:
    """Refuse an N below the users, absent ones whose counts are declared included: else a refusal told who is there."""
    if privacy.population is not None and privacy.population < users:
        raise ConfigError(
            f"privacy.population is {privacy.population}; allowed: at least {users}, the users of the corpus"
            f"{' and of its declared counts' if privacy.counts else ''}"
        )


def _check_corpus(config: RunConfig, ownership: Ownership) -> None:
    split, nodes = config.corpus.train_split, config.engine.nodes
    if ownership.num_users < 2:
        raise ConfigError(f"corpus.train_split is '{split}', which has one user; allowed: a split of at least 2 users")
    strategy = config.privacy.strategy
    if load_strategy(strategy).needs_entities and ownership.num_entities == 0:
        others = [name for name, other in built_in_strategies().items() if not other.needs_entities]
        raise ConfigError(
            f"privacy.strategy is {strategy}, but the split '{split}' has no entity; allowed: {', '.join(others)}, "
            "or prepare the corpus with a tagger"
        )
    if nodes is not None and nodes > ownership.num_users:
        raise ConfigError(f"engine.nodes is {nodes}; allowed: at most {ownership.num_users}, the users of the corpus")


def _check_target(config: RunConfig, *, has_entities: bool) -> None:
    for name in ("target_epsilon", "epsilon_budget"):
        limit = getattr(config.privacy, name)
        if limit is not None and target_unit(config.privacy) == "user_entity" and not has_entities:
            raise ConfigError(
                f"privacy.{name} is {limit:g} for any user with any entity, but the split "
                f"'{config.corpus.train_split}' has no entity that is not public; allowed: privacy.target_unit = user"
            )


def untuned_plan(config: RunConfig, ownership: Ownership, population: int | None = None) -> PrivacyPlan:
    """Return the plan with the configured noise multiplier, or the strategy's default.

    Args:
        population: N; None for the configured one, or the users of the split.
    """
    privacy = config.privacy
    settings = Settings(
        privacy=privacy,
        local=config.local,
        server=config.server,
        population=population or privacy.population or ownership.num_users,
        corpus=CorpusCounts(
            sentences_per_user=ownership.sentences_per_user,
            sentences_per_entity=sentences_per_entity(ownership),
            sentences=ownership.num_sentences,
            sentences_without_entity=num_extended(ownership),
        ),
    )
    try:
        mechanism = load_strategy(privacy.strategy).from_settings(settings)
        if not privacy.settings_from_corpus:
            other = load_strategy(privacy.strategy).from_settings(replace(settings, corpus=_OTHER))
            from_corpus = _public_settings(mechanism) != _public_settings(other)
            allowed = "settings that depend on no counts of the corpus, or settings_from_corpus = true"
            require(not from_corpus, "strategy", privacy.strategy, allowed)
        event = mechanism.event()
        of_round, kind = event is None or isinstance(event, RoundEvent), type(event).__name__
        require(of_round, "strategy", privacy.strategy, f"one whose event is a RoundEvent or None, not a {kind}")
        for name in ("target_epsilon", "epsilon_budget") if event is None else ():
            if getattr(privacy, name) is not None:
                raise PrivacyError(f"{name} is {getattr(privacy, name)}; allowed: nothing under {privacy.strategy}")
        return PrivacyPlan(mechanism=mechanism, rounds=config.rounds, delta=privacy.delta)
    except PrivacyError as error:
        raise ConfigError(f"privacy.{error}") from error


def _public_settings(mechanism: Mechanism) -> tuple[object, ...]:
    """Return what a round shows of a mechanism."""
    clip = mechanism.clip_norm
    rule = json.dumps(asdict(mechanism.client_rule(clip)), default=lambda field: type(field).__name__)
    return mechanism.record(), mechanism.event(), rule, mechanism.noise_std(clip), mechanism.denominator


def _check_bounds(privacy: PrivacyConfig, plan: PrivacyPlan, guarantee: Guarantee) -> None:
    """Refuse bounds that the mechanism cannot use."""
    clips = plan.mechanism.clips_sentences
    if guarantee.known == "counts" and guarantee.entity_bound is not None and not clips:
        raise ConfigError(
            f"privacy.entity_bound is {guarantee.entity_bound} under {privacy.strategy} without a clip on every "
            "sentence; allowed: privacy.known = graph, because by counts all users who mention an entity keep a weight"
        )
    if clips and guarantee.entity_users is not None and guarantee.entity_bound is None:
        raise ConfigError(
            f"privacy.entity_users is {guarantee.entity_users} without privacy.entity_bound; allowed: both, because "
            f"{privacy.strategy} bounds sentences"
        )


def _with_larger_cohort(privacy: PrivacyConfig, plan: PrivacyPlan) -> tuple[PrivacyPlan, tuple[str, ...]]:
    """Return the plan with the noise of rounds of ``privacy.noise_cohort`` users, and a warning that says so.

    The sum of C users carries C/(q_u·N) times the signal of this run's q_u·N, under the same noise z·β. So this run
    adds z·β·q_u·N/C, and its noise-to-signal ratio is that of a round of C users (as in pfl-research). The plan has the
    noise multiplier that is really added, so every ε of the run holds for what it releases.

    Raises:
        ConfigError: the run's own rounds expect more users than C, or would have hardly any noise.
    """
    if not isinstance(privacy, GaussianSumConfig) or privacy.noise_cohort is None:
        return plan, ()
    cohort, z = privacy.noise_cohort, plan.mechanism.noise_multiplier
    share = plan.mechanism.expected_cohort / cohort
    if share > 1:
        raise ConfigError(
            f"privacy.noise_cohort is {cohort}; allowed: at least {math.ceil(plan.mechanism.expected_cohort)}, the "
            "expected users of a round of this run"
        )
    if z * share < SMALLEST_NOISE:
        raise ConfigError(
            f"privacy.noise_cohort is {cohort}; allowed: at most {math.floor(cohort * z * share / SMALLEST_NOISE)} at "
            f"z {z:.4g}, so that the run's own noise multiplier is at least {SMALLEST_NOISE:g}"
        )
    words = (
        f"the noise is {share:.3g} of z·ŵ·c, as for rounds of {format_number(cohort)} users (privacy.noise_cohort); "
        "every ε of this run is that of this smaller noise."
    )
    return plan.with_noise(z * share), (words,)


def noise_for_target(
    plan: PrivacyPlan, privacy: PrivacyConfig, units: Units, earlier: Earlier = NOTHING_EARLIER
) -> float:
    """Return the smallest noise multiplier at which every unit of a configured target meets it.

    There is no unit if no bound supports the target.

    Raises:
        ConfigError: no bound supports the target, or no noise meets it.
    """
    _check_supported("target_epsilon", privacy, plan, units)
    target = cast(float, privacy.target_epsilon)
    try:
        return max(earlier.noise_for(plan, target, name, unit) for name, unit in units.items())
    except PrivacyError as error:
        raise ConfigError(f"privacy.target_epsilon is {target:g}; allowed: what noise can reach ({error})") from error


def _target(privacy: PrivacyConfig, plan: PrivacyPlan, bounds: EnforcedBounds) -> tuple[str, Units]:
    mechanism = plan.mechanism
    return bounds.target(
        target_unit(privacy), clips_sentences=mechanism.clips_sentences, population=mechanism.population
    )


def _check_supported(name: str, privacy: PrivacyConfig, plan: PrivacyPlan, units: Units) -> None:
    """Refuse a target or budget that no public bound supports."""
    if units:
        return
    bound = "entity_bound" if plan.mechanism.clips_sentences else "entity_users"
    raise ConfigError(
        f"privacy.{name} is {getattr(privacy, name):g} for any user with any entity, but no bound on entities is set; "
        f"allowed: privacy.{bound}, privacy.target_unit = user, or privacy.settings_from_corpus = true (for the 95th "
        "percentile of this corpus)"
    )


def rounds_within_budget(
    privacy: PrivacyConfig, plan: PrivacyPlan, bounds: EnforcedBounds, guarantees: EpsilonCurves
) -> int:
    """Return how many rounds of a plan the ε budget admits; all without one, and ConfigError if not even the first."""
    if privacy.epsilon_budget is None:
        return plan.rounds
    metric, units = _target(privacy, plan, bounds)
    _check_supported("epsilon_budget", privacy, plan, units)
    rounds = guarantees.rounds_within(privacy.epsilon_budget, metric)
    if rounds == 0:
        before, first = (guarantees.after(count)[metric] for count in (0, 1))
        together = f" together with the {format_epsilon(before)} of the initial model" if before else ""
        raise ConfigError(
            f"privacy.epsilon_budget is {privacy.epsilon_budget:g}; allowed: at least {format_epsilon(first)}, "
            f"which the first round spends at noise_multiplier {plan.mechanism.noise_multiplier:g}{together}"
        )
    return rounds


def _warnings(config: RunConfig, plan: PrivacyPlan, bounds: EnforcedBounds, guarantees: EpsilonCurves) -> Iterator[str]:
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
        already = math.isinf(guarantees.after(0)["epsilon_user"])  # whatever the run itself releases
        whose, key = (" of the initial model", "model.name") if already else ("", "privacy.delta")
        yield f"no finite ε{whose} can be computed at δ = {plan.delta:g}: nothing is guaranteed ({key})."
    listed = bounds.share_of_public_names
    if listed >= _MANY_PUBLIC:
        yield f"the public names are {listed:.0%} of the corpus's mentions: none of them is protected."
    if config.privacy.settings_from_corpus:
        yield "settings chosen on this corpus: not covered by ε (privacy.settings_from_corpus)."
    elif config.privacy.population is None:
        yield "N is the corpus's number of users, which its counts make public (privacy.population)."
    if not bounds.guarantee.covers_any_entity and load_strategy(config.privacy.strategy).needs_entities:
        yield "no bound on entities is enforced, so ε of any user with any entity is infinite (privacy.entity_bound)."
