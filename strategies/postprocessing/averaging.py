"""Average the models of successive rounds: post-processing of released models, so it costs no privacy.

The last iterate is noisy; an average of late iterates is less so (Polyak and Juditsky 1992; under DP-SGD De et al.
2022). The average is evaluated and saved; training continues from the iterate itself.

>>> average = IterateAverage(AveragingConfig(kind="tail", tail=0.5), size=1, rounds=4)
>>> for number in (1, 2, 3, 4):
...     average.add(number, np.full(1, number, dtype=np.float32))
>>> average.value(np.zeros(1, dtype=np.float32))
array([3.5], dtype=float32)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

Vector = npt.NDArray[np.float32]
State = dict[str, npt.NDArray[np.float64]]

_BLOCK = 1 << 13  # coordinates, whose temporaries stay in the processor's cache and in the allocator's pool


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
    """Hold the running average of the models of a training.

    Args:
        config: the kind of average; None for none.
        size: d, the number of trainable parameters.
        rounds: T, the number of rounds.
    """

    def __init__(self, config: AveragingConfig | None = None, size: int = 0, rounds: int = 1) -> None:
        self._config = config or AveragingConfig()
        # The margin absorbs the rounding of the product: 0.1·30 rounds are 3, not 4.
        self._first = rounds - max(1, math.ceil(self._config.tail * rounds - 1e-9)) + 1
        self._sum = np.zeros(size if self._config.kind != "none" else 0)
        self._weight = np.zeros(1)

    def add(self, server_round: int, model: Vector) -> None:
        """Add the model after ``server_round``, float32 (d,), to the average."""
        kind, decay = self._config.kind, self._config.decay
        if kind == "none" or (kind == "tail" and server_round < self._first):
            return
        past, new = (decay, 1 - decay) if kind == "exponential" else (1.0, 1.0)
        self._sum *= past
        for start in range(0, len(model), _BLOCK):
            self._sum[start : start + _BLOCK] += new * model[start : start + _BLOCK].astype(np.float64)
        self._weight = past * self._weight + new

    def value(self, model: Vector) -> Vector:
        """Return the average so far, float32 (d,); ``model`` itself as long as no model has been averaged."""
        if self._weight[0] == 0:
            return model
        return np.divide(self._sum, self._weight[0], out=np.empty_like(model), casting="same_kind")

    def state(self) -> State:
        """Return the arrays that a checkpoint must hold, empty if no average is kept; the next round changes them."""
        if self._config.kind == "none":
            return {}
        return {"average.sum": self._sum, "average.weight": self._weight}

    def restore(self, state: Mapping[str, npt.NDArray[np.floating]]) -> None:
        """Continue from a copy of the arrays of :meth:`state`."""
        if self._config.kind != "none":
            self._sum, self._weight = (state[name].astype(np.float64) for name in ("average.sum", "average.weight"))
