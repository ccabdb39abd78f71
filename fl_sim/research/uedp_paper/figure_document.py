"""Records as Markdown: a section per figure, and results/README.md with all of them.

Numbers come from the records alone; the description and the finding of a figure come from its file in conf/figures.

First the picture of any record.

>>> from fl_sim.research.uedp_paper.figure_records import find_record
>>> picture_of(find_record("table2")) is None
True

>>> _markdown(["curve", "ε"], [["ours", "2.0"]])
['| curve | ε |', '|---|---|', '| ours | 2.0 |']
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from fl_sim.config import ConfigError
from fl_sim.formats import format_delta, format_epsilon
from fl_sim.reporting import plots
from fl_sim.research.uedp_paper import figure_pictures
from fl_sim.research.uedp_paper.equal_budgets.budget_pictures import draw_budgets
from fl_sim.research.uedp_paper.equal_budgets.budget_tables import budget_sentences, budget_tables
from fl_sim.research.uedp_paper.figure_pictures import METRIC_WORDS, show_spread, show_utility
from fl_sim.research.uedp_paper.figure_records import (
    LEAKAGE,
    AttackedPanelRecord,
    CurveRecord,
    EpsilonCurveRecord,
    EpsilonRecord,
    LeakageRecord,
    PanelRecord,
    PointRecord,
    Record,
    TableCorpusRecord,
    TableRecord,
    TrainingRecord,
    file_name,
    read_records,
    write_record,
)
from fl_sim.research.uedp_paper.figures import PublishedNumber, find_figures, load_figure
from fl_sim.research.uedp_paper.leakage import (
    canary_table,
    conclusions,
    draw_attacks,
    membership_table,
    name_table,
    verdicts,
)
from fl_sim.storage.run_folder import replace_file


def picture_of(record: Record) -> Figure | None:
    """Return the picture of a record; None for a table."""
    if isinstance(record, LeakageRecord):
        return draw_attacks(record)
    if isinstance(record, TrainingRecord) and record.x == "joint":
        return draw_budgets(record)
    return figure_pictures.draw(record)


README = "README.md"
_DPI = 100
_ORDER = ("table2", "fig2", "fig3a", "fig3b", "fig4", "fig5", "fig6", "fig7", "fig9")

_HEAD = """\
# Results

Made by `fl-sim reproduce --readme results` from the JSON files here; do not edit. Each file is the record of one
figure: settings, commit, versions, seeds, and what was measured. docs/reproduction.md has the commands. Tables of
private text representations have a page of their own, in `representations/`.

**Read the ε with care.** *Claimed* is what a method says of itself; of the published algorithm that is its paper's
figure, by the paper's own accountant. *Proven* is what holds for the mechanism that ran (docs/privacy.md). An ε is
that of one run alone. "p95" is an entity as widely mentioned as 95 % of the corpus's are at most; *robust* does not
rely on the entity having been detected. Utility is the mean over the seeds ± its standard deviation.

**What of the paper does not reproduce, and why.**

* *Its ε.* The numbers come out of the accountant that we read out of them (figures 4 and 9), and are no guarantee. It
  takes the moments of orders up to 64 only, so no claim of it can be below ln(1/δ)/64 = 0.18: the paper's range "ε from
  0.18 to 0.20" is that floor and a little above, whatever is trained.
* *Its utility under the noise that it states.* That noise is q_u·|U| + 1 times that of user-level DP at the same z: 51
  to 501 times in figure 4. The authors' code draws a standard deviation of σ² in place of σ, and σ is far below 1, so
  that hardly any noise is left. *As stated* and *as coded* stand side by side wherever the algorithm was trained here.
"""

_LEAK_HEAD = """\
# What models give away

Made by `fl-sim reproduce --readme results` from the JSON files here; do not edit. docs/audit.md says what the attacks
and bounds are.

