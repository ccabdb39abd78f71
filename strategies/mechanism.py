"""Define what a strategy is: one frozen object that configuration, server, accounting and reports read.

A strategy is a subclass of :class:`Mechanism` in a module of its own. It states which settings it reads, what nodes
compute, how much noise the sum gets and what a round releases. Sampling, clipping, noise and accounting read the same
object, so they cannot disagree. docs/extending.md adds one.

Guarantee: :meth:`PrivacyPlan.epsilon_curve` states the ε of docs/privacy.md, section 1, computed as in its section 7
from :meth:`Mechanism.event`. Assumptions: its section 2, and that the event describes what a round releases.

>>> from fl_sim.strategies.accounting.adjacency import Adjacency
>>> from fl_sim.strategies.user_level import UserLevelDP
>>> mechanism = UserLevelDP(
...     population=1000, q_u=0.05, q_e=1.0, q_s=1.0, clip_norm=1.0, user_cap=1.0, noise_multiplier=1.0)
>>> plan = PrivacyPlan(mechanism=mechanism, rounds=50, delta=1e-5)
>>> plan.epsilon_curve(Adjacency(), [50]).round(2)  # docs/privacy-accounting.md, section 7: F = 0
array([2.67])
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, Literal, Self, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from fl_sim.formats import format_number
from fl_sim.strategies.accounting import accountant
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.accounting.adjacency import Adjacency
from fl_sim.strategies.client_rules import ClientRule, ClippedGradients, LocalOptimizer, LocalSteps, RuleBounds
from fl_sim.strategies.postprocessing import ServerOptimizerConfig
from fl_sim.strategies.primitives import sampling
from fl_sim.strategies.primitives.adaptive_clip import AdaptiveClip
from fl_sim.strategies.primitives.limits import (
    LARGEST_STEP,
    SMALLEST_CLIP,
    SMALLEST_NOISE,
    PrivacyError,
    check_delta,
    check_rate,
    require,
)
from fl_sim.strategies.privacy_config import GaussianSumConfig, PrivacyConfig

NUMBERS = ("q_u", "q_e", "q_s", "clip_norm", "user_cap", "noise_multiplier")
"""The rates, clips and noise of every mechanism."""

LOCAL_STEPS = ("optimizer", "epochs", "batch_size", "learning_rate")
"""The keys of ``[local]`` that are read only if users take local steps."""


class LocalTrainingConfig(BaseModel):
    """Hold the section ``[local]`` of a configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    update: Literal["gradients", "steps"] | None = Field(
        None,
        description="what a user sends under user_level, published and noiseless: the sum of its sentences' gradients "
        "(FedSGD), or the way its local steps went (FedAvg); default: steps in user_level, else gradients",
    )
    optimizer: LocalOptimizer = Field(
        "sgd", description="of the local steps; Adam begins anew for every user and round"
    )
    epochs: int = Field(1, ge=1, description="passes over the user's sentences")
    batch_size: int = Field(8, ge=1, description="sentences per local step")
    learning_rate: float = Field(0.5, gt=0, le=LARGEST_STEP, description="step size of the local steps")


def gradients_or_steps(
    update: Literal["gradients", "steps"], local: LocalTrainingConfig, bounds: RuleBounds
) -> ClientRule:
    """Return the client rule for the sum of gradients (FedSGD), or for the change after local steps (FedAvg)."""
    if update == "gradients":
        return ClippedGradients(**bounds)
    return LocalSteps(**bounds, **local.model_dump(include=set(LOCAL_STEPS)))


UnreadSettings = tuple[str, tuple[str, ...], str]
"""A section of the configuration, its keys that the run does not read, and the reason."""


@dataclass(frozen=True, slots=True)
class CorpusCounts:
    """Count the sentences of the training split, of each user, int64 (U,), and of each entity, int64 (E,)."""

    sentences_per_user: npt.NDArray[np.int64]
    sentences_per_entity: npt.NDArray[np.int64]
    sentences: int
    sentences_without_entity: int


