"""The tables of records in Markdown: training figures, comparisons at equal ε, ε figures, and Table II.

>>> show_difference("error", Estimate(value=0.021, standard_error=0.004, low=0.013, high=0.029))
'+2.1 ± 0.4 (+1.3 to +2.9)'
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from fl_sim.formats import format_delta, format_epsilon
from fl_sim.reporting.held_out import metric_words
from fl_sim.research.study_files import markdown_table
from fl_sim.research.uedp_paper.figure_pictures import METRIC_WORDS, show_spread, show_utility
from fl_sim.research.uedp_paper.figure_records import (
    CurveRecord,
    EpsilonRecord,
    Estimate,
    PanelRecord,
    Parts,
    PointRecord,
    Spread,
    TableRecord,
    TrainingRecord,
)
from fl_sim.research.uedp_paper.figures import PublishedNumber, Tuning
from fl_sim.strategies.privacy_config import PrivacyConfig

Row = list[str]
Measured = tuple[CurveRecord, PointRecord, Parts]
KNOWN_WORDS = {
    "graph": "who mentions whom in which sentence",
    "counts": "how many sentences each user has and how many mention each name",
    "nothing": "the number of users alone",
}
_CLEAR = 2.0
"""Standard errors from which on a difference is called clear."""


def training_panel(record: TrainingRecord, panel: PanelRecord) -> list[str]:
    """Return the lines of a panel: the corpus, the table, and the paper's own numbers."""
    corpus = panel.corpus
    facts = [
        f"{corpus.users:,} users, {corpus.sentences:,} sentences, {corpus.entities:,} entities "
        f"(tagger: {corpus.tagger}).",
        f"Start: {show_utility(record.metric, panel.curves[0].points[0].initial.mean)}.",
    ]
    for words, value in panel.references.items():
        facts.append(f"{words[0].upper()}{words[1:]}: {show_utility(record.metric, value)}.")
    lines = [f"### {panel.title}", "", " ".join(facts), ""]
    missing = [
        f"{how}: {name}: {reason}  "
        for how, reasons in (("Left out", panel.left_out), ("Failed", panel.failed))
        for name, reason in reasons.items()
    ]
    if record.x == "joint":
        return [*lines, *_joint_tables(record, panel), *missing, "", *_tuning_lines(record)]
    names = ["", *([record.x_words] if record.x == "value" else []), METRIC_WORDS[record.metric]]
    names += ["gap closed"] if record.baseline else []
    names += [f"ε claimed, δ = {format_delta(record.delta)}", "ε user", "ε + entity p95", "robust", "ε + entity max"]
    rows = [_point_row(record, panel, curve, point) for curve in panel.curves for point in curve.points]
    printed = [number for number in record.published if number.panel == panel.name]
    return [*lines, *markdown_table(names, rows), "", *_published_line(record, printed), *missing, ""]


def _point_row(record: TrainingRecord, panel: PanelRecord, curve: CurveRecord, point: PointRecord) -> Row:
    epsilon = point.epsilon
    cells = [curve.label]
    if record.x == "value":
        cells.append("" if point.x is None else f"{point.x:g}")
    cells.append(show_spread(record.metric, point))
    if record.baseline:
        baseline = _baseline(record, panel)
        best = None if baseline is None else baseline.utility.mean
        cells.append(_share(None if best is None else _part(point.initial.mean, point.utility.mean, best)))
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


