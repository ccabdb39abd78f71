"""FEDERATE's table 3 (Adult): seven systems, each selected from its grid, five seeds, beside the published figures.

All grid points of each system and seed are trained, and every epoch of every point is a candidate (the paper's
Unconstrained has no grid but changes with the relaxation threshold, so its epochs are candidates, too). Of the
candidates within 1.0 point of the best validation accuracy, the one with the smallest |TPR-gap| on validation is
selected, trained again up to its epoch, measured on the test split and attacked.

Network, split and sum of code lengths are those of FEDERATE's published code, not those of its paper (two layers,
dropout 0.1, a linear classifier, 60 : 20 : 20). With the code's, Random and Unconstrained reproduce; with the paper's
they do not (docs/representations.md has both).

>>> len(THIN.weights), len(FULL.weights), len(PUBLISHED)
(3, 15, 7)
>>> PUBLISHED["federate"]["accuracy"]
(82.29, 0.9)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fl_sim.research.representations.config import ExperimentConfig, load_mapping
from fl_sim.research.representations.evaluation.model_selection import Candidate, select
from fl_sim.research.representations.studies.agreement import Published, estimate, reproduces, within_deviations
from fl_sim.research.representations.studies.study_tables import (
    Log,
    Options,
    collect_records,
    heading,
    table_cell,
)

RELAXATION = 0.01
METRICS = ("accuracy", "tpr_gap", "leakage", "mdl")
SHOWN = (*METRICS, "mdl_online")
"""The paper's metrics, with MDL as summed by its published code (every step from the first row on again), and MDL of
its equation 10, for which no figure is published."""

PUBLISHED: dict[str, dict[str, tuple[float, float] | None]] = {
    system: dict(zip(METRICS, figures, strict=True))
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

_WEIGHTS = tuple(round(0.1 + 0.2 * step, 1) for step in range(15))
_ORTHOGONAL = tuple(round(0.1 * step, 1) for step in range(1, 11))
_EPSILONS = (8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 20.0)


@dataclass(frozen=True)
class Grid:
    """The grid points of each system.

    Attributes:
        weights: λ.
        orthogonal: λ_ort.
        epsilons: ε of noise.
        federate_epsilons: ε of federate, combined with λ.
        inlp_rounds: classifiers of INLP.
        epochs: of systems without noise.
        noisy_epochs: of systems with noise.
    """

    weights: tuple[float, ...]
    orthogonal: tuple[float, ...]
    epsilons: tuple[float, ...]
    federate_epsilons: tuple[float, ...]
    inlp_rounds: tuple[int, ...]
    epochs: int = 30
    noisy_epochs: int = 45


THIN = Grid((0.3, 1.0, 2.9), (0.5,), (12.0, 20.0), (20.0,), (2, 7))
"""The default: fourteen points per seed. Model selection prefers the least noise."""

FULL = Grid(_WEIGHTS, _ORTHOGONAL, _EPSILONS, _EPSILONS, (2, 3, 4, 5, 6, 7))
"""Appendix D.4."""

NETWORK: dict[str, Any] = {
    "encoder": {"kind": "mlp", "width": 50, "layers": 3, "first_width": 100, "dropout": 0.5},
    "server": {
        "classifier": [50, 25],
        "adversary": [50],
        "dropout": 0.5,
        "adversary_dropout": 0.4,
        "weighed": "loss",
    },
}
"""The network of the published code for Adult."""


def reproduce(options: Options, log: Log = lambda line: None) -> dict[str, Any]:
    """Return the table as a JSON-ready mapping: published and measured figures, selected points, every value.

    Args:
        options: of the reproduction.
        log: called with a line of progress.
    """
    grid = FULL if options.full else THIN
    chosen: list[dict[str, Any]] = []
    for seed in options.seeds:
        configs = {system: list(_points(system, seed, grid, options)) for system in PUBLISHED}
        trained = dict(zip(configs, _records_by_system(configs, options, log), strict=True))
        finals = [_final(configs[system], trained[system]) for system in PUBLISHED]
        for system, record in zip(PUBLISHED, collect_records(finals, options, log), strict=True):
            chosen.append(_row(system, record))
            log(f"seed {seed}: {system}: {chosen[-1]['figures']}")
    return {
        **heading("adult", "FEDERATE (Maheshwari et al. 2022), table 3", options),
        "layer": options.layer,
        "relaxation": RELAXATION,
        "rows": {system: _summary(system, chosen) for system in PUBLISHED},
        "chosen": chosen,
    }


def as_markdown(table: dict[str, Any]) -> str:
    """Return the table in Markdown: measured ± deviation (published ± deviation), ✓ if they agree within the sum.

    Below it are the claimed and proven ε of the selected systems.
    """
    lines = ["| system | " + " | ".join(SHOWN) + " |", "|---|" + "---|" * len(SHOWN)]
    for system, row in table["rows"].items():
        lines.append(f"| {system} | " + " | ".join(_cell(row[metric], len(table["seeds"])) for metric in SHOWN) + " |")
    return "\n".join([*lines, "", *_epsilon_lines(table["chosen"])]) + "\n"


def _epsilon_lines(chosen: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a line of claimed and proven ε for each system with a privacy layer."""
    for system in dict.fromkeys(row["system"] for row in chosen):
        rows = [row["privacy"] for row in chosen if row["system"] == system]
        if rows[0].get("layer", "none") != "none":
            pairs = sorted({(privacy["epsilon_claimed"], privacy["epsilon_any_text"]) for privacy in rows})
            text = "; ".join(f"{claimed:.4g} claimed, {proven:.4g} proven" for claimed, proven in pairs)
            yield f"* ε of {system}: {text}"


