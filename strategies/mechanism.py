"""What a strategy is: one frozen object that configuration, server, accounting and reports ask.

A strategy derives from :class:`Mechanism` and says, in one module of its own, which settings it reads, what nodes
compute, how much noise the sum gets and what a round releases. Sampling, clipping, noise and accounting all read the
same object, so that they cannot disagree. docs/extending/add_a_strategy.md adds one.

>>> from fl_sim.strategies.uedp import UserEntityDP
>>> rates = {"q_u": 1.0, "q_e": 0.5, "q_s": 0.1}
>>> mechanism = UserEntityDP(population=946, clip_norm=0.5, user_cap=2.0, noise_multiplier=4.0, **rates)
>>> mechanism.noise_std(clip_norm=0.5), mechanism.client_rule(clip_norm=0.5).user_clip, mechanism.denominator
(4.0, 1.0, 946.0)
>>> plan = PrivacyPlan(mechanism=mechanism, rounds=30, delta=1e-5)
>>> round(float(plan.epsilon_curve(Adjacency(user_sentences=15), [30])[0]), 2)
3.73
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from fl_sim.formats import format_number
from fl_sim.strategies.accounting import accountant
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.accounting.adjacency import Adjacency
from fl_sim.strategies.adaptive_clip import AdaptiveClip
from fl_sim.strategies.client_rules import ClientRule
from fl_sim.strategies.local_training import LOCAL_STEPS, LocalTrainingConfig
from fl_sim.strategies.primitives.limits import PrivacyError, check_rate, require

UnreadSettings = tuple[str, tuple[str, ...], str]
"""A section of the configuration, keys of it that nothing will read, and why."""


class NoOptions(BaseModel):
    """The ``[privacy.options]`` of a strategy that has none."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, slots=True)
