"""Records as Markdown: a section per figure, and results/README.md with all of them.

Numbers come from the records alone; the description and the finding of a figure come from its file in conf/figures.

>>> from fl_sim.research.uedp_paper.figure_records import read_record
>>> picture_of(read_record(Path(__file__).parents[3] / "results" / "table2.json")) is None
True
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from fl_sim.config import ConfigError
from fl_sim.reporting import plots
from fl_sim.research.study_files import made_from, markdown_table
from fl_sim.research.uedp_paper.attack_tables import canary_table, conclusions, membership_table, name_table, verdicts
from fl_sim.research.uedp_paper.decision import decision_page, draw_decision, is_decision
from fl_sim.research.uedp_paper.figure_pictures import draw_epsilon, draw_training
from fl_sim.research.uedp_paper.figure_records import (
    AttackedRunRecord,
    EpsilonRecord,
    Record,
    TableRecord,
    TrainingRecord,
    file_name,
    read_records,
    write_record,
)
from fl_sim.research.uedp_paper.figure_tables import epsilon_table, table_two, training_panel
from fl_sim.research.uedp_paper.figures import find_figures, load_figure
from fl_sim.storage.run_folder import replace_file


def picture_of(record: Record) -> Figure | None:
    """Return the picture of a record; None for a table."""
    if isinstance(record, TrainingRecord):
        return draw_decision(record) if is_decision(record) else draw_training(record)
    return draw_epsilon(record) if isinstance(record, EpsilonRecord) else None


README = "README.md"
_BLANK_LINES = re.compile(r"\n{3,}")
_DPI = 100
_ORDER = ("table2", "fig2", "fig3a", "fig3b", "awd_lstm_ag", "fig4", "fig5", "fig6", "fig6a_paper_size", "fig7", "fig9")

_HEAD = """\
# Results

Made by `fl-sim reproduce readme results` from the JSON files here; do not edit. Each file is the record of one
figure: settings, commit, versions, seeds, and what was measured; no source differed from a *clean* commit.
results/reproduction.md has the commands. Tables of private text representations have a page of their own, in
`representations/`.

**Read the ε with care.** *Claimed* is what a method says of itself; of the published algorithm that is its paper's
figure, by the paper's own accountant. *Proven* is what holds for the mechanism that ran (docs/privacy.md). An ε is
that of one run alone. "p95" is an entity at the 95th percentile of mentions; *robust* does not
rely on the entity having been detected. Utility is the mean over the seeds ± its standard deviation.

**What of the paper does not reproduce, and why.**

* *Its ε.* The numbers come out of the accountant that we read out of them (figures 4 and 9), and are no guarantee. It
  takes the moments of orders up to 64 only, so no claim of it can be below ln(1/δ)/64 = 0.18: the paper's range "ε from
  0.18 to 0.20" is that floor and a little above, whatever is trained.
* *Its step.* Line 15 of its Algorithm 1 adds the noisy average to the model. The average divides by q_u·W_u·(q_e·W_e +
  q_s·W_s), the entities and sentences of the whole corpus for every user, as if each had them all: on CoNLL-2003 6,620
  where a user has 12. A round moves the model by about 0.1/6,620 = 1.5e-5 at most, 500 rounds by 0.0076, and the
  parameters of the small GPT-2 have a norm of 221: it cannot learn, even without noise. docs/strategies.md has the
  trial. Curves *as stated* have this step; with *Adam (ours)* the step does not depend on the average's length.
* *Its utility under the noise that it states.* That noise is q_u·|U| + 1 times that of user-level DP at the same z: 51
  to 501 times in figure 4. The authors' code draws a standard deviation of σ² in place of σ, and σ is far below 1, so
  that hardly any noise is left. Figures against ε have both noises with Adam.
"""


def write_document(folder: Path) -> list[Path]:
    """Write README.md and the pictures of a folder of records; return their paths.

    Raises:
        ResultsError: the folder has no record, or a JSON file is not a record.
    """
    files = []
    records = [_with_current_texts(record, folder) for record in ordered(read_records(folder))]
    for record in records:
        picture = picture_of(record)
        if picture is not None:
            files.append(plots.save(picture, folder / picture_name(record), _DPI))
        if isinstance(record, TrainingRecord) and is_decision(record):
            source, drawn = file_name(record), picture_name(record)
            for name, text in (
                (page_name(record), short_page(record, source, drawn)),
                (page_name(record, "-tables"), section(record, source)),
            ):
                replace_file(folder / name, text.encode())
                files.append(folder / name)
    replace_file(folder / README, document(records).encode())
    return [folder / README, *files]


def _with_current_texts(record: Record, folder: Path) -> Record:
    """Return a record whose description and finding are those of the page; write it if it had others.

    The finding is written after the run, so a record starts with that of an earlier one.
    """
    current = dict(zip(("shows", "finding"), _figure_texts(record), strict=True))
    if all(str(record.config.get(name, "")).strip() == text for name, text in current.items()):
        return record
    updated = record.model_copy(update={"config": {**record.config, **current}})
    write_record(updated, folder / file_name(record))
    return updated


def ordered(records: Iterable[Record]) -> list[Record]:
    """Return the paper's table and figures first, then ours by name."""
    rank = {name: number for number, name in enumerate(_ORDER)}
    return sorted(records, key=lambda record: (rank.get(record.figure, len(rank)), file_name(record)))


