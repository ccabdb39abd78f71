"""DPNR's record in Markdown and as pictures: measured beside published, proven ε before claimed ε.

>>> number(float("inf")), number(None), number(19.2)
('∞', '–', '19.2')
>>> points = np.array([[0.0, -1.0], [10.0, 1.0]], dtype=np.float32)
>>> unpack_points(pack_points(points)).tolist()
[[0, 0], [255, 255]]
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from fl_sim.formats import format_epsilon
from fl_sim.research.representations.config import ExperimentConfig
from fl_sim.research.representations.corpora.labelled_text import AG_PERSONS
from fl_sim.research.representations.evaluation.representation_pictures import scatter, tsne
from fl_sim.research.representations.studies.agreement import counted_words, mark, spread, table_cell
from fl_sim.research.representations.studies.dpnr_published import (
    ATTACKED,
    EPSILON_OF_RATES,
    LAYERS,
    TABLE_2,
    TABLE_3,
    TABLE_4,
    verdict_lines,
)
from fl_sim.research.representations.studies.study_pictures import Curve, Panel, Picture, curves_of, draw_panels
from fl_sim.research.study_files import markdown_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, Any]

PERSON = "Arafat"
"""Whose presence figure 4 shows: entity 3, the most frequent that the paper prints."""
_MECHANISMS = {
    "baselines": "baselines",
    "dpnr": "DPNR by the mechanism that the paper states (dpnr)",
    "dpnr-shared": "DPNR by the mechanism that made its tables, one noise number per text (dpnr-shared)",
}
_PAIRS = (
    (5, "attacker", "the attacker's accuracy, absent / present"),
    (7, "task", "the task's accuracy, absent / what is added where present"),
)


class Scattered(TypedDict):
    """Figure 4: a person, a digit per test text whether it names the person, and a system's packed points by name."""

    person: str
    named: str
    points: dict[str, str]


def as_markdown(table: Row) -> str:
    """Return the tables: measured ± deviation [± half width] (published), ✓ if reproduced."""
    rows, tuning = table["rows"], table["tuning"]
    lines = [
        f"*Fine-tuned*: the upper {tuning['trained_layers']} layers and the pooler, whose state is sent, for "
        f"{tuning['epochs']} epoch(s) of texts of at most {tuning['max_tokens']} tokens; seeds "
        f"{', '.join(map(str, tuning['seeds']))}.",
        "",
    ]
    lines += ["Tables 2 and 3, accuracy in percent; figure 3, empirical privacy 1 − F:", ""]
    names = ["encoder", "system", "ε' proven", "ε' claimed", "ε", "μ", "accuracy", "1 − F"]
    lines += markdown_table(names, map(_epsilon_row, rows))
    attacked = [row for row in rows if "privacy_f" in row and row["epsilon"] in (None, ATTACKED)]
    names = ["encoder", "system", "ε proven", "accuracy", "empirical privacy 1 − F"]
    lines += ["", f"Table 4; DPNR with ε = {ATTACKED:g} claimed:", ""]
    cells = ([*_system(row), _cell(row, "accuracy"), _cell(row, "privacy_f"), _cell_of_code(row)] for row in attacked)
    lines += markdown_table([*names, "1 − F, the published code's attacker"], cells)
    for table_number, name, title in _PAIRS:
        lines += ["", f"Table {table_number}, {title}; DPNR with ε = {ATTACKED:g} claimed:", ""]
        cells = ([*_system(row), *(_pair(row, name, person) for person in AG_PERSONS)] for row in attacked)
        lines += markdown_table(["encoder", "system", "ε proven", *AG_PERSONS], cells)
    lines += ["", "Does DPNR make the classifier fairer? NON-PRIV's gap (table 7) less DPNR's:", ""]
    names = ["encoder", "system", "person", "gap, NON-PRIV", "gap, DPNR", "narrower by", "standard errors"]
    lines += [*markdown_table(names, map(_fairness_row, table["fairness"])), "", *verdict_lines(table["fairness"]), ""]
    lines += [
        f"* Reproduced, {encoder}, {_MECHANISMS[of]}: {counted_words(counts)}."
        for encoder, counted in table["reproduced"].items()
        for of, counts in counted.items()
    ]
    return "\n".join(lines) + "\n"


def number(value: float | None) -> str:
    """Return a number with four digits, a dash for None."""
    return "–" if value is None else f"{value:.4g}".replace("inf", "∞")


def _epsilon(value: float | None) -> str:
    return "–" if value is None else format_epsilon(value)


def _system(row: Row) -> list[str]:
    return [row["encoder"], row["system"], _epsilon(row["epsilon_proven"])]


def _epsilon_row(row: Row) -> list[str]:
    numbers = [number(row[name]) for name in ("epsilon", "word_dropout")]
    return [*_system(row), _epsilon(row["epsilon_claimed"]), *numbers, _cell(row, "accuracy"), _cell(row, "privacy_f")]


def _fairness_row(row: Row) -> list[str]:
    gaps = (spread(row[name], 1, 1) for name in ("gap_non_priv", "gap"))
    published = f"{row['published']:.1f}{mark(row['agrees'])}" if "published" in row else "–"
    narrower = f"{row['narrower_by']:.1f} ± {row['standard_error']:.1f} ({published})"
    errors = f"{row['standard_errors']:.1f} ({number(row.get('published_standard_errors'))})"
    return [row["encoder"], row["system"], row["person"], *gaps, narrower, errors]


def _cell(row: Row, name: str) -> str:
    if name not in row:
        return "–"
    published = row["published"].get(name)
    shown = None if published is None else f"{published:.2f}"
    return table_cell(row[name], row["seeds"], 1, shown, row["agrees"].get(name))


