"""DPNR's tables in Markdown: measured beside published, proven ε before claimed ε.

>>> number(float("inf")), number(None), number(19.2)
('∞', '–', '19.2')
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fl_sim.formats import format_epsilon
from fl_sim.research.representations.corpora.labelled_text import AG_PERSONS
from fl_sim.research.representations.studies.dpnr.dpnr_fairness import verdict_lines
from fl_sim.research.representations.studies.dpnr.dpnr_published import ATTACKED
from fl_sim.research.representations.studies.study_tables import spread, table_cell

Row = Mapping[str, Any]

_PAIRS = (
    (5, "attacker", "the attacker's accuracy, absent / present"),
    (7, "task", "the task's accuracy, absent / what is added where present"),
)


def as_markdown(table: dict[str, Any]) -> str:
    """Return the tables: measured ± deviation [± half width] (published), ✓ if reproduced."""
    rows = table["rows"]
    lines = [_tuning_line(table["tuning"]), ""]
    lines += ["Tables 2 and 3, accuracy in percent; figure 3, empirical privacy 1 − F:", "", *_epsilon_table(rows)]
    attacked = [row for row in rows if "privacy_f" in row and row["epsilon"] in (None, ATTACKED)]
    lines += ["", f"Table 4; DPNR with ε = {ATTACKED:g} claimed:", "", *_attack_table(attacked)]
    for table_number, name, title in _PAIRS:
        lines += ["", f"Table {table_number}, {title}; DPNR with ε = {ATTACKED:g} claimed:", ""]
        lines += _person_table(attacked, name)
    lines += ["", "Does DPNR make the classifier fairer? NON-PRIV's gap (table 7) less DPNR's:", ""]
    lines += [*_fairness_table(table["fairness"]), "", *verdict_lines(table["fairness"]), ""]
    lines += [_count_line(encoder, counts) for encoder, counts in table["reproduced"].items()]
    return "\n".join(lines) + "\n"


def _count_line(encoder: str, counts: Mapping[str, Any]) -> str:
    if counts["reproduced"] is None:
        return f"* Reproduced, {encoder}: no verdict on {counts['published']} published figures; too few seeds."
    return (
        f"* Reproduced, {encoder}: {counts['reproduced']} of {counts['published']} published figures (within our "
        f"deviation, the former rule: {counts['within_deviations']})."
    )


def number(value: float | None) -> str:
    """Return a number with four digits, a dash for None."""
    return "–" if value is None else f"{value:.4g}".replace("inf", "∞")


def _epsilon(value: float | None) -> str:
    return "–" if value is None else format_epsilon(value)


def _tuning_line(tuning: Mapping[str, Any]) -> str:
    seeds = ", ".join(map(str, tuning["seeds"]))
    return (
        f"*Fine-tuned*: the upper {tuning['trained_layers']} layers and the pooler, whose state is sent, for "
        f"{tuning['epochs']} epoch(s) of texts of at most {tuning['max_tokens']} tokens; seeds {seeds}."
    )


def _epsilon_table(rows: Sequence[Row]) -> Iterator[str]:
    yield "| encoder | system | ε' proven | ε' claimed | ε | μ | accuracy | 1 − F |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in rows:
        texts = [row["encoder"], row["system"]]
        texts += [_epsilon(row[name]) for name in ("epsilon_proven", "epsilon_claimed")]
        texts += [number(row[name]) for name in ("epsilon", "word_dropout")]
        texts += [_cell(row, name) for name in ("accuracy", "privacy_f")]
        yield f"| {' | '.join(texts)} |"


def _attack_table(rows: Sequence[Row]) -> Iterator[str]:
    yield "| encoder | system | ε proven | accuracy | empirical privacy 1 − F | 1 − F, the published code's attacker |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        texts = [row["encoder"], row["system"], _epsilon(row["epsilon_proven"])]
        texts += [_cell(row, name) for name in ("accuracy", "privacy_f")]
        yield f"| {' | '.join(texts)} | {_cell_of_code(row)} |"


def _person_table(rows: Sequence[Row], name: str) -> Iterator[str]:
    yield f"| encoder | system | ε proven | {' | '.join(AG_PERSONS)} |"
    yield "|---|---|---|" + "---|" * len(AG_PERSONS)
    for row in rows:
        cells = (_pair(row, name, person) for person in AG_PERSONS)
        yield f"| {row['encoder']} | {row['system']} | {_epsilon(row['epsilon_proven'])} | {' | '.join(cells)} |"


def _fairness_table(rows: Sequence[Row]) -> Iterator[str]:
    yield "| encoder | system | person | gap, NON-PRIV | gap, DPNR | narrower by | standard errors |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        gaps = (spread(row[name], 1, 1) for name in ("gap_non_priv", "gap"))
        published = f"{row['published']:.1f}{_mark(row['agrees'])}" if "published" in row else "–"
        narrower = f"{row['narrower_by']:.1f} ± {row['standard_error']:.1f} ({published})"
        errors = f"{row['standard_errors']:.1f} ({number(row.get('published_standard_errors'))})"
        texts = [row["encoder"], row["system"], row["person"], *gaps, narrower, errors]
        yield f"| {' | '.join(texts)} |"


def _cell(row: Row, name: str) -> str:
    if name not in row:
        return "–"
    published = row["published"].get(name)
    text = table_cell(row[name], row["seeds"], 1, None if published is None else f"{published:.2f}")
    return text + _mark(row["agrees"].get(name))


def _cell_of_code(row: Row) -> str:
    if "privacy_f_of_code" not in row:
        return "–"
    published = f"{row['published']['privacy_f']:.2f}"
    return table_cell(row["privacy_f_of_code"], row["seeds"], 1, published) + _mark(row["agrees_of_code"])


def _pair(row: Row, name: str, person: str) -> str:
    """Return both figures of a person, each with ✓ beside the published one that it reproduces."""
    measured = " / ".join(f"{figure['mean']:.1f}" for figure in row[name][person])
    published = row["published"].get(name, {}).get(person)
    if published is None:
        return f"{measured} (–)"
    agrees = row["agrees"][name][person]
    return f"{measured} ({' / '.join(f'{p:.1f}{_mark(a)}' for p, a in zip(published, agrees, strict=True))})"


def _mark(agrees: bool | None) -> str:
    return " ✓" if agrees else ""