def picture_name(record: Record) -> str:
    """Return the file name of a record's picture."""
    return Path(file_name(record)).stem + ".png"


def document(records: Sequence[Record]) -> str:
    """Return the text of README.md."""
    contents = []
    for record in records:
        kept = "".join(c for c in record.title.lower() if c.isalnum() or c in " -_")  # as in GitHub's anchors
        contents.append(f"* [{record.title}](#{kept.replace(' ', '-')})")
    parts = [_HEAD, "\n".join(contents) + "\n"]
    for record in records:
        if is_decision(record):
            page = page_name(record)
            parts.append(
                f"## {record.title}\n\n[A page of its own]({page}), and [all tables]({page_name(record, '-tables')}).\n"
            )
        else:
            parts.append(section(record, file_name(record), picture_name(record)))
    return "\n".join(parts)


def short_page(record: TrainingRecord, source: str, picture: str) -> str:
    """Return the page of an attacked comparison, which :func:`section` has in full."""
    shows, finding = _figure_texts(record)
    corpora = "; ".join(
        f"{one.title}: {one.corpus.users:,} users, {one.corpus.sentences:,} sentences, tagger {one.corpus.tagger}"
        for one in record.panels
    )
    lines = [f"# {record.title}", "", shows, ""]
    lines += [f"**What came of it.** {finding}", ""] if finding else []
    lines += [*decision_page(record), "", f"![{record.title}]({picture})", ""]
    lines += [f"{corpora}. [All tables]({page_name(record, '-tables')}).", "", _origin_line(record, source), ""]
    return "\n".join(lines)


def page_name(record: Record, suffix: str = "") -> str:
    """Return the file name of a record's own page."""
    return f"{Path(file_name(record)).stem}{suffix}.md"


def section(record: Record, source: str = "", picture: str = "") -> str:
    """Return a figure's section: description, finding, and measured beside published numbers.

    ``source`` and ``picture`` are the file names of record and picture, for links; empty for none.
    """
    shows, finding = _figure_texts(record)
    lines = [f"## {record.title}", "", shows]
    if finding:
        lines += ["", f"**What came of it.** {finding}"]
    if isinstance(record, TrainingRecord):
        body = []
        for panel in record.panels:
            body += [*training_panel(record, panel), *_attack_tables(record.metric, panel.attacked)]
    elif isinstance(record, EpsilonRecord):
        body = epsilon_table(record)
    else:
        body = table_two(record)
    lines += ["", *body]
    if picture and not isinstance(record, TableRecord):
        lines += ["", f"![{record.title}]({picture})"]
    skipped = [f"Left out: {name}: {reason}  " for name, reason in record.skipped.items()]
    text = "\n".join(lines).rstrip() + "\n\n" + "\n".join([*skipped, _origin_line(record, source)]) + "\n"
    return _BLANK_LINES.sub("\n\n", text)


def _attack_tables(metric: str, runs: Sequence[AttackedRunRecord]) -> list[str]:
    """Return what attacks found in the models of runs: users, secrets, names; nothing for no run."""
    lines: list[str] = []
    for head, rows in (membership_table(metric, runs), canary_table(runs), name_table(runs)) if runs else ():
        if rows:
            lines += [*markdown_table(head, rows), ""]
    return [*lines, *(f"* {line}" for line in (*conclusions(runs), *verdicts(runs)))] if runs else lines


def _figure_texts(record: Record) -> tuple[str, str]:
    """Return the description and the finding, from the figure's current file, else from the record."""
    try:
        figure = load_figure(find_figures()[record.figure])
        return figure.shows.strip(), figure.finding.strip()
    except (ConfigError, KeyError):
        return str(record.config.get("shows", "")).strip(), str(record.config.get("finding", "")).strip()


def _origin_line(record: Record, source: str) -> str:
    """Return the line of the record's origin: file, seeds, time, size, date and commit."""
    parts = [f"[{source}]({source})"] if source else []
    if isinstance(record, TrainingRecord):
        why = record.config.get("why_few_seeds")
        parts.append(f"seeds {', '.join(map(str, record.seeds))}" + (f" ({why})" if why else ""))
        seconds = sum(point.seconds for panel in record.panels for curve in panel.curves for point in curve.points)
        parts.append(f"{math.ceil(seconds / 60)} minutes of one core in rounds")
    parts += [f"size: {record.size}", made_from(record.commit, record.when[:10])]
    return f"*{'; '.join(parts)}.*"
