"""The plan of a run, from its configuration and corpus: mechanism, noise for a target, rounds within a budget.

First warnings about settings that were changed and have no effect; then the noise of a larger population, with the ε
that a training there would have.

A run on few users may show what a training on many would reach (``privacy.noise_cohort``, as in pfl-research). The
sum of C users carries C/(q_u·N) times the signal of this run's q_u·N, under the same noise z·β. So this run adds
z·β·q_u·N/C, and its noise-to-signal ratio is that of a round of C users, from a population of C/q_u at the same rates.

Guarantee: none by this module. The plan of such a run has the noise multiplier z·q_u·N/C that is really added, so its
ledger, and every ε that is recorded or printed as one, hold for what it releases. ε at z is a forecast: it is the ε of
a training that did not take place.

>>> idle_settings(RunConfig.from_mapping({"server.optimizer": "adam", "server.momentum": 0.9}))
['server.momentum has no effect: server.optimizer is adam.']

>>> from fl_sim.strategies.user_level import UserLevelDP
>>> rates = {"q_u": 0.05, "q_e": 1.0, "q_s": 1.0, "clip_norm": 1.0, "user_cap": 1.0}
>>> own = PrivacyPlan(mechanism=UserLevelDP(population=1000, noise_multiplier=1.0, **rates), rounds=10, delta=1e-5)
>>> larger = LargerPopulation.of(own, noise_cohort=500)
>>> larger.plan.mechanism.population, larger.noise_share
(10000, 0.1)

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
from dataclasses import dataclass, replace
from typing import Any, cast

from pydantic import BaseModel

from fl_sim.clients.models.architectures.model_source import source_of
from fl_sim.clients.selection import num_extended, sentences_per_entity
from fl_sim.config import ConfigError, RunConfig
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.experiments.plan.guarantees import (
    NOTHING_EARLIER,
    DeclaredNames,
    EnforcedBounds,
    EpsilonCurves,
    Units,
)
from fl_sim.experiments.plan.lineage import Earlier
from fl_sim.formats import epsilon_in_words, format_delta, format_epsilon, format_number
from fl_sim.strategies.accounting.adjacency import PrivacyError
from fl_sim.strategies.accounting.guarantee import Guarantee
from fl_sim.strategies.mechanism import CorpusCounts, PrivacyPlan, Settings
from fl_sim.strategies.privacy_config import GaussianSumConfig, PrivacyConfig
from fl_sim.strategies.registry import built_in_strategies, load_strategy

_SIZES = ("hidden", "layers", "heads", "embedding")
_DROPOUT = ("drop_embedding", "drop_input", "drop_hidden", "drop_output", "drop_weight")
_RAY = ("cpus_per_node", "gpus_per_node", "num_cpus", "num_gpus", "address")


def idle_settings(config: RunConfig) -> list[str]:
    """Return one sentence per reason why settings that differ from their default have no effect."""
    return [
        f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} no effect: {reason}."
        for section, fields, reason in _unread(config)
        if (names := _changed(getattr(config, section), section, fields))
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


def _changed(values: BaseModel, section: str, fields: tuple[str, ...]) -> list[str]:
    defaults = type(values)()
    return [f"{section}.{name}" for name in fields if getattr(values, name) != getattr(defaults, name)]


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

    def forecast(self, released: PrivacyPlan, bounds: EnforcedBounds, rounds: int) -> Forecast:
        """Return the forecast of a run.

        Args:
            released: the plan of the run, with the noise that it adds.
            bounds: whom its ε protect.
            rounds: after which ε is stated.
        """
        plan = self.plan.with_noise(released.mechanism.noise_multiplier / self.noise_share)
        units = bounds.units(plan.mechanism)
        epsilons = {
            metric: max(
                float(plan.epsilon_curve(unit.adjacency, [rounds], robust=unit.robust)[0])
                for unit in units[metric].values()
            )
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


_MANY_PUBLIC = 0.5  # share of mentions from which on a list of public names is worth a warning


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan and the guarantees of a run.

    Attributes:
        plan: the mechanism, with the noise for a target filled in.
        bounds: what users and entities contribute at most, and how the corpus keeps it.
        guarantees: ε after every round.
        rounds: number of rounds to release; fewer than the plan's if a budget ends the run.
        warnings: for the owner, each a sentence.
        earlier: the releases on which the initial model rests.
        forecast: ε of a training on a larger population, whose noise-to-signal ratio this run has; None without one.
    """

    plan: PrivacyPlan
    bounds: EnforcedBounds
    guarantees: EpsilonCurves
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
    plan = untuned_plan(config, ownership)
    _check_bounds(config.privacy, plan, bounds.guarantee)
    larger = _larger_population(config.privacy, plan, earlier)
    if noise_multiplier is None or config.privacy.target_epsilon is None:
        noise_multiplier = _noise_of_run(plan, config.privacy, bounds, earlier, larger)
    plan = plan.with_noise(noise_multiplier)
    guarantees = EpsilonCurves.of(plan, bounds.units(plan.mechanism), earlier)
    rounds = _rounds_within_budget(config.privacy, plan, bounds, guarantees)
    forecast = larger.forecast(plan, bounds, rounds) if larger else None
    rescaled = (forecast.in_words(),) if forecast else ()
    warnings = (*rescaled, *earlier.warnings(), *_warnings(config, plan, bounds, guarantees), *idle_settings(config))
    return Planned(plan, bounds, guarantees, rounds, warnings, earlier, forecast)


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
        privacy=privacy,
        local=config.local,
        population=privacy.population or ownership.num_users,
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
    clips = plan.mechanism.clips_sentences
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
    if not isinstance(privacy, GaussianSumConfig) or privacy.noise_cohort is None:
        return None
    if earlier.composed:
        raise ConfigError(
            f"privacy.noise_cohort is {privacy.noise_cohort} with an initial model that a private run trained; "
            "allowed: a public initial model, because a forecast has no earlier releases"
        )
    return LargerPopulation.of(plan, privacy.noise_cohort)


def _noise_of_run(
    plan: PrivacyPlan, privacy: PrivacyConfig, bounds: EnforcedBounds, earlier: Earlier, larger: LargerPopulation | None
) -> float:
    """Return the noise multiplier that a run adds: as configured or for its target, rescaled to a larger population."""
    noise_multiplier = plan.mechanism.noise_multiplier
    if privacy.target_epsilon is not None:
        wanted = larger.plan if larger else plan
        noise_multiplier = noise_for_target(wanted, privacy, _target(privacy, wanted, bounds)[1], earlier)
    return larger.noise_of_run(noise_multiplier) if larger else noise_multiplier


def noise_for_target(
    plan: PrivacyPlan, privacy: PrivacyConfig, units: Units, earlier: Earlier = NOTHING_EARLIER
) -> float:
    """Return the smallest noise multiplier at which every unit of a configured target meets it.

    Args:
        plan: mechanism, rounds and δ.
        privacy: with the target.
        units: of the target; none if no bound supports it.
        earlier: the releases on which the initial model rests.

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
        privacy.target_unit, clips_sentences=mechanism.clips_sentences, population=mechanism.population
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


def _rounds_within_budget(
    privacy: PrivacyConfig, plan: PrivacyPlan, bounds: EnforcedBounds, guarantees: EpsilonCurves
) -> int:
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
