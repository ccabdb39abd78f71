"""Define ``uedp``: clip sentences and users, sample every sentence, and protect users and entities by one noise.

v_u = Π_β( Σ_{s eligible} Π_c( −∇l(θ, s) ) ), β = ŵ·c; a sentence is eligible iff it and all its entities are sampled.
Removing an entity then moves the sum by at most c per active sentence that mentions it, where user clipping alone would
allow 2β per user who mentions it. ``clipping="user"`` omits the inner clip, to show what that costs.

Guarantee: (ε, δ) for user-entity adjacency against an adversary who observes all T models (docs/privacy.md, sections 4
and 5), under the assumptions of its section 2: each gradient depends on one sentence only, and rates, clips, z and N
are public.

>>> from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound
>>> from fl_sim.strategies.mechanism import PrivacyPlan
>>> mechanism = UserEntityDP(
...     population=100, q_u=1.0, q_e=0.5, q_s=0.1, clip_norm=1.0, user_cap=2.0, noise_multiplier=4.0)
>>> mechanism.client_rule(clip_norm=1.0).user_clip, mechanism.noise_std(clip_norm=1.0)
(2.0, 8.0)
>>> unit = Adjacency(user_sentences=10, entity_bound=ContributionBound(users=3, sentences_per_user=2))
>>> PrivacyPlan(mechanism=mechanism, rounds=5, delta=1e-5).epsilon_curve(unit, [1, 5]).round(2)
array([0.65, 1.42])
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

from fl_sim.strategies.accounting.accountant import Clipping, RoundEvent
from fl_sim.strategies.client_rules import ClientRule, ClippedGradients
from fl_sim.strategies.mechanism import Mechanism, Settings
from fl_sim.strategies.primitives.limits import require


@dataclass(frozen=True, kw_only=True)
class UserEntityDP(Mechanism):
    """Bound each sentence by c and each user by β = ŵ·c, and sample users, entities and sentences.

    The defaults sample sentences and not users, because this gives the smaller ε (docs/privacy.md, section 7).

    Attributes:
        clipping: ``sentence``, or ``user`` to clip only the user's sum.
    """

    defaults: ClassVar = {
        "q_u": 1.0,
        "q_e": 0.5,
        "q_s": 0.1,
        "clip_norm": 1.0,
        "user_cap": 2.0,
        "noise_multiplier": 4.0,
    }
    keys = ("clipping", "noise_cohort", "clip_quantile", "clip_learning_rate", "clip_count_noise")
    default_bounds: ClassVar = {"entity_bound": 10, "user_sentences": 32}
    needs_entities = True
    protects = "one user and one entity at once: all the user's sentences, all sentences with the entity"

    strategy: str = "uedp"
    clipping: Clipping = "sentence"

    def check(self) -> None:
        super().check()
        require(self.clipping in get_args(Clipping), "clipping", self.clipping, ", ".join(get_args(Clipping)))

    @classmethod
    def own_fields(cls, settings: Settings) -> dict[str, Any]:
        return {"clipping": settings.privacy["clipping"] or "sentence"}

    @property
    def clips_sentences(self) -> bool:
        """Return whether one sentence moves a user's sum by at most c."""
        return self.clipping == "sentence"

    @property
    def items_per_user(self) -> float:
        """Return ŵ, the sentences of a full user, or 1 if users and not sentences are clipped one by one."""
        return self.user_cap if self.clips_sentences else 1.0

    def client_rule(self, clip_norm: float) -> ClientRule:
        return ClippedGradients(**self.bounds(clip_norm), sentence_clip=clip_norm if self.clips_sentences else math.inf)

    def event(self) -> RoundEvent:
        return RoundEvent(
            strategy="uedp",
            noise_multiplier=self.noise_multiplier,
            q_u=self.q_u,
            q_e=self.q_e,
            q_s=self.q_s,
            user_cap=self.user_cap,
            clipping=self.clipping,
        )

    def record(self) -> dict[str, Any]:
        return super().record() | {"clipping": self.clipping}

    def clips_in_words(self) -> str:
        user = super().clips_in_words()
        if not self.clips_sentences:
            return user
        return f"sentence clip c {self.clip_norm:.4g}, user cap ŵ {self.user_cap:.4g}, {user}"
