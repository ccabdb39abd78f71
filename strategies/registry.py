"""Strategies by name: shipped, registered by another package, or any class by its import path.

>>> load_strategy("user_level").defaults["q_u"]
0.05
>>> load_strategy("fl_sim.strategies.uedp:UserEntityDP") is load_strategy("uedp")
True
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from fl_sim.plugins import Registry
from fl_sim.strategies.mechanism import Mechanism, PrivacyPlan


def _is_strategy(part: Any) -> bool:
    is_strategy = isinstance(part, type) and issubclass(part, Mechanism) and not part.__abstractmethods__
    return is_strategy and isinstance(part.Config, type) and issubclass(part.Config, BaseModel)


STRATEGIES = Registry(
    group="fl_sim.strategies",
    kind="strategy",
    built_in={
        "uedp": "fl_sim.strategies.uedp:UserEntityDP",
        "user_level": "fl_sim.strategies.user_level:UserLevelDP",
        "published": "fl_sim.strategies.published:Published",
        "noiseless": "fl_sim.strategies.noiseless:Noiseless",
    },
    check=_is_strategy,
    interface="a subclass of fl_sim.strategies.mechanism.Mechanism with a client_rule, and a pydantic model as Config",
)


@functools.cache
def load_strategy(name: str) -> type[Mechanism]:
    """Return the class of a strategy.

    Raises:
        PluginError: there is none of that name, it cannot be imported, or it is no strategy.
    """
    strategy: type[Mechanism] = STRATEGIES.load(name)
    return strategy


def built_in_strategies() -> dict[str, type[Mechanism]]:
    """Return the strategies that ship, by name."""
    return {name: load_strategy(path) for name, path in STRATEGIES.built_in.items()}


def mechanism_from_record(values: Mapping[str, Any]) -> Mechanism:
    """Return the mechanism of a :meth:`Mechanism.record`.

    Raises:
        PluginError: its strategy is not installed here.
        PrivacyError: a value is impossible.
        TypeError: keys are missing, unknown or of another kind.
    """
    return load_strategy(str(values.get("strategy"))).from_record(values)


def plan_from_record(values: Mapping[str, Any]) -> PrivacyPlan:
    """Return the plan of a :meth:`PrivacyPlan.record`; raises as :func:`mechanism_from_record` does."""
    others = {name: value for name, value in values.items() if name not in ("rounds", "delta")}
    return PrivacyPlan(mechanism=mechanism_from_record(others), rounds=values["rounds"], delta=values["delta"])
