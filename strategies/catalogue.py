"""Strategies by name."""

from __future__ import annotations

from strategies.baselines import Noiseless, Published, UserLevelDP
from strategies.plan import StrategyName
from strategies.rounds import BoundedSumStrategy, RoundParts
from strategies.uedp import UserEntityDP

STRATEGIES: dict[StrategyName, type[BoundedSumStrategy]] = {
    "uedp": UserEntityDP,
    "user_level": UserLevelDP,
    "published": Published,
    "noiseless": Noiseless,
}


def build_strategy(parts: RoundParts) -> BoundedSumStrategy:
    """The strategy that the plan of ``parts`` names."""
    return STRATEGIES[parts.plan.strategy](parts)
