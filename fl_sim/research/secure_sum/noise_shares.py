"""Choose the noise share of a node, the scale of the lattice and the modulus, from public settings alone.

>>> noise = DistributedNoise(
...     population=1000, sampling_rate=0.05, dimension=1000, bits=14, noise_multiplier=1.0, dropout=0.3)
>>> design = noise.design()
>>> design.fewest_survivors, design.full_shares
(15, 80)
>>> design.noise_against_server >= 1.0
True
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fl_sim.research.secure_sum.discrete_gaussian import LARGEST_STD
from fl_sim.research.secure_sum.lattice_rounding import MOST_BITS, padded_size
from fl_sim.strategies.primitives.limits import PrivacyError, check_rate, require

SMOOTHING = 4
"""b²: the variance, in units of the lattice, that the proof takes off the noise to compare it with a Gaussian."""
LEAST_STD = 2
"""The smallest σ of a share; with less, sums are not close to one Gaussian (docs/privacy-proofs.md, section 18)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributedNoise:
    """Hold the public settings of a secure sum with distributed noise.

    Attributes:
        population: N, the number of enrolled nodes; a node is a user.
        sampling_rate: q, the probability with which a node is invited to a round, independently.
        dimension: d, the number of parameters.
        bits: of each coordinate that a node sends; sums are taken modulo 2^bits.
        noise_multiplier: z against the server: the least noise of the honest survivors, in units of the most by which
            one node moves the sum.
        dropout: the largest probability with which an invited node fails to reply, independently of the others.
        colluding: c, the most nodes that tell the server their own noise.
        unopened: the probability of a round that the settings may leave at either end: too few survivors to be opened,
            or more than the server tops the noise up to.
        overflow: a bound on the probability that any coordinate of a sum leaves the modulus; error depends on it, and
            ε does not.

    Raises:
        PrivacyError: a value is out of range.
    """

    population: int
    sampling_rate: float
    dimension: int
    bits: int = 16
    noise_multiplier: float = 1.0
    dropout: float = 0.0
    colluding: int = 0
    unopened: float = 1e-4
    overflow: float = 1e-3

    def __post_init__(self) -> None:
        check_rate("sampling_rate", self.sampling_rate)
        require(self.population >= 2, "population", self.population, "an integer of at least 2")
        require(self.dimension >= 1, "dimension", self.dimension, "an integer of at least 1")
        require(2 <= self.bits <= MOST_BITS, "bits", self.bits, f"from 2 to {MOST_BITS}")
        require(0 < self.noise_multiplier < math.inf, "noise_multiplier", self.noise_multiplier, "above 0")
        require(0 <= self.dropout < 1, "dropout", self.dropout, "from 0 to below 1")
        require(0 <= self.colluding < self.population, "colluding", self.colluding, "from 0 to below population")
        for name in ("unopened", "overflow"):
            require(0 < getattr(self, name) < 1, name, getattr(self, name), "above 0 and below 1")

    def design(self) -> ShareDesign:
        """Return the share, scale and thresholds that give the least error of all that meet the settings.

        Raises:
            PrivacyError: too few nodes would survive, or ``bits`` cannot hold the noise.
        """
        fewest, full = self._fewest_survivors(), self._full_shares()
        stds, scales = self._candidates(fewest, full)
        if not len(stds):
            raise PrivacyError(
                f"bits is {self.bits}; allowed: more, as the noise and the sum do not fit into {self.bits}"
            )
        best = int(np.argmin(np.sqrt(full * stds**2.0 + full / 4) / scales))
        return ShareDesign(self, fewest, full, int(stds[best]), float(scales[best]))

    def _fewest_survivors(self) -> int:
        """Return the largest threshold that the survivors other than a given honest node rarely miss."""
        from scipy import stats  # half a second to import, which no configuration needs

        others = self.population - 1 - self.colluding
        fewest = int(stats.binom.ppf(self.unopened / 2, others, self.sampling_rate * (1 - self.dropout)))
        require(
            fewest > self.colluding, "colluding", self.colluding, f"below {fewest}, the fewest survivors of a round"
        )
        return fewest

    def _full_shares(self) -> int:
        """Return the smallest number of shares that the invited nodes other than a given one rarely reach."""
        from scipy import stats

        return min(
            1 + int(stats.binom.isf(self.unopened / 2, self.population - 1, self.sampling_rate)), self.population
        )

    def _candidates(self, fewest: int, full: int) -> tuple[np.ndarray, np.ndarray]:
        """Return every σ of a share with its largest scale g: both fit into the modulus and give the noise asked for.

        The signal is bounded by ``full`` equal updates: rotated, a coordinate of their sum is sub-Gaussian with
        (full·g)²/D. Rounding adds 1/4 for each node, and the noise σ² for each share.
        """
        size = padded_size(self.dimension)
        reach = 2 ** (self.bits - 1) - 1
        variance = reach**2 / (2 * math.log(2 * size / self.overflow))
        most = min(int(math.sqrt(variance / full)), LARGEST_STD)
        stds = np.arange(LEAST_STD, most + 1, dtype=np.float64)
        held = np.sqrt(np.maximum(variance - full / 4 - full * stds**2, 0.0) * size) / full
        spread = ((fewest - self.colluding) * stds**2 - SMOOTHING) / self.noise_multiplier**2
        scales = np.minimum(held, _largest_scale(spread, size))
        return stds[scales > 0].astype(np.int64), scales[scales > 0]


