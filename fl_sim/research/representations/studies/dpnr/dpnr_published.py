"""The figures that DPNR (Lyu, He and Li 2020) publishes for its AG set, in percent; means of 5 runs, no deviations.

>>> TABLE_2[0.05], TABLE_4["dpnr"]
(80.87, (80.87, 54.37))
>>> published_figures("dpnr-shared", 1.0, 0.5)
{'accuracy': 77.42}
>>> narrowing("Arafat")
1.89
"""

from __future__ import annotations

from typing import Any

from fl_sim.research.representations.corpora.labelled_text import AG_PERSONS

EPSILONS = (0.05, 0.1, 0.5, 1.0, 5.0)
RATES = (0.1, 0.3, 0.5, 0.8)
ATTACKED = 0.05
"""ε of DPNR in tables 4, 5 and 7."""
EPSILON_OF_RATES = 1.0
"""ε of table 3."""
PERSONS = AG_PERSONS[2:]
"""Entities 3, 4 and 5, the ones that the paper prints."""
LAYERS = ("dpnr", "dpnr-shared")
"""DPNR as in its paper, with independent noise on each coordinate, and as in its code, with one noise number."""

TABLE_2 = dict(zip(EPSILONS, (80.87, 80.78, 79.71, 79.36, 79.59), strict=True))
TABLE_3 = dict(zip(RATES, (80.71, 79.18, 77.42, 69.57), strict=True))
TABLE_4: dict[str, tuple[float, float]] = {
    "majority": (57.79, 49.34),
    "non-priv": (78.75, 23.24),
    "adv": (57.04, 49.67),
    "dpnr": (80.87, 54.37),
}
"""Accuracy and empirical privacy 1 − F."""
_TABLE_5 = {
    "non-priv": ((96.71, 81.99), (99.43, 47.20), (96.93, 68.29)),
    "adv": ((98.57, 39.71), (100.00, 0.00), (99.87, 12.96)),
    "dpnr": ((90.86, 8.46), (100.00, 0.00), (100.00, 0.00)),
}
_TABLE_7 = {
    "non-priv": ((82.67, -18.82), (80.86, -15.44), (80.22, -10.78)),
    "adv": ((48.92, 7.82), (49.64, 6.67), (49.43, 9.6)),
    "dpnr": ((83.60, -16.93), (81.79, -12.22), (81.04, -6.04)),
}
TABLE_5 = {system: dict(zip(PERSONS, rows, strict=True)) for system, rows in _TABLE_5.items()}
"""The attacker's accuracy on texts without and with a person."""
TABLE_7 = {system: dict(zip(PERSONS, rows, strict=True)) for system, rows in _TABLE_7.items()}
"""The task's accuracy on texts without a person, and the difference on texts with them."""


def published_figures(system: str, epsilon: float | None, rate: float) -> dict[str, Any]:
    """Return the paper's figures of a row; both versions of DPNR get its figures.

    Args:
        system: "majority", "non-priv", "adv" or a layer.
        epsilon: claimed; None for a system without a layer.
        rate: μ.
    """
    name = "dpnr" if system in LAYERS else system
    published: dict[str, Any] = {}
    if epsilon is None:
        published["accuracy"] = TABLE_4[name][0]
    elif rate:
        published["accuracy"] = TABLE_3[rate]
    else:
        published["accuracy"] = TABLE_2[epsilon]
    if epsilon is None or (epsilon == ATTACKED and not rate):
        published["privacy_f"] = TABLE_4[name][1]
        published["attacker"], published["task"] = TABLE_5.get(name, {}), TABLE_7.get(name, {})
    return published


def narrowing(person: str) -> float:
    """Return by how many points DPNR's gap between texts without and with ``person`` is smaller than NON-PRIV's."""
    return round(abs(TABLE_7["non-priv"][person][1]) - abs(TABLE_7["dpnr"][person][1]), 2)
