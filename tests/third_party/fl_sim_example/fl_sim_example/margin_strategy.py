"""A strategy that clips every sentence and adds more noise than it states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field

from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.client_rules import ClientRule, ClippedGradients
from fl_sim.strategies.mechanism import Mechanism
from fl_sim.strategies.privacy_config import PrivacyConfig


class MarginConfig(PrivacyConfig):
    """The keys of ``[privacy]``, with one of the strategy's own."""

    margin: float = Field(1.0, ge=1, le=100, description="how many times the stated noise is drawn")


@dataclass(frozen=True, kw_only=True)
class NoiseWithMargin(Mechanism):
    """Sentence and user clips as in uedp; the noise has ``margin`` times its standard deviation."""

    defaults: ClassVar = {
        "q_u": 1.0, "q_e": 0.5, "q_s": 0.2, "clip_norm": 1.0, "user_cap": 2.0, "noise_multiplier": 2.0,
    }  # fmt: skip
    needs_entities = True
    protects = "one user and one entity at once, with noise to spare"
    Config = MarginConfig

    margin: float = 1.0

    def client_rule(self, clip_norm: float) -> ClientRule:
        """Return the sum of clipped sentence gradients."""
        return ClippedGradients(**self.bounds(clip_norm), sentence_clip=clip_norm)

    @property
    def noise_per_clip(self) -> float:
        """The noise on the sum in units of the user clip."""
        return self.margin * self.noise_multiplier

    def event(self) -> RoundEvent:
        """Return a round of uedp, at the noise that is drawn."""
        return RoundEvent("uedp", self.noise_per_clip, self.q_u, self.q_e, self.q_s, self.user_cap)
