"""FEDERATE's table 3 (Adult): seven systems, each selected from its grid, beside the published figures.

The record also has the paper's other thresholds (its tables 4 to 6) and its two trade-offs, which the paper does not
have for Adult.

>>> PUBLISHED["federate"]["accuracy"]
(82.29, 0.9)
"""

from __future__ import annotations

from typing import Any

from fl_sim.research.representations.studies.study_runs import Log, Options, Record, heading
from fl_sim.research.representations.studies.systems_table import PublishedFigures, points_of_systems, systems_table
from fl_sim.research.study_files import Point

_METRICS = ("accuracy", "tpr_gap", "leakage", "mdl")

PUBLISHED: PublishedFigures = {
    system: dict(zip(_METRICS, figures, strict=True))
    for system, figures in {
        "random": ((50.00, 0.00), (0.00, 0.00), None, (20.15, 0.083)),
        "unconstrained": ((83.41, 0.32), (12.73, 7.17), (78.19, 1.0), (16.38, 0.46)),
        "inlp": ((83.11, 0.51), (3.91, 2.43), (74.54, 0.67), (19.93, 0.35)),
        "noise": ((82.87, 0.37), (8.01, 1.18), (68.12, 0.94), (19.38, 0.33)),
        "adversarial": ((83.14, 0.53), (7.02, 3.31), (78.2, 0.18), (16.1, 0.36)),
        "adversarial-multiple": ((83.14, 0.25), (3.55, 2.16), (81.37, 0.98), (13.5, 1.09)),
        "federate": ((82.29, 0.9), (2.73, 2.18), (70.25, 4.81), (18.1, 2.79)),
    }.items()
}
"""Table 3: mean and deviation; accuracy, gap and leakage in percent, MDL in 1024 bits."""


NETWORK: dict[str, dict[str, str | float | list[int]]] = {
    "encoder": {"kind": "mlp", "width": 50, "layers": 3, "first_width": 100, "dropout": 0.5},
    "server": {
        "classifier": [50, 25],
        "adversary": [50],
        "dropout": 0.5,
        "adversary_dropout": 0.4,
        "weighed": "loss",
    },
}
"""That of FEDERATE's published code for Adult, with which Random and Unconstrained reproduce, not its paper's."""


def reproduce(options: Options, log: Log = lambda *line: None) -> Record:
    """Return the table as a JSON-ready mapping: published and measured figures, selected points, every value."""
    return {
        **heading("adult", "FEDERATE (Maheshwari et al. 2022), table 3", options),
        **systems_table(_settings(options), options.layer, options, log, PUBLISHED),
    }


def points(table: Record, options: Options) -> list[Point]:
    """Return the points of a table."""
    return points_of_systems(table, _settings(options), options)


def _settings(options: Options) -> dict[str, Any]:
    return {"data": {"name": "adult", "source": str(options.source), "split": "code"}, **NETWORK}
