"""Figures as text, for every screen, message and document: an ε is rounded up, so that none is ever understated.

>>> format_epsilon(2.6701), format_epsilon(float("inf")), format_delta(1e-05), format_number(14041)
('2.68', '∞', '1e-5', '14,041')
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Any


def format_epsilon(value: float | None) -> str:
    """Return ε rounded up: three decimals below 1, two below 100, none above; "∞", or "–" if there is no figure."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞"
    digits = "0.001" if value < 1 else "0.01" if value < 100 else "1"
    return str(Decimal(repr(float(value))).quantize(Decimal(digits), rounding=ROUND_CEILING))


def epsilon_in_words(row: Mapping[str, Any]) -> str:
    """Return the ε that leads in the metrics of a round, and that of a user: "ε any user+entity 7.69, user 5.3".

    Without a bound on entities, the ε of a stated bound leads, or else that of the 95th percentile of contributions.
    """
    kinds = {"any": "any user+entity", "stated": "user+entity, stated bound", "user_entity_p95": "user+entity (p95)"}
    for name, words in kinds.items():
        value = row.get(f"epsilon_{name}")
        if value is not None and math.isfinite(value):
            return f"ε {words} {format_epsilon(value)}, user {format_epsilon(row['epsilon_user'])}"
    return f"ε user {format_epsilon(row['epsilon_user'])}"


def format_delta(value: float | None) -> str:
    """Return δ as people write it: 1e-5."""
    return "?" if value is None else f"{value:g}".replace("e-0", "e-")


def format_number(value: Any) -> str:
    """Return a count with thousands separators, another number with four digits, and "?" for None."""
    if value is None:
        return "?"
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.4g}"
    return "∞" if value == math.inf else f"{int(value):,}"