def _joint_tables(record: TrainingRecord, panel: PanelRecord) -> list[str]:
    """Return the tables of a comparison at equal ε, one for any user with any entity, one for any user alone."""
    start, baseline = panel.curves[0].points[0].initial.mean, _baseline(record, panel)
    shares = ["way to noiseless"]
    if record.metric == "perplexity":
        shares += ["in log perplexity", "in accuracy"]
    utility = METRIC_WORDS[record.metric] + " (95 %)"
    columns = ["", "ε any user + any entity", "ε user", utility, *shares, f"− {record.reference}"]
    rows = [["start", "", "", show_utility(record.metric, start), "0%", *([""] * (len(columns) - 5))]]
    rows += [_joint_row(record, panel, curve, curve.points[0]) for curve in panel.curves if not curve.budget]
    rows += _budget_rows(record, panel, "joint")
    lines = ["**At the same ε of any user with any entity.**", "", *markdown_table(columns, rows), ""]
    measured = [(c, point, point.parts) for c in panel.curves for point in c.points if point.parts is not None]
    if len(measured) == sum(len(curve.points) for curve in panel.curves):
        lines += [
            line for table in (_guarantee_table(record, measured), *_parts_tables(measured)) for line in (*table, "")
        ]
    of_user = _budget_rows(record, panel, "user")
    if of_user and baseline is not None:
        lines += ["**At the same ε of any user.**", "", *markdown_table(columns, of_user), ""]
    own = _budget_rows(record, panel, "own")
    if own:
        words = f"**At the ε that each claims, beside {record.reference} at the same ε of any user with any entity.**"
        lines += [words, "", *markdown_table(columns, own), ""]
    return [*lines, *(sentence + "  " for sentence in _joint_sentences(record, panel))]


def _guarantee_table(record: TrainingRecord, measured: Sequence[Measured]) -> list[str]:
    """Return what each method claims, what is proven for whom and known then, what its bounds leave, and its time."""
    heads = ["", "ε claimed", "proven: any user", "any name", "both", "known", "sentences kept", "mentions kept"]
    heads.append("seconds in rounds")
    rows = []
    for curve, point, parts in measured:
        epsilon = point.epsilon
        claimed = "none" if epsilon.claimed is None else format_epsilon(epsilon.claimed)
        proven = [epsilon.user, epsilon.any_name, epsilon.any_entity]
        shares = [_share(parts.kept[n].mean if n in parts.kept else None) for n in ("sentences", "mentions")]
        known = shown_known(point)
        seconds = f"{point.seconds / len(point.utility.values):.0f}"
        rows.append([_row_label(curve, point), claimed, *map(_proven, proven), known, *shares, seconds])
    return ["**Claimed and proven.**", "", *markdown_table(heads, rows)]


def _parts_tables(measured: Sequence[Measured]) -> Iterator[list[str]]:
    """Yield tables of the held-out text by its parts, by a user's sentences, and by a name's mentions in training."""
    subjects: dict[str, Callable[[Parts], Mapping[str, Spread]]] = {
        "Of all text, and of parts of it": lambda parts: parts.by_text,
        "By a user's number of held-out sentences": lambda parts: parts.by_sentences,
        "Tokens of names, by how often the training text of the run has the name": lambda parts: parts.by_mentions,
    }
    for words, of in subjects.items():
        known = [(curve, point, of(parts)) for curve, point, parts in measured]
        heads = list(dict.fromkeys(name for *_, figures in known for name in figures))
        if not heads:
            continue
        rows = [
            [_row_label(curve, point), *(f"{figures[name].mean:.2f}" if name in figures else "–" for name in heads)]
            for curve, point, figures in known
        ]
        yield [f"**{words}**: {metric_words(measured[0][2].metric)}.", "", *markdown_table(["", *heads], rows)]


def shown_known(point: PointRecord) -> str:
    """Return what the ε of a point takes as known (``privacy.known``); a dash if none is proven."""
    epsilon = point.epsilon
    proven = (epsilon.user, epsilon.user_entity_max, epsilon.any_entity, epsilon.any_name)
    is_proven = any(value is not None and math.isfinite(value) for value in proven)
    default = PrivacyConfig.model_fields["known"].default
    return str(point.settings.get("privacy.known", default)) if is_proven else "–"


