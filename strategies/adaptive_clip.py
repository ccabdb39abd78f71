"""A clip that follows a quantile of the norms, which a noisy count per round estimates (docs/privacy.md, section 12).

Every item that is clipped (a sentence, or a user where sentences are not clipped) votes b − γ, with b = 1 if the clip
left it as it was. The votes are one more coordinate of the user's vector, bounded and noised with it.

>>> clip = AdaptiveClip(quantile=0.5, learning_rate=0.2, count_noise=5.0)
>>> clip.vote.of_items(10, clipped=2)  # eight of ten are within the clip, where five are wanted
3.0
>>> round(clip.next_clip(first=1.0, clip=1.0, share=3.0 / 10), 3)  # so that the clip falls
0.942
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fl_sim.strategies.primitives.limits import require

_CLIP_RANGE = 1e6
"""An adaptive clip stays within this factor of where it began, so that no noise can drive it out of the numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipVote:
    """How items vote on the clip: the part of an adaptive clip that nodes need.

    Attributes:
        quantile: γ.
        vote_weight: κ > 0; votes are the coordinate κ·c·Σ(b − γ) of a user's vector.
        update_weight: a in (0, 1), by which the other coordinates shrink to make room for the votes.
    """

    quantile: float
    vote_weight: float
    update_weight: float

    def joint_norm(self, length: float, votes: float, clip: float) -> float:
        """Return the norm of a vector of norm ``length`` with its ``votes`` on ``clip`` as one more coordinate."""
        return math.hypot(self.update_weight * length, self.vote_weight * clip * votes)

    def of_items(self, items: int, clipped: int) -> float:
        """Return Σ(b − γ) over ``items``, of which ``clipped`` were longer than the clip."""
        return items - clipped - self.quantile * items

    def of_one(self, within: bool) -> float:
        """Return b − γ of one item, where ``within`` says whether the clip left it as it was."""
        return float(within) - self.quantile


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveClip:
    """The settings of an adaptive clip.

    Attributes:
        quantile: γ in (0, 1), the share of items that the clip is to leave as they are.
        learning_rate: η > 0 of the geometric step c ← c·exp(−η·(share − γ)).
        count_noise: r > 1, the noise on the count as a multiple of what would use up the whole budget z. The noise on
            the sum grows by (1 − 1/r²)^−½ in turn.

    Raises:
        PrivacyError: a value is impossible.
    """

    quantile: float
    learning_rate: float
    count_noise: float

    def __post_init__(self) -> None:
        require(0 < self.quantile < 1, "clip_quantile", self.quantile, "in (0, 1)")
        require(0 < self.learning_rate < math.inf, "clip_learning_rate", self.learning_rate, "above 0")
        require(1 < self.count_noise < math.inf, "clip_count_noise", self.count_noise, "above 1")

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> AdaptiveClip | None:
        """Read ``clip_quantile`` and what belongs to it; None without a quantile, for a clip that is fixed."""
        if settings["clip_quantile"] is None:
            return None
        return cls(
            quantile=settings["clip_quantile"],
            learning_rate=settings["clip_learning_rate"],
            count_noise=settings["clip_count_noise"],
        )

    @property
    def largest_vote(self) -> float:
        """h = max(γ, 1−γ), the most that one item moves the count Σ(b − γ)."""
        return max(self.quantile, 1 - self.quantile)

    @property
    def vote_weight(self) -> float:
        """κ = 1/(r·h): a vote is the coordinate κ·c·(b − γ) of an item's vector."""
        return 1 / (self.count_noise * self.largest_vote)

    @property
    def update_weight(self) -> float:
        """a = (1 − 1/r²)^½, by which an item's own coordinates shrink to make room for the vote."""
        return math.sqrt(1 - self.count_noise**-2)

    @property
    def vote(self) -> ClipVote:
        """The part that nodes need."""
        return ClipVote(quantile=self.quantile, vote_weight=self.vote_weight, update_weight=self.update_weight)

    def count_noise_std(self, noise_multiplier: float, items_per_user: float) -> float:
        """Return the standard deviation of the noise on the count.

        The count is the coordinate κ·c·Σ(b − γ) of the sum and gets its noise zβ, which is zβ/(κc) on the count.
        """
        return noise_multiplier * items_per_user / self.vote_weight

    def next_clip(self, first: float, clip: float, share: float) -> float:
        """Return c·exp(−η·share), where ``share`` is the noisy mean of b − γ.

        Args:
            first: the first round's clip, near which every later one stays.
            clip: the clip of the round that has just been released.
            share: the noisy count divided by its public expectation.
        """
        farthest = math.log(_CLIP_RANGE)
        moved = math.log(clip / first) - self.learning_rate * share
        return first * math.exp(min(max(moved, -farthest), farthest))
