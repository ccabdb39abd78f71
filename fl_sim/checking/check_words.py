"""Write what a check found as text: what was measured, what was read, what could not be seen, and the findings.

>>> _times(5.96), _times(None)
('moves the model 5.96 times as far', 'not tried: all weights are 1')
"""

from __future__ import annotations

import math
from typing import Any

from fl_sim.formats import aligned, counted, format_delta, format_epsilon, format_lower_bound, printable

_SAMPLED = {
    "all": "every user trains in every round",
    "same": "the same users in every round",
    "fixed": "cohorts of a fixed size",
    "poisson": "cohorts of varying size",
}


def check_text(record: dict[str, Any]) -> str:
    """Return the text of a check's record."""
    measured, read = record["measured"], record["read"]
    lines = [f"{record['app']}: {counted(record['nodes'], 'node')}, {counted(record['rounds'], 'round')}, "
             f"{record['trials']} trials in {record['seconds']:.0f} s", "", "measured"]  # fmt: skip
    lines += _table([
        ("users in a round", f"{_SAMPLED[measured['sampling']]}, {100 * measured['rate']:.3g} % of them"),
        ("effect of a user", _length(measured["effect"]) + ("" if measured["present"] else ", of the opposite update")),
        ("noise", _length(measured["noise"]) + " on a parameter" + _fresh(measured)),
        ("effect in noise", "none" if not measured["noise"] else f"{measured['mu']:.3g} standard deviations a round"),
        ("a user of a thousand times the examples", _times(measured["heavier"])),
        ("a NaN", "reaches the model" if measured["nan"] else "does not reach the model"),
        ("a failure", _FAILS[measured["failure"]]),
    ])  # fmt: skip
    lines += ["", "read"]
    lines += _table([("strategy", printable(", ".join(read["strategy"]) or "none of Flower's")),
                     ("mods", printable(", ".join(read["mods"]) or "none")),
                     ("δ", format_delta(read["delta"]) + ("" if read["delta_stated"] else ", by default")),
    ])  # fmt: skip
    lines += ["", f"ε {'stated':>10} {'for what was seen':>20} {'shown by the attack':>22}"]
    attack = record["epsilon_attack"]
    lines += [f"  {_stated(record['epsilon_stated']):>10} {format_epsilon(record['epsilon_proven']):>20} "
              f"{_shown(attack, measured['mu']):>22}", ""]  # fmt: skip
    if record["unseen"]:
        lines += ["could not be seen", *(f"  {printable(words)}" for words in record["unseen"]), ""]
    lines += [
        f"{each['severity']}: {each['name']} ({each['page']})\n  {printable(each['words'])}"
        for each in record["findings"]
    ]
    return "\n".join(lines + ([] if record["findings"] else ["nothing found"]))


_FAILS = {
    "nothing": "counts as zero",
    "lost": "loses the round",
    "ends": "ends the run",
    "moves": "moves the model further than an update",
}


def _table(rows: list[tuple[str, str]]) -> list[str]:
    return [f"  {line}" for line in aligned(rows)]


def _fresh(measured: dict[str, Any]) -> str:
    if not measured["noise"] or measured["fresh"] is None:
        return ""
    source = ", from the global generators" if measured["from_global_seed"] else ""
    return (", fresh in every round" if measured["fresh"] else ", the same in every round") + source


def _times(times: float | None) -> str:
    return "not tried: all weights are 1" if times is None else f"moves the model {times:.3g} times as far"


def _length(value: float) -> str:
    return "without a bound" if not math.isfinite(value) else f"{value:.3g}"


def _shown(attack: float | None, mu: float) -> str:
    if attack is None:
        return "–" if math.isfinite(mu) else "told with certainty"
    return f"at least {format_lower_bound(attack)}"


def _stated(value: float | None) -> str:
    return "none" if value is None else format_epsilon(value)
