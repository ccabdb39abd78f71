"""Read the ε that an app prints, logs or returns, and the δ at which it holds.

>>> log = "start target_epsilon=9\\nepsilon=1.5 at delta=1e-5\\nROUND 1\\nε: 2.25\\nROUND 2\\n"
>>> stated = read_stated(log, [{}, {}])
>>> stated.epsilon, stated.delta, stated.by_round
(2.25, 1e-05, (1.5, 2.25))
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fl_sim.checking.trials import Seen

DELTA = 1e-5
"""δ where an app states none."""

_NUMBER = r"((?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|inf\b|∞)"
_IS = r"(?:=|:|is|of|at most|≤|<=|<|≈|~)?"
_BETWEEN = rf"(?:\s*\([^()]*\))?['\"]?\s*{_IS}\s*['\"]?"
_SPENT = r"(?:spent|used|consumed)"
_AFTER = rf"(?:\s+(?:{_SPENT}|so far|now|in total|(?:after|in|of|for|at) (?:the )?(?:round|epoch|step)s? [0-9]+))*"
_EPSILON = re.compile(
    rf"(?<![\w-])(?P<name>(?:\w*?_)?(?:epsilon|eps|ε)(?:_{_SPENT})?)(?!\w){_AFTER}{_BETWEEN}{_NUMBER}"
    rf"|\(\s*(?:epsilon|eps|ε)\s*,\s*(?:delta|δ)\s*\)(?:-DP)?\s*{_IS}\s*\(\s*{_NUMBER}\s*,\s*{_NUMBER}\s*\)"
    rf"|\(\s*{_NUMBER}\s*,\s*{_NUMBER}\s*\)\s*-?\s*(?:DP\b|differential)",
    re.IGNORECASE,
)
_DELTAS = ("delta", "target-delta", "dp-delta", "privacy-delta")
_OWN_DELTA = r"(?:(?:target|dp|privacy)[ _-])?(?:delta|δ)"
_DELTA = re.compile(rf"(?<![\w-]){_OWN_DELTA}(?!\w){_BETWEEN}{_NUMBER}", re.IGNORECASE)
_OTHERS = re.compile(r"(?<!\w)(?!(?:at|and|with|for|of|the|a|is|to|or|in|here|where)\b)[^\W\d_]+[ ]+$", re.IGNORECASE)
_WANTED = re.compile(r"target|budget|goal|limit", re.IGNORECASE)
_GONE = re.compile(_SPENT, re.IGNORECASE)
_OF_PRIVACY = re.compile(r"ε|δ|delta|priva|(?<![a-z])DP(?![a-z])", re.IGNORECASE)
_SPEAKS = re.compile(r"ε|\bepsilon\b|\bDP\b|differential(?:ly)?.privat?c?", re.IGNORECASE)
_LEAST = 1e-3  # a smaller value is a constant of a layer or an optimizer
_MOST_LINES = 3


@dataclass(frozen=True, slots=True)
class Stated:
    """Hold what an app says of its privacy.

    Attributes:
        epsilon: the last ε that it prints, logs or returns; None if it states none.
        delta: its δ, or :data:`DELTA`.
        by_round: the last ε of each round that has one.
        delta_stated: whether the app states δ.
        unread: lines that speak of ε or DP, and in which no ε was read, if none was read at all.
    """

    epsilon: float | None
    delta: float
    by_round: tuple[float, ...] = ()
    delta_stated: bool = False
    unread: tuple[str, ...] = ()


def stated_by(seen: Seen, config: Mapping[str, object]) -> Stated:
    """Return what an app stated in a whole run; an object that we know counts more than what is printed."""
    read = read_stated(seen.log, seen.metrics, config)
    if read.epsilon is None:
        of_nodes = read_stated(seen.node_log, [], config)  # whose lines may quote data
        read = replace(of_nodes, unread=read.unread if of_nodes.epsilon is None else ())
    if seen.stated is not None and math.isfinite(seen.stated):
        delta = next((settings["delta"] for _, settings in seen.strategy if "delta" in settings), read.delta)
        return Stated(seen.stated, delta, read.by_round, True)
    local = next((settings for name, settings in seen.mods if name == "LocalDpMod"), None)
    if read.epsilon is None and local is not None:
        return Stated(float(local["epsilon"]), float(local["delta"]), (), True)
    return read


def read_stated(log: str, metrics: Sequence[Mapping[str, float]], config: Mapping[str, object] | None = None) -> Stated:
    """Return what stands in a log, in which a line ``ROUND n`` ends a round, and in the metrics of the rounds."""
    by_round, last = list[float](), None
    parts = re.split(r"^ROUND \d+\n", log, flags=re.MULTILINE)
    deltas = list[float]()  # on the lines of ε
    for number, part in enumerate(parts):
        read = [one for line in part.splitlines() for one in _read_line(line)]
        found = [epsilon for epsilon, _ in read]
        deltas += [delta for _, delta in read if delta is not None]
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
    configured = [
        value
        for name, value in (config or {}).items()
        if _names_delta(name) and isinstance(value, float) and 0 < value < 1
    ]
    deltas = deltas or configured or [delta for line in log.splitlines() for delta in _deltas(line)]
    unread = [] if last is not None else [line.strip() for line in log.splitlines() if _SPEAKS.search(line)]
    shown = tuple(dict.fromkeys(unread))[:_MOST_LINES]
    return Stated(last, deltas[-1] if deltas else DELTA, tuple(by_round), bool(deltas), shown)


def _read_line(line: str) -> list[tuple[float, float | None]]:
    """Return every ε that a line states, with the δ that stands there.

    >>> [_read_line(line) for line in ("(ε, δ) = (3.0, 1e-5)", "privacy budget spent: ε ≈ 2", "LayerNorm(eps=1e-05)")]
    [[(3.0, 1e-05)], [(2.0, None)], []]
    """
    read, deltas = list[tuple[float, float | None]](), _deltas(line)
    for match in _EPSILON.finditer(line):
        numbers = [float("inf" if number == "∞" else number) for number in match.groups()[1:] if number is not None]
        name = (match["name"] or "").lower()
        is_bare = "eps" in name and "epsilon" not in name and not re.search(r"spent|used|consumed|dp|priv", name)
        if numbers[0] < _LEAST or _is_wanted(line, match.start()) or (is_bare and not _OF_PRIVACY.search(line)):
            continue
        beside = numbers[1:] if len(numbers) > 1 and 0 < numbers[1] < 1 else deltas
        read.append((numbers[0], beside[-1] if beside else None))
    return read


def _deltas(line: str) -> list[float]:
    """Return every δ of a privacy guarantee that a line states, and none of a Huber loss or of early stopping."""
    found = [m for m in _DELTA.finditer(line) if "δ" in m[0] or not _OTHERS.search(line[: m.start()])]
    return [float(match[1]) for match in found if match[1] != "∞" and 0 < float(match[1]) < 1]


def _is_wanted(line: str, start: int) -> bool:
    """Return whether an ε is a setting, such as a budget, and not what was spent of it."""
    around = line[max(0, start - 20) : start + 12]
    return _WANTED.search(around) is not None and _GONE.search(line[max(0, start - 30) : start]) is None


def names_privacy(name: str) -> bool:
    """Return whether a metric or setting has the name of an ε or a δ.

    >>> [names_privacy(name) for name in ("epsilon_spent", "dp.delta", "train_steps", "loss_delta")]
    [True, True, False, False]
    """
    return _names_epsilon(name) or _names_delta(name)


def _names_delta(name: str) -> bool:
    return name.lower().replace("_", "-").rpartition(".")[2] in _DELTAS


def _names_epsilon(name: str) -> bool:
    return "epsilon" in name.lower() or re.search(r"(^|[_-])eps($|[_-])", name.lower()) is not None
