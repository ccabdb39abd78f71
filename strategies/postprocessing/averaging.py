"""Averages of the models that training passes through: post-processing of what was released, so they cost no privacy.

Noise makes the last iterate a noisy one; an average of the late ones is less so (Polyak and Juditsky 1992; under DP-SGD
De et al. 2022). The average is what is evaluated and saved; training goes on from the iterate itself.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

Vector = npt.NDArray[np.float32]
State = dict[str, npt.NDArray[np.float64]]


class AveragingConfig(BaseModel):
    """Which average of the models is evaluated and saved."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["none", "exponential", "tail"] = Field(
        "none",
        description="the model that is evaluated and saved: the last one, an exponential moving average of all, or the "
        "mean of the last rounds' models",
    )
    decay: float = Field(0.9, ge=0, lt=1, description="exponential: the weight of the past at every round")
    tail: float = Field(0.5, gt=0, le=1, description="tail: the share of the rounds, the last ones, that is averaged")


class IterateAverage:
    """The running average of a training of ``rounds`` rounds with models of ``size`` parameters."""

    def __init__(self, config: AveragingConfig | None = None, size: int = 0, rounds: int = 1) -> None:
        self._config = config or AveragingConfig()
        # ⌈·⌉ of what may be a rounded product: 0.1·30 rounds are 3, not 4.
        self._first = rounds - max(1, math.ceil(self._config.tail * rounds - 1e-9)) + 1
        self._sum = np.zeros(size if self._config.kind != "none" else 0)
        self._weight = np.zeros(1)

    def add(self, server_round: int, model: Vector) -> None:
        """Take in the model after ``server_round``."""
        kind, decay = self._config.kind, self._config.decay
        if kind == "none" or (kind == "tail" and server_round < self._first):
            return
        kept, taken = (decay, 1 - decay) if kind == "exponential" else (1.0, 1.0)
        self._sum = kept * self._sum + taken * model.astype(np.float64)
        self._weight = kept * self._weight + taken

    def value(self, model: Vector) -> Vector:
        """The average so far; ``model`` itself as long as there is none."""
        if self._weight[0] == 0:
            return model
        return (self._sum / self._weight[0]).astype(np.float32)

    def state(self) -> State:
        """What a checkpoint must hold; nothing where nothing is averaged."""
        if self._config.kind == "none":
            return {}
        return {"average.sum": self._sum, "average.weight": self._weight}

    def restore(self, state: State) -> None:
        """Continue from a :meth:`state`."""
        if self._config.kind != "none":
            self._sum, self._weight = state["average.sum"], state["average.weight"]
