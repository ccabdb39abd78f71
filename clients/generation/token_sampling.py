"""Draw the next token from a model's scores: temperature, top-k and top-p.

>>> scores = np.array([2.0, 1.0, 0.5, -np.inf])
>>> probabilities(scores, Sampling(temperature=1.0, top_k=2)).round(3).tolist()
[0.731, 0.269, 0.0, 0.0]
>>> probabilities(scores, Sampling(top_p=0.5)).tolist()
[1.0, 0.0, 0.0, 0.0]
>>> draw(scores, Sampling(temperature=0.0), np.random.default_rng(0))
0
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fl_sim.clients.errors import ModelError


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw tokens.

    Attributes:
        max_tokens: at most so many new tokens per text.
        temperature: divides the scores; 0 takes the most probable token.
        top_k: draws from the k most probable tokens; 0 from all.
        top_p: draws from the fewest tokens whose probabilities add up to at least this.

    Raises:
        ModelError: a value is out of range.
    """

    max_tokens: int = 40
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ModelError(f"max_tokens is {self.max_tokens}; allowed: an integer of at least 1")
        if not 0 <= self.temperature < math.inf:
            raise ModelError(f"temperature is {self.temperature:g}; allowed: a number of at least 0")
        if self.top_k < 0:
            raise ModelError(f"top_k is {self.top_k}; allowed: an integer of at least 0 (0 draws from all tokens)")
        if not 0 < self.top_p <= 1:
            raise ModelError(f"top_p is {self.top_p:g}; allowed: above 0, at most 1")


def draw(scores: NDArray[np.floating], sampling: Sampling, rng: np.random.Generator) -> int:
    """Return the id of the next token; one number is drawn from ``rng``, whatever the settings.

    Args:
        scores: (V,), -inf for tokens that may not come.
        sampling: how to draw.
        rng: the stream of the text.

    Raises:
        ModelError: a score is NaN or +inf.
    """
    position = rng.random()
    if np.isnan(scores).any() or np.isposinf(scores).any():
        raise ModelError("the model's scores of a text are not finite; allowed: a model that has not diverged")
    if sampling.temperature == 0:
        return int(scores.argmax())
    cumulative = np.cumsum(probabilities(scores, sampling))
    return int(np.searchsorted(cumulative, position * cumulative[-1], side="right"))


def probabilities(scores: NDArray[np.floating], sampling: Sampling) -> NDArray[np.float64]:
    """Return the probability of every token, float64 (V,); the temperature is above 0.

    Tokens of equal probability stand in the order of their ids where ``top_k`` or ``top_p`` ends between them.
    """
    scaled = scores.astype(np.float64)
    with np.errstate(over="ignore"):
        chances = np.exp((scaled - scaled.max()) / sampling.temperature)
    chances /= chances.sum()
    if sampling.top_k == 0 and sampling.top_p == 1:
        return chances
    order = np.argsort(-chances, kind="stable")
    kept = min(sampling.top_k or len(order), len(order))
    if sampling.top_p < 1:
        before = np.cumsum(chances[order]) - chances[order]
        kept = min(kept, max(1, int((before < sampling.top_p * chances.sum()).sum())))
    chosen = np.zeros_like(chances)
    chosen[order[:kept]] = chances[order[:kept]]
    return chosen / chosen.sum()
