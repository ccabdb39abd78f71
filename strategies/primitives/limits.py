"""The checks that every privacy parameter goes through, and the error that names one that fails.

>>> check_rate("q_u", 0.5)
>>> check_rate("q_u", 0)
Traceback (most recent call last):
fl_sim.strategies.primitives.limits.PrivacyError: q_u is 0; allowed: in (0, 1]
"""

from __future__ import annotations


class PrivacyError(ValueError):
    """A privacy parameter that is impossible or outside what is proven; it names the value and what is allowed."""


def is_rate(value: float) -> bool:
    """Return whether ``value`` is a sampling probability: a number in (0, 1]."""
    return 0 < value <= 1


def check_rate(name: str, value: float) -> None:
    """Refuse a ``value`` that is no sampling probability.

    Raises:
        PrivacyError: it is not in (0, 1]; the message calls it ``name``.
    """
    require(is_rate(value), name, value, "in (0, 1]")


def require(holds: bool, name: str, value: object, allowed: str) -> None:
    """Raise :class:`PrivacyError` in the grammar of all messages unless ``holds``."""
    if not holds:
        raise PrivacyError(f"{name} is {value}; allowed: {allowed}")
