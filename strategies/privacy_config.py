"""Declare the section ``[privacy]``: the keys of every strategy, from which each strategy's ``Config`` is derived.

A strategy that reads more keys declares them in its own subclass, so that a key stands beside the code that reads it.
The configuration is read by the class of its strategy, which refuses every other key.

>>> GaussianSumConfig(strategy="uedp", clip_quantile=0.5).adaptive_clip().quantile
0.5
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from fl_sim.strategies.accounting.guarantee import Known
from fl_sim.strategies.primitives.adaptive_clip import AdaptiveClip
from fl_sim.strategies.primitives.limits import (
    MOST_COUNTED,
    MOST_SENTENCES,
    SMALLEST_CLIP,
    SMALLEST_DELTA,
    SMALLEST_NOISE,
    SMALLEST_RATE,
    is_rate,
)


def _rate(value: float) -> float:
    if not is_rate(value):
        raise PydanticCustomError("rate", "not a rate")  # what is shown comes from the schema
    return value


Rate = Annotated[float, AfterValidator(_rate), Field(json_schema_extra={"minimum": SMALLEST_RATE, "maximum": 1})]
Epsilon = Annotated[float, Field(gt=0)]
Text = Annotated[str, Field(min_length=1)]
TargetUnit = Literal["user", "user_entity"]


class PrivacyConfig(BaseModel):
    """Hold the keys of ``[privacy]`` that every strategy has. A key that is left out takes the strategy's default.

    Class attributes:
        default_bounds: ``entity_bound`` and ``user_sentences`` that apply, unless nothing is known, if they are left
            out; empty for no bounds.
        enforces_bounds: whether bounds on the sentences of users and entities can be enforced, because what a round
            releases depends on selected sentences only.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    default_bounds: ClassVar[Mapping[str, int]] = {}
    enforces_bounds: ClassVar[bool] = True

    strategy: Text = Field("uedp", description="the mechanism (docs/privacy.md)")
    q_u: Rate | None = Field(None, description="the probability that a user is sampled in a round")
    q_e: Rate | None = Field(None, description="the probability that an entity is sampled in a round; 1 in user_level")
    q_s: Rate | None = Field(None, description="the probability that a sentence is sampled in a round; 1 in user_level")
    clip_norm: float | None = Field(
        None,
        ge=SMALLEST_CLIP,
        le=1e6,
        description="c, the L2 clip of a sentence's gradient (uedp) or of a user's update (user_level, published: β)",
    )
    user_cap: float | None = Field(
        None, ge=1, le=1e6, description="ŵ, a user's cap in sentences per round: β = ŵ·c; 1 except in uedp"
    )
    noise_multiplier: float | None = Field(
        None,
        ge=SMALLEST_NOISE,
        le=1e6,
        description="z; the noise on the sum has standard deviation z·ŵ·c (published: that of docs/strategies.md)",
    )
    target_epsilon: Epsilon | None = Field(
        None, description="instead of noise_multiplier: use the smallest noise that meets this ε"
    )
    target_unit: TargetUnit | None = Field(
        None,
        description="the ε of target_epsilon and epsilon_budget: that of any `user`, or of any user with any entity "
        "(`user_entity`); default: user in user_level, whose ε is that of a user, else user_entity",
    )
    epsilon_budget: Epsilon | None = Field(None, description="stop before a round would exceed this ε")
    delta: float = Field(1e-5, ge=SMALLEST_DELTA, lt=1, description="δ at which every ε is stated; below 1/N")
    public_names: Text | None = Field(
        None,
        description="a file with a name on each line, made from public text, or `shipped`: entities that are declared "
        "not sensitive; default: none",
    )
    public_weights: Text | None = Field(
        None,
        description="a file with name, tab and weight in (0, 1] on each line, made from public text (`fl-sim "
        "corpus weights`): how much a sentence with the name counts; default: 1 for every name",
    )
    entity_key: Text | None = Field(
        None,
        description="a file with a secret key: an entity is sampled by a keyed digest of its normalised name, as nodes "
        "with corpora of their own sample it (docs/flower.md); default: by its id in the corpus",
    )
    population: int | None = Field(
        None,
        ge=1,
        le=MOST_COUNTED,
        description="N, the public number of enrolled users, at least the corpus's; default: the corpus's users, "
        "or those of the declared counts; without either it must be given",
    )
    known: Known = Field(
        "counts",
        description="what may be known of users and entities: `counts`, how many sentences each user has and how many "
        "mention each entity; `graph`, who mentions whom in which sentence; `nothing`. The rest is what ε hides",
    )
    counts: Text | None = Field(
        None,
        description="a file with the declared counts of users and entities (`fl-sim corpus counts`), at least the "
        "corpus's; default: those of the corpus",
    )
    round_counts: bool = Field(
        False,
        description="round the declared counts up to powers of two, which tells orders of magnitude only and costs up "
        "to half of a sentence's weight",
    )
    entity_bound: Annotated[int, Field(ge=1, le=MOST_SENTENCES)] | Literal["unbounded"] | None = Field(
        None,
        description="k, the most that the weights of an entity's sentences add up to, with known = graph their number; "
        "or no bound. With known = nothing it is stated and not enforced. Default: 10 in uedp unless nothing is known, "
        "else no bound",
    )
    entity_users: Annotated[int, Field(ge=1, le=MOST_COUNTED)] | None = Field(
        None,
        description="F, the most users who mention an entity: enforced with known = graph, stated with known = "
        "nothing; default: no bound but that of the sentences",
    )
    user_sentences: Annotated[int, Field(ge=1, le=MOST_SENTENCES)] | Literal["corpus", "unbounded"] | None = Field(
        None,
        description="m, the most that the weights of a user's sentences add up to, with known = graph their number; or "
        "no bound; or the corpus's largest user, with settings_from_corpus. Default: 32 in uedp unless nothing is "
        "known, else no bound",
    )
    missed_mentions: int | None = Field(
        None,
        ge=0,
        le=MOST_SENTENCES,
        description="the most sentences with an entity that the tagger misses, as stated: ε is given for them, too",
    )
    settings_from_corpus: bool = Field(
        False,
        description="accept settings that were chosen on this corpus, or are read from it; ε does not cover what they "
        "reveal, and record and report say so",
    )
    initial_model: Literal["composed", "disjoint"] = Field(
        "composed",
        description="an initial model that fl_sim trained: every ε is that of both trainings together (`composed`), or "
        "its owner states that it is public or was trained on text that shares no user and no entity with this corpus "
        "(`disjoint`; refused only if it is this corpus or its source)",
    )
    secure_noise: bool = Field(
        False,
        description="draw noise and samples from the operating system instead of the seed: the run cannot be repeated, "
        "and a round that is repeated after a crash counts twice in ε",
    )

    @classmethod
    def own_keys(cls) -> tuple[str, ...]:
        """Return the keys that this strategy reads and not every strategy has."""
        return tuple(name for name in cls.model_fields if name not in PrivacyConfig.model_fields)

    @model_validator(mode="after")
    def _one_source_of_noise(self) -> PrivacyConfig:
        if self.noise_multiplier is not None and self.target_epsilon is not None:
            raise ValueError(
                f"privacy.noise_multiplier is {self.noise_multiplier:g} and privacy.target_epsilon is "
                f"{self.target_epsilon:g}; allowed: one of them, not both"
            )
        return self

    @model_validator(mode="after")
    def _bounds_can_be_kept(self) -> PrivacyConfig:
        """Refuse bounds that the strategy or the guarantee cannot keep, and settings that would be private."""
        bounds = {name: getattr(self, name) for name in ("entity_bound", "entity_users", "user_sentences")}
        given = {name: value for name, value in bounds.items() if value not in (None, "unbounded", "corpus")}
        for name, value in given.items() if not self.enforces_bounds else ():
            raise ValueError(
                f"privacy.{name} is {value} and privacy.strategy is {self.strategy}, which cannot keep it; "
                "allowed: no bound, or another strategy"
            )
        if self.known == "counts" and self.entity_users is not None:
            raise ValueError(
                f"privacy.entity_users is {self.entity_users} and privacy.known is counts; allowed: privacy.known = "
                "graph, because counts do not tell which users mention an entity"
            )
        if self.known == "nothing" and self.user_sentences not in (None, "unbounded"):
            raise ValueError(
                f"privacy.user_sentences is {self.user_sentences} and privacy.known is nothing; allowed: no bound, "
                "because one that is enforced needs counts or a graph"
            )
        if self.known != "counts" and (self.counts is not None or self.round_counts):
            name = "counts" if self.counts is not None else "round_counts"
            raise ValueError(f"privacy.{name} is given and privacy.known is {self.known}; allowed: known = counts")
        if self.missed_mentions is not None and not (given.keys() - {"user_sentences"} or self.default_bounds):
            raise ValueError(
                f"privacy.missed_mentions is {self.missed_mentions}; allowed: with privacy.entity_bound only"
            )
        if self.user_sentences == "corpus" and not self.settings_from_corpus:
            raise ValueError(
                "privacy.user_sentences is corpus, the largest user's sentences, which is private; allowed: a number, "
                "unbounded, or privacy.settings_from_corpus = true"
            )
        if self.known == "nothing" and self.population is None and not self.settings_from_corpus:
            raise ValueError(
                "privacy.population is not given and privacy.known is nothing; allowed: N, the public number of "
                "enrolled users, or privacy.settings_from_corpus = true"
            )
        return self


