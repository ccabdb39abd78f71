"""FEDERATE's table 3 on Adult in Markdown: by both rules of selection, the sweep of thresholds, and the trade-offs.

>>> threshold_name(0.01), threshold_name(0.0)
('relaxation threshold 1.0', 'best validation accuracy')
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fl_sim.formats import format_epsilon
from fl_sim.research.representations.studies.adult.adult_selection import RELAXATION
from fl_sim.research.representations.studies.adult.adult_study import METRICS, SHOWN
from fl_sim.research.representations.studies.study_tables import spread, table_cell

Row = Mapping[str, Any]

_SWEEP = METRICS[:3]


def as_markdown(table: dict[str, Any]) -> str:
    """Return the tables in Markdown: measured ± deviation [± half width] (published ± deviation), ✓ if reproduced."""
    seeds = len(table["seeds"])
    selections = {selection["relaxation"]: selection["rows"] for selection in table["selections"]}
    lines: list[str] = []
    for relaxation in (RELAXATION, 0.0):
        lines += [f"Selected by {threshold_name(relaxation)}:", "", *_table(selections[relaxation], seeds), ""]
        lines += [_count_line(table["reproduced"][str(relaxation)]), ""]
    lines += [*_epsilon_lines(table["chosen"]), "", *_sweep(selections, seeds), "", *_tradeoffs(table)]
    return "\n".join(lines) + "\n"


def threshold_name(relaxation: float) -> str:
    """Return a rule of selection in words."""
    return f"relaxation threshold {100 * relaxation:.1f}" if relaxation else "best validation accuracy"


def _table(rows: Mapping[str, Any], seeds: int) -> Iterator[str]:
    yield "| system | " + " | ".join(SHOWN) + " |"
    yield "|---|" + "---|" * len(SHOWN)
    for system, row in rows.items():
        yield f"| {system} | " + " | ".join(_cell(row[metric], seeds) for metric in SHOWN) + " |"


def _count_line(counts: Mapping[str, int]) -> str:
    return (
        f"Reproduced: {counts['reproduced']} of {counts['published']} published figures (within the sum of both "
        f"deviations, the former rule: {counts['within_deviations']})."
    )


def _epsilon_lines(chosen: Sequence[Row]) -> Iterator[str]:
    """Yield a line of proven and claimed ε for each system with a privacy layer."""
    for system in dict.fromkeys(row["system"] for row in chosen):
        rows = [row["privacy"] for row in chosen if row["system"] == system and row["relaxation"] == RELAXATION]
        if rows[0].get("layer", "none") != "none":
            pairs = sorted({(privacy["epsilon_any_text"], privacy["epsilon_claimed"]) for privacy in rows})
            text = "; ".join(f"{format_epsilon(p)} proven ({format_epsilon(c)} claimed)" for p, c in pairs)
            yield f"* ε of {system} at relaxation threshold {100 * RELAXATION:.1f}: {text}"


def _sweep(selections: Mapping[float, Any], seeds: int) -> Iterator[str]:
    """Yield the table of all relaxation thresholds; nothing is published for Adult."""
    yield "All relaxation thresholds (the paper's tables 4 to 6, here on Adult; nothing is published for it):"
    yield ""
    yield "| system | RT | " + " | ".join(_SWEEP) + " |"
    yield "|---|---|" + "---|" * len(_SWEEP)
    for system in selections[RELAXATION]:
        for relaxation, rows in selections.items():
            cells = (spread(rows[system][metric]["measured"], seeds, 2) for metric in _SWEEP)
            yield f"| {system} | {100 * relaxation:.1f} | {' | '.join(cells)} |"


def _tradeoffs(table: Row) -> Iterator[str]:
    yield "Accuracy and leakage on the test split against ε (figure 4), models selected at relaxation threshold 1.0:"
    yield ""
    yield "| system | ε proven | ε claimed | accuracy | leakage | tpr_gap |"
    yield "|---|---|---|---|---|---|"
    for row in table["by_epsilon"]:
        epsilons = (format_epsilon(row[name]) for name in ("epsilon_proven", "epsilon_claimed"))
        cells = (spread(row[metric], row["seeds"], 2) for metric in ("accuracy", "leakage", "tpr_gap"))
        yield f"| {row['system']} | {' | '.join(epsilons)} | {' | '.join(cells)} |"
    yield ""
    yield "The smallest validation TPR-gap of any model within half a point of an accuracy (figure 3):"
    yield ""
    systems = list(dict.fromkeys(row["system"] for row in table["fairness_by_accuracy"]))
    yield "| validation accuracy | " + " | ".join(systems) + " |"
    yield "|---|" + "---|" * len(systems)
    gaps = {(row["accuracy"], row["system"]): row for row in table["fairness_by_accuracy"]}
    for centre in sorted({accuracy for accuracy, _ in gaps}):
        yield f"| {centre} | {' | '.join(_gap(gaps.get((centre, system))) for system in systems)} |"


def _gap(row: Row | None) -> str:
    return "–" if row is None else f"{row['tpr_gap']['mean']:.2f} ({row['seeds']})"


def _cell(figure: Row, seeds: int) -> str:
    published = None if figure["published"] is None else "{:.2f} ± {:.2f}".format(*figure["published"])
    return table_cell(figure["measured"], seeds, 2, published) + (" ✓" if figure["agrees"] else "")
