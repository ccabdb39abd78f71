"""Write what attacks found in trained models as one page, beside what is proven of each.

The page shows what the record holds and chooses nothing: every run, every attack, in the order given.

>>> figure = {"value": 0.6, "low": 0.55, "high": 0.65}
>>> attack = {"auc": figure, "advantage": figure, "tpr_at_fpr": {"0.01": figure}, "members": 9, "non_members": 9,
...           "bound": {"proven": True, "unit": "one user", "largest_tpr_at_fpr": {"0.01": 0.7},
...                     "largest_advantage": 0.8}, "verdict": {"state": "within"}}
>>> run = {"run": "runs/a", "strategy": "uedp", "rounds": 3, "delta": 1e-5, "epsilon": {"epsilon_any": 2.0},
...        "raw_text": False, "attacks": {"users": attack}, "seconds": 59.0,
...        "utility": {"metric": "perplexity", "initial": 190.5, "final": 111.3}}
>>> "at most 70% is possible" in leak_page({"runs": [run], "beyond": [], "note": "Private."})
True
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_sim.formats import duration, format_delta, format_epsilon, round_up
from fl_sim.reporting.leak_words import is_remembered
from fl_sim.reporting.pages.templates import Card, Shown, render, whole_delta
from fl_sim.reporting.plots import Axis, Chart, Level, Line, Point, Row, Table
from fl_sim.reporting.recorded import counted
from fl_sim.reporting.run_facts import UNITS
from fl_sim.storage.run_folder import UTILITIES

Record = Mapping[str, Any]
Found = Sequence[tuple[Record, Record]]
"""Runs, each with the record of one attack on it."""

_VERDICTS = {
    "within": "within its bound",
    "beyond": "BEYOND ITS BOUND",
    "above": "ABOVE ITS BOUND",
    "not tested": "not tested",
}
_NAMES = {"uedp": "uedp", "user_level": "user-level DP", "noiseless": "no protection", "published": "published"}


@dataclass(frozen=True, slots=True)
class Section:
    """What one attack found."""

    heading: str
    words: str
    conclusion: str
    charts: list[Chart]
    table: Table


def leak_page(record: Record) -> str:
    """Return the page of ``Leakage.record()`` as HTML."""
    runs = record["runs"]
    attacked = {name: [(run, run["attacks"][name]) for run in runs if name in run["attacks"]] for name in _SECTIONS}
    found = {name: [one for one in all_runs if "left_out" not in one[1]] for name, all_runs in attacked.items()}
    left_out = [
        (label_of(run), name, attack["left_out"])
        for run in runs
        for name, attack in run["attacks"].items()
        if "left_out" in attack
    ]
    sections = [_SECTIONS[name](results) for name, results in found.items() if results]
    first = next((section.charts.pop(0) for section in sections if section.charts), None)
    return render(
        "leak.html",
        title="What do these models give away?",
        record=record,
        cards=[_card(run) for run in runs],
        first=first,
        runs=Table(("run", "strategy", "rounds", "ε", "δ", "attacked text"), [_run_row(run) for run in runs]),
        sections=sections,
        left_out=Table(("run", "attack", "reason"), left_out),
    )


def label_of(run: Record) -> str:
    """Return a short name for a run: its folder, and what protects it, with ε."""
    words = _protection(run) + (", names removed" if run["raw_text"] else "")
    epsilon = format_epsilon(_leading(run)[1])
    return f"{Path(run['run']).name}: {words}{f', ε {epsilon}' if epsilon != '–' else ''}"


def _protection(run: Record) -> str:
    return str(_NAMES.get(run["strategy"], run["strategy"]))


def _leading(run: Record) -> tuple[str, float | None]:
    """Return the unit of the first ε of a run, and this ε; None if it has none."""
    given = (
        (unit.removeprefix("epsilon_"), float(value)) for unit, value in run["epsilon"].items() if value is not None
    )
    return next(given, ("", None))


def _card(run: Record) -> Card:
    verdicts = {name: attack.get("verdict") for name, attack in run["attacks"].items()}
    notes = tuple(f"Attack on {name}: {_VERDICTS[verdict['state']]}." for name, verdict in verdicts.items() if verdict)
    figures = _shown_epsilon(run), _shown_utility(run["utility"]), _shown_time(run)
    return Card(Path(run["run"]).name, f"{_protection(run)}, {counted(run['rounds'], 'round')}", figures, notes)


def _shown_epsilon(run: Record) -> Shown:
    unit, epsilon = _leading(run)
    if epsilon is None:
        return Shown("–", "no ε is recorded")
    words = f"no guarantee for {UNITS[unit]}" if epsilon == math.inf else f"{UNITS[unit]}, {whole_delta(run['delta'])}"
    return Shown(f"ε {format_epsilon(epsilon)}", words)


def _shown_utility(utility: Record) -> Shown:
    kind = next(kind for kind in UTILITIES.values() if kind.column == utility["metric"])
    if utility["initial"] is None or utility["final"] is None:
        return Shown("–", "no utility is recorded")
    return Shown(kind.show(utility["final"]), f"{kind.words}; {kind.show(utility['initial'])} at the start")


def _shown_time(run: Record) -> Shown:
    attacks = math.fsum(attack.get("seconds", 0.0) for attack in run["attacks"].values())
    trained = "–" if run["seconds"] is None else duration(run["seconds"])
    return Shown(trained, f"for {counted(run['rounds'], 'round')}; {duration(attacks)} for the attacks")


def _run_row(run: Record) -> list[str]:
    text = "as it was before names were removed" if run["raw_text"] else "as it trained"
    epsilon = format_epsilon(_leading(run)[1])
    return [run["run"], _protection(run), f"{run['rounds']:,}", epsilon, format_delta(run["delta"]), text]


def _users(found: Found) -> Section:
    """Return the areas, the rates at 1 % and a table of the attack on users."""
    areas = [_row(label_of(run), attack["auc"], "{:.3f}", number) for number, (run, attack) in enumerate(found)]
    rates = [
        _row(label_of(run), attack["tpr_at_fpr"]["0.01"], "{:.1%}", number, attack["bound"])
        for number, (run, attack) in enumerate(found)
        if attack["tpr_at_fpr"]["0.01"] is not None
    ]
    charts = [_intervals("Area under the curve", areas, Axis("area", guess=0.5))]
    if rates:
        rate = Axis("share of members", percent=True, zero=True, guess=0.01)
        charts.append(_intervals("Members found, where 1 % of the others are taken for members", rates, rate))
    named = (f"found at {float(at):.1%}" for at in found[0][1]["tpr_at_fpr"])
    return Section(
        "Was this person in the training text?",
        "The attacker has some of a person's text and the model, and asks whether that person's messages trained it "
        "(Kandpal et al. 2023, user inference).",
        _conclusion("users", found),
        charts,
        Table(("run", "area", *named, "advantage", "at most", "verdict"), [_user_row(*one) for one in found]),
    )


def _user_row(run: Record, attack: Record) -> list[str]:
    bound = attack["bound"]
    return [
        label_of(run),
        _shown(attack["auc"], "{:.3f}"),
        *(_shown(figure, "{:.1%}") for figure in attack["tpr_at_fpr"].values()),
        _shown(attack["advantage"], "{:.1%}"),
        _at_most(bound["largest_advantage"]) if bound["proven"] else "no bound",
        attack["verdict"]["state"],
    ]


def _canaries(found: Found) -> Section:
    """Return the exposure of canaries by their repetitions."""
    owners = {"user": "Secrets of one person", "entity": "Secrets about one name, said by several people"}
    charts = []
    for owner, title in owners.items():
        lines = [
            Line(label_of(run), number, tuple(_by_repetitions(attack, owner)))
            for number, (run, attack) in enumerate(found)
        ]
        lines = [line for line in lines if line.points]
        if lines:
            most = max(attack["largest_exposure"] for _, attack in found)
            levels = (
                Level("secrets that were left out: 1.44", 1.44),
                Level(f"the most that can be seen: {most:.1f}", most),
            )
            x, y = Axis("how often the secret was said", log_from=4.0), Axis("exposure, bits", zero=True)
            charts.append(Chart(title, x, y, "Mean exposure, 95 % intervals.", tuple(lines), levels=levels))
    header = ("run", "owner", "said", "canaries", "exposure", "left out", "any attack at 1 %", "verdict")
    return Section(
        "Does the model know planted secrets?",
        "Made-up secrets were planted in the text, some said once and some often. Exposure is how many bits "
        "of a secret the model gives away (Carlini et al. 2019); one that it never saw has 1.44 bits on average.",
        _conclusion("canaries", found),
        charts,
        Table(header, [row for run, attack in found for row in _canary_rows(run, attack)]),
    )


def _by_repetitions(attack: Record, owner: str) -> Iterator[Point]:
    for group in sorted(attack["groups"], key=lambda group: group["repetitions"] or 0):
        figure = group["exposure"]
        wanted = group["owner"] == owner and group["repetitions"] is not None and group["included"]
        if wanted and figure["value"] is not None:
            words = _shown(figure, "{:.2f}")
            yield Point(float(group["repetitions"]), figure["value"], words, figure["low"], figure["high"])


def _canary_rows(run: Record, attack: Record) -> Iterator[list[str]]:
    """Yield a row per owner and number of repetitions, with what any attack can reach on such a canary."""
    exposure = {(g["owner"], g["repetitions"], g["included"]): g for g in attack["groups"]}
    for bound in attack["bounds"]:
        groups = [exposure.get((bound["owner"], bound["repetitions"], side)) for side in (True, False)]
        yield [
            label_of(run),
            bound["owner"],
            "once" if bound["repetitions"] == 1 else f"{bound['repetitions']:,} times",
            f"{sum(group['canaries'] for group in groups if group):,}",
            *(_shown(group and group["exposure"], "{:.2f}") for group in groups),
            _at_most(bound["largest_tpr_at_fpr"]["0.01"]) if bound["proven"] else "no bound",
            attack["verdict"]["state"],
        ]


def _entities(found: Found) -> Section:
    """Return how the models rank names."""
    rows = []
    for number, (run, attack) in enumerate(found):
        group = attack["groups"][0]
        rows.append(_row(label_of(run), group["ahead"], "{:.1%}", number))
        rows.append(_row(f"{Path(run['run']).name}: at the start", group["initial_ahead"], "{:.1%}", number))
    axis = Axis("share of the other names", percent=True, guess=0.5)
    chart = _intervals("Names that the true one is ranked before", rows, axis)
    header = ("run", "kind", "mentions", "names", "ranked before", "by ratio", "gain over start", "any attack at 1 %")
    return Section(
        "Does the model know the names?",
        "A name of a training sentence is masked, and the model ranks it among other names of its kind (Lukas et al. "
        "2023). Names that stand in public text are left out. The start is the model before training.",
        _conclusion("entities", found),
        [chart],
        Table(header, [row for run, attack in found for row in _entity_rows(run, attack)]),
    )


def _entity_rows(run: Record, attack: Record) -> Iterator[list[str]]:
    """Yield a row for all names, per kind, and per number of mentions."""
    bound = attack["bound"]
    for group in attack["groups"]:
        mentions = group["mentions"]
        yield [
            label_of(run),
            group["kind"] or "all",
            "any" if mentions is None else "–".join(map(str, mentions)),
            f"{group['entities']:,}",
            *(_shown(group[name], "{:.1%}") for name in ("ahead", "ratio_ahead", "gain")),
            _at_most(bound["largest_tpr_at_fpr"]["0.01"]) if bound["proven"] else "no bound",
        ]


_SECTIONS = {"users": _users, "canaries": _canaries, "entities": _entities}


def _conclusion(name: str, found: Found) -> str:
    """Say whether an unprotected model is told from guessing, without which no protection shows."""
    unprotected = [attack for _, attack in found if not _is_bounded(name, attack)]
    if not unprotected:
        return "No unprotected run is beside these, so the figures do not show what the protection is worth."
    if any(is_remembered(name, attack) for attack in unprotected):
        return "The unprotected model remembers: this attack does better than guessing on it."
    return (
        "Nothing can be concluded: on the unprotected model, too, this attack does no better than guessing. It does "
        "not show that the model is safe; a better attack may exist."
    )


def _is_bounded(name: str, attack: Record) -> bool:
    """Return whether a run's ledger bounds an attack."""
    if name == "canaries":
        return any(bound["proven"] for bound in attack["bounds"])
    return bool(attack["bound"]["proven"])


def _intervals(title: str, rows: Sequence[Row], x: Axis) -> Chart:
    words = "the most that ε allows any attack"
    return Chart(title, x, Axis(""), "95 % intervals.", rows=tuple(rows), bound_words=words)


def _row(label: str, figure: Record, form: str, number: int, bound: Record | None = None) -> Row:
    """Return a row of a chart, with the largest figure that is proven possible if its bound is given."""
    value, words = figure["value"], _shown(figure, form)
    low, high = (value, value) if figure["low"] is None else (figure["low"], figure["high"])
    if bound is None or not bound["proven"]:
        return Row(label, value, low, high, words, number)
    most = bound["largest_tpr_at_fpr"]["0.01"]
    return Row(label, value, low, high, f"{words}; at most {_at_most(most)} is possible", number, most)


def _at_most(rate: float) -> str:
    return f"{round_up(100 * rate, 3)}%"


def _shown(figure: Record | None, form: str) -> str:
    """Return a figure with its interval, if it has one; a dash for a rate that too few non-members show."""
    if figure is None or figure["value"] is None:
        return "–"
    if figure["low"] is None:
        return form.format(figure["value"])
    return f"{form.format(figure['value'])} ({form.format(figure['low'])}–{form.format(figure['high'])})"
