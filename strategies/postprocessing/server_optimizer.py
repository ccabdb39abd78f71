"""The server's step: θ ← θ + step(update). Post-processing of the noisy average, so it costs no privacy."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

Vector = npt.NDArray[np.float64]

_BLOCK = 1 << 14  # numbers that stay in the processor's cache from one operation to the next


class ServerOptimizerConfig(BaseModel):
    """The settings of the server optimizer."""

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
    """η of round ``number`` (from 1) of ``rounds``: a function of public settings and nothing else.

    After W rounds of warm-up the first round has the full η; towards the end it falls to ``final_share`` of it, which a
    round after the last would have.
    """
    if number <= config.warmup:
        return config.learning_rate * number / config.warmup
    if config.schedule == "constant":
        return config.learning_rate
    done = min(1.0, (number - 1 - config.warmup) / max(1, rounds - config.warmup))
    left = 1 - done if config.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return config.learning_rate * (config.final_share + (1 - config.final_share) * left)


class ServerOptimizer(ABC):
    """Turns the round's noisy average update (d,) into the step that is added to the model.

    Args:
        config: the settings.
        size: d, the model's trainable parameters.
        rounds: T, for the schedule of the learning rate.
    """

    def __init__(self, config: ServerOptimizerConfig, size: int, rounds: int) -> None:
        self._config = config
        self._rounds = rounds
        self._steps = np.zeros(1)

    def step(self, update: Vector) -> Vector:
        """The vector to add to the model's parameters; ``update`` points where the loss falls."""
        self._steps = self._steps + 1
        return learning_rate_at(self._config, int(self._steps[0]), self._rounds) * self._direction(update)

    def state(self) -> dict[str, npt.NDArray[np.float64]]:
        """What a checkpoint must hold so that the next step is the same."""
        return {"steps": self._steps}

    def restore(self, state: dict[str, npt.NDArray[np.float64]]) -> None:
        """Continue from a :meth:`state`."""
        self._steps = state["steps"]

    @abstractmethod
    def _direction(self, update: Vector) -> Vector:
        """The step at a learning rate of 1."""


class Momentum(ServerOptimizer):
    """SGD with heavy-ball momentum: m ← μ·m + update, step η·m."""

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
    """Adam (Kingma and Ba 2015) with bias correction; the server step of FedAdam (Reddi et al. 2021)."""

    def __init__(self, config: ServerOptimizerConfig, size: int, rounds: int = 1) -> None:
        super().__init__(config, size, rounds)
        self._first = np.zeros(size)
        self._second = np.zeros(size)

    def _direction(self, update: Vector) -> Vector:
        c, direction = self._config, np.empty(len(update))
        first_left, second_left = (1 - beta ** self._steps[0] for beta in (c.beta_1, c.beta_2))
        for start in range(0, len(update), _BLOCK):
            some = slice(start, start + _BLOCK)
            given, first, second, scale = update[some], self._first[some], self._second[some], direction[some]
            first *= c.beta_1
            first += (1 - c.beta_1) * given
            second *= c.beta_2
            second += (1 - c.beta_2) * given**2
            np.sqrt(second / second_left, out=scale)
            scale += c.stabilizer
            np.divide(first / first_left, scale, out=scale)
        return direction

    def state(self) -> dict[str, npt.NDArray[np.float64]]:
        # Copies, because a step changes the moments in place.
        return super().state() | {"first": self._first.copy(), "second": self._second.copy()}

    def restore(self, state: dict[str, npt.NDArray[np.float64]]) -> None:
        super().restore(state)
        self._first, self._second = state["first"].copy(), state["second"].copy()


def build_optimizer(config: ServerOptimizerConfig, size: int, rounds: int = 1) -> ServerOptimizer:
    """The optimizer that ``config`` names, for a model of ``size`` trainable parameters trained for ``rounds``."""
    return Adam(config, size, rounds) if config.optimizer == "adam" else Momentum(config, size, rounds)
