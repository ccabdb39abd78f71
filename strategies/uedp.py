"""``uedp``: clip twice and toss a coin per sentence, so that users and entities hide behind the same noise.

v_u = Π_β( Σ_{s eligible} Π_c( −∇l(θ, s) ) ), β = ŵ·c; a sentence is eligible iff its coin and all its entities are
active. Removing an entity then moves the sum by at most c per active sentence that mentions it, where user clipping
alone would allow 2β per user who knows it (docs/privacy.md, Theorem). The plan's ``clipping="user"`` leaves the inner
clip out, to show what that costs.
"""

from __future__ import annotations

from fl_sim.strategies.aggregation import BoundedSumStrategy
from fl_sim.strategies.messages import LocalRule


class UserEntityDP(BoundedSumStrategy):
    """The mechanism of this project: sentence clip c, user clip β = ŵ·c, entity and sentence coins."""

    def local_rule(self) -> LocalRule:
        return self.rule("gradients")