def known_sentence(methods: Iterable[tuple[str, str]]) -> str:
    """Return the sentence that says what the ε of each method takes as known; ``methods`` are labels with that.

    >>> known_sentence([("ours", "graph"), ("users", "graph")])
    'Every proven ε takes as known who mentions whom in which sentence (`graph`, docs/privacy.md).'
    """
    labels: dict[str, list[str]] = {}
    for label, known in dict.fromkeys(methods):
        labels.setdefault(known, []).append(f"*{label}*")
    if len(labels) == 1:
        (known,) = labels
        return f"Every proven ε takes as known {KNOWN_WORDS[known]} (`{known}`, docs/privacy.md)."
    parts = (f"of {', '.join(of)}: {KNOWN_WORDS[known]} (`{known}`)" for known, of in labels.items())
    return f"What the proven ε take as known (docs/privacy.md): {'; '.join(parts)}."


def _row_label(curve: CurveRecord, point: PointRecord) -> str:
    return curve.label if point.x is None else f"{curve.label}, ε {point.x:g}"


def _proven(epsilon: float | None) -> str:
    return "∞" if epsilon is None else format_epsilon(epsilon)


def _joint_sentences(record: TrainingRecord, panel: PanelRecord) -> list[str]:
    """Return sentences that say how to read the tables."""
    against = next((curve.label for curve in panel.curves if curve.name == record.reference), "")
    lines = [
        f"Differences: a method's figure minus that of {against} in the same comparison ± its standard error (and 95 % "
        "interval), by paired bootstrap over held-out users and seeds; above 0 the method is worse, and **bold** means "
        "more than two standard errors."
    ]
    if record.baseline is not None:
        lines.append(
            "The way is from the start to noiseless; in accuracy (which for an error is the same) it is the measure of "
            "POPri (arXiv 2504.16438): the share of the gap between ε = 0 and ε = ∞ that a method closes."
        )
    if any(curve.deidentified for curve in panel.curves):
        lines.append("De-identified text has no detected entity, so no ε of an entity is proven for it.")
    labelled = ((curve.label, shown_known(curve.points[0])) for curve in panel.curves)
    known = [(label, value) for label, value in labelled if value != "–"]
    return [*lines, known_sentence(known)] if known else lines


def show_difference(metric: str, difference: Estimate) -> str:
    """Return a difference with standard error and interval as text, in points of per cent for an error."""
    scale = 100.0 if metric == "error" else 1.0
    low, high = scale * difference.low, scale * difference.high
    return f"{scale * difference.value:+.1f} ± {scale * difference.standard_error:.1f} ({low:+.1f} to {high:+.1f})"


def _budget_rows(record: TrainingRecord, panel: PanelRecord, budget: str) -> list[Row]:
    """Return the rows of the methods with a budget, ε by ε; the reference leads each."""
    rows = []
    for x in record.joint:
        for curve in panel.curves:
            shown = curve.budget == budget or (curve.name == record.reference and budget != "joint")
            rows += [_joint_row(record, panel, curve, point) for point in curve.points if shown and point.x == x]
    has_others = any(curve.budget == budget and curve.name != record.reference for curve in panel.curves)
    return rows if has_others else []


def _joint_row(record: TrainingRecord, panel: PanelRecord, curve: CurveRecord, point: PointRecord) -> Row:
    user, utility = format_epsilon(point.epsilon.user), _utility_words(record.metric, point)
    cells = [curve.label, _joint_words(curve, point), user, utility]
    cells += [_share(share) for share in _shares(record, panel, point)]
    difference = None if point.comparison is None else point.comparison.difference
    if difference is None:
        return [*cells, ""]
    words = show_difference(record.metric, difference)
    return [*cells, f"**{words}**" if abs(difference.value) > _CLEAR * difference.standard_error else words]


def _joint_words(curve: CurveRecord, point: PointRecord) -> str:
    epsilon = point.epsilon
    if curve.deidentified:
        return "none"
    if epsilon.any_entity is not None:
        return format_epsilon(epsilon.any_entity)
    most = epsilon.user_entity_max
    return "∞" if most is None or math.isinf(most) else f"{format_epsilon(most)} (this corpus's)"


def _utility_words(metric: str, point: PointRecord) -> str:
    if point.comparison is None:
        return show_utility(metric, point.utility.mean)
    utility = point.comparison.utility
    ends = f"{show_utility(metric, utility.low)} to {show_utility(metric, utility.high)}"
    return f"{show_utility(metric, utility.value)} ({ends})"


