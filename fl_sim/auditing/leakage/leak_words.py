"""Write what attacks found in trained models as text, beside what is proven of each.

>>> _percent(Figure(0.25, 0.2, 0.31)), _percent(None), _at_most(0.01231)
('25.0 % (20–31)', '–', '≤ 1.24 %')
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fl_sim.auditing.leakage.canary_exposure import CanaryAttack, uniform_exposure
from fl_sim.auditing.leakage.leak import PRIVATE, Leakage
from fl_sim.auditing.leakage.membership import UserAttack
from fl_sim.auditing.leakage.name_ranking import NameAttack
from fl_sim.auditing.leakage.proven_rates import ProvenRates
from fl_sim.auditing.leakage.rates import Verdict
from fl_sim.formats import format_delta, format_epsilon, hanging, nonzero, printable, round_up
from fl_sim.reporting.bootstrap import Figure


def leak_text(found: Leakage) -> str:
    """Return a table per run, as text of several lines of at most 80 columns."""
    lines: list[str] = []
    for run in found.runs:
        privacy, rounds = run.config.privacy, run.folder.last_round
        units = ((name.removeprefix("epsilon_"), value) for name, value in run.epsilon.items())
        epsilon = ", ".join(f"ε {unit} {format_epsilon(value)}{run.facts.apart(unit)}" for unit, value in units)
        guarantee = f"; {epsilon} at δ = {format_delta(privacy.delta)}" if epsilon else ""
        raw = "; attacked with raw text" if run.raw_text else ""
        lines += [f"{printable(run.folder.path)}: {privacy.strategy}, {rounds} rounds{guarantee}{raw}", ""]
        lines.append(_cells("attack", "measure", "found (95 %)", "at most", "verdict"))
        for name, attack in run.attacks.items():
            if isinstance(attack, UserAttack):
                lines += _user_lines(name, attack)
            elif isinstance(attack, CanaryAttack):
                lines += _words(name, _canary_words(attack)) + _words("", _remarks(attack.verdict))
            else:
                words = [f"left out: {attack}"] if isinstance(attack, str) else _entity_words(attack)
                lines += _words(name, words)
        lines.append("")
    return "\n".join([*lines, *_MEANING, "", PRIVATE])


_MEANING = (
    "TPR: share of members found, at a share of non-members taken for members; – for",
    "too few non-members. At most: what the ledger allows any attack on one unit, in",
    "or out; two splits differ by exchanges, for which the verdict allows more. An",
    "area of 0.5 is guessing.",
)


def _cells(*cells: str) -> str:
    return "".join(f"{cell:<{width}}" for cell, width in zip(cells, (11, 19, 25, 11, 0), strict=False)).rstrip()


def _words(name: str, texts: Sequence[str]) -> list[str]:
    """Return texts beside the name of their attack, each wrapped."""
    return [line for n, text in enumerate(texts) for line in hanging(f"{'' if n else name:<11}", text)]


def _user_lines(name: str, attack: UserAttack) -> list[str]:
    rates, bound, area = attack.rates, attack.bound, attack.rates.area
    shown = f"{area.value:.3f} ({area.low:.3f}–{area.high:.3f})"
    lines = [_cells(name, "area under curve", shown, "", attack.verdict.state)]
    for rate, words in ((0.001, "0.1 %"), (0.01, "1 %")):
        lines.append(_cells("", f"TPR at {words}", _percent(rates.at[rate]), _rate_at_most(bound, rate)))
    lines.append(_cells("", "advantage", _percent(rates.advantage), _at_most(bound.largest_advantage)))
    sides = f"{rates.members:,} members, {rates.non_members:,} non-members; bound of {bound.unit}"
    exposed = [f"{printable(user)}: {score:.3f}" for user, score in attack.most_exposed]
    return lines + _words("", [sides, *_remarks(attack.verdict), *exposed])


def _canary_words(attack: CanaryAttack) -> list[str]:
    """Return the exposure of canaries by owner, in lines."""
    lines = []
    for group in attack.groups:
        if group.repetitions is None and group.owner is not None:
            which = "included" if group.included else "left out"
            whose = "a user's" if group.owner == "user" else "an entity's"
            mean, start = group.exposure, group.initial_exposure.value
            ends = "" if math.isnan(mean.low) else f" ({nonzero(mean.low, '.2f')}–{nonzero(mean.high, '.2f')})"
            bits = "–" if math.isnan(mean.value) else f"{nonzero(mean.value, '.2f')} bits{ends}"
            beside = "" if math.isnan(start) else f"; {start:.2f} at the start"
            lines.append(f"exposure {bits} of {group.canaries} canaries {which}, {whose}{beside}")
    chance = uniform_exposure(attack.exposures.drawn)
    return [*lines, f"{chance:.2f} bits are chance; verdict: {attack.verdict.state}"]


def _entity_words(attack: NameAttack) -> list[str]:
    """Return how the models rank names, a line each, and the ranks where they were asked for."""
    figures, bound, lines = attack.groups[0].figures, attack.bound, []
    reason = f": {bound.reason}" if bound.reason else ""
    proven = f"TPR at 1 % {_rate_at_most(bound, 0.01)}, advantage {_at_most(bound.largest_advantage)}"
    if attack.named is not None:
        one, count = attack.named, len(attack.named.occurrences)
        known = "stands in no other split" if one.is_private else "stands in other splits, too"
        lines.append(f"{one.kind}, {count:,} mentions, {len(attack.ranked):,} attacked; {known}")
    lines += [
        f"true name before {_percent(figures['ahead'])} of {attack.candidates} candidates, "
        f"{_percent(figures['initial_ahead'])} at the start; 50 % is chance",
        f"by ratio to the start before {_percent(figures['ratio_ahead'])}",
        f"any attack on {bound.unit}: {proven if bound.is_proven else f'no bound{reason}'}",
    ]
    shown = attack.ranked if attack.show_names else ()
    ranks = [f"{printable(one.target.name)} {one.rank} of {one.candidates}" for one in shown]
    return [*lines, *([f"ranks: {', '.join(ranks)}"] if ranks else [])]


def _remarks(verdict: Verdict) -> list[str]:
    """Return what a reader of the verdict must know, a line each."""
    remarks = [f"not tested: {verdict.reason}"] if verdict.reason else []
    if verdict.state == "above":
        remarks.append("above its bound if one model's scores are independent of each other, which is not proven")
    return remarks


def _percent(figure: Figure | None) -> str:
    if figure is None or math.isnan(figure.value):
        return "–"
    share = f"{nonzero(100 * figure.value, '.1f')} %"
    if math.isnan(figure.low):
        return share
    return f"{share} ({nonzero(100 * figure.low, '.0f')}–{nonzero(100 * figure.high, '.0f')})"


def _rate_at_most(bound: ProvenRates, false_positive_rate: float) -> str:
    return _at_most(bound.largest_true_positive_rate(false_positive_rate))


def _at_most(bound: float) -> str:
    return "no bound" if bound >= 1 else f"≤ {round_up(100 * bound, 3)} %"