class GaussianSumConfig(PrivacyConfig):
    """Hold the keys of strategies whose noise is z·β: an adaptive clip, and the noise of a larger population."""

    noise_cohort: int | None = Field(
        None,
        ge=1,
        le=MOST_COUNTED,
        description="C, the expected users a round of a larger public population, at least q_u·N: the noise shrinks to "
        "q_u·N/C of z·ŵ·c, as if C users took part; every ε is that of the noise really added (docs/settings.md)",
    )
    clip_quantile: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="adapt c to this quantile of the norms by a noisy count, which ε covers; clip_norm is c of the "
        "first round",
    )
    clip_learning_rate: float = Field(0.2, gt=0, le=10, description="η of c ← c·exp(−η·(share within c − quantile))")
    clip_count_noise: float = Field(
        5.0,
        gt=1,
        le=1e6,
        description="noise x on the count, as a multiple of the noise that would use the whole budget; the noise on "
        "the sum grows by (1 − 1/x²)^−½",
    )

    def adaptive_clip(self) -> AdaptiveClip | None:
        """Return how the clip adapts; None for a fixed clip (no quantile)."""
        if self.clip_quantile is None:
            return None
        return AdaptiveClip(
            quantile=self.clip_quantile, learning_rate=self.clip_learning_rate, count_noise=self.clip_count_noise
        )

    @model_validator(mode="after")
    def _larger_cohort_is_not_for_release(self) -> GaussianSumConfig:
        """Refuse what would mistake the ε of a larger population for that of the run."""
        if self.noise_cohort is None:
            return self
        if self.secure_noise:
            raise ValueError(
                f"privacy.noise_cohort is {self.noise_cohort} and privacy.secure_noise is true; allowed: one of them, "
                "because a run with a larger population's noise is not for release"
            )
        for name in ("target_epsilon", "epsilon_budget"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"privacy.noise_cohort is {self.noise_cohort} and privacy.{name} is {getattr(self, name):g}; "
                    "allowed: one of them, because the run spends more than the larger population would"
                )
        return self
