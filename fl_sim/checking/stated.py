"""Read the ε that an app prints, logs or returns, and the δ at which it holds.

>>> log = "start target_epsilon=9\\nepsilon=1.5 at delta=1e-5\\nROUND 1\\nε: 2.25\\nROUND 2\\n"
>>> stated = read_stated(log, [{}, {}])
>>> stated.epsilon, stated.delta, stated.by_round
(2.25, 1e-05, (1.5, 2.25))
>>> read_stated("ROUND 1\\n", [{"max_epsilon": 3.0}]).epsilon
3.0
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fl_sim.checking.trials import Seen

DELTA = 1e-5
"""δ where an app states none."""

_NUMBER = r"([0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|inf\b)"
_BETWEEN = r"(?:\s*\([^()]*\))?['\"]?\s*(?:=|:|is|of|at most|≤|<=)?\s*['\"]?"
_EPSILON = re.compile(rf"(?<![\w-])(?:\w*?_)?(?:epsilon|eps|ε)(?![\w]){_BETWEEN}{_NUMBER}", re.IGNORECASE)
_DELTA = re.compile(rf"(?<![A-Za-z])(?:target[_-])?(?:delta|δ){_BETWEEN}{_NUMBER}", re.IGNORECASE)
_WANTED = re.compile(r"target|budget|goal|limit", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Stated:
    """Hold what an app says of its privacy.

    Attributes:
        epsilon: the last ε that it prints, logs or returns; None if it states none.
        delta: its δ, or :data:`DELTA`.
        by_round: the last ε of each round that has one.
        delta_stated: whether the app states δ.
    """

    epsilon: float | None
    delta: float
    by_round: tuple[float, ...] = ()
    delta_stated: bool = False


def stated_by(seen: Seen, config: Mapping[str, Any]) -> Stated:
    """Return what an app stated in a whole run; an object that we know counts more than what is printed."""
    read = read_stated(seen.log, seen.metrics, config)
    if read.epsilon is None:
        read = read_stated(seen.node_log, [], config)
    if seen.stated is not None and math.isfinite(seen.stated):
        delta = next((settings["delta"] for _, settings in seen.strategy if "delta" in settings), read.delta)
        return Stated(seen.stated, delta, read.by_round, True)
    local = next((settings for name, settings in seen.mods if name == "LocalDpMod"), None)
    if read.epsilon is None and local is not None:
        return Stated(float(local["epsilon"]), float(local["delta"]), (), True)
    return read


def read_stated(log: str, metrics: Sequence[Mapping[str, float]], config: Mapping[str, Any] | None = None) -> Stated:
    """Return what stands in a log, in which a line ``ROUND n`` ends a round, and in the metrics of the rounds."""
    by_round, last = list[float](), None
    parts = re.split(r"^ROUND \d+\n", log, flags=re.MULTILINE)
    for number, part in enumerate(parts):
        found = [float(match[1]) for match in _EPSILON.finditer(part) if not _is_wanted(part, match.start())]
        if 0 < number <= len(metrics):
            returned = [value for name, value in metrics[number - 1].items() if _names_epsilon(name)]
            by_round[-1:] = [max(returned)] if returned and by_round else by_round[-1:]
            found = found or returned
        if found:
            last = found[-1]
            if number < len(parts) - 1:
                by_round.append(last)
    returned = [value for name, value in (metrics[-1] if metrics else {}).items() if _names_epsilon(name)]
    if returned:
        last = max(returned)
    deltas = [float(match[1]) for match in _DELTA.finditer(log) if 0 < float(match[1]) < 1]
    deltas += [value for name, value in (config or {}).items() if "delta" in name and _is_delta(value)]
    return Stated(last, deltas[-1] if deltas else DELTA, tuple(by_round), bool(deltas))


def _is_wanted(text: str, start: int) -> bool:
    return _WANTED.search(text[max(text.rfind("\n", 0, start), start - 20) : start + 12]) is not None


def _names_epsilon(name: str) -> bool:
    return "epsilon" in name.lower() or re.search(r"(^|[_-])eps($|[_-])", name.lower()) is not None


def _is_delta(value: Any) -> bool:
    return isinstance(value, float) and 0 < value < 1
