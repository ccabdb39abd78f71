"""``uedp``: clip twice and sample every sentence, so that users and entities hide behind the same noise.

v_u = Π_β( Σ_{s eligible} Π_c( −∇l(θ, s) ) ), β = ŵ·c; a sentence is eligible iff it and all its entities are sampled.
Removing an entity then moves the sum by at most c per active sentence that mentions it, where user clipping alone would
allow 2β per user who knows it (docs/privacy.md, Theorem). ``clipping="user"`` leaves the inner clip out, to show what
that costs.

>>> rates = {"q_u": 1.0, "q_e": 0.5, "q_s": 0.1}
>>> mechanism = UserEntityDP(population=946, clip_norm=1.0, user_cap=2.0, noise_multiplier=4.0, **rates)
>>> mechanism.client_rule(1.0).sentence_clip, mechanism.client_rule(1.0).user_clip
(1.0, 2.0)
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
    """The mechanism of this project: sentence clip c, user clip β = ŵ·c, entities and sentences sampled.

    The defaults sample sentences and not users, because that is what makes the guarantee strong (docs/privacy.md).

    Attributes:
        clipping: ``sentence``, or ``user`` where only the user's sum is clipped.
    """

    defaults: ClassVar = {
        "q_u": 1.0,
        "q_e": 0.5,
        "q_s": 0.1,
        "clip_norm": 1.0,
        "user_cap": 2.0,
        "noise_multiplier": 4.0,
    }
    keys = ("clipping", "clip_quantile", "clip_learning_rate", "clip_count_noise")
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
        """Whether one sentence moves a user's sum by at most c."""
        return self.clipping == "sentence"

    @property
    def items_per_user(self) -> float:
        """ŵ sentences, or the user itself where sentences are not clipped."""
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
