"""Take the server's step: by a wrapped Flower strategy, or by one of our server optimizers.

>>> step = step_of(None, ServerOptimizerConfig(optimizer="sgd", learning_rate=0.5))
>>> step.settings()["server_optimizer.learning_rate"]
0.5
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.serverapp.strategy import Strategy

from fl_sim.flower.array_layout import ArrayLayout
from fl_sim.flower.wrapped_strategy import WrappedStrategy
from fl_sim.strategies.postprocessing import ServerOptimizer, ServerOptimizerConfig, build_optimizer
from fl_sim.strategies.primitives.limits import PrivacyError

State = Mapping[str, npt.NDArray[np.floating]]


class ServerStep(Protocol):
    """Compose the requests of a round and move the model by the noisy average: post-processing of what was released."""

    def settings(self) -> dict[str, Any]:
        """Return the settings by name, JSON-ready, for the record of the run."""

    def prepare(self, size: int, rounds: int) -> None:
        """Begin a training of a model of ``size`` parameters for ``rounds`` rounds."""

    def content(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord) -> RecordDict:
        """Return the content of the round's requests, which are the same for every node."""

    def stepped(self, content: RecordDict, layout: ArrayLayout, average: npt.NDArray[np.float64]) -> ArrayRecord:
        """Return the next model, given the requests' content and the noisy average, float64 (d,)."""

    def state(self) -> State:
        """Return the arrays that a checkpoint must hold."""

    def restore(self, state: State) -> None:
        """Continue from the arrays of :meth:`state`."""


class OptimizerStep:
    """Move the model by a server optimizer of ours, in float32."""

    def __init__(self, config: ServerOptimizerConfig) -> None:
        self._config = config
        self._optimizer: ServerOptimizer = build_optimizer(config, 0)

    def settings(self) -> dict[str, Any]:
        return {f"server_optimizer.{name}": value for name, value in self._config.model_dump(mode="json").items()}

    def prepare(self, size: int, rounds: int) -> None:
        self._optimizer = build_optimizer(self._config, size, rounds)

    def content(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord) -> RecordDict:
        config["server-round"] = server_round  # as Flower's own strategies do
        return RecordDict({"arrays": arrays, "config": config})

    def stepped(self, content: RecordDict, layout: ArrayLayout, average: npt.NDArray[np.float64]) -> ArrayRecord:
        model = layout.vector(content.array_records["arrays"], np.float32)
        return layout.arrays(self._optimizer.stepped(model, average))

    def state(self) -> State:
        return self._optimizer.state()

    def restore(self, state: State) -> None:
        self._optimizer.restore(state)


def step_of(strategy: Strategy | None, optimizer: ServerOptimizerConfig | None) -> ServerStep:
    """Return the server's step; PrivacyError if both are given, or neither."""
    if strategy is not None and optimizer is None:
        return WrappedStrategy(strategy)
    if optimizer is not None and strategy is None:
        return OptimizerStep(optimizer)
    given = "missing" if strategy is None else "given with server_optimizer"
    raise PrivacyError(f"strategy is {given}; allowed: one of strategy and server_optimizer")
