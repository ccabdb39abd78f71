"""Predict held-out perplexity from a plan's signal-to-noise ratio, and how many users a perplexity needs.

Users, ε, rates, cap and rounds act on a private training through the ratio r = √T·S/(z·ŵ)
(:mod:`fl_sim.search.planner`). On Ubuntu IRC the gain in log perplexity follows g·r/(r + h): half of the largest gain g
is reached at r = h. S grows with the users at equal rates and bounds while z stays, so r is proportional to them.
docs/planning.md shows the points. All have 20 rounds: fewer leave the model nearer to its start than r says, because an
adaptive step has a length of its own.

>>> law = UsersLaw(largest_gain=1.0, half=1000.0, error=0.02, lowest=100.0, highest=5000.0, rounds=20)
>>> round(law.perplexity(1000.0, start=400.0), 1), round(law.ratio_for(242.6, start=400.0))
(242.6, 1000)
>>> [round(bound, 1) for bound in law.interval(1000.0, start=400.0)]
[233.1, 252.5]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import optimize

from fl_sim.config import ConfigError


@dataclass(frozen=True, slots=True)
class UsersLaw:
    """A fitted law of the gain in log perplexity.

    Attributes:
        largest_gain: g, the gain in nats a token at an infinite ratio.
        half: h, the ratio of half of that gain.
        error: the root mean square error on the points of the fit or on those held out of it, in nats; the larger one.
        lowest: the smallest ratio of the points.
        highest: the largest one.
        rounds: the number of rounds of all points.
    """

    largest_gain: float
    half: float
    error: float
    lowest: float
    highest: float
    rounds: int

    def gain(self, ratio: float) -> float:
        """Return the expected gain in log perplexity over the start."""
        return self.largest_gain * ratio / (ratio + self.half)

    def perplexity(self, ratio: float, start: float) -> float:
        """Return the expected perplexity, given that of the model at the start."""
        return start * math.exp(-self.gain(ratio))

    def interval(self, ratio: float, start: float) -> tuple[float, float]:
        """Return the perplexities two errors below and above the expected one."""
        expected, factor = self.perplexity(ratio, start), math.exp(2 * self.error)
        return expected / factor, expected * factor

    def ratio_for(self, perplexity: float, start: float) -> float:
        """Return the ratio at which a perplexity is expected; inf if none suffices.

        Raises:
            ConfigError: the perplexity is not above 0 and below that of the start.
        """
        if not 0 < perplexity < start:
            raise ConfigError(f"perplexity is {perplexity:g}; allowed: above 0 and below the {start:g} of the start")
        gain = math.log(start / perplexity)
        return self.half * gain / (self.largest_gain - gain) if gain < self.largest_gain else math.inf

    def covers(self, ratio: float, rounds: int) -> bool:
        """Return whether a run with this ratio and number of rounds lies within the points."""
        return self.lowest <= ratio <= self.highest and rounds == self.rounds


START = 464.6
"""Perplexity per token of ``small-gpt2-public`` on the held-out messages of ``irc``, before the training."""

IRC_LAW = UsersLaw(largest_gain=1.16411, half=1303.57, error=0.0182258, lowest=78.7457, highest=4830.9, rounds=20)
"""The law of results/users_law/irc.json."""

ORIGIN = (
    "Ubuntu IRC as it ships, the small GPT-2 that ships, uedp with ŵ 1, 20 rounds, Adam; another text, model or "
    "optimizer has another law"
)


def fitted(ratios: Sequence[float], gains: Sequence[float]) -> tuple[float, float]:
    """Return (g, h) of least squares in log perplexity.

    Args:
        ratios: the signal-to-noise ratio of each point.
        gains: its gain in log perplexity.
    """
    r, y = np.asarray(ratios), np.asarray(gains)

    def largest_gain(half: float) -> float:
        share = r / (r + half)
        return float(share @ y / (share @ share))

    def loss(log_half: float) -> float:
        half = math.exp(log_half)
        return float(((largest_gain(half) * r / (r + half) - y) ** 2).sum())

    bounds = (math.log(r.min() / 100), math.log(r.max() * 100))
    half = math.exp(float(optimize.minimize_scalar(loss, bounds=bounds, method="bounded").x))
    return largest_gain(half), half


def law_of(points: Sequence[tuple[float, float]], held_out: Sequence[tuple[float, float]], rounds: int) -> UsersLaw:
    """Return the law of ``points``, checked on those ``held_out``, both of (ratio, gain in log perplexity).

    Args:
        points: of the fit.
        held_out: left out of it.
        rounds: the number of rounds of all of them.
    """
    gain, half = fitted(*zip(*points, strict=True))
    ratios = [r for r, _ in (*points, *held_out)]
    law = UsersLaw(gain, half, 0.0, min(ratios), max(ratios), rounds)
    return replace(law, error=max(error_on(law, points), error_on(law, held_out)))


def error_on(law: UsersLaw, points: Sequence[tuple[float, float]]) -> float:
    """Return the root mean square error of a law on points of (ratio, gain in log perplexity), in nats."""
    return math.sqrt(sum((law.gain(r) - y) ** 2 for r, y in points) / len(points))