Each method trained on the same text with three seeds, and every model is attacked with the units that its seed draws.
A figure is the mean over the seeds; the interval beside it runs from the lowest to the highest end of the seeds' 95 %
intervals. *At most* is the largest true positive rate, at a false positive rate of 1 %, of any attack on one such
unit in or out, by the runs' ledgers. ε is that of any user with any entity. Where a model without a guarantee is not
told from guessing, nothing can be concluded about the others. The attacks are those that docs/audit.md lists, with
the sizes in the record; none was left out, and a better attack may find more, up to the bound.
"""


def write_document(folder: Path) -> list[Path]:
    """Write README.md and the pictures of a folder of records; return their paths.

    Raises:
        ResultsError: the folder has no record, or a JSON file is not a record.
    """
    records = ordered(read_records(folder))
    written = _write(folder, _HEAD, records)
    attacks = folder / LEAKAGE
    return [*written, *(_write(attacks, _LEAK_HEAD, ordered(read_records(attacks))) if attacks.is_dir() else ())]


def _write(folder: Path, head: str, records: Sequence[Record]) -> list[Path]:
    """Write README.md and the pictures of records into a folder; return their paths."""
    files = []
    records = [_with_current_texts(record, folder) for record in records]
    for record in records:
        picture = picture_of(record)
        if picture is not None:
            files.append(plots.save(picture, folder / picture_name(record), _DPI))
    replace_file(folder / README, document(records, head).encode())
    return [folder / README, *files]


def _with_current_texts(record: Record, folder: Path) -> Record:
    """Return a record whose description and finding are those of the page; write it if it had others.

    The finding is written after the run, so a record starts with that of an earlier one.
    """
    current = dict(zip(("shows", "finding"), _figure_texts(record), strict=True))
    if all(str(record.config.get(name, "")).strip() == text for name, text in current.items()):
        return record
    updated = record.model_copy(update={"config": {**record.config, **current}})
    write_record(updated, folder / Path(file_name(record)).name)
    return updated


def ordered(records: Iterable[Record]) -> list[Record]:
    """Return the paper's table and figures first, then ours by name."""
    rank = {name: number for number, name in enumerate(_ORDER)}
    return sorted(records, key=lambda record: (rank.get(record.figure, len(rank)), file_name(record)))


def picture_name(record: Record) -> str:
    """Return the file name of a record's picture."""
    return Path(file_name(record)).stem + ".png"


def document(records: Sequence[Record], head: str = _HEAD) -> str:
    """Return the text of README.md, with the head of a folder's own."""
    contents = [f"* [{record.title}](#{_anchor(record.title)})" for record in records]
    parts = [head, "\n".join(contents) + "\n"]
    for record in records:
        parts.append(section(record, Path(file_name(record)).name, picture_name(record)))
    return "\n".join(parts)


def section(record: Record, source: str = "", picture: str = "") -> str:
    """Return a figure's section: description, finding, and measured beside published numbers.

    Args:
        record: of the figure.
        source: file name of the record, for a link; empty for none.
        picture: file name of the picture, for a link; empty for none.
    """
    shows, finding = _figure_texts(record)
    lines = [f"## {record.title}", "", shows]
    if finding:
        lines += ["", f"**What came of it.** {finding}"]
    if isinstance(record, TrainingRecord):
        body = [line for panel in record.panels for line in _training_panel(record, panel)]
    elif isinstance(record, LeakageRecord):
        body = [line for panel in record.panels for line in _attacked_panel(record, panel)]
    elif isinstance(record, EpsilonRecord):
        body = _epsilon(record)
    else:
        body = _table_two(record)
    lines += ["", *body]
    if picture and not isinstance(record, TableRecord):
        lines += ["", f"![{record.title}]({picture})"]
    lines = [*_strip_blank_tail(lines), "", *_skipped_lines(record.skipped), _origin_line(record, source)]
    return "\n".join(lines).rstrip() + "\n"


def _attacked_panel(record: LeakageRecord, panel: AttackedPanelRecord) -> list[str]:
    corpus = panel.corpus
    facts = f"{corpus.users:,} users, {corpus.sentences:,} sentences, {corpus.entities:,} entities."
    start = show_utility(record.metric, panel.runs[0].initial)
    lines = [f"### {panel.title}", "", f"{facts} Start: {start}. δ = {format_delta(record.delta)}.", ""]
    for head, rows in (membership_table(record, panel), canary_table(panel), name_table(panel)):
        if rows:
            lines += [*_markdown(head, rows), ""]
    lines += [f"* {line}" for line in (*conclusions(panel), *verdicts(panel))]
    return [*lines, *(f"* Failed: {name}: {reason}" for name, reason in panel.failed.items())]


