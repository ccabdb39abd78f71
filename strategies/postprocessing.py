"""Post-process noisy averages, which costs no privacy: the server's optimizer, then averages of successive models.

A step is computed a block of coordinates at a time; what lasts from round to round is as large as the model (sgd) or
twice that (adam). The last iterate is noisy; an average of late iterates is less so (Polyak and Juditsky 1992; under
DP-SGD De et al. 2022). The average is evaluated and saved; training continues from the iterate itself.

>>> average = IterateAverage(AveragingConfig(kind="tail", tail=0.5), size=1, rounds=4)
>>> for number in (1, 2, 3, 4):
...     average.add(number, np.full(1, number, dtype=np.float32))
>>> average.value(np.zeros(1, dtype=np.float32))
array([3.5], dtype=float32)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

Vector = npt.NDArray[np.float64]
Model = npt.NDArray[np.float32]

_BLOCK = 1 << 13  # coordinates, whose temporaries stay in the processor's cache and in the allocator's pool


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
    """Return η of the round ``number`` of ``rounds``, a function of public settings only.

    η rises to its full value in the warm-up and then falls towards ``final_share`` of it, which a round after the last
    would reach.
    """
    if number <= config.warmup:
        return config.learning_rate * number / config.warmup
    if config.schedule == "constant":
        return config.learning_rate
    progress = min(1.0, (number - 1 - config.warmup) / max(1, rounds - config.warmup))
    remaining = 1 - progress if config.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return config.learning_rate * (config.final_share + (1 - config.final_share) * remaining)


class ServerOptimizer(ABC):
    """Move the model of d = ``size`` parameters by the noisy average update of each of T = ``rounds`` rounds.

    Class attributes:
        moments: the names of the arrays, float32 (d,), that last from round to round.
    """

    moments: ClassVar[tuple[str, ...]]

    def __init__(self, config: ServerOptimizerConfig, size: int, rounds: int = 1) -> None:
        self._config = config
        self._rounds = rounds
        self._steps = np.zeros(1)
        self._moments = {name: np.zeros(size, np.float32) for name in self.moments}

    def stepped(self, model: Model, update: Vector) -> Model:
        """Return the model after the round's step, a new float32 (d,).

        ``update`` is the noisy average, float64 (d,), in the direction of descent. A coordinate that overflows becomes
        infinite, without a warning: a run notices that its model diverged.
        """
        self._steps = self._steps + 1
        rate = learning_rate_at(self._config, int(self._steps[0]), self._rounds)
        moved = np.empty_like(model)
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, len(model), _BLOCK):
                block = slice(start, start + _BLOCK)
                moments = [array[block] for array in self._moments.values()]
                moved[block] = model[block] + rate * self._direction(update[block], *moments)
        return moved

    def state(self) -> dict[str, npt.NDArray[np.floating]]:
        """Return the arrays that a checkpoint must hold so that the next step is the same; it changes them in place."""
        return {"steps": self._steps, **self._moments}

    def restore(self, state: Mapping[str, npt.NDArray[np.floating]]) -> None:
        """Continue from a copy of the arrays of :meth:`state`."""
        self._steps = state["steps"].astype(np.float64)
        self._moments = {name: state[name].astype(np.float32) for name in self.moments}

    @abstractmethod
    def _direction(self, update: Vector, *moments: Model) -> npt.NDArray[np.floating]:
        """Return the step of a block of coordinates at a learning rate of 1, float32 or float64 (b,).

        ``update`` is their noisy average, float64 (b,); ``moments``, float32 (b,) each, change in place.
        """


class Momentum(ServerOptimizer):
    """Step by SGD with heavy-ball momentum: m ← μ·m + update, step η·m."""

    moments = ("velocity",)

    def _direction(self, update: Vector, *moments: Model) -> Vector:
        (kept,) = moments
        velocity = self._config.momentum * kept.astype(np.float64) + update
        kept[:] = velocity
        return velocity


class Adam(ServerOptimizer):
    """Step by Adam (Kingma and Ba 2015) with bias correction, as FedAdam does (Reddi et al. 2021)."""

    moments = ("first", "second")

    def _direction(self, update: Vector, *moments: Model) -> Model:
        c, steps, update = self._config, int(self._steps[0]), update.astype(np.float32)  # twice as fast as in float64
        first, second = moments
        first *= c.beta_1
        first += (1 - c.beta_1) * update
        second *= c.beta_2
        second += (1 - c.beta_2) * update**2
        scale = np.sqrt(second / (1 - c.beta_2**steps)) + c.stabilizer
        return first / (1 - c.beta_1**steps) / scale


def build_optimizer(config: ServerOptimizerConfig, size: int, rounds: int = 1) -> ServerOptimizer:
    """Return the optimizer of d = ``size`` parameters that ``config`` names; ``rounds`` is T, for its schedule."""
    return Adam(config, size, rounds) if config.optimizer == "adam" else Momentum(config, size, rounds)


class AveragingConfig(BaseModel):
    """Choose the average of the models that is evaluated and saved."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["none", "exponential", "tail"] = Field(
        "none",
        description="the model that is evaluated and saved: the last one, an exponential moving average of all, or the "
        "mean of the last rounds' models",
    )
    decay: float = Field(0.9, ge=0, lt=1, description="exponential: the weight of the past at every round")
    tail: float = Field(0.5, gt=0, le=1, description="tail: the share of the rounds, the last ones, that is averaged")


class IterateAverage:
    """Hold the running average of the models of d = ``size`` parameters of a training of ``rounds`` rounds."""

    def __init__(self, config: AveragingConfig | None = None, size: int = 0, rounds: int = 1) -> None:
        self._config = config or AveragingConfig()
        # The margin absorbs the rounding of the product: 0.1·30 rounds are 3, not 4.
        self._first = rounds - max(1, math.ceil(self._config.tail * rounds - 1e-9)) + 1
        self._sum = np.zeros(size if self._config.kind != "none" else 0)
        self._weight = np.zeros(1)

    def add(self, server_round: int, model: Model) -> None:
        """Add the model after ``server_round``, float32 (d,), to the average."""
        kind, decay = self._config.kind, self._config.decay
        if kind == "none" or (kind == "tail" and server_round < self._first):
            return
        past, new = (decay, 1 - decay) if kind == "exponential" else (1.0, 1.0)
        self._sum *= past
        for start in range(0, len(model), _BLOCK):
            self._sum[start : start + _BLOCK] += new * model[start : start + _BLOCK].astype(np.float64)
        self._weight = past * self._weight + new

    def value(self, model: Model) -> Model:
        """Return the average so far, float32 (d,); ``model`` itself as long as no model has been averaged."""
        if self._weight[0] == 0:
            return model
        return np.divide(self._sum, self._weight[0], out=np.empty_like(model), casting="same_kind")

    def state(self) -> dict[str, npt.NDArray[np.float64]]:
        """Return the arrays that a checkpoint must hold, empty if no average is kept; the next round changes them."""
        if self._config.kind == "none":
            return {}
        return {"average.sum": self._sum, "average.weight": self._weight}

    def restore(self, state: Mapping[str, npt.NDArray[np.floating]]) -> None:
        """Continue from a copy of the arrays of :meth:`state`."""
        if self._config.kind != "none":
            self._sum, self._weight = (state[name].astype(np.float64) for name in ("average.sum", "average.weight"))
