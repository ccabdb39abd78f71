"""FEDERATE's two trade-offs on Adult: fairness against accuracy (its figure 3), leakage and accuracy against ε (4).

Figure 3 takes the best validation fairness of all candidates within half a point of each accuracy. For Adult the paper
has neither figure; these are ours.

>>> from fl_sim.research.representations.evaluation.model_selection import Candidate
>>> fairest_by_accuracy([Candidate(0, 1, 0.831, 0.08), Candidate(0, 2, 0.834, 0.02), Candidate(1, 1, 0.84, 0.05)])
{83: 2.0, 84: 5.0}
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from fl_sim.research.representations.evaluation.model_selection import Candidate
from fl_sim.research.representations.studies.agreement import estimate

Row = dict[str, Any]


def fairest_by_accuracy(candidates: Sequence[Candidate]) -> dict[int, float]:
    """Return the smallest unfairness, in percent, of the candidates within half a point of each whole percentage."""
    fairest: dict[int, float] = {}
    for candidate in candidates:
        if not math.isnan(candidate.unfairness):
            centre = math.floor(100 * candidate.accuracy + 0.5)
            fairest[centre] = min(fairest.get(centre, math.inf), round(100 * candidate.unfairness, 4))
    return dict(sorted(fairest.items()))


def fairness_rows(by_seed: Sequence[dict[str, dict[int, float]]]) -> list[Row]:
    """Return a row per system and accuracy: the fairest candidate's TPR-gap over the seeds that have one.

    Args:
        by_seed: of each seed, each system's :func:`fairest_by_accuracy`.
    """
    gaps: dict[tuple[str, int], list[float]] = defaultdict(list)
    for of_system in by_seed:
        for system, fairest in of_system.items():
            for centre, gap in fairest.items():
                gaps[system, centre].append(gap)
    return [
        {"system": system, "accuracy": centre, "seeds": len(values), "tpr_gap": estimate(values)}
        for (system, centre), values in sorted(gaps.items())
    ]


def epsilon_rows(chosen: Sequence[Row]) -> list[Row]:
    """Return a row per system and ε: test accuracy and leakage over the seeds.

    Args:
        chosen: a row of figures for each seed, system and ε.
    """
    groups: dict[tuple[str, float, float], list[Row]] = defaultdict(list)
    for row in chosen:
        privacy = row["privacy"]
        groups[row["system"], privacy["epsilon_any_text"], privacy["epsilon_claimed"]].append(row)
    return [
        {"system": system, "epsilon_proven": proven, "epsilon_claimed": claimed, "seeds": len(rows)}
        | {
            metric: estimate([row["figures"][metric] for row in rows], [row["errors"][metric] for row in rows])
            for metric in ("accuracy", "leakage", "tpr_gap")
        }
        for (system, proven, claimed), rows in sorted(groups.items())
    ]
