"""DPNR's tables 2 to 5 and 7 on its AG set, with MiniLM in place of BERT-base.

The frozen features of MiniLM (k = 384) are computed once; a network of two layers is trained on them for four epochs
instead of the paper's fine-tuning. The attacker reads the sent vectors. DPNR appears twice: as in its paper, with
independent noise on each coordinate, and as in its published code, with one noise number for all coordinates
(``dpnr-shared``), which protects nothing.

>>> TABLE_2[0.05], TABLE_4["dpnr"]
(80.87, (80.87, 54.37))
>>> PERSONS
('Arafat', 'Blair', 'Sharon')
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fl_sim.research.representations.config import ExperimentConfig, load_mapping
from fl_sim.research.representations.corpora.labelled_text import AG_PERSONS
from fl_sim.research.representations.studies.agreement import Estimate, estimate
from fl_sim.research.representations.studies.study_tables import Log, Options, collect_figures, heading, table_cell

EPSILONS = (0.05, 0.1, 0.5, 1.0, 5.0)
RATES = (0.1, 0.3, 0.5, 0.8)
ATTACKED = 0.05
"""ε of DPNR in tables 4, 5 and 7."""
EPSILON_OF_RATES = 1.0
"""ε of table 3."""
PERSONS = AG_PERSONS[2:]
"""Entities 3, 4 and 5."""
LAYERS = ("dpnr", "dpnr-shared")
BASELINES = {"majority": "majority", "unconstrained": "non-priv", "coavoux": "adv"}
"""The paper's name of each method."""
RowKey = tuple[str, float | None, float]
"""System, ε and μ."""

TABLE_2 = dict(zip(EPSILONS, (80.87, 80.78, 79.71, 79.36, 79.59), strict=True))
TABLE_3 = dict(zip(RATES, (80.71, 79.18, 77.42, 69.57), strict=True))
TABLE_4: dict[str, tuple[float, float]] = {
    "majority": (57.79, 49.34),
    "non-priv": (78.75, 23.24),
    "adv": (57.04, 49.67),
    "dpnr": (80.87, 54.37),
}
"""Accuracy and empirical privacy 1 − F, in percent."""
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


@dataclass(frozen=True)
class Grid:
    """The trainings of each seed.

    Attributes:
        epsilons: ε of DPNR, 0.05 and 1 among them; one training each.
        rates: μ at ε = 1.
        epochs: of training.
        attacker_epochs: of the attacker's training.
        model: the frozen encoder.
    """

    epsilons: tuple[float, ...]
    rates: tuple[float, ...]
    epochs: int = 4
    attacker_epochs: int = 20
    model: str = "minilm"


THIN = Grid((0.05, 1.0, 5.0), (0.3, 0.8), attacker_epochs=5)
"""The default."""

FULL = Grid(EPSILONS, RATES)
"""All rows of the paper's tables, and the attacker's default training."""


def reproduce(options: Options, log: Log = lambda line: None) -> dict[str, Any]:
    """Return the tables as a JSON-ready mapping: a row for each system, ε and μ.

    Args:
        options: of the reproduction.
        log: called with a line of progress.
    """
    grid = FULL if options.full else THIN
    rows = collect_figures(lambda seed: _configs(seed, grid, options), _figures, options, log)
    return {
        **heading("dpnr-ag", "DPNR (Lyu, He and Li 2020), tables 2 to 5 and 7, the AG set", options),
        "model": grid.model,
        "attacker_epochs": grid.attacker_epochs,
        "rows": [_row(key, values) for key, values in rows.items()],
    }


