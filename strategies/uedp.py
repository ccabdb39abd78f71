"""Define ``uedp``: clip sentences and users, sample every sentence, and protect users and entities by one noise.

v_u = Π_β( Σ_{s eligible} Π_c( −∇l(θ, s) ) ), β = ŵ·c; a sentence is eligible iff it and all its entities are sampled.
Removing an entity then moves the sum by at most c per active sentence that mentions it, where user clipping alone would
allow 2β per user who mentions it. ``clipping="automatic"`` gives every gradient a norm just below c in place of Π_c, by
c·g/(‖g‖ + γ); ``clipping="user"`` omits the inner clip, to show what that costs.

Guarantee: (ε, δ) for user-entity adjacency against an adversary who observes all T models (docs/privacy-proofs.md,
sections 4 and 5), under the assumptions of section 2: each gradient depends on one sentence only, and rates, clips,
z and N are public.

>>> mechanism = UserEntityDP(
...     population=100, q_u=1.0, q_e=0.5, q_s=0.1, clip_norm=1.0, user_cap=2.0, noise_multiplier=4.0)
>>> mechanism.client_rule(clip_norm=1.0).user_clip, mechanism.noise_std(clip_norm=1.0)
(2.0, 8.0)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from pydantic import Field, model_validator

from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.client_rules import ClientRule, ClippedGradients
from fl_sim.strategies.mechanism import Mechanism, Settings
from fl_sim.strategies.primitives.limits import SMALLEST_STABILITY, check_stability, require
from fl_sim.strategies.privacy_config import GaussianSumConfig

GradientClipping = Literal["sentence", "automatic", "user"]
STABILITY = 0.01
"""γ of automatic clipping by default, that of its authors."""


class UserEntityConfig(GaussianSumConfig):
    """Declare the keys of ``[privacy]`` that ``uedp`` reads."""

    default_bounds: ClassVar[Mapping[str, int]] = {"entity_bound": 10, "user_sentences": 32}

    clipping: GradientClipping | None = Field(
        None,
        description="clip every sentence's gradient to c and the user's sum to β (`sentence`, the default), likewise "
        "after scaling every gradient to just below c (`automatic`), or the user's sum alone (`user`), which gives an "
        "entity little protection",
    )
    clip_stability: float | None = Field(
        None,
        ge=SMALLEST_STABILITY,
        le=1e6,
        description=f"γ of automatic clipping, which makes c·g/(‖g‖ + γ) of a gradient g; default {STABILITY:g}",
    )

    @model_validator(mode="after")
    def _automatic_clipping_compares_no_norm(self) -> UserEntityConfig:
        if self.clipping != "automatic" and self.clip_stability is not None:
            raise ValueError(
                f"privacy.clip_stability is {self.clip_stability:g}; allowed: with privacy.clipping = automatic only"
            )
        if self.clipping == "automatic" and self.clip_quantile is not None:
            raise ValueError(
                f"privacy.clip_quantile is {self.clip_quantile:g} and privacy.clipping is automatic; allowed: one of "
                "them, because automatic clipping compares no norm with c"
            )
        return self


@dataclass(frozen=True, kw_only=True)
class UserEntityDP(Mechanism):
    """Bound each sentence by c and each user by β = ŵ·c, and sample users, entities and sentences.

    The defaults sample sentences and not users, for the smaller ε (docs/privacy-accounting.md, section 7).

    Attributes:
        clipping: ``sentence`` for Π_c, ``automatic`` for c·g/(‖g‖ + γ), or ``user`` to clip only the user's sum.
        clip_stability: γ of automatic clipping; None without it.
    """

    defaults: ClassVar = Mechanism.defaults | {"q_e": 0.5, "q_s": 0.1, "user_cap": 2.0, "noise_multiplier": 4.0}
    Config = UserEntityConfig
    needs_entities = True
    protects = "one user and one entity at once: all the user's sentences, all sentences with the entity"

    strategy: str = "uedp"
    clipping: GradientClipping = "sentence"
    clip_stability: float | None = None

    def check(self) -> None:
        super().check()
        kinds = get_args(GradientClipping)
        require(self.clipping in kinds, "clipping", self.clipping, ", ".join(kinds))
        if self.clipping == "automatic":
            require(self.adaptive is None, "adaptive", self.adaptive, "nothing with automatic clipping")
            require(self.clip_stability is not None, "clip_stability", None, "a number, with automatic clipping")
        if self.clip_stability is not None:
            require(self.clipping == "automatic", "clip_stability", self.clip_stability, "with automatic clipping only")
            check_stability("clip_stability", self.clip_stability)

    @classmethod
    def own_fields(cls, settings: Settings) -> dict[str, object]:
        privacy = settings.privacy_as(UserEntityConfig)
        stability = STABILITY if privacy.clipping == "automatic" else None
        return {"clipping": privacy.clipping or "sentence", "clip_stability": privacy.clip_stability or stability}

    @property
    def clips_sentences(self) -> bool:
        """Return whether one sentence moves a user's sum by at most c."""
        return self.clipping != "user"

    @property
    def items_per_user(self) -> float:
        """Return ŵ, the sentences of a full user, or 1 if users and not sentences are clipped one by one."""
        return self.user_cap if self.clips_sentences else 1.0

    def client_rule(self, clip_norm: float) -> ClientRule:
        sentence_clip = clip_norm if self.clips_sentences else math.inf
        return ClippedGradients(**self.bounds(clip_norm), sentence_clip=sentence_clip, stability=self.clip_stability)

    def event(self) -> RoundEvent:
        return RoundEvent(
            strategy="uedp",
            noise_multiplier=self.noise_multiplier,
            q_u=self.q_u,
            q_e=self.q_e,
            q_s=self.q_s,
            user_cap=self.user_cap,
            clipping="sentence" if self.clips_sentences else "user",
        )

    def clips_in_words(self) -> str:
        user = super().clips_in_words()
        if not self.clips_sentences:
            return user
        sentence = f"sentence clip c {self.clip_norm:.4g}"
        if self.clip_stability is not None:
            sentence = f"automatic clipping to c {self.clip_norm:.4g} (γ {self.clip_stability:.4g})"
        return f"{sentence}, user cap ŵ {self.user_cap:.4g}, {user}"