def _cell_of_code(row: Row) -> str:
    if "privacy_f_of_code" not in row:
        return "–"
    published = f"{row['published']['privacy_f']:.2f}"
    return table_cell(row["privacy_f_of_code"], row["seeds"], 1, published, row["agrees_of_code"])


def _pair(row: Row, name: str, person: str) -> str:
    """Return both figures of a person, each with ✓ beside the published one that it reproduces."""
    measured = " / ".join(f"{figure['mean']:.1f}" for figure in row[name][person])
    published = row["published"].get(name, {}).get(person)
    if published is None:
        return f"{measured} (–)"
    agrees = row["agrees"][name][person]
    return f"{measured} ({' / '.join(f'{p:.1f}{mark(a)}' for p, a in zip(published, agrees, strict=True))})"


def pack_points(points: NDArray[np.float32]) -> str:
    """Return points, float32 (n, 2), scaled to 0 … 255 in each coordinate, as base64 of uint8 (n, 2)."""
    low, high = points.min(axis=0), points.max(axis=0)
    scaled = np.round(255 * (points - low) / np.where(high > low, high - low, 1))
    return base64.b64encode(scaled.astype(np.uint8).tobytes()).decode()


def unpack_points(text: str) -> NDArray[np.uint8]:
    """Return what :func:`pack_points` packed, uint8 (n, 2)."""
    return np.frombuffer(base64.b64decode(text), np.uint8).reshape(-1, 2)


def scattered(systems: Mapping[str, ExperimentConfig]) -> Scattered:
    """Return figure 4's points, JSON-ready: t-SNE of the test texts' sent vectors by system, and who is named."""
    from fl_sim.research.representations.client.client_workspace import open_data
    from fl_sim.research.representations.representation_experiment import train_and_release

    config = next(iter(systems.values()))
    data = open_data(config.data, config.seed)
    named = data.test.private[:, data.attributes.index(PERSON)]
    panels = {name: train_and_release(config).released["test"] for name, config in systems.items()}
    points = {name: pack_points(tsne(vectors, config.seed)) for name, vectors in panels.items()}
    return {"person": PERSON, "named": "".join(map(str, named.tolist())), "points": points}


def draw_pictures(table: Mapping[str, Any]) -> list[Picture]:
    """Return all pictures of a record."""
    return [
        Picture("epsilon", "Accuracy and empirical privacy against ε, accuracy against μ", _draw_epsilon(table)),
        Picture("tsne", f"t-SNE of the sent vectors, by {table['tsne']['person']}", _draw_tsne(table)),
    ]


def _draw_epsilon(table: Mapping[str, Any]) -> Figure:
    """Draw accuracy and empirical privacy against ε (table 2, figure 3), and accuracy against μ (table 3)."""
    rows = table["rows"]
    plain = [row for row in rows if not row["word_dropout"]]
    at_one = [row for row in rows if row["epsilon"] == EPSILON_OF_RATES and row["encoder"] == "frozen"]
    factor = next(row["epsilon_proven"] / row["epsilon"] for row in plain if row["system"] == "dpnr")
    of_epsilon = f"ε claimed; proven: {factor:g} times as much (dpnr), ∞ (dpnr-shared)"
    of_rate = f"μ, at ε = {_proven(rows, EPSILON_OF_RATES)} proven ({EPSILON_OF_RATES:g} claimed) of dpnr"
    of_accuracy = {0.0: TABLE_2[EPSILON_OF_RATES], **TABLE_3}
    panels = (
        Panel("Table 2: accuracy", _curves(plain, "accuracy", "epsilon", TABLE_2), of_epsilon),
        Panel(
            "Figure 3: empirical privacy", _curves(plain, "privacy_f", "epsilon", {ATTACKED: TABLE_4["dpnr"][1]}),
            of_epsilon, "empirical privacy 1 − F, percent",
        ),
        Panel("Table 3: μ", _curves(at_one, "accuracy", "word_dropout", of_accuracy), of_rate, log=False),
    )  # fmt: skip
    return draw_panels(panels, "", "accuracy, percent")


def _curves(rows: Sequence[Row], metric: str, against: str, published: Mapping[float, float]) -> tuple[Curve, ...]:
    """Return a curve per encoder and system that has the metric, and the published points; baselines are levels."""
    named = [
        {**row, "label": f"{row['system']}, {row['encoder']}"}
        for row in rows
        if metric in row and row["system"] != "adv"
    ]
    points = tuple({"mean": value, "half_width": 0.0} for value in published.values())
    return (*curves_of(named, "label", against, metric), Curve("published", tuple(published), points))


def _draw_tsne(table: Mapping[str, Any]) -> Figure:
    """Draw figure 4's panels."""
    content = table["tsne"]
    points = {_title(name, table["rows"]): unpack_points(text) for name, text in content["points"].items()}
    return scatter(points, np.array([int(value) for value in content["named"]]), content["person"])


def _title(system: str, rows: Sequence[Row]) -> str:
    """Return a system's name with its ε as proven and as claimed."""
    if system not in LAYERS:
        return f"{system}, no noise"
    return f"{system}, ε = {_proven(rows, ATTACKED, system)} proven ({ATTACKED:g} claimed)"


def _proven(rows: Sequence[Row], epsilon: float, system: str = "dpnr") -> str:
    """Return the proven ε of a system at a claimed one, without word dropout."""
    found = (row for row in rows if (row["system"], row["epsilon"], row["word_dropout"]) == (system, epsilon, 0.0))
    return format_epsilon(next(found)["epsilon_proven"])
