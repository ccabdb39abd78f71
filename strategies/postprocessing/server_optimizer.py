"""Turn the noisy average into the server's step: θ ← θ + step(update).

This is post-processing of a released average, so it costs no privacy.

>>> config = ServerOptimizerConfig(optimizer="sgd", learning_rate=0.5, momentum=0.9)
>>> optimizer = build_optimizer(config, size=2, rounds=10)
>>> optimizer.step(np.array([1.0, -2.0])), optimizer.step(np.array([1.0, -2.0]))
(array([ 0.5, -1. ]), array([ 0.95, -1.9 ]))
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

Vector = npt.NDArray[np.float64]

_BLOCK = 1 << 14  # coordinates that stay in the processor's cache from one operation to the next


class ServerOptimizerConfig(BaseModel):
    """Configure the server optimizer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    optimizer: Literal["sgd", "adam"] = Field("adam", description="how the noisy average moves the model")
    learning_rate: float = Field(0.002, gt=0, description="η, the step size")
    momentum: float = Field(0.0, ge=0, lt=1, description="heavy-ball momentum of sgd")
    beta_1: float = Field(0.9, ge=0, lt=1, description="adam: decay of the first moment")
    beta_2: float = Field(0.99, ge=0, lt=1, description="adam: decay of the second moment")
    stabilizer: float = Field(1e-8, gt=0, description="adam: added to the root of the second moment")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant",
        description="how η goes from its full value, after the warm-up, to its final share in the last round",
    )
    warmup: int = Field(0, ge=0, description="rounds in which η rises to its full value, in equal steps")
    final_share: float = Field(0.0, ge=0, le=1, description="linear, cosine: the share of η towards which it falls")


def learning_rate_at(config: ServerOptimizerConfig, number: int, rounds: int) -> float:
    """Return η of a round, a function of public settings only.

    η rises to its full value in the warm-up and then falls towards ``final_share`` of it, which a round after the last
    would reach.

    Args:
        config: the settings.
        number: the round, from 1.
        rounds: T, the number of rounds.
    """
    if number <= config.warmup:
        return config.learning_rate * number / config.warmup
    if config.schedule == "constant":
        return config.learning_rate
    progress = min(1.0, (number - 1 - config.warmup) / max(1, rounds - config.warmup))
    remaining = 1 - progress if config.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return config.learning_rate * (config.final_share + (1 - config.final_share) * remaining)


class ServerOptimizer(ABC):
    """Turn the noisy average update of each round into the step that is added to the model.

    Args:
        config: the settings.
        size: d, the number of trainable parameters.
        rounds: T, for the schedule of the learning rate.
    """

    def __init__(self, config: ServerOptimizerConfig, size: int, rounds: int) -> None:
        self._config = config
        self._rounds = rounds
        self._steps = np.zeros(1)

    def step(self, update: Vector) -> Vector:
        """Return the step to add to the parameters, float64 (d,).

        Args:
            update: the noisy average, float64 (d,), in the direction of descent.
        """
        self._steps = self._steps + 1
        return learning_rate_at(self._config, int(self._steps[0]), self._rounds) * self._direction(update)

    def state(self) -> dict[str, npt.NDArray[np.float64]]:
        """Return the arrays that a checkpoint must hold so that the next step is the same."""
        return {"steps": self._steps}

    def restore(self, state: dict[str, npt.NDArray[np.float64]]) -> None:
        """Continue from the arrays of :meth:`state`."""
        self._steps = state["steps"]

    @abstractmethod
    def _direction(self, update: Vector) -> Vector:
        """Return the step at a learning rate of 1, float64 (d,)."""


class Momentum(ServerOptimizer):
    """Step by SGD with heavy-ball momentum: m ← μ·m + update, step η·m."""

    def __init__(self, config: ServerOptimizerConfig, size: int, rounds: int = 1) -> None:
        super().__init__(config, size, rounds)
        self._velocity = np.zeros(size)

    def _direction(self, update: Vector) -> Vector:
        self._velocity = self._config.momentum * self._velocity + update
        return self._velocity

    def state(self) -> dict[str, npt.NDArray[np.float64]]:
        return super().state() | {"velocity": self._velocity}

    def restore(self, state: dict[str, npt.NDArray[np.float64]]) -> None:
        super().restore(state)
        self._velocity = state["velocity"]


class Adam(ServerOptimizer):
    """Step by Adam (Kingma and Ba 2015) with bias correction, as FedAdam does (Reddi et al. 2021)."""

    def __init__(self, config: ServerOptimizerConfig, size: int, rounds: int = 1) -> None:
        super().__init__(config, size, rounds)
        self._first = np.zeros(size)
        self._second = np.zeros(size)

    def _direction(self, update: Vector) -> Vector:
        c, direction = self._config, np.empty(len(update))
        first_correction, second_correction = (1 - beta ** self._steps[0] for beta in (c.beta_1, c.beta_2))
        for start in range(0, len(update), _BLOCK):
            block = slice(start, start + _BLOCK)
            part, first, second, scale = update[block], self._first[block], self._second[block], direction[block]
            first *= c.beta_1
            first += (1 - c.beta_1) * part
            second *= c.beta_2
            second += (1 - c.beta_2) * part**2
            np.sqrt(second / second_correction, out=scale)
            scale += c.stabilizer
            np.divide(first / first_correction, scale, out=scale)
        return direction

    def state(self) -> dict[str, npt.NDArray[np.float64]]:
        # Copies, because a step changes the moments in place.
        return super().state() | {"first": self._first.copy(), "second": self._second.copy()}

    def restore(self, state: dict[str, npt.NDArray[np.float64]]) -> None:
        super().restore(state)
        self._first, self._second = state["first"].copy(), state["second"].copy()


def build_optimizer(config: ServerOptimizerConfig, size: int, rounds: int = 1) -> ServerOptimizer:
    """Return the optimizer that ``config`` names.

    Args:
        config: the settings.
        size: d, the number of trainable parameters.
        rounds: T, for the schedule of the learning rate.
    """
    return Adam(config, size, rounds) if config.optimizer == "adam" else Momentum(config, size, rounds)
