"""The server's step: θ ← θ + step(update). Post-processing of the noisy average, so it costs no privacy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

Vector = npt.NDArray[np.float64]


class ServerOptimizerConfig(BaseModel):
    """The settings of the server optimizer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    optimizer: Literal["sgd", "adam"] = Field("adam", description="how the noisy average moves the model")
    learning_rate: float = Field(0.002, gt=0, description="η, the step size")
    momentum: float = Field(0.0, ge=0, lt=1, description="heavy-ball momentum of sgd")
    beta_1: float = Field(0.9, ge=0, lt=1, description="adam: decay of the first moment")
    beta_2: float = Field(0.99, ge=0, lt=1, description="adam: decay of the second moment")
    stabilizer: float = Field(1e-8, gt=0, description="adam: added to the root of the second moment")


class ServerOptimizer(ABC):
    """Turns the round's noisy average update (d,) into the step that is added to the model."""

    @abstractmethod
    def step(self, update: Vector) -> Vector:
        """The vector to add to the model's parameters; ``update`` points where the loss falls."""

    @abstractmethod
    def state(self) -> dict[str, npt.NDArray[np.float64]]:
        """What a checkpoint must hold so that the next step is the same."""

    @abstractmethod
    def restore(self, state: dict[str, npt.NDArray[np.float64]]) -> None:
        """Continue from a :meth:`state`."""


class Momentum(ServerOptimizer):
    """SGD with heavy-ball momentum: m ← μ·m + update, step η·m."""

    def __init__(self, config: ServerOptimizerConfig, size: int) -> None:
        self._config = config
        self._velocity = np.zeros(size)

    def step(self, update: Vector) -> Vector:
        self._velocity = self._config.momentum * self._velocity + update
        return self._config.learning_rate * self._velocity

    def state(self) -> dict[str, npt.NDArray[np.float64]]:
        return {"velocity": self._velocity}

    def restore(self, state: dict[str, npt.NDArray[np.float64]]) -> None:
        self._velocity = state["velocity"]


class Adam(ServerOptimizer):
    """Adam (Kingma and Ba 2015) with bias correction; the server step of FedAdam (Reddi et al. 2021)."""

    def __init__(self, config: ServerOptimizerConfig, size: int) -> None:
        self._config = config
        self._first = np.zeros(size)
        self._second = np.zeros(size)
        self._steps = np.zeros(1)

    def step(self, update: Vector) -> Vector:
        c = self._config
        self._steps += 1
        self._first = c.beta_1 * self._first + (1 - c.beta_1) * update
        self._second = c.beta_2 * self._second + (1 - c.beta_2) * update**2
        first = self._first / (1 - c.beta_1 ** self._steps[0])
        second = self._second / (1 - c.beta_2 ** self._steps[0])
        return c.learning_rate * first / (np.sqrt(second) + c.stabilizer)

    def state(self) -> dict[str, npt.NDArray[np.float64]]:
        return {"first": self._first, "second": self._second, "steps": self._steps}

    def restore(self, state: dict[str, npt.NDArray[np.float64]]) -> None:
        self._first, self._second, self._steps = state["first"], state["second"], state["steps"]


def build_optimizer(config: ServerOptimizerConfig, size: int) -> ServerOptimizer:
    """The optimizer that ``config`` names, for a model of ``size`` trainable parameters."""
    return Adam(config, size) if config.optimizer == "adam" else Momentum(config, size)
