"""Write what attacks found in trained models as one page, beside what is proven of each.

The page shows what was found and chooses nothing: every run, every attack, in the order given.

>>> _shown(Figure(0.25, 0.2, 0.31), "{:.1%}"), _at_most(0.01231)
('25.0% (20.0%–31.0%)', '1.24%')
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fl_sim.auditing.leakage.canary_exposure import CanaryAttack, are_known
from fl_sim.auditing.leakage.leak import PRIVATE, Leakage, RunLeakage
from fl_sim.auditing.leakage.membership import UserAttack
from fl_sim.auditing.leakage.name_ranking import NameAttack
from fl_sim.auditing.leakage.proven_rates import ProvenRates
from fl_sim.data_prep.canaries import Owner
from fl_sim.formats import duration, format_delta, format_epsilon, round_up
from fl_sim.reporting.bootstrap import Figure
from fl_sim.reporting.plots import Axis, Chart, Level, Line, Point, Row, Table
from fl_sim.reporting.recorded import counted
from fl_sim.reporting.run_facts import UNITS, UtilityFigures
from fl_sim.reporting.templates import Card, Shown, render, whole_delta

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


def leak_page(found: Leakage) -> str:
    """Return the page as HTML."""
    runs = found.runs
    left_out = [
        (label_of(run), name, reason) for run in runs for name, reason in run.attacks.items() if isinstance(reason, str)
    ]
    users = [(run, run.users) for run in runs if run.users is not None]
    canaries = [(run, run.canaries) for run in runs if run.canaries is not None]
    entities = [(run, run.entities) for run in runs if run.entities is not None]
    sections = [_users(users)] if users else []
    sections += [_canaries(canaries)] if canaries else []
    sections += [_entities(entities)] if entities else []
    first = next((section.charts.pop(0) for section in sections if section.charts), None)
    return render(
        "leak.html",
        title="What do these models give away?",
        beyond=found.in_state("beyond"),
        above=found.in_state("above"),
        note=PRIVATE,
        cards=[_card(run) for run in runs],
        first=first,
        runs=Table(("run", "strategy", "rounds", "ε", "δ", "attacked text"), [_run_row(run) for run in runs]),
        sections=sections,
        left_out=Table(("run", "attack", "reason"), left_out),
    )


def label_of(run: RunLeakage) -> str:
    """Return a short name for a run: its folder, and what protects it, with ε."""
    words = _protection(run) + (", names removed" if run.raw_text else "")
    epsilon = format_epsilon(_leading(run)[1])
    return f"{run.folder.path.name}: {words}{f', ε {epsilon}' if epsilon != '–' else ''}"


def _protection(run: RunLeakage) -> str:
    strategy = run.config.privacy.strategy
    return _NAMES.get(strategy, strategy)


def _leading(run: RunLeakage) -> tuple[str, float | None]:
    """Return the unit of the first ε of a run, and this ε; None if it has none."""
    return next(((unit.removeprefix("epsilon_"), value) for unit, value in run.epsilon.items()), ("", None))


def _card(run: RunLeakage) -> Card:
    notes = tuple(f"Attack on {name}: {_VERDICTS[verdict.state]}." for name, verdict in run.verdicts.items())
    attacks = duration(math.fsum(run.seconds.values()))
    trained = "–" if run.facts.seconds is None else duration(run.facts.seconds)
    time = Shown(trained, f"for {counted(run.folder.last_round, 'round')}; {attacks} for the attacks")
    words = f"{_protection(run)}, {counted(run.folder.last_round, 'round')}"
    return Card(run.folder.path.name, words, (_shown_epsilon(run), _shown_utility(run.facts.utility), time), notes)


def _shown_epsilon(run: RunLeakage) -> Shown:
    unit, epsilon = _leading(run)
    if epsilon is None:
        return Shown("–", "no ε is recorded")
    delta = whole_delta(run.config.privacy.delta)
    whom = UNITS[unit] + run.facts.apart(unit)
    words = f"no guarantee for {whom}" if epsilon == math.inf else f"{whom}, {delta}"
    return Shown(f"ε {format_epsilon(epsilon)}", words)


def _shown_utility(utility: UtilityFigures) -> Shown:
    kind = utility.kind
    if utility.initial is None or utility.final is None:
        return Shown("–", "no utility is recorded")
    return Shown(kind.show(utility.final), f"{kind.words}; {kind.show(utility.initial)} at the start")


def _run_row(run: RunLeakage) -> list[str]:
    text = "as it was before names were removed" if run.raw_text else "as it trained"
    epsilon, delta = format_epsilon(_leading(run)[1]), format_delta(run.config.privacy.delta)
    return [str(run.folder.path), _protection(run), f"{run.folder.last_round:,}", epsilon, delta, text]


def _users(found: Sequence[tuple[RunLeakage, UserAttack]]) -> Section:
    """Return the areas, the rates at 1 % and a table of the attack on users."""
    areas = [_row(label_of(run), attack.rates.area, "{:.3f}", number) for number, (run, attack) in enumerate(found)]
    rates = [
        _row(label_of(run), at_one_percent, "{:.1%}", number, attack.bound)
        for number, (run, attack) in enumerate(found)
        if (at_one_percent := attack.rates.at[0.01]) is not None
    ]
    charts = [_intervals("Area under the curve", areas, Axis("area", guess=0.5))]
    if rates:
        rate = Axis("share of members", percent=True, zero=True, guess=0.01)
        charts.append(_intervals("Members found, where 1 % of the others are taken for members", rates, rate))
    named = (f"found at {at:.1%}" for at in found[0][1].rates.at)
    return Section(
        "Was this person in the training text?",
        "The attacker has some of a person's text and the model, and asks whether that person's messages trained it "
        "(Kandpal et al. 2023, user inference).",
        _conclusion([attack.rates.area.low > 0.5 for _, attack in found if not attack.bound.is_proven]),
        charts,
        Table(("run", "area", *named, "advantage", "at most", "verdict"), [_user_row(*one) for one in found]),
    )


def _user_row(run: RunLeakage, attack: UserAttack) -> list[str]:
    return [
        label_of(run),
        _shown(attack.rates.area, "{:.3f}"),
        *(_shown(figure, "{:.1%}") for figure in attack.rates.at.values()),
        _shown(attack.rates.advantage, "{:.1%}"),
        _at_most(attack.bound.largest_advantage) if attack.bound.is_proven else "no bound",
        attack.verdict.state,
    ]


def _canaries(found: Sequence[tuple[RunLeakage, CanaryAttack]]) -> Section:
    """Return the exposure of canaries by their repetitions."""
    owners: dict[Owner, str] = {
        "user": "Secrets of one person",
        "entity": "Secrets about one name, said by several people",
    }
    charts = []
    for owner, title in owners.items():
        lines = [
            Line(label_of(run), number, tuple(_by_repetitions(attack, owner)))
            for number, (run, attack) in enumerate(found)
        ]
        lines = [line for line in lines if line.points]
        if lines:
            most = math.log2(1 + max(attack.exposures.drawn for _, attack in found))
            levels = (
                Level("secrets that were left out: 1.44", 1.44),
                Level(f"the most that can be seen: {most:.1f}", most),
            )
            x, y = Axis("how often the secret was said", log_from=4.0), Axis("exposure, bits", zero=True)
            charts.append(Chart(title, x, y, "Mean exposure, 95 % intervals.", tuple(lines), levels=levels))
    free = [attack for _, attack in found if not any(bound.is_proven for bound in attack.bounds.values())]
    header = ("run", "owner", "said", "canaries", "exposure", "left out", "any attack at 1 %", "verdict")
    return Section(
        "Does the model know planted secrets?",
        "Made-up secrets were planted in the text, some said once and some often. Exposure is how many bits "
        "of a secret the model gives away (Carlini et al. 2019); one that it never saw has 1.44 bits on average.",
        _conclusion([are_known(attack.groups) for attack in free]),
        charts,
        Table(header, [row for run, attack in found for row in _canary_rows(run, attack)]),
    )


def _by_repetitions(attack: CanaryAttack, owner: Owner) -> Iterator[Point]:
    for group in sorted(attack.groups, key=lambda group: group.repetitions or 0):
        mean = group.exposure
        wanted = group.owner == owner and group.included and not math.isnan(mean.value)
        if wanted and group.repetitions is not None:
            low, high = (None, None) if math.isnan(mean.low) else (mean.low, mean.high)
            yield Point(float(group.repetitions), mean.value, _shown(mean, "{:.2f}"), low, high)


def _canary_rows(run: RunLeakage, attack: CanaryAttack) -> Iterator[list[str]]:
    """Yield a row per owner and number of repetitions, with what any attack can reach on such a canary."""
    groups_of = {(group.owner, group.repetitions, group.included): group for group in attack.groups}
    for (owner, repetitions), bound in attack.bounds.items():
        groups = [groups_of.get((owner, repetitions, side)) for side in (True, False)]
        yield [
            label_of(run),
            owner,
            "once" if repetitions == 1 else f"{repetitions:,} times",
            f"{sum(group.canaries for group in groups if group):,}",
            *(_shown(group.exposure if group else None, "{:.2f}") for group in groups),
            _rate_at_most(bound),
            attack.verdict.state,
        ]


def _entities(found: Sequence[tuple[RunLeakage, NameAttack]]) -> Section:
    """Return how the models rank names."""
    rows = []
    for number, (run, attack) in enumerate(found):
        figures = attack.groups[0].figures
        rows.append(_row(label_of(run), figures["ahead"], "{:.1%}", number))
        rows.append(_row(f"{run.folder.path.name}: at the start", figures["initial_ahead"], "{:.1%}", number))
    axis = Axis("share of the other names", percent=True, guess=0.5)
    chart = _intervals("Names that the true one is ranked before", rows, axis)
    header = ("run", "kind", "mentions", "names", "ranked before", "by ratio", "gain over start", "any attack at 1 %")
    return Section(
        "Does the model know the names?",
        "A name of a training sentence is masked, and the model ranks it among other names of its kind (Lukas et al. "
        "2023). Names that stand in public text are left out. The start is the model before training.",
        _conclusion([attack.groups[0].figures["gain"].low > 0 for _, attack in found if not attack.bound.is_proven]),
        [chart],
        Table(header, [row for run, attack in found for row in _entity_rows(run, attack)]),
    )


def _entity_rows(run: RunLeakage, attack: NameAttack) -> Iterator[list[str]]:
    """Yield a row for all names, per kind, and per number of mentions."""
    for group in attack.groups:
        yield [
            label_of(run),
            group.kind or "all",
            "any" if group.mentions is None else "–".join(map(str, group.mentions)),
            f"{group.entities:,}",
            *(_shown(group.figures[name], "{:.1%}") for name in ("ahead", "ratio_ahead", "gain")),
            _rate_at_most(attack.bound),
        ]


def _conclusion(remembers: Sequence[bool]) -> str:
    """Say whether an attack finds more than guessing in an unprotected model, at 95 %; else no protection shows."""
    if not remembers:
        return "No unprotected run is beside these, so the figures do not show what the protection is worth."
    if any(remembers):
        return "The unprotected model remembers: this attack does better than guessing on it."
    return (
        "Nothing can be concluded: on the unprotected model, too, this attack does no better than guessing. It does "
        "not show that the model is safe; a better attack may exist."
    )


def _intervals(title: str, rows: Sequence[Row], x: Axis) -> Chart:
    words = "the most that ε allows any attack on one unit, in or out"
    return Chart(title, x, Axis(""), "95 % intervals.", rows=tuple(rows), bound_words=words)


def _row(label: str, figure: Figure, form: str, number: int, bound: ProvenRates | None = None) -> Row:
    """Return a row of a chart, with the largest figure that is proven possible if its bound is given."""
    low, high = figure.ends()
    words = _shown(figure, form)
    if bound is None or not bound.is_proven:
        return Row(label, figure.value, low, high, words, number)
    most = bound.largest_true_positive_rate(0.01)
    return Row(label, figure.value, low, high, f"{words}; at most {_at_most(most)} is possible", number, most)


def _rate_at_most(bound: ProvenRates) -> str:
    return _at_most(bound.largest_true_positive_rate(0.01)) if bound.is_proven else "no bound"


def _at_most(rate: float) -> str:
    return f"{round_up(100 * rate, 3)}%"


def _shown(figure: Figure | None, form: str) -> str:
    """Return a figure with its interval, if it has one; a dash for a rate that too few non-members show."""
    if figure is None or math.isnan(figure.value):
        return "–"
    if math.isnan(figure.low):
        return form.format(figure.value)
    return f"{form.format(figure.value)} ({form.format(figure.low)}–{form.format(figure.high)})"