def _shares(record: TrainingRecord, panel: PanelRecord, point: PointRecord) -> Iterable[float | None]:
    """Return the shares of the way from the start to the baseline: in the metric, its logarithm and the accuracy."""
    baseline = _baseline(record, panel)
    if baseline is None:
        return [None] * (3 if record.metric == "perplexity" else 1)
    # of the baseline's start, also for a method that starts from a model of its own
    start, end, best = baseline.initial.mean, point.utility.mean, baseline.utility.mean
    shares = [_part(start, end, best)]
    if record.metric == "perplexity":
        shares.append(_part(math.log(start), math.log(end), math.log(best)))
        here, there = point.comparison, baseline.comparison
        shares.append(
            None if here is None or there is None else _part(there.initial_accuracy, here.accuracy, there.accuracy)
        )
    return shares


def _part(start: float, end: float, best: float) -> float | None:
    return None if start == best else (start - end) / (start - best)


def _baseline(record: TrainingRecord, panel: PanelRecord) -> PointRecord | None:
    return next((curve.points[-1] for curve in panel.curves if curve.name == record.baseline), None)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _tuning_lines(record: TrainingRecord) -> list[str]:
    """Return how the settings were chosen, with the best and the worst trial of every method."""
    if not record.config.get("tuning"):
        return []
    tuning = Tuning.model_validate(record.config["tuning"])
    methods: dict[str, list[tuple[float, str]]] = {}
    for label, value in tuning.trials.items():
        method, _, settings = label.partition(": ")
        methods.setdefault(method, []).append((value, settings))
    rows = []
    for method, trials in methods.items():
        best, settings = min(trials)
        figures = (show_utility(record.metric, value) for value in (best, max(trials)[0]))
        rows.append([method, str(len(trials)), *figures, settings])
    lines = [f"Settings: {tuning.words} Again: `{tuning.command}`.", ""]
    names = ["on public text", "trials", f"best {METRIC_WORDS[record.metric]}", "worst", "best settings"]
    return [*lines, *markdown_table(names, rows), ""] if rows else lines


def epsilon_table(record: EpsilonRecord) -> list[str]:
    """Return a row per corpus, curve and number of rounds: those that the paper prints, and the last."""
    names = [
        "corpus", "", "steps", "ε printed", "ε by the paper's accountant", "proven: user",
        f"+ entity in ≤ {record.entity_users} users", "+ entity that all mention",
    ]  # fmt: skip
    rows = []
    for panel in record.panels:
        for curve in panel.curves:
            for number in sorted({*map(int, curve.printed), curve.rounds[-1]}):
                at = curve.rounds.index(number)
                printed = curve.printed.get(str(number))
                proven = (format_epsilon(values[at]) for values in (curve.proven_user, curve.proven_user_entity))
                everywhere = format_epsilon(curve.proven_everywhere) if number == curve.rounds[-1] else ""
                shown = "–" if printed is None else f"{printed:g}"
                claimed = f"{curve.as_published[at]:.3f}"
                rows.append([panel.title, curve.label, f"{number:,}", shown, claimed, *proven, everywhere])
    return markdown_table(names, rows)


def table_two(record: TableRecord) -> list[str]:
    """Return a table per corpus, the published row above ours, and the reason of the difference."""
    lines: list[str] = []
    for corpus in record.corpora:
        names = [corpus.title, "different words", "sentences", "users", *(f"sensitive: {c}" for c in corpus.columns)]
        rows = []
        for whose, row in (("published", corpus.published), (f"ours ({corpus.tagger})", corpus.ours)):
            sensitive = [None if row is None else row.sensitive[column] for column in corpus.columns]
            counts = [*((row.vocabulary, row.sentences, row.users) if row else (None,) * 3), *sensitive]
            rows.append([whose, *("–" if count is None else f"{count:,}" for count in counts)])
        lines += [*markdown_table(names, rows), "", corpus.difference, ""]
    return lines
