"""Compute the ε of secure sums with distributed noise, by a continuous Gaussian that nearly dominates them.

docs/privacy-proofs.md, section 18, proves it: the probabilities of m shares and of a randomised rounding of N(0, mσ² −
b²) differ by a factor within e^±λ in every coordinate, λ of the order of 10⁻¹⁷ at σ = 2, and rounding costs nothing. So
the accountant of Gaussian noise applies, and T·D·λ is added: once to ln δ, twice to ε.

>>> from fl_sim.research.secure_sum.noise_shares import DistributedNoise
>>> design = DistributedNoise(
...     population=1000, sampling_rate=0.05, dimension=1000, bits=14, noise_multiplier=1.0, dropout=0.3).design()
>>> [round(epsilon(design, adversary, rounds=50, delta=1e-5), 1) for adversary in ADVERSARIES]
[54.4, 12.0, 0.7]
>>> design = design_for(design.settings, "server", target_epsilon=8.0, rounds=50, delta=1e-5)
>>> round(design.noise_against_server, 2), round(epsilon(design, "models", rounds=50, delta=1e-5), 2)
(1.36, 0.45)
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal, get_args

import numpy as np

from fl_sim.research.secure_sum.noise_shares import SMOOTHING, DistributedNoise, ShareDesign
from fl_sim.strategies.accounting.accountant import check_rounds
from fl_sim.strategies.accounting.calibration import bisect_value
from fl_sim.strategies.accounting.losses import composition
from fl_sim.strategies.accounting.losses.privacy_loss import GaussianMixturePair
from fl_sim.strategies.primitives.limits import PrivacyError, check_delta, require

Adversary = Literal["choosing_server", "server", "models"]
"""Who observes: a server that may invite a node to every round, a server that draws cohorts as stated, or someone who
sees the released models alone."""
ADVERSARIES: tuple[Adversary, ...] = get_args(Adversary)

_LEAST_NOISE, _MOST_NOISE, _STEP = 0.05, 50.0, 0.95
"""The noise multipliers that are searched, and the step in which the largest one is sought."""


def epsilon(design: ShareDesign, adversary: Adversary, rounds: int, delta: float) -> float:
    """Return the ε of any one user after ``rounds`` rounds; inf where none is provable.

    Args:
        design: of every round.
        adversary: who observes.
        rounds: T.
        delta: δ, in (0, 1).

    Raises:
        PrivacyError: ``rounds`` or ``delta`` is impossible.
    """
    check_rounds([rounds])
    check_delta(delta)
    distance = rounds * design.padded * log_ratio(design.share_std, design.settings.population)
    noise = design.noise_of_models if adversary == "models" else design.noise_against_server
    curve = composition.epsilon_curve(cases(design, adversary), noise, np.array([rounds]), delta * math.exp(-distance))
    return float(curve[0]) + 2 * distance


def design_for(
    settings: DistributedNoise, adversary: Adversary, target_epsilon: float, rounds: int, delta: float
) -> ShareDesign:
    """Return the design with the least noise whose ε is at most a target.

    Args:
        settings: of the sum; their noise multiplier is ignored.
        adversary: against whom ε is stated.
        target_epsilon: finite and above 0.
        rounds: T.
        delta: δ, in (0, 1).

    Raises:
        PrivacyError: the target is impossible, or noise that meets it does not fit into the bits.
    """
    require(0 < target_epsilon < math.inf, "target_epsilon", target_epsilon, "finite and above 0")

    def epsilon_at(noise_multiplier: float) -> float:
        return epsilon(replace(settings, noise_multiplier=noise_multiplier).design(), adversary, rounds, delta)

    found = bisect_value(epsilon_at, "noise_multiplier", _most_noise(settings), _LEAST_NOISE, target_epsilon)
    return replace(settings, noise_multiplier=found).design()


def _most_noise(settings: DistributedNoise) -> float:
    """Return about the largest noise multiplier that fits into the bits; PrivacyError if none does."""
    noise = _MOST_NOISE
    while True:
        try:
            replace(settings, noise_multiplier=noise).design()
            return noise
        except PrivacyError:
            noise *= _STEP
            if noise < _LEAST_NOISE:
                raise


def cases(design: ShareDesign, adversary: Adversary) -> tuple[GaussianMixturePair, ...]:
    """Return the pair of continuous Gaussians that dominates a round up to :func:`log_ratio`, by revealed case."""
    rate = design.settings.sampling_rate
    if adversary == "choosing_server":
        return (_case(1.0, 1.0),)
    shown = 1.0 if adversary == "server" else design.boundary
    hidden = () if shown == 1 else (_case(1 - shown, rate),)
    return (*hidden, _case(shown * rate, 1.0), _case(shown * (1 - rate), 0.0))


def log_ratio(share_std: int, shares: int) -> float:
    """Return λ: a bound on |ln ratio|, in one coordinate, of the noise to a randomised rounding of a Gaussian.

    Args:
        share_std: σ of a share.
        shares: the most shares that are added.
    """
    added = np.arange(1, max(shares, 2), dtype=np.float64)
    sums = _log_ratio_of_lattice(share_std**2 * added / (added + 1)).sum()
    return float(sums + _log_ratio_of_lattice(np.array([float(SMOOTHING)]))[0])


def _log_ratio_of_lattice(variances: np.ndarray) -> np.ndarray:
    """Return ln((1 + e)/(1 − e)): Σ_k exp(−(k − t)²/(2s²)) is within a share e of s√(2π), for any t."""
    decay = np.exp(-2 * math.pi**2 * variances)
    share = np.minimum(2 * decay / (1 - decay), 1.0)
    with np.errstate(divide="ignore"):
        result: np.ndarray = 2 * np.arctanh(share)
    return result


def _case(probability: float, rate: float) -> GaussianMixturePair:
    """Return the case in which the node takes part with probability ``rate``, and then moves the sum by one unit."""
    moved = np.ones(1) if rate > 0 else np.zeros(0)
    return GaussianMixturePair(probability, 1 - rate, shifts=moved, weights=rate * moved, cut=(0.0, 0.0))