def _figure_texts(record: Record) -> tuple[str, str]:
    """Return the description and the finding, from the figure's current file, else from the record."""
    try:
        figure = load_figure(find_figures()[record.figure])
        return figure.shows.strip(), figure.finding.strip()
    except (ConfigError, KeyError):
        return str(record.config.get("shows", "")).strip(), str(record.config.get("finding", "")).strip()


def _training_panel(record: TrainingRecord, panel: PanelRecord) -> list[str]:
    corpus = panel.corpus
    start = panel.curves[0].points[0].initial.mean
    facts = [
        f"{corpus.users:,} users, {corpus.sentences:,} sentences, {corpus.entities:,} entities "
        f"(tagger: {corpus.tagger}).",
        f"Start: {show_utility(record.metric, start)}.",
        *(
            f"{words[0].upper()}{words[1:]}: {show_utility(record.metric, value)}."
            for words, value in panel.references.items()
        ),
    ]
    lines = [f"### {panel.title}", "", " ".join(facts), ""]
    if record.x == "joint":
        return [*lines, *_budget_lines(record, panel)]
    names = ["", *([record.x_words] if record.x == "value" else []), METRIC_WORDS[record.metric]]
    names += ["gap closed"] if record.baseline else []
    names += [f"ε claimed, δ = {format_delta(record.delta)}", "ε user", "ε + entity p95", "robust", "ε + entity max"]
    printed = [number for number in record.published if number.panel == panel.name]
    rows = [_point_row(record, curve, point) for curve in panel.curves for point in curve.points]
    lines += _markdown(names, rows)
    lines += [
        "",
        *(f"Target: {target.words}: {show_utility(record.metric, target.value)}.  " for target in panel.targets),
        *_published_line(record, printed),
        *(f"Failed: {name}: {reason}  " for name, reason in panel.failed.items()),
    ]
    return [*_strip_blank_tail(lines), ""]


def _budget_lines(record: TrainingRecord, panel: PanelRecord) -> list[str]:
    """Return the tables of a comparison at equal ε, and how to read them."""
    lines = []
    for heading, names, rows in budget_tables(record, panel):
        lines += [f"**{heading}**", "", *_markdown(names, rows), ""]
    lines += [sentence + "  " for sentence in budget_sentences(record, panel)]
    lines += [f"Failed: {name}: {reason}  " for name, reason in panel.failed.items()]
    return [*_strip_blank_tail(lines), "", *_tuning_lines(record)]


def _tuning_lines(record: TrainingRecord) -> list[str]:
    """Return how the settings were chosen, with the best and the worst trial of every method."""
    tuning = record.config.get("tuning")
    if not tuning:
        return []
    methods: dict[str, list[tuple[float, str]]] = {}
    for label, value in tuning["trials"].items():
        method, _, settings = label.partition(": ")
        methods.setdefault(method, []).append((float(value), settings))
    rows = []
    for method, trials in methods.items():
        best, settings = min(trials)
        figures = (show_utility(record.metric, value) for value in (best, max(trials)[0]))
        rows.append([method, str(len(trials)), *figures, settings])
    lines = [f"Settings: {tuning['words']} Again: `{tuning['command']}`.", ""]
    names = ["on public text", "trials", f"best {METRIC_WORDS[record.metric]}", "worst", "best settings"]
    return [*lines, *_markdown(names, rows), ""] if rows else lines


def _point_row(record: TrainingRecord, curve: CurveRecord, point: PointRecord) -> list[str]:
    epsilon = point.epsilon
    cells = [curve.label]
    if record.x == "value":
        cells.append("" if point.x is None else f"{point.x:g}")
    cells.append(show_spread(record.metric, point))
    if record.baseline:
        cells.append("–" if point.gap_closed is None else f"{point.gap_closed:.0%}")
    cells.append("none" if epsilon.claimed is None else format_epsilon(epsilon.claimed))
    ours = (epsilon.user, epsilon.user_entity_p95, epsilon.robust_p95, epsilon.user_entity_max)
    return cells + ["–" if value is None else format_epsilon(value) for value in ours]