OwnConfig = TypeVar("OwnConfig", bound=PrivacyConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Hold the settings of a run from which a strategy builds its mechanism.

    Attributes:
        privacy: ``[privacy]``, as an instance of the strategy's ``Config``.
        local: ``[local]``.
        server: ``[server]``.
        population: N, the public number of enrolled users.
        corpus: the counts of the training split.
    """

    privacy: PrivacyConfig
    local: LocalTrainingConfig
    server: ServerOptimizerConfig
    population: int
    corpus: CorpusCounts

    def privacy_as(self, config: type[OwnConfig]) -> OwnConfig:
        """Return ``[privacy]`` as an instance of ``config``, the ``Config`` of the strategy that asks."""
        if not isinstance(self.privacy, config):
            raise TypeError(f"the privacy settings are a {type(self.privacy).__name__}; allowed: a {config.__name__}")
        return self.privacy


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """Describe a mechanism in words, for reports and warnings.

    Attributes:
        protects: the protected unit, in one line.
        settings: rates, clips and noise in words, for the report.
        warnings: limits that the owner of a run should know, one sentence each.
    """

    protects: str
    settings: tuple[str, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Mechanism(ABC):
    """Hold all public parameters by which one round of a strategy is computed, noised and accounted for.

    A strategy must define :meth:`client_rule`. It gives no guarantee (every ε is ∞) unless it also defines
    :meth:`event`.

    Class attributes:
        defaults: rates, clips and noise that apply if the configuration omits them.
        fixed_at_one: fields that must be 1.
        needs_entities: whether the strategy needs a corpus with entities.
        protects: the protected unit, in one line for the report.
        headline: the metric by which the strategy states its ε; None if it states none.
        Config: the keys of ``[privacy]`` that the strategy reads. A key of its own whose name is also a field of the
            mechanism is that field's value, and part of the record.

    Attributes:
        strategy: the name or import path by which the registry loads the strategy.
        population: N, the public number of enrolled users.
        q_u: the probability that a user is sampled in a round.
        q_e: the probability that an entity is active in a round.
        q_s: the probability that a sentence is active in a round.
        clip_norm: c > 0; the clip of the first round if the clip adapts.
        user_cap: ŵ ≥ 1; one client update is bounded by β = ŵ·c.
        noise_multiplier: z > 0.
        adaptive: how the clip adapts; None for a fixed clip.

    Raises:
        PrivacyError: a value is out of range; the message names the value and what is allowed.
    """

    defaults: ClassVar[dict[str, float]] = dict.fromkeys(NUMBERS, 1.0)
    fixed_at_one: ClassVar[tuple[str, ...]] = ()
    needs_entities: ClassVar[bool] = False
    protects: ClassVar[str] = "no user and no entity: the strategy does not say what a round releases"
    headline: ClassVar[str | None] = "epsilon_any"
    Config: ClassVar[type[PrivacyConfig]] = PrivacyConfig

    strategy: str
    population: int
    q_u: float
    q_e: float
    q_s: float
    clip_norm: float
    user_cap: float
    noise_multiplier: float
    adaptive: AdaptiveClip | None = None

    def __post_init__(self) -> None:
        for name in ("q_u", "q_e", "q_s"):
            check_rate(name, getattr(self, name))
        require(self.population >= 1, "population", self.population, "an integer of at least 1")
        for name in self.fixed_at_one:
            require(getattr(self, name) == 1, name, getattr(self, name), f"1 under {self.strategy}")
        adapts = self.adaptive is None or issubclass(self.Config, GaussianSumConfig)
        require(adapts, "adaptive", self.adaptive, f"nothing under {self.strategy}")
        self.check()

    def check(self) -> None:
        """Check the range of clips and noise; a strategy may override it to check more, and raise PrivacyError."""
        require(SMALLEST_CLIP <= self.clip_norm < math.inf, "clip_norm", self.clip_norm, f"at least {SMALLEST_CLIP:g}")
        require(1 <= self.user_cap < math.inf, "user_cap", self.user_cap, "at least 1")
        require(0 < self.noise_multiplier < math.inf, "noise_multiplier", self.noise_multiplier, "above 0")

    # --- from the configuration -------------------------------------------------------------------------------------

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Return the mechanism of a run's settings; PrivacyError names one that is out of range."""
        privacy = settings.privacy
        own: Any = cls.own_fields(settings)  # of the types that the strategy declares
        return cls(
            strategy=privacy.strategy,
            population=settings.population,
            adaptive=privacy.adaptive_clip() if isinstance(privacy, GaussianSumConfig) else None,
            **cls.numbers(privacy),
            **own,
        )

    @classmethod
    def numbers(cls, privacy: PrivacyConfig) -> dict[str, float]:
        """Return rates, clips and noise of ``[privacy]`` by name; the strategy's default for an absent key."""
        given = {name: getattr(privacy, name) for name in cls.defaults}
        return {name: default if given[name] is None else given[name] for name, default in cls.defaults.items()}

    @classmethod
    def own_fields(cls, settings: Settings) -> dict[str, object]:
        """Return the fields that the strategy adds to :class:`Mechanism`, by name: those of its own keys."""
        return {name: getattr(settings.privacy, name) for name in cls.fields_of_own_keys()}

    @classmethod
    def fields_of_own_keys(cls) -> tuple[str, ...]:
        """Return the names of the fields whose values are keys of :attr:`Config` that not every strategy has."""
        names = {field.name for field in fields(cls)}
        return tuple(name for name in cls.Config.own_keys() if name in names)

    @classmethod
    def unread(cls, strategy: str, local: LocalTrainingConfig) -> Iterator[UnreadSettings]:
        """Yield the settings outside ``[privacy]`` that a run of ``strategy`` does not read."""
        yield "local", ("update",), f"{strategy} decides it"
        yield "local", LOCAL_STEPS, "users take no local steps, they send gradients"

    # --- a round ----------------------------------------------------------------------------------------------------

    def cohort(self, seed: int, server_round: int, num_users: int) -> npt.NDArray[np.int64]:
        """Return the ids of the sampled users of a round, int64 (cohort,), ascending: each with probability q_u."""
        return sampling.sample_users(seed, server_round, num_users, self.q_u)

    @abstractmethod
    def client_rule(self, clip_norm: float) -> ClientRule:
        """Return the rule by which nodes compute client updates in a round with clip c = ``clip_norm``."""

    def event(self) -> RoundEvent | None:
        """Return the release of one round as the accountant reads it; None for no guarantee (every ε is ∞)."""
        return None

    @property
    def noise_per_clip(self) -> float:
        """Return σ/β: the standard deviation of the noise on the sum, divided by the user clip."""
        update_weight = self.adaptive.update_weight if self.adaptive is not None else 1.0
        return self.noise_multiplier / update_weight

    def noise_std(self, clip_norm: float) -> float:
        """Return σ, the standard deviation of the noise on every coordinate of the sum; 0 for no noise."""
        return self.noise_per_clip * self.user_clip(clip_norm)

    def user_clip(self, clip_norm: float) -> float:
        """Return β = ŵ·c, the bound on one client update in a round with clip c = ``clip_norm``."""
        return self.user_cap * clip_norm

    def bounds(self, clip_norm: float) -> RuleBounds:
        """Return the fields that all client rules share, by name."""
        vote = None if self.adaptive is None else self.adaptive.vote
        return {"q_e": self.q_e, "q_s": self.q_s, "user_clip": self.user_clip(clip_norm), "vote": vote}

    @property
    def clips_sentences(self) -> bool:
        """Return whether one sentence moves a user's sum by at most c, as :meth:`event` states."""
        event = self.event()
        return event is not None and event.clips_sentences

    @property
    def items_per_user(self) -> float:
        """Return the number of voting items that a full user counts for."""
        return 1.0

    @property
    def expected_cohort(self) -> float:
        """Return q_u·N, the public expectation of a cohort's size."""
        return self.q_u * self.population

    @property
    def denominator(self) -> float:
        """Return the divisor of the sum: public, never the realised size of a cohort."""
        return self.expected_cohort

    # --- ε ----------------------------------------------------------------------------------------------------------

    def exposed(self, adjacency: Adjacency) -> Adjacency:
        """Return the adjacency to account for if ``adjacency`` is to be protected."""
        return adjacency

    def claims(self, rounds: int, delta: float) -> dict[str, npt.NDArray[np.float64]]:
        """Return an unproven claim: under the name ``epsilon_as_published`` ε after 0 to T rounds, float64 (T+1,)."""
        return {}

    # --- for people and records ---------------------------------------------------------------------------------------

    def describe(self) -> Description:
        """Return the mechanism in words, for the report."""
        warnings = () if self.event() is not None else (f"{self.strategy} guarantees nothing: its ε is infinite.",)
        z = f"noise multiplier z {self.noise_multiplier:.4g}"
        if self.adaptive is not None:
            noise: tuple[str, ...] = (z, f"the clips follow the {self.adaptive.quantile:.4g} quantile")
        else:
            noise = (f"{z} (noise {self.noise_std(self.clip_norm):.4g} on the sum)",)
        return Description(
            protects=self.protects,
            settings=(*self.rates_in_words(), self.clips_in_words(), *noise),
            warnings=warnings,
        )

    def rates_in_words(self) -> tuple[str, ...]:
        """Return the rates that may differ from 1, such as "q_u 0.05"."""
        rates = (name for name in ("q_u", "q_e", "q_s") if name not in self.fixed_at_one)
        return tuple(f"{name} {format_number(getattr(self, name))}" for name in rates)

    def clips_in_words(self) -> str:
        """Return the clips, such as "user clip β 1"."""
        return f"user clip β {self.user_clip(self.clip_norm):.4g}"

    def record(self) -> dict[str, object]:
        """Return the mechanism as a JSON object, for config.json, result.json and the ledger."""
        values = {name: getattr(self, name) for name in ("strategy", "population", *NUMBERS)}
        own = {name: getattr(self, name) for name in self.fields_of_own_keys()}
        return values | {
            "adaptive": self.adaptive and asdict(self.adaptive),
            "options": {name: value for name, value in own.items() if value is not None},
        }

    @classmethod
    def from_record(cls, values: Mapping[str, object]) -> Self:
        """Return the mechanism of a :meth:`record`; PrivacyError for a value out of range, TypeError for other keys."""
        recorded: Any = cls.recorded_fields(values)
        return cls(**recorded)

    @classmethod
    def recorded_fields(cls, values: Mapping[str, Any]) -> dict[str, object]:
        """Return the constructor's arguments of a :meth:`record`, with objects in place of mappings."""
        recorded = dict(values)
        adaptive, own = recorded.pop("adaptive", None), recorded.pop("options", {})
        return dict(**recorded, **own, adaptive=None if adaptive is None else AdaptiveClip(**adaptive))


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyPlan:
    """Combine a run's mechanism, its number of rounds and the δ at which ε is stated.

    Attributes:
        rounds: T, the largest number of rounds that may be released.
        delta: δ in (0, 1).

    Raises:
        PrivacyError: a value is out of range.
    """

    mechanism: Mechanism
    rounds: int
    delta: float

    def __post_init__(self) -> None:
        require(self.rounds >= 1, "rounds", self.rounds, "an integer of at least 1")
        check_delta(self.delta)

    def epsilon_curve(
        self, adjacency: Adjacency, rounds: Sequence[int], *, robust: bool = False
    ) -> npt.NDArray[np.float64]:
        """Return ε at the plan's δ after each number of ``rounds`` (docs/privacy-accounting.md, section 7).

        Args:
            adjacency: the protected unit: a user with at most n' sentences, and an entity with a contribution bound.
            rounds: k numbers of rounds.
            robust: whether to state the bound that holds even if the tagger misses the entity (q_e := 1).

        Returns:
            float64 (k,); ∞ if the mechanism gives no guarantee.
        """
        event = self.mechanism.event()
        if event is None:
            return np.full(len(rounds), math.inf)
        accounted = event.robust() if robust else event
        return accountant.epsilon_curve(accounted, self.mechanism.exposed(adjacency), rounds, self.delta)

    def with_noise(self, noise_multiplier: float) -> PrivacyPlan:
        """Return the plan with another noise multiplier z."""
        return replace(self, mechanism=replace(self.mechanism, noise_multiplier=noise_multiplier))

    def noise_for(self, target: float, adjacency: Adjacency, *, robust: bool = False) -> float:
        """Return the smallest noise multiplier z of a run for which ε after all rounds is at most ``target``.

        ``adjacency`` is the protected unit; a ``robust`` z also protects an entity that the tagger misses (q_e := 1).

        Raises:
            PrivacyError: no z suffices, or the mechanism gives no guarantee.
        """
        event = self.mechanism.event()
        if event is None:
            raise PrivacyError(f"{self.mechanism.strategy} guarantees nothing; allowed: a strategy with an event")
        units = [self.mechanism.exposed(adjacency)]
        accounted = event.robust() if robust else event
        accounted_noise = accountant.solve("noise_multiplier", accounted, units, self.rounds, self.delta, target)
        # The accountant may be given a multiple of z, which is proportional to z.
        return max(SMALLEST_NOISE, accounted_noise * self.mechanism.noise_multiplier / event.noise_multiplier)

    def record(self) -> dict[str, object]:
        """Return the plan as a JSON object, for config.json and result.json."""
        return self.mechanism.record() | {"rounds": self.rounds, "delta": self.delta}
