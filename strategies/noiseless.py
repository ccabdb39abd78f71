"""Define ``noiseless``: the same rounds without clip and noise, as an upper bound of utility.

No guarantee: the released model is the plain average of client updates, and ε is infinite.

>>> mechanism = Noiseless(
...     population=10, q_u=1.0, q_e=1.0, q_s=0.1, clip_norm=float("inf"), user_cap=1.0, noise_multiplier=0.0)
>>> mechanism.noise_std(clip_norm=1.0), mechanism.event() is None
(0.0, True)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

from pydantic import model_validator

from fl_sim.strategies.client_rules import ClientRule
from fl_sim.strategies.mechanism import (
    LOCAL_STEPS,
    Description,
    LocalTrainingConfig,
    Mechanism,
    Settings,
    UnreadSettings,
    gradients_or_steps,
)
from fl_sim.strategies.privacy_config import PrivacyConfig


class NoiselessConfig(PrivacyConfig):
    """Refuse the keys of ``[privacy]`` that ``noiseless`` cannot read."""

    enforces_bounds: ClassVar[bool] = False

    @model_validator(mode="after")
    def _nothing_is_clipped_or_noised(self) -> NoiselessConfig:
        for name in ("clip_norm", "user_cap", "noise_multiplier"):
            if getattr(self, name) is not None:
                raise ValueError(f"privacy.{name} is {getattr(self, name)}; allowed: nothing under {self.strategy}")
        return self


@dataclass(frozen=True, kw_only=True)
class Noiseless(Mechanism):
    """Release the plain average of client updates in every round, without a guarantee.

    Attributes:
        local: how users train.
    """

    defaults: ClassVar = Mechanism.defaults | {"q_s": 0.1, "clip_norm": math.inf, "noise_multiplier": 0.0}
    Config = NoiselessConfig
    protects = "no user and no entity: nothing is clipped and no noise is added"
    headline = None

    strategy: str = "noiseless"
    local: LocalTrainingConfig = field(default_factory=LocalTrainingConfig, compare=False)

    @classmethod
    def own_fields(cls, settings: Settings) -> dict[str, object]:
        return {"local": settings.local}

    @classmethod
    def unread(cls, strategy: str, local: LocalTrainingConfig) -> Iterator[UnreadSettings]:
        if local.update != "steps":
            yield "local", LOCAL_STEPS, "users take no local steps, they send gradients"
        yield "privacy", ("secure_noise",), f"{strategy} draws no noise"

    def check(self) -> None:
        """Accept every clip and noise, because neither is used."""

    def client_rule(self, clip_norm: float) -> ClientRule:
        return gradients_or_steps(self.local.update or "gradients", self.local, self.bounds(clip_norm))

    def user_clip(self, clip_norm: float) -> float:
        return math.inf

    def noise_std(self, clip_norm: float) -> float:
        return 0.0

    def describe(self) -> Description:
        words = replace(super().describe(), settings=self.rates_in_words())
        return replace(words, warnings=(f"{self.strategy} gives no guarantee: its ε is infinite.",))