class CorpusCounts:
    """What a strategy may need to know of the training split.

    Attributes:
        sentences_per_user: int64 (U,).
        sentences_per_entity: int64 (E,), how many sentences mention each entity.
        sentences: all of them.
        sentences_without_entity: the sentences that mention none.
    """

    sentences_per_user: npt.NDArray[np.int64]
    sentences_per_entity: npt.NDArray[np.int64]
    sentences: int
    sentences_without_entity: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a run asks of its strategy.

    Attributes:
        strategy: the name by which the strategy was asked for.
        population: N, the public number of enrolled users.
        privacy: the flat keys of ``[privacy]``; None where a key is left out.
        options: ``[privacy.options]``.
        local: ``[local]``.
        corpus: the training split.
    """

    strategy: str
    population: int
    privacy: Mapping[str, Any]
    options: Mapping[str, Any]
    local: LocalTrainingConfig
    corpus: CorpusCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What a mechanism says of itself to people.

    Attributes:
        protects: whom, in one line.
        settings: rates, clips and noise in words, for the report.
        warnings: what the owner of a run should know, each a sentence.
    """

    protects: str
    settings: tuple[str, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Mechanism(ABC):
    """Everything public that decides how one round of a strategy is computed, noised and accounted for.

    A strategy must define :meth:`client_rule`. It guarantees nothing (every ε is ∞) unless it also defines
    :meth:`event`.

    Class attributes:
        defaults: rates, clips and noise where the configuration leaves them out.
        keys: further keys of ``[privacy]`` that the strategy reads.
        fixed_at_one: fields that can only be 1.
        needs_entities: whether a corpus without entities makes no sense.
        protects: whom the strategy protects, in one line for the report.
        headline: the metric by which the strategy states its ε; None if it states none.
        Config: the settings of ``[privacy.options]``, a pydantic model.

    Attributes:
        strategy: the name or import path under which the strategy is found again.
        population: N, the public number of enrolled users.
        q_u: the probability that a user is sampled in a round.
        q_e: the probability that an entity is active in a round.
        q_s: the probability that a sentence is active in a round.
        clip_norm: c; the first round's where the clip adapts.
        user_cap: ŵ; one user's vector is bounded by β = ŵ·c.
        noise_multiplier: z.
        adaptive: how the clip adapts; None for a fixed one.
        options: what :attr:`Config` made of ``[privacy.options]``.

    Raises:
        PrivacyError: a value is impossible; the message names it and what is allowed.
    """

    defaults: ClassVar[Mapping[str, float]] = {
        "q_u": 1.0, "q_e": 1.0, "q_s": 1.0, "clip_norm": 1.0, "user_cap": 1.0, "noise_multiplier": 1.0,
    }  # fmt: skip
    keys: ClassVar[tuple[str, ...]] = ()
    fixed_at_one: ClassVar[tuple[str, ...]] = ()
    needs_entities: ClassVar[bool] = False
    protects: ClassVar[str] = "nobody: the strategy does not say what a round releases"
    headline: ClassVar[str | None] = "epsilon_user_entity_p95"
    Config: ClassVar[type[BaseModel]] = NoOptions

    strategy: str
    population: int
    q_u: float
    q_e: float
    q_s: float
    clip_norm: float
    user_cap: float
    noise_multiplier: float
    adaptive: AdaptiveClip | None = None
    options: BaseModel = field(default_factory=NoOptions)

    def __post_init__(self) -> None:
        for name in ("q_u", "q_e", "q_s"):
            check_rate(name, getattr(self, name))
        require(self.population >= 1, "population", self.population, "an integer of at least 1")
        for name in self.fixed_at_one:
            require(getattr(self, name) == 1, name, getattr(self, name), f"1 under {self.strategy}")
        adapts = self.adaptive is None or "clip_quantile" in self.keys
        require(adapts, "adaptive", self.adaptive, f"nothing under {self.strategy}")
        self.check()

    def check(self) -> None:
        """Refuse impossible clips and noise; a strategy may check more.

        Raises:
            PrivacyError: a value is impossible.
        """
        require(0 < self.clip_norm < math.inf, "clip_norm", self.clip_norm, "above 0")
        require(1 <= self.user_cap < math.inf, "user_cap", self.user_cap, "at least 1")
        require(0 < self.noise_multiplier < math.inf, "noise_multiplier", self.noise_multiplier, "above 0")

    # --- from the configuration -------------------------------------------------------------------------------------

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Return the mechanism that a run asks for.

        Raises:
            PrivacyError: a setting is impossible.
        """
        return cls(
            strategy=settings.strategy,
            population=settings.population,
            adaptive=AdaptiveClip.from_settings(settings.privacy),
            options=cls.Config.model_validate(dict(settings.options)),
            **cls.numbers(settings.privacy),
            **cls.own_fields(settings),
        )

    @classmethod
    def numbers(cls, privacy: Mapping[str, Any]) -> dict[str, Any]:
        """Return rates, clips and noise as they are given in ``[privacy]``, else the strategy's default."""
        given = {name: privacy.get(name) for name in cls.defaults}
        return {name: default if given[name] is None else given[name] for name, default in cls.defaults.items()}

    @classmethod
    def own_fields(cls, settings: Settings) -> dict[str, Any]:
        """Return the fields that this strategy has beside the fields of :class:`Mechanism`."""
        return {}

    @classmethod
    def check_settings(cls, privacy: Mapping[str, Any]) -> None:
        """Refuse keys of ``[privacy]`` that contradict one another, before a corpus is known.

        Raises:
            PrivacyError: the message begins with the key.
        """
        return

    @classmethod
    def unread(cls, strategy: str, local: LocalTrainingConfig) -> Iterator[UnreadSettings]:
        """Yield the settings outside ``[privacy]`` that a run of this ``strategy`` does not read."""
        yield "local", ("update",), f"{strategy} decides it"
        yield "local", LOCAL_STEPS, "users take no local steps, they send gradients"

    # --- a round ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def client_rule(self, clip_norm: float) -> ClientRule:
        """Return how nodes turn a user's sentences into one bounded vector in a round of clip ``clip_norm``."""

    def event(self) -> RoundEvent | None:
        """Return what one round releases, as the accountant needs it; None guarantees nothing: every ε is ∞."""
        return None

    @property
    def noise_per_clip(self) -> float:
        """σ in units of β: the standard deviation of the noise on the sum, divided by the user clip."""
        share = self.adaptive.update_weight if self.adaptive is not None else 1.0
        return self.noise_multiplier / share

    def noise_std(self, clip_norm: float) -> float:
        """Return σ, the standard deviation of the noise on every coordinate of the sum; 0 for no noise."""
        return self.noise_per_clip * self.user_clip(clip_norm)

    def user_clip(self, clip_norm: float) -> float:
        """Return β = ŵ·c, the bound on one user's vector in a round of clip ``clip_norm``."""
        return self.user_cap * clip_norm

    def bounds(self, clip_norm: float) -> dict[str, Any]:
        """Return the fields that every client rule has, as arguments for one."""
        vote = None if self.adaptive is None else self.adaptive.vote
        return {"q_e": self.q_e, "q_s": self.q_s, "user_clip": self.user_clip(clip_norm), "vote": vote}

    @property
    def items_per_user(self) -> float:
        """How many items with a vote on the clip a full user counts for."""
        return 1.0

    @property
    def expected_cohort(self) -> float:
        """q_u·N, the public expectation of a cohort's size."""
        return self.q_u * self.population

    @property
    def denominator(self) -> float:
        """What the sum is divided by: public, never the realised size of a cohort."""
        return self.expected_cohort

    # --- ε ----------------------------------------------------------------------------------------------------------

    def exposed(self, adjacency: Adjacency) -> Adjacency:
        """Return whom ε has to be computed for where ``adjacency`` is meant."""
        return adjacency

    def claims(self, rounds: int, delta: float) -> dict[str, npt.NDArray[np.float64]]:
        """Return ε after 0 to ``rounds`` rounds that others claim for the mechanism, by metric; none is proven."""
        return {}

    # --- for people and records ---------------------------------------------------------------------------------------

    def describe(self) -> Description:
        """Return what the mechanism says of itself."""
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
        """Return what is clipped, such as "user clip β 1"."""
        return f"user clip β {self.user_clip(self.clip_norm):.4g}"

    def record(self) -> dict[str, Any]:
        """Return the mechanism as JSON keeps it, in config.json, result.json and the ledger."""
        values = {name: getattr(self, name) for name in _RECORDED}
        values |= {"clipping": "sentence", "adaptive": self.adaptive and asdict(self.adaptive), "published": None}
        if self.Config is not NoOptions:
            values["options"] = self.options.model_dump(mode="json")
        return values

    @classmethod
    def from_record(cls, values: Mapping[str, Any]) -> Self:
        """Return the mechanism of a :meth:`record`; of an older fl-sim's, too, which has fewer keys.

        Raises:
            PrivacyError: a value is impossible, or belongs to another strategy.
            TypeError: keys are missing, unknown or of another kind.
        """
        return cls(**cls.recorded_fields(values))

    @classmethod
    def recorded_fields(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments that :meth:`record` kept, with objects where JSON has mappings."""
        fields = dict(values)
        adaptive, options = fields.pop("adaptive", None), fields.pop("options", {})
        for name, default in _OF_ONE_STRATEGY.items():
            value = fields.pop(name, default)
            if name in cls.__dataclass_fields__:
                fields[name] = value
            else:
                require(value == default, name, value, f"{default or 'nothing'} under {fields.get('strategy')}")
        fields["adaptive"] = None if adaptive is None else AdaptiveClip(**adaptive)
        return fields | {"options": cls.Config.model_validate(options)}


_RECORDED = ("strategy", "population", "q_u", "q_e", "q_s", "clip_norm", "user_cap", "noise_multiplier")
_OF_ONE_STRATEGY: dict[str, str | None] = {"clipping": "sentence", "published": None}
"""Keys of every record that belong to one strategy, and what the others record there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyPlan:
    """A run's mechanism, how often it is used, and the δ at which its ε is stated.

    Attributes:
        mechanism: what one round does.
        rounds: T, how many rounds may be released.
        delta: the δ at which every ε is stated.

    Raises:
        PrivacyError: a value is impossible.
    """

    mechanism: Mechanism
    rounds: int
    delta: float

    def __post_init__(self) -> None:
        require(self.rounds >= 1, "rounds", self.rounds, "an integer of at least 1")
        require(0 < self.delta < 1, "delta", self.delta, "in (0, 1)")

    def epsilon_curve(
        self, adjacency: Adjacency, rounds: Sequence[int], *, robust: bool = False
    ) -> npt.NDArray[np.float64]:
        """Return ε at the plan's δ after each number of ``rounds``; ∞ where nothing is guaranteed.

        Args:
            adjacency: who is protected: a user with at most n' sentences, an entity of a contribution bound.
            rounds: the numbers of rounds at which ε is wanted.
            robust: state the bound that does not rely on the entity having been detected (q_e := 1).
        """
        event = self.mechanism.event()
        if event is None:
            return np.full(len(rounds), math.inf)
        judged = event.robust() if robust else event
        return accountant.epsilon_curve(judged, self.mechanism.exposed(adjacency), rounds, self.delta)

    def with_noise(self, noise_multiplier: float) -> PrivacyPlan:
        """Return the plan with another noise multiplier z."""
        return replace(self, mechanism=replace(self.mechanism, noise_multiplier=noise_multiplier))

    def noise_for(self, target: float, adjacency: Adjacency) -> float:
        """Return the smallest noise multiplier z at which ε of ``adjacency`` after all rounds is within ``target``.

        Raises:
            PrivacyError: there is none, or the mechanism guarantees nothing.
        """
        event = self.mechanism.event()
        if event is None:
            raise PrivacyError(f"{self.mechanism.strategy} guarantees nothing; allowed: a strategy with an event")
        meant = [self.mechanism.exposed(adjacency)]
        found = accountant.calibrate_noise_multiplier(event, meant, self.rounds, self.delta, target)
        # The accountant may see a multiple of z, which grows in step with it.
        return found * self.mechanism.noise_multiplier / event.noise_multiplier

    def record(self) -> dict[str, Any]:
        """Return the plan as config.json and result.json keep it."""
        return self.mechanism.record() | {"rounds": self.rounds, "delta": self.delta}
