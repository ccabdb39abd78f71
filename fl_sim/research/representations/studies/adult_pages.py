"""FEDERATE's table 3 on Adult in Markdown and as pictures: every figure, the thresholds, and both trade-offs.

>>> threshold_name(0.01), threshold_name(0.0)
('relaxation threshold 1.0', 'best validation accuracy')
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fl_sim.formats import format_epsilon
from fl_sim.research.representations.studies.adult_study import METRICS, SHOWN
from fl_sim.research.representations.studies.agreement import spread, table_cell
from fl_sim.research.representations.studies.grid_selection import RELAXATION
from fl_sim.research.representations.studies.study_pictures import Curve, Panel, Picture, curves_of, draw_panels
from fl_sim.research.study_files import markdown_table

Row = Mapping[str, Any]

_ON_EVERY_MODEL = METRICS[:3]  # MDL is measured on the models of table 3 alone
_LABELS = {"accuracy": "Accuracy", "tpr_gap": "TPR-gap", "leakage": "Leakage"}


def as_markdown(table: Row) -> str:
    """Return the tables in Markdown: measured ± deviation [± half width] (published ± deviation), ✓ if reproduced."""
    seeds = len(table["seeds"])
    selections = {selection["relaxation"]: selection["rows"] for selection in table["selections"]}
    lines: list[str] = []
    for relaxation in (RELAXATION, 0.0):
        rows = ([of, *(_cell(row[m], seeds) for m in SHOWN)] for of, row in selections[relaxation].items())
        lines += [f"Selected by {threshold_name(relaxation)}:", "", *markdown_table(["system", *SHOWN], rows), ""]
        counts = table["reproduced"][str(relaxation)]
        lines += [f"Reproduced: {counts['reproduced']} of {counts['published']} published figures.", ""]
    lines += [*_epsilon_lines(table["chosen"]), ""]
    lines += ["All relaxation thresholds (the paper's tables 4 to 6, here on Adult; nothing is published for it):", ""]
    swept = (
        [system, f"{100 * rt:.1f}", *(spread(rows[system][m]["measured"], seeds, 2) for m in _ON_EVERY_MODEL)]
        for system in selections[RELAXATION]
        for rt, rows in selections.items()
    )
    lines += [*markdown_table(["system", "RT", *_ON_EVERY_MODEL], swept), ""]
    lines.append(
        "Accuracy and leakage on the test split against ε (figure 4), models selected at relaxation threshold 1.0:"
    )
    metrics = ("accuracy", "leakage", "tpr_gap")
    by_epsilon = (
        [
            row["system"],
            *(format_epsilon(row[name]) for name in ("epsilon_proven", "epsilon_claimed")),
            *(spread(row[metric], row["seeds"], 2) for metric in metrics),
        ]
        for row in table["by_epsilon"]
    )
    lines += ["", *markdown_table(["system", "ε proven", "ε claimed", *metrics], by_epsilon), ""]
    lines += ["The smallest validation TPR-gap of any model within half a point of an accuracy (figure 3):", ""]
    return "\n".join([*lines, *_fairness_table(table["fairness_by_accuracy"])]) + "\n"


def threshold_name(relaxation: float) -> str:
    """Return a rule of selection in words."""
    return f"relaxation threshold {100 * relaxation:.1f}" if relaxation else "best validation accuracy"


def _cell(figure: Row, seeds: int) -> str:
    published = None if figure["published"] is None else "{:.2f} ± {:.2f}".format(*figure["published"])
    return table_cell(figure["measured"], seeds, 2, published, figure["agrees"])


def _epsilon_lines(chosen: Sequence[Row]) -> Iterator[str]:
    """Yield a line of proven and claimed ε for each system with a privacy layer."""
    for system in dict.fromkeys(row["system"] for row in chosen):
        rows = [row["privacy"] for row in chosen if row["system"] == system and row["relaxation"] == RELAXATION]
        if rows[0].get("layer", "none") != "none":
            pairs = sorted({(privacy["epsilon_any_text"], privacy["epsilon_claimed"]) for privacy in rows})
            text = "; ".join(f"{format_epsilon(p)} proven ({format_epsilon(c)} claimed)" for p, c in pairs)
            yield f"* ε of {system} at relaxation threshold {100 * RELAXATION:.1f}: {text}"


def _fairness_table(rows: Sequence[Row]) -> list[str]:
    """Return a row per accuracy and a column per system; in brackets the number of seeds with such a model."""
    systems = list(dict.fromkeys(row["system"] for row in rows))
    gaps = {(row["accuracy"], row["system"]): f"{row['tpr_gap']['mean']:.2f} ({row['seeds']})" for row in rows}
    centres = sorted({accuracy for accuracy, _ in gaps})
    cells = ([str(centre), *(gaps.get((centre, system), "–") for system in systems)] for centre in centres)
    return markdown_table(["validation accuracy", *systems], cells)


def draw(table: Row) -> list[Picture]:
    """Return the pictures of a table of `adult_study.reproduce`."""
    thresholds = tuple(100 * selection["relaxation"] for selection in table["selections"])
    swept = []
    for metric in _ON_EVERY_MODEL:
        curves = tuple(
            Curve(of, thresholds, tuple(selection["rows"][of][metric]["measured"] for selection in table["selections"]))
            for of in table["rows"]
            if of != "random"  # it has no model
        )
        swept.append(Panel(_LABELS[metric], curves))
    by_epsilon = [
        Panel(_LABELS[metric], curves_of(table["by_epsilon"], "system", "epsilon_proven", metric))
        for metric in _ON_EVERY_MODEL
    ]
    fairest = Panel(
        "The smallest validation TPR-gap within half a point of an accuracy",
        curves_of(table["fairness_by_accuracy"], "system", "accuracy", "tpr_gap"),
    )
    return [
        Picture(
            "thresholds", "Accuracy, TPR-gap and leakage against the relaxation threshold",
            draw_panels(swept, "relaxation threshold, points of accuracy", "percent", log=False),
        ),
        Picture(
            "epsilon", "Accuracy, leakage and TPR-gap against proven ε", draw_panels(by_epsilon, "ε, proven", "percent")
        ),
        Picture(
            "fairness", "The fairest model of each accuracy",
            draw_panels([fairest], "validation accuracy, percent", "TPR-gap, percent", log=False),
        ),
    ]  # fmt: skip