def _published_line(record: TrainingRecord, printed: Sequence[PublishedNumber]) -> list[str]:
    """Return the line of the paper's own numbers."""
    if not printed and record.figure.startswith("ours"):
        return []
    if not printed:
        return ["The paper prints no number of this picture."]
    words = []
    for number in printed:
        where = "" if number.epsilon is None else f" at ε {number.epsilon:g}"
        where += "" if number.x is None else f" at {record.x_words} {number.x:g}"
        words.append(f"{number.curve} {show_utility(record.metric, number.value)}{where}")
    sections = ", ".join(dict.fromkeys(number.section for number in printed))
    return [f"Printed in the paper (section {sections}): {'; '.join(words)}."]


def _epsilon(record: EpsilonRecord) -> list[str]:
    names = [
        "corpus", "", "steps", "ε printed", "ε by the paper's accountant", "proven: user",
        f"+ entity in ≤ {record.entity_users} users", "+ entity that all mention",
    ]  # fmt: skip
    rows = []
    for panel in record.panels:
        for curve in panel.curves:
            for number in _table_rounds(curve):
                index = curve.rounds.index(number)
                printed = curve.printed.get(str(number))
                rows.append(
                    [
                        panel.title,
                        curve.label,
                        f"{number:,}",
                        "–" if printed is None else f"{printed:g}",
                        f"{curve.as_published[index]:.3f}",
                        format_epsilon(curve.proven_user[index]),
                        format_epsilon(curve.proven_user_entity[index]),
                        format_epsilon(curve.proven_everywhere) if number == curve.rounds[-1] else "",
                    ]
                )
    return _markdown(names, rows)


def _table_rounds(curve: EpsilonCurveRecord) -> list[int]:
    """Return the rounds of the table: those that the paper prints, and the last."""
    return sorted({*(int(number) for number in curve.printed), curve.rounds[-1]})


def _table_two(record: TableRecord) -> list[str]:
    lines: list[str] = []
    for corpus in record.corpora:
        names = [corpus.title, "different words", "sentences", "users", *(f"sensitive: {c}" for c in corpus.columns)]
        lines += _markdown(names, [_published_row(corpus), _our_row(corpus)])
        lines += ["", corpus.difference, ""]
    return _strip_blank_tail(lines)


def _published_row(corpus: TableCorpusRecord) -> list[str]:
    row = corpus.published
    if not row:
        return ["published", *["–"] * (3 + len(corpus.columns))]
    counts = [row["vocabulary"], row["sentences"], row["users"], *(row["sensitive"][c] for c in corpus.columns)]
    return ["published", *(f"{count:,}" for count in counts)]


def _our_row(corpus: TableCorpusRecord) -> list[str]:
    ours = corpus.ours
    counts = [ours.vocabulary, ours.sentences, ours.users, *(ours.sensitive[c] for c in corpus.columns)]
    return [f"ours ({corpus.tagger})", *(f"{count:,}" for count in counts)]


def _skipped_lines(skipped: Mapping[str, str]) -> list[str]:
    return [f"Left out: {name}: {reason}  " for name, reason in skipped.items()]


def _origin_line(record: Record, source: str) -> str:
    """Return the line of the record's origin: file, seeds, time, size, date and commit."""
    parts = [f"[{source}]({source})"] if source else []
    if isinstance(record, TrainingRecord):
        parts.append(f"seeds {', '.join(map(str, record.seeds))}")
        seconds = sum(point.seconds for panel in record.panels for curve in panel.curves for point in curve.points)
        parts.append(f"{math.ceil(seconds / 60)} minutes of one core in rounds")
    parts += [f"size: {record.size}", f"made {record.when[:10]} from {_short_commits(record.commit)}"]
    return f"*{'; '.join(parts)}.*"


def _short_commits(commits: str) -> str:
    named = [commit.split() for commit in commits.split(", ")]
    return ", ".join(" ".join([words[0][:12], *words[1:]]) for words in named)


def _markdown(names: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [_row(names), "|" + "---|" * len(names), *(_row(row) for row in rows)]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _strip_blank_tail(lines: list[str]) -> list[str]:
    while lines and not lines[-1]:
        lines = lines[:-1]
    return lines


def _anchor(title: str) -> str:
    """Return GitHub's anchor of a heading."""
    kept = (c for c in title.lower() if c.isalnum() or c in " -_")
    return "".join(kept).replace(" ", "-")
