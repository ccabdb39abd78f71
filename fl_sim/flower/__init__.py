"""Differential privacy with a proven ε for any Flower app of the message API (docs/flower.md).

On the server, :class:`UserLevelDifferentialPrivacy` wraps the app's strategy; on the nodes, ``userlevelclipping_mod``
(a node is a user) or :class:`UserLevelClipping` (a node holds several users) bounds what a user can change.

>>> from fl_sim.flower import UserLevelDifferentialPrivacy, userlevelclipping_mod
>>> from flwr.serverapp.strategy import FedAvg
>>> strategy = UserLevelDifferentialPrivacy(
...     FedAvg(), population=1000, sampling_rate=0.05, clip_norm=1.0, target_epsilon=4.0, folder="first")
>>> strategy.epsilon()
0.0
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl_sim.flower.clipping_mod import UserLevelClipping, userlevelclipping_mod
    from fl_sim.flower.user_level_strategy import UserLevelDifferentialPrivacy
    from fl_sim.strategies.postprocessing import ServerOptimizerConfig

_MODULES = {
    "ServerOptimizerConfig": "strategies.postprocessing",
    "UserLevelClipping": "flower.clipping_mod",
    "UserLevelDifferentialPrivacy": "flower.user_level_strategy",
    "userlevelclipping_mod": "flower.clipping_mod",
}
"""The module of each public name: a node needs none of the server's."""

__all__ = ["ServerOptimizerConfig", "UserLevelClipping", "UserLevelDifferentialPrivacy", "userlevelclipping_mod"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"fl_sim.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
