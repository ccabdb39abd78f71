"""Strategies by name."""

from __future__ import annotations

from fl_sim.strategies.aggregation import BoundedSumStrategy, RoundParts
from fl_sim.strategies.baselines import Noiseless, Published, UserLevelDP
from fl_sim.strategies.mechanism import StrategyName
from fl_sim.strategies.uedp import UserEntityDP

STRATEGIES: dict[StrategyName, type[BoundedSumStrategy]] = {
    "uedp": UserEntityDP,
    "user_level": UserLevelDP,
    "published": Published,
    "noiseless": Noiseless,
}


def build_strategy(parts: RoundParts) -> BoundedSumStrategy:
    """The strategy that the plan of ``parts`` names."""
    return STRATEGIES[parts.plan.strategy](parts)