def _points(system: str, seed: int, grid: Grid, options: Options) -> Iterator[ExperimentConfig]:
    """Yield the grid points of a system."""
    noisy = system in ("noise", "federate")
    base = load_mapping(
        {
            "method": system,
            "seed": seed,
            "data": {"name": "adult", "source": str(options.source), "split": "code"},
            **NETWORK,
            "training": {"epochs": grid.noisy_epochs if noisy else grid.epochs},
            "privacy": {"layer": options.layer, "epsilon": 1.0} if noisy else {},
            "attacks": {"leakage": False, "mdl": False},
        }
    )
    axes: dict[str, Sequence[Any]] = {}
    if system in ("adversarial", "adversarial-multiple", "federate"):
        axes["server.weight"] = grid.weights
    if system == "adversarial-multiple":
        axes["server.orthogonal"] = grid.orthogonal
    if noisy:
        axes["privacy.epsilon"] = grid.epsilons if system == "noise" else grid.federate_epsilons
    if system == "inlp":
        axes["training.inlp_rounds"] = grid.inlp_rounds
    for values in itertools.product(*axes.values()):
        yield base.with_values(dict(zip(axes, values, strict=True)))


def _records_by_system(
    configs: dict[str, list[ExperimentConfig]], options: Options, log: Log
) -> Iterator[list[dict[str, Any]]]:
    """Run the points of all systems in one grid; yield each system's records."""
    records = iter(collect_records([config for points in configs.values() for config in points], options, log))
    for points in configs.values():
        yield list(itertools.islice(records, len(points)))


def _final(configs: list[ExperimentConfig], records: list[dict[str, Any]]) -> ExperimentConfig:
    """Return the selected point, stopped after its selected epoch, with all attacks."""
    candidates = [c for number, record in enumerate(records) for c in _candidates(number, record)]
    best = select(candidates, RELAXATION)
    values = {"attacks.leakage": True, "attacks.mdl": True, "training.stop_after": best.epoch}
    return configs[best.point].with_values(values)


def _candidates(number: int, record: dict[str, Any]) -> list[Candidate]:
    """Return a candidate for each epoch; one, of the end, for INLP and random."""
    if record["config"]["method"] in ("inlp", "random"):
        metrics = record["metrics"]["validation"]
        last = record["config"]["training"]["epochs"]
        return [Candidate(number, last, metrics["accuracy"], abs(metrics["groups"]["sex"]["tpr_gap"]))]
    return [Candidate(number, row["epoch"], row["accuracy"], abs(row["tpr_gap"])) for row in record["epochs"]]


def _row(system: str, record: dict[str, Any]) -> dict[str, Any]:
    test = record["metrics"]["test"]
    attacks = record["metrics"]["attacks"]["sex"]
    figures = {
        "accuracy": 100 * test["accuracy"],
        "tpr_gap": 100 * abs(test["groups"]["sex"]["tpr_gap"]),
        "leakage": 100 * attacks["leakage"],
        "mdl": attacks["mdl"]["recoded_kilobits"],
        "mdl_online": attacks["mdl"]["kilobits"],
        "grms": 100 * test["groups"]["sex"]["grms"],
    }
    errors = {
        "accuracy": 100 * math.sqrt(test["accuracy"] * (1 - test["accuracy"]) / record["data"]["test"]),
        "tpr_gap": 100 * test["groups"]["sex"]["tpr_gap_error"],
        "leakage": 100 * math.sqrt(attacks["leakage"] * (1 - attacks["leakage"]) / record["data"]["test"]),
        "grms": 100 * test["groups"]["sex"]["grms_error"],
    }
    config = record["config"]
    return {
        "system": system,
        "seed": record["seed"],
        "figures": {name: round(value, 4) for name, value in figures.items()},
        "errors": {name: round(value, 4) for name, value in errors.items()},
        "weight": config["server"]["weight"],
        "orthogonal": config["server"]["orthogonal"],
        "inlp_rounds": config["training"]["inlp_rounds"],
        "epoch": config["training"]["stop_after"],
        "privacy": record["privacy"],
        "data": record["data"]["fingerprint"],
        "cpu_seconds": record["cpu_seconds"],
    }


def _summary(system: str, chosen: list[dict[str, Any]]) -> dict[str, Any]:
    metrics = {}
    for metric in SHOWN:
        rows = [row for row in chosen if row["system"] == system]
        errors = [row["errors"][metric] for row in rows if metric in row["errors"]]
        measured = estimate([row["figures"][metric] for row in rows], errors)
        figures = PUBLISHED[system].get(metric)
        published = None if figures is None else Published(*figures)
        metrics[metric] = {
            "measured": measured,
            "published": None if figures is None else list(figures),
            "agrees": None if published is None else reproduces(measured, published),
            "within_deviations": None if published is None else within_deviations(measured, published),
        }
    return metrics


def _cell(figure: dict[str, Any], seeds: int) -> str:
    published = None if figure["published"] is None else "{:.2f} ± {:.2f}".format(*figure["published"])
    return table_cell(figure["measured"], seeds, 2, published) + (" ✓" if figure["agrees"] else "")