def as_markdown(table: dict[str, Any]) -> str:
    """Return the tables in Markdown: measured ± deviation (published)."""
    rows, seeds = table["rows"], len(table["seeds"])
    lines = ["Tables 2 and 3, accuracy in percent:", ""]
    lines += ["| system | ε | μ | ε' claimed | ε' proven | accuracy |", "|---|---|---|---|---|---|"]
    for row in rows:
        texts = [row["system"], *(_number(row[name]) for name in ("epsilon", "word_dropout"))]
        texts += [_number(row[name]) for name in ("epsilon_claimed", "epsilon_corrected")]
        lines.append(f"| {' | '.join(texts)} | {_cell(row['accuracy'], row['published'].get('accuracy'), seeds)} |")
    attacked = [row for row in rows if "privacy_f" in row]
    lines += ["", f"Table 4; DPNR with ε = {ATTACKED:g}:", ""]
    lines += ["| system | accuracy | empirical privacy 1 − F |", "|---|---|---|"]
    for row in attacked:
        cells = (_cell(row[name], row["published"].get(name), seeds) for name in ("accuracy", "privacy_f"))
        lines.append(f"| {row['system']} | {' | '.join(cells)} |")
    for number, name, title in (
        (5, "attacker", "the attacker's accuracy, absent / present"),
        (7, "task", "the task's accuracy, absent / what is added where present"),
    ):
        lines += ["", f"Table {number}, {title}:", ""]
        lines += [f"| system | {' | '.join(PERSONS)} |", "|---|" + "---|" * len(PERSONS)]
        for row in attacked:
            cells = (_pair(row[name][person], row["published"].get(name, {}).get(person)) for person in PERSONS)
            lines.append(f"| {row['system']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _configs(seed: int, grid: Grid, options: Options) -> Iterator[ExperimentConfig]:
    base: dict[str, Any] = {
        "seed": seed,
        "data": {"name": "dpnr-ag", "source": str(options.source)},
        "feature_cache": None if options.work is None else str(options.work / "features"),
        "encoder": {"kind": "mlp", "width": 384, "model": grid.model},
        "training": {"epochs": grid.epochs, "batch_size": 64},
        "attacks": {"leakage": False, "mdl": False, "attacker": True, "attacker_epochs": grid.attacker_epochs},
    }
    for method in BASELINES:
        yield load_mapping({**base, "method": method})
    for layer in LAYERS:
        for epsilon in grid.epsilons:
            rates = grid.rates if epsilon == EPSILON_OF_RATES else ()
            releases = [{"epsilon": epsilon, "word_dropout": rate} for rate in rates]
            changes = {
                "privacy": {"layer": layer, "epsilon": epsilon},
                "releases": releases,
                "attacks": {**base["attacks"], "attacker": epsilon == ATTACKED},
            }
            yield load_mapping({**base, "method": "robust", **changes})


def _figures(record: dict[str, Any]) -> Iterator[tuple[RowKey, dict[str, Any]]]:
    """Yield the rows of a record and their figures, in percent."""
    test = record["metrics"]["test"]
    privacy = record["privacy"]
    method = record["config"]["method"]
    noisy = method not in BASELINES
    system = privacy["layer"] if noisy else BASELINES[method]
    figures: dict[str, Any] = {"accuracy": 100 * test["accuracy"], "privacy": privacy}
    attacker = record["metrics"]["attacks"].get("attacker")
    if attacker is not None:
        figures["privacy_f"] = 100 * attacker["empirical_privacy_f"]
        figures["privacy_x"] = 100 * attacker["empirical_privacy_x"]
        figures["attacker"], figures["task"] = {}, {}
        for number, person in enumerate(AG_PERSONS):
            group = test["groups"][person]
            absent = 100 * group["accuracy_without"]
            figures["attacker"][person] = (100 * attacker["absent"][number], 100 * attacker["present"][number])
            figures["task"][person] = (absent, 100 * group["accuracy_with"] - absent)
    yield (system, privacy["epsilon"] if noisy else None, 0.0), figures
    for release in record.get("releases", ()):
        key = (system, release["privacy"]["epsilon"], release["word_dropout"])
        yield key, {"accuracy": 100 * release["test"]["accuracy"], "privacy": release["privacy"]}


def _row(key: RowKey, values: list[dict[str, Any]]) -> dict[str, Any]:
    system, epsilon, rate = key
    privacy = values[0]["privacy"]
    row: dict[str, Any] = {
        "system": system,
        "epsilon": epsilon,
        "word_dropout": rate,
        "epsilon_claimed": privacy.get("epsilon_claimed"),
        "epsilon_corrected": privacy.get("epsilon_corrected"),
        "accuracy": estimate([value["accuracy"] for value in values]),
        "published": _published(system, epsilon, rate),
    }
    if "privacy_f" in values[0]:
        for name in ("privacy_f", "privacy_x"):
            row[name] = estimate([value[name] for value in values])
        for name in ("attacker", "task"):
            row[name] = {
                person: [estimate([value[name][person][side] for value in values]) for side in (0, 1)]
                for person in AG_PERSONS
            }
    return row


def _published(system: str, epsilon: float | None, rate: float) -> dict[str, Any]:
    """Return the paper's figures of a row; both versions of DPNR get its figures."""
    name = "dpnr" if system in LAYERS else system
    published: dict[str, Any] = {}
    if epsilon is None:
        published["accuracy"] = TABLE_4[name][0]
    elif rate == 0:
        published["accuracy"] = TABLE_2[epsilon]
    else:
        published["accuracy"] = TABLE_3[rate]
    if epsilon is None or (epsilon == ATTACKED and rate == 0):
        published["privacy_f"] = TABLE_4[name][1]
        published["attacker"], published["task"] = TABLE_5.get(name, {}), TABLE_7.get(name, {})
    return published


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}".replace("inf", "∞")


def _cell(measured: Estimate, published: float | None, seeds: int) -> str:
    return table_cell(measured, seeds, 1, None if published is None else f"{published:.2f}")


def _pair(measured: Sequence[Estimate], published: Sequence[float] | None) -> str:
    figures = "–" if published is None else f"{published[0]:.1f} / {published[1]:.1f}"
    return f"{measured[0]['mean']:.1f} / {measured[1]['mean']:.1f} ({figures})"
