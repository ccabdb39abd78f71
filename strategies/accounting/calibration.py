"""The value of one setting that just meets a target ε, by interpolation and bisection.

ε never falls with the rounds and the rates and never rises with the noise multiplier and the user cap: a
stochastically larger shift is never safer (docs/privacy.md, section 4).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from fl_sim.strategies.accounting.adjacency import PrivacyError

_TOLERANCE = 0.004  # how far below the target ε may end, relative
_STEPS = 60
_FLATTEST = 1e-4  # ε further from the target than this factor tells nothing about where the target lies
_EDGE = 0.02  # never look closer to an end than this share


def bisect_value(
    epsilon_at: Callable[[float], float], name: str, safest: float, riskiest: float, target: float
) -> float:
    """The value nearest to ``riskiest`` whose ε is at most ``target``, on a logarithmic scale.

    ε ends within 0.5 % below the target, unless even ``riskiest`` stays below it.

    Raises:
        PrivacyError: if ε exceeds the target even at ``safest``.
    """
    reached = epsilon_at(safest)
    if reached > target:
        raise PrivacyError(
            f"target_epsilon {target:g} is out of reach by {name}: at {safest:g} ε is still {reached:.4g}"
        )
    exceeded = epsilon_at(riskiest)
    if exceeded <= target:
        return riskiest
    safe, risky = safest, riskiest
    for step in range(_STEPS):
        if reached >= target * (1 - _TOLERANCE):
            break
        share = 0.5 if step % 3 == 2 else _interpolated(reached, exceeded, target)
        middle = safe * (risky / safe) ** share
        value = epsilon_at(middle)
        if value <= target:
            safe, reached = middle, value
        else:
            risky, exceeded = middle, value
    return safe


def _interpolated(reached: float, exceeded: float, target: float) -> float:
    """How far from the safe to the risky end to look next: straight in ln ε, aiming just below the target."""
    aim = target * (1 - _TOLERANCE / 2)
    low, high = math.log(max(reached, target * _FLATTEST)), math.log(min(exceeded, target / _FLATTEST))
    return min(max((math.log(aim) - low) / (high - low), _EDGE), 1 - _EDGE)


def largest_count(epsilon_at: Callable[[int], float], most: int, target: float) -> int:
    """The largest number of rounds, at most ``most``, whose ε is at most ``target``.

    Raises:
        PrivacyError: if one round already exceeds the target.
    """
    first = epsilon_at(1)
    if first > target:
        raise PrivacyError(f"target_epsilon {target:g} is out of reach: ε is {first:.4g} after 1 round")
    safe, risky = 1, 2
    while risky <= most and epsilon_at(risky) <= target:
        safe, risky = risky, 2 * risky
    risky = min(risky, most + 1)
    while risky - safe > 1:
        middle = (safe + risky) // 2
        if epsilon_at(middle) <= target:
            safe = middle
        else:
            risky = middle
    return safe
