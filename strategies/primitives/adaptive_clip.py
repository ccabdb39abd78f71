"""Adapt the clip to a quantile of the norms, by one noisy count per round (docs/privacy-proofs.md, section 12).

Every clipped item (a sentence, or a user if sentences are not clipped) votes b − γ, where b = 1 if its norm is within
the clip. The votes are one more coordinate of the client update.

Guarantee: the joint vector of update and votes has the bound β and gets noise zβ, so ε is that of the same mechanism
with a fixed clip. The next clip is post-processing of the noisy count. Assumption: γ, η, r and the first c are public.

>>> adaptive = AdaptiveClip(quantile=0.5, learning_rate=0.2, count_noise=10.0)
>>> round(adaptive.next_clip(first=1.0, clip=1.0, share=-0.25), 3)
1.051
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fl_sim.strategies.primitives.limits import SMALLEST_CLIP, require

_CLIP_RANGE = 1e6
"""An adaptive clip stays within this factor of the first, so that noise cannot make it overflow or vanish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipVote:
    """Compute the votes on an adaptive clip: the settings that nodes need.

    Attributes:
        quantile: γ in (0, 1).
        vote_weight: κ > 0; votes are the coordinate κ·c·Σ(b − γ) of a user's vector.
        update_weight: a in (0, 1), by which the other coordinates shrink to make room for the votes.
    """

    quantile: float
    vote_weight: float
    update_weight: float

    def joint_norm(self, length: float, votes: float, clip: float) -> float:
        """Return the norm of a client update of norm ``length`` together with the coordinate of its votes Σ(b − γ)."""
        return math.hypot(self.update_weight * length, self.vote_weight * clip * votes)

    def of_items(self, items: int, clipped: int) -> float:
        """Return Σ(b − γ) over ``items`` items, of which ``clipped`` exceed the clip."""
        return items - clipped - self.quantile * items

    def of_one(self, within: bool) -> float:
        """Return b − γ of one item, where b = 1 if its norm is ``within`` the clip."""
        return float(within) - self.quantile


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveClip:
    """Adapt a clip by the noisy share of items within it.

    Attributes:
        quantile: γ in (0, 1), the share of items that should lie within the clip.
        learning_rate: η > 0 of the geometric step c ← c·exp(−η·(share − γ)).
        count_noise: r > 1, the noise on the count as a multiple of the noise that would use up the whole budget z. In
            return, the noise on the sum grows by (1 − 1/r²)^−½.

    Raises:
        PrivacyError: a value is out of range.
    """

    quantile: float
    learning_rate: float
    count_noise: float

    def __post_init__(self) -> None:
        require(0 < self.quantile < 1, "clip_quantile", self.quantile, "in (0, 1)")
        require(0 < self.learning_rate < math.inf, "clip_learning_rate", self.learning_rate, "above 0")
        require(1 < self.count_noise < math.inf, "clip_count_noise", self.count_noise, "above 1")

    @property
    def largest_vote(self) -> float:
        """Return h = max(γ, 1−γ), the most that one item moves the count Σ(b − γ)."""
        return max(self.quantile, 1 - self.quantile)

    @property
    def vote_weight(self) -> float:
        """Return κ = 1/(r·h): a vote is the coordinate κ·c·(b − γ) of an item's vector."""
        return 1 / (self.count_noise * self.largest_vote)

    @property
    def update_weight(self) -> float:
        """Return a = (1 − 1/r²)^½, by which an item's own coordinates shrink to make room for the vote."""
        return math.sqrt(1 - self.count_noise**-2)

    @property
    def vote(self) -> ClipVote:
        """Return the settings that nodes need to vote."""
        return ClipVote(quantile=self.quantile, vote_weight=self.vote_weight, update_weight=self.update_weight)

    def count_noise_std(self, noise_multiplier: float, items_per_user: float) -> float:
        """Return the standard deviation of the noise on the count.

        The coordinate κ·c·Σ(b − γ) of the sum gets noise zβ with β = ŵ·c, so the count gets noise zβ/(κc) = zŵ/κ; ŵ is
        1 if users vote.
        """
        return noise_multiplier * items_per_user / self.vote_weight

    def next_clip(self, first: float, clip: float, share: float) -> float:
        """Return the next round's clip c·exp(−η·share), within a fixed factor of the first, and a clip that is allowed.

        ``share`` is the noisy count Σ(b − γ) of the round just released, divided by the public expected number of
        items.
        """
        farthest = math.log(_CLIP_RANGE)
        moved = math.log(clip / first) - self.learning_rate * share
        return max(first * math.exp(min(max(moved, -farthest), farthest)), SMALLEST_CLIP)
