"""The checks that every privacy parameter goes through, and the error that names one that fails.

>>> check_rate("q_u", 0.5)
>>> check_rate("q_u", 0)
Traceback (most recent call last):
fl_sim.strategies.primitives.limits.PrivacyError: q_u is 0; allowed: in [1e-15, 1]
"""

from __future__ import annotations

SMALLEST_DELTA = 1e-100
"""The smallest δ at which ε is computed; far below it the accountant's own truncations are no longer numbers."""

SMALLEST_RATE = 1e-15
"""The smallest sampling rate: a sentence of a billion would be sampled once in a million rounds."""

SMALLEST_CLIP = 1e-12
"""The smallest clip; near the smallest doubles, noise of z·c would be rounded to less than ε assumes."""

SMALLEST_NOISE = 1e-3
"""The smallest noise multiplier of a run; below it ε is of hundreds of thousands and guarantees nothing."""

MOST_COUNTED = 10**12
"""The largest number of users, or of sentences: wide enough for any run, and accounting and messages stay exact."""

MOST_SENTENCES = 10**6
"""The largest bound on the sentences of one user or one entity."""

MOST_EPOCH_ROUNDS = 100_000
"""The longest epoch of random allocation, in rounds."""

LARGEST_STEP = 1e6
"""The largest step size of local steps: torch refuses one beyond float32, so a node failed if a user took two steps."""

SMALLEST_STABILITY = 1e-6
"""The smallest γ of automatic clipping: a gradient whose norm underflows is scaled by c/γ and must stay below c."""


class PrivacyError(ValueError):
    """A privacy parameter that is impossible or outside what is proven; it names the value and what is allowed."""


def is_rate(value: float) -> bool:
    """Return whether ``value`` is a sampling probability: a number in [1e-15, 1]."""
    return SMALLEST_RATE <= value <= 1


def check_rate(name: str, value: float) -> None:
    """Raise PrivacyError, which calls it ``name``, unless ``value`` is a sampling probability, in [1e-15, 1]."""
    require(is_rate(value), name, value, f"in [{SMALLEST_RATE:g}, 1]")


def check_stability(name: str, value: float) -> None:
    """Raise PrivacyError, which calls it ``name``, unless ``value`` may be γ of automatic clipping, at least 1e-6."""
    require(SMALLEST_STABILITY <= value < float("inf"), name, value, f"at least {SMALLEST_STABILITY:g}")


def check_delta(delta: float) -> None:
    """Raise PrivacyError unless ε can be stated at ``delta``, in [1e-100, 1)."""
    require(SMALLEST_DELTA <= delta < 1, "delta", delta, f"in [{SMALLEST_DELTA:g}, 1)")


def require(holds: bool, name: str, value: object, allowed: str) -> None:
    """Raise :class:`PrivacyError` in the grammar of all messages unless ``holds``."""
    if not holds:
        raise PrivacyError(f"{name} is {value}; allowed: {allowed}")
