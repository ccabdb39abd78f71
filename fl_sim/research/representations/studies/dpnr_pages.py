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
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fl_sim.formats import format_epsilon
from fl_sim.research.representations.config import ExperimentConfig
from fl_sim.research.representations.corpora.labelled_text import AG_PERSONS
from fl_sim.research.representations.evaluation.representation_pictures import group_names, tsne
from fl_sim.research.representations.studies.agreement import mark, spread, table_cell
from fl_sim.research.representations.studies.dpnr_published import (
    ATTACKED,
    EPSILON_OF_RATES,
    LAYERS,
    PERSONS,
    TABLE_2,
    TABLE_3,
    TABLE_4,
    narrowing,
    verdict_lines,
)
from fl_sim.research.representations.studies.study_pictures import Picture
from fl_sim.research.study_files import markdown_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fl_sim.reporting.plots import Look

Row = Mapping[str, Any]

PERSON = "Arafat"
"""Whose presence figure 4 shows: entity 3, the most frequent that the paper prints."""
_PAIRS = (
    (5, "attacker", "the attacker's accuracy, absent / present"),
    (7, "task", "the task's accuracy, absent / what is added where present"),
)
_BESIDE = 1.05  # the factor between the positions of two curves at one ε, which would hide each other
_PUBLISHED: dict[str, Any] = {"marker": "D", "fillstyle": "none", "linestyle": "none", "markersize": 6}
_WORDS = {"accuracy": "accuracy", "privacy_f": "empirical privacy 1 − F"}


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
    lines += [_count_line(encoder, counts) for encoder, counts in table["reproduced"].items()]
    return "\n".join(lines) + "\n"


def _count_line(encoder: str, counts: Mapping[str, Any]) -> str:
    published, reproduced = counts["published"], counts["reproduced"]
    if reproduced is None:
        return f"* Reproduced, {encoder}: no verdict on {published} published figures; too few seeds."
    return f"* Reproduced, {encoder}: {reproduced} of {published} published figures."


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


def scattered(systems: Mapping[str, ExperimentConfig]) -> dict[str, Any]:
    """Return figure 4's points, JSON-ready: t-SNE of the test texts' sent vectors, and who is named in them.

    Args:
        systems: name to experiment, all on the same texts.
    """
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
        Picture("fairness", "By how much DPNR narrows each person's gap", _draw_fairness(table)),
        Picture("tsne", f"t-SNE of the sent vectors, by {table['tsne']['person']}", _draw_tsne(table)),
    ]


def _draw_epsilon(table: Mapping[str, Any]) -> Figure:
    """Draw accuracy against ε (table 2) and μ (table 3), and empirical privacy against ε (figure 3)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13.5, 4.4), layout="constrained")
    axes = figure.subplots(1, 3)
    rows = table["rows"]
    for panel, metric in zip(axes[:2], _WORDS, strict=True):
        _draw_curves(panel, [row for row in rows if not row["word_dropout"]], metric, "epsilon")
        _draw_levels(panel, rows, metric)
        panel.set_xscale("log")
        _name_epsilons(panel, rows)
        panel.set_ylabel(f"{_WORDS[metric]}, percent")
    panel, at_one = axes[2], [row for row in rows if row["epsilon"] == EPSILON_OF_RATES and row["encoder"] == "frozen"]
    _draw_curves(panel, at_one, "accuracy", "word_dropout")
    panel.set_xlabel(f"μ, at ε = {_proven(rows, EPSILON_OF_RATES)} proven ({EPSILON_OF_RATES:g} claimed) of dpnr")
    panel.set_ylabel("accuracy, percent")
    for panel, title in zip(axes, ("Table 2: accuracy", "Figure 3: empirical privacy", "Table 3: μ"), strict=True):
        panel.set_title(title, loc="left", fontsize="medium")
    published = [TABLE_2, {ATTACKED: TABLE_4["dpnr"][1]}, {0.0: TABLE_2[EPSILON_OF_RATES], **TABLE_3}]
    for panel, figures in zip(axes, published, strict=True):
        panel.plot(list(figures), list(figures.values()), color="grey", label="published", **_PUBLISHED)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize="small")
    return figure


def _draw_curves(axes: Axes, rows: Sequence[Row], metric: str, against: str) -> None:
    """Draw the metric of each encoder and version of DPNR, with 95 % intervals of the means."""
    from fl_sim.reporting.plots import looks

    keys = list(dict.fromkeys((row["encoder"], row["system"]) for row in rows if row["system"] in LAYERS))
    for look, (encoder, system) in zip(looks(len(keys)), keys, strict=True):
        curve = [row for row in rows if (row["encoder"], row["system"]) == (encoder, system) and metric in row]
        curve.sort(key=lambda row: row[against])
        shift = _BESIDE ** (look.number - (len(keys) - 1) / 2) if against == "epsilon" else 1.0
        _draw_curve(axes, curve, metric, [shift * row[against] for row in curve], look, f"{system}, {encoder}")


def _draw_curve(axes: Axes, curve: Sequence[Row], metric: str, at: Sequence[float], look: Look, name: str) -> None:
    means = [row[metric]["mean"] for row in curve]
    widths = [row[metric]["half_width"] for row in curve]
    style: dict[str, Any] = {"color": look.colour, "marker": look.marker, "fillstyle": "none", "linestyle": look.dash}
    axes.errorbar(at, means, widths, capsize=3, label=name, **style)


def _draw_levels(axes: Axes, rows: Sequence[Row], metric: str) -> None:
    """Draw what does not depend on ε as lines: NON-PRIV of both encoders, majority, and NON-PRIV as published."""
    dashes = {("frozen", "non-priv"): "--", ("fine-tuned", "non-priv"): "-.", ("frozen", "majority"): ":"}
    for row in rows:
        dash = dashes.get((row["encoder"], row["system"]))
        if dash is not None:
            name = row["system"] if row["system"] == "majority" else f"{row['system']}, {row['encoder']}"
            axes.axhline(row[metric]["mean"], color="black", linewidth=0.9, linestyle=dash, label=name)
    level = TABLE_4["non-priv"][list(_WORDS).index(metric)]
    axes.axhline(level, color="grey", linewidth=2.2, alpha=0.4, label="non-priv, published")


def _name_epsilons(axes: Axes, rows: Sequence[Row]) -> None:
    """Label the axis with ε as proven of DPNR, and as claimed below it."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    plain = [row for row in rows if row["system"] == "dpnr" and not row["word_dropout"]]
    proven = {row["epsilon"]: row["epsilon_proven"] for row in plain}
    axes.xaxis.set_major_locator(FixedLocator(sorted(proven)))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{format_epsilon(proven[e])}\n({e:g})" for e in sorted(proven)]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("ε of dpnr, proven (claimed); dpnr-shared: ∞ proven")


