"""Load strategies by name: built in, installed by another package, or given by import path.

>>> load_strategy("uedp").__name__
'UserEntityDP'
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from fl_sim.plugins import Registry
from fl_sim.strategies.mechanism import Mechanism, PrivacyPlan
from fl_sim.strategies.privacy_config import PrivacyConfig, TargetUnit


def _is_strategy(part: Any) -> bool:
    is_strategy = isinstance(part, type) and issubclass(part, Mechanism) and not part.__abstractmethods__
    if not (is_strategy and isinstance(part.Config, type) and issubclass(part.Config, PrivacyConfig)):
        return False
    # Without @dataclass an attribute named like a key would keep its default whatever the configuration says.
    return all(name in part.fields_of_own_keys() for name in part.Config.own_keys() if hasattr(part, name))


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
    interface="a subclass of fl_sim.strategies.mechanism.Mechanism with a client_rule, and one of PrivacyConfig as "
    "Config, with @dataclass if it has fields",
)


@functools.cache
def load_strategy(name: str) -> type[Mechanism]:
    """Return the class of a strategy by built-in name, entry point or ``module:attribute``; PluginError for others."""
    strategy: type[Mechanism] = STRATEGIES.load(name)
    return strategy


def target_unit(privacy: PrivacyConfig) -> TargetUnit:
    """Return whose ε a target or budget limits: as configured, or whom the strategy states its ε for.

    >>> target_unit(PrivacyConfig(strategy="user_level")), target_unit(PrivacyConfig(strategy="uedp"))
    ('user', 'user_entity')
    """
    of_users = load_strategy(privacy.strategy).headline == "epsilon_user"
    return privacy.target_unit or ("user" if of_users else "user_entity")


def built_in_strategies() -> dict[str, type[Mechanism]]:
    """Return the classes of the built-in strategies, by name."""
    return {name: load_strategy(path) for name, path in STRATEGIES.built_in.items()}


def mechanism_from_record(values: Mapping[str, object]) -> Mechanism:
    """Return the mechanism of a :meth:`Mechanism.record`.

    Raises:
        PluginError: its strategy is not installed.
        PrivacyError: a value is out of range.
        TypeError: a key is missing or unknown, or a value has the wrong type.
    """
    return load_strategy(str(values.get("strategy"))).from_record(values)


def plan_from_record(values: Mapping[str, Any]) -> PrivacyPlan:
    """Return the plan of a :meth:`PrivacyPlan.record`; raises as :func:`mechanism_from_record` does."""
    mechanism_fields = {name: value for name, value in values.items() if name not in ("rounds", "delta")}
    return PrivacyPlan(
        mechanism=mechanism_from_record(mechanism_fields), rounds=values["rounds"], delta=values["delta"]
    )