@dataclass(frozen=True)
class ShareDesign:
    """Hold what nodes and server do in a round; everything in it is public.

    Attributes:
        settings: from which it follows.
        fewest_survivors: m, the fewest replies from which a sum is opened.
        full_shares: K, the number of shares to which the server tops up the noise of what it releases.
        share_std: σ of a node's noise, a whole number of units of the lattice.
        scale: g, the clip norm in units of the lattice.
    """

    settings: DistributedNoise
    fewest_survivors: int
    full_shares: int
    share_std: int
    scale: float

    @cached_property
    def padded(self) -> int:
        """Return D, the number of coordinates that are sent."""
        return padded_size(self.settings.dimension)

    @cached_property
    def norm_bound_squared(self) -> int:
        """Return the largest squared norm of a rounded update, in units of the lattice."""
        return int(_norm_bound_squared(self.scale, self.padded))

    @property
    def honest_shares(self) -> int:
        """Return the fewest shares of an opened sum that the server does not know."""
        return self.fewest_survivors - self.settings.colluding

    @property
    def noise_against_server(self) -> float:
        """Return z of the continuous Gaussian by which the ε against the server is computed."""
        return self._noise_multiplier(self.honest_shares)

    @property
    def noise_of_models(self) -> float:
        """Return z of the continuous Gaussian by which the ε against an adversary who observes models is computed."""
        return self._noise_multiplier(self.full_shares - self.settings.colluding)

    @property
    def boundary(self) -> float:
        """Return a bound on the probability that the others' survivors let a node's participation show in a round.

        They are fewer than the threshold, or so many that the noise is not topped up to a constant.
        """
        from scipy import stats

        settings = self.settings
        others = settings.population - 1
        surviving = settings.sampling_rate * (1 - settings.dropout)
        too_few = stats.binom.cdf(self.fewest_survivors - 1, others - settings.colluding, surviving)
        too_many = stats.binom.sf(self.full_shares - 1, others, settings.sampling_rate)
        return min(1.0, float(too_few + too_many))

    def _noise_multiplier(self, shares: int) -> float:
        variance = shares * self.share_std**2 - SMOOTHING
        return math.sqrt(variance / self.norm_bound_squared)


def _norm_bound_squared(scale: float, size: int) -> float:
    """Return the squared norm that a rounded vector of norm ``scale`` rarely exceeds (Kairouz, Liu and Steinke 2021).

    Unconditioned rounding stays within it with probability 1 − e^(−1/2); no ε rests on that.
    """
    return min(scale**2 + size / 4 + scale + math.sqrt(size) / 2, (scale + math.sqrt(size)) ** 2)


def _largest_scale(norm_squared: np.ndarray, size: int) -> np.ndarray:
    """Return the largest scale whose norm bound is at most each of ``norm_squared``; 0 if none is."""
    room = np.maximum(norm_squared - size / 4 - math.sqrt(size) / 2, 0.0)
    of_sum = (np.sqrt(1 + 4 * room) - 1) / 2
    of_cube = np.sqrt(np.maximum(norm_squared, 0.0)) - math.sqrt(size)
    scales: np.ndarray = np.maximum(np.maximum(of_sum, of_cube), 0.0)
    return scales