def _draw_fairness(table: Mapping[str, Any]) -> Figure:
    """Draw by how much each person's gap narrows, with 95 % intervals, beside the published figure."""
    from matplotlib.figure import Figure

    from fl_sim.reporting.plots import looks

    rows = table["fairness"]
    keys = list(dict.fromkeys((row["encoder"], row["system"]) for row in rows))
    people = list(dict.fromkeys(row["person"] for row in rows))
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.axhline(0, color="black", linewidth=0.8)
    for look, key in zip(looks(len(keys)), keys, strict=True):
        own = [row for row in rows if (row["encoder"], row["system"]) == key]
        at = [people.index(row["person"]) + 0.15 * (look.number - (len(keys) - 1) / 2) for row in own]
        means, widths = [row["narrower_by"] for row in own], [1.96 * row["standard_error"] for row in own]
        style: dict[str, Any] = {"color": look.colour, "marker": look.marker, "fillstyle": "none"}
        axes.errorbar(at, means, widths, capsize=3, linestyle="none", label=f"{key[1]}, {key[0]}", **style)
    shown = [people.index(person) for person in PERSONS]
    axes.plot(shown, [narrowing(person) for person in PERSONS], color="grey", label="published", **_PUBLISHED)
    axes.set_xticks(range(len(people)), people)
    axes.set_ylabel("points by which the gap is\nnarrower than NON-PRIV's")
    words = f"ε of dpnr {_proven(table['rows'], ATTACKED)} proven ({ATTACKED:g} claimed); dpnr-shared: ∞ proven"
    axes.set_title(f"Table 7: is DPNR fairer? (95 % intervals)\n{words}", loc="left", fontsize="medium")
    figure.legend(loc="outside right upper", fontsize="small")
    return figure


def _draw_tsne(table: Mapping[str, Any]) -> Figure:
    """Draw figure 4's panels."""
    from matplotlib.figure import Figure

    content = table["tsne"]
    named = np.array([int(value) for value in content["named"]])
    figure = Figure(figsize=(4 * len(content["points"]), 4.3), layout="constrained")
    panels = figure.subplots(1, len(content["points"]), squeeze=False)[0]
    for axes, (name, text) in zip(panels, content["points"].items(), strict=True):
        points = unpack_points(text)
        for value, words in enumerate(group_names(content["person"])):
            axes.scatter(*points[named == value].T, s=5, alpha=0.6, label=words)
        axes.set_title(_title(name, table["rows"]), fontsize="medium")
        axes.set_xticks([])
        axes.set_yticks([])
    panels[0].legend(markerscale=3, fontsize="small")
    return figure


def _title(system: str, rows: Sequence[Row]) -> str:
    """Return a system's name with its ε as proven and as claimed."""
    if system not in LAYERS:
        return f"{system}, no noise"
    return f"{system}, ε = {_proven(rows, ATTACKED, system)} proven ({ATTACKED:g} claimed)"


def _proven(rows: Sequence[Row], epsilon: float, system: str = "dpnr") -> str:
    """Return the proven ε of a system at a claimed one, without word dropout."""
    found = (row for row in rows if (row["system"], row["epsilon"], row["word_dropout"]) == (system, epsilon, 0.0))
    return format_epsilon(next(found)["epsilon_proven"])
