"""Find the value of one setting that just meets a target ε, by interpolation and bisection.

By each theorem ε never decreases in the number of rounds and in the sampling rates, and never increases in the noise
multiplier and in the user cap: a stochastically larger shift is never safer (docs/privacy-proofs.md, section 4). Where
the second begins to be tried the smaller of both may fall, so a larger q_s or smaller cap may meet the target, too.

>>> largest_count(lambda rounds: 0.1 * rounds, most=1000, target=2.05)
20
"""

from __future__ import annotations

import math
from collections.abc import Callable

from fl_sim.formats import format_epsilon
from fl_sim.strategies.accounting.adjacency import PrivacyError

_TOLERANCE = 0.004  # relative distance below the target at which the search may end
_STEPS = 60
_FLATTEST = 1e-4  # interpolation ignores by how much ε differs from the target beyond this factor
_EDGE = 0.02  # smallest distance of the next value from either end, as a share of the interval


def bisect_value(
    epsilon_at: Callable[[float], float], name: str, safest: float, riskiest: float, target: float
) -> float:
    """Return the value nearest to ``riskiest`` whose ε is at most ``target``, searched on a logarithmic scale.

    Its ε lies within 0.5 % below the target, unless even that of ``riskiest`` is below it. ``epsilon_at`` is monotone
    between ``safest``, with the smallest ε, and ``riskiest``; both are above 0.

    Raises:
        PrivacyError: if ε exceeds the target even at ``safest``; the message calls the setting ``name``.
    """
    safe_epsilon = epsilon_at(safest)
    if safe_epsilon > target:
        raise PrivacyError(
            f"target_epsilon {target:g} is out of reach by {name}: "
            f"at {safest:g} ε is still {format_epsilon(safe_epsilon)}"
        )
    risky_epsilon = epsilon_at(riskiest)
    if risky_epsilon <= target:
        return riskiest
    safe, risky = safest, riskiest
    for step in range(_STEPS):
        if safe_epsilon >= target * (1 - _TOLERANCE):
            break
        share = 0.5 if step % 3 == 2 else _interpolated(safe_epsilon, risky_epsilon, target)
        middle = safe * (risky / safe) ** share
        value = epsilon_at(middle)
        if value <= target:
            safe, safe_epsilon = middle, value
        else:
            risky, risky_epsilon = middle, value
    return safe


def _interpolated(safe_epsilon: float, risky_epsilon: float, target: float) -> float:
    """Return the share of the way from the safe to the risky end to try next: linear in ln ε, just below the target."""
    aim = target * (1 - _TOLERANCE / 2)
    low, high = math.log(max(safe_epsilon, target * _FLATTEST)), math.log(min(risky_epsilon, target / _FLATTEST))
    return min(max((math.log(aim) - low) / (high - low), _EDGE), 1 - _EDGE)


def largest_count(epsilon_at: Callable[[int], float], most: int, target: float) -> int:
    """Return the largest number of rounds, at most ``most``, whose ε is at most ``target``; ε never decreases.

    Raises:
        PrivacyError: if one round already exceeds the target.
    """
    first = epsilon_at(1)
    if first > target:
        raise PrivacyError(f"target_epsilon {target:g} is out of reach: ε is {format_epsilon(first)} after 1 round")
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
