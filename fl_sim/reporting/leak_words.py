"""Write what attacks found in trained models as text, beside what is proven of each.

>>> is_remembered("users", {"auc": {"value": 0.6, "low": 0.52, "high": 0.68}})
True
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fl_sim.formats import format_delta, format_epsilon, hanging, nonzero, printable, round_up


def is_remembered(attack: str, record: Mapping[str, Any]) -> bool:
    """Return whether an attack (users, canaries, entities) finds more than guessing would, at 95 %.

    Without that nothing follows about protection.
    """
    if attack == "canaries":
        most = max((group["repetitions"] or 0 for group in record["groups"]), default=0)
        said_most = [group for group in record["groups"] if group["repetitions"] == most and group["included"]]
        return any(
            (group["exposure"]["value"] or 0.0)
            > max(group["most_by_chance"], group["initial_exposure"]["value"] or 0.0)
            for group in said_most
        )
    if attack == "entities":
        return bool(record["groups"][0]["gain"]["low"] > 0)
    return bool(record["auc"]["low"] > 0.5)


def leak_text(record: Mapping[str, Any]) -> str:
    """Return a table per run of ``Leakage.record()``, as text of several lines of at most 80 columns."""
    lines: list[str] = []
    for run in record["runs"]:
        figures = [
            f"{name.replace('epsilon', 'ε')} {format_epsilon(float(value))}" for name, value in run["epsilon"].items()
        ]
        epsilon = ", ".join(figures).replace("_", " ")
        guarantee = f"; {epsilon} at δ = {format_delta(run['delta'])}" if epsilon else ""
        raw = "; attacked with raw text" if run["raw_text"] else ""
        lines += [f"{printable(run['run'])}: {run['strategy']}, {run['rounds']} rounds{guarantee}{raw}", ""]
        lines.append(_cells("attack", "measure", "found (95 %)", "at most", "verdict"))
        for name, attack in run["attacks"].items():
            if "left_out" in attack:
                lines += _words(name, [f"left out: {attack['left_out']}"])
            elif "auc" in attack:
                lines += _rates(name, attack)
            else:
                lines += _words(name, _canary_words(attack) if name == "canaries" else _entity_words(attack))
            lines += _words("", _remarks(attack))
        lines.append("")
    return "\n".join([*lines, *_MEANING, "", record["note"]])


_MEANING = (
    "TPR: share of members found, at a share of non-members taken for members; – for",
    "too few non-members. At most: what the ledger allows any attack on one unit, in",
    "or out. An area of 0.5 is guessing.",
)


def _cells(*cells: str) -> str:
    return "".join(f"{cell:<{width}}" for cell, width in zip(cells, (11, 19, 25, 11, 0), strict=False)).rstrip()


def _words(name: str, texts: Sequence[str]) -> list[str]:
    """Return texts beside the name of their attack, each wrapped."""
    return [line for n, text in enumerate(texts) for line in hanging(f"{'' if n else name:<11}", text)]


def _rates(name: str, attack: Mapping[str, Any]) -> list[str]:
    bound, area = attack["bound"], attack["auc"]
    shown = f"{area['value']:.3f} ({area['low']:.3f}–{area['high']:.3f})"
    lines = [_cells(name, "area under curve", shown, "", attack["verdict"]["state"])]
    for rate, words in (("0.001", "0.1 %"), ("0.01", "1 %")):
        most = _at_most(bound["largest_tpr_at_fpr"][rate])
        lines.append(_cells("", f"TPR at {words}", _percent(attack["tpr_at_fpr"][rate]), most))
    return [*lines, _cells("", "advantage", _percent(attack["advantage"]), _at_most(bound["largest_advantage"]))]


def _canary_words(attack: Mapping[str, Any]) -> list[str]:
    """Return the exposure of canaries by owner, in lines."""
    lines = []
    for group in attack["groups"]:
        if group["repetitions"] is None and group["owner"] is not None:
            which = "included" if group["included"] else "left out"
            whose = "a user's" if group["owner"] == "user" else "an entity's"
            value, low, high = (group["exposure"][name] for name in ("value", "low", "high"))
            ends = "" if low is None else f" ({nonzero(low, '.2f')}–{nonzero(high, '.2f')})"
            bits = "–" if value is None else f"{nonzero(value, '.2f')} bits{ends}"
            start = group["initial_exposure"]["value"]
            beside = "" if start is None else f"; {start:.2f} at the start"
            lines.append(f"exposure {bits} of {group['canaries']} canaries {which}, {whose}{beside}")
    state = attack["verdict"]["state"]
    return [*lines, f"{attack['exposure_of_left_out']:.2f} bits are chance; verdict: {state}"]


def _entity_words(record: dict[str, Any]) -> list[str]:
    """Return how the models rank names, a line each, and the ranks where they were asked for."""
    figures, bound, lines = record["groups"][0], record["bound"], []
    rate, advantage = _at_most(bound["largest_tpr_at_fpr"]["0.01"]), _at_most(bound["largest_advantage"])
    reason = f": {bound['reason']}" if bound.get("reason") else ""
    proven = f"TPR at 1 % {rate}, advantage {advantage}" if bound["proven"] else f"no bound{reason}"
    if "one" in record:
        one = record["one"]
        known = "stands in no other split" if one["private"] else "stands in other splits, too"
        lines.append(f"{one['kind']}, {one['mentions']:,} mentions, {record['entities']:,} attacked; {known}")
    lines += [
        f"true name before {_percent(figures['ahead'])} of {record['candidates']} candidates, "
        f"{_percent(figures['initial_ahead'])} at the start; 50 % is chance",
        f"by ratio to the start before {_percent(figures['ratio_ahead'])}",
        f"any attack on {bound['unit']}: {proven}",
    ]
    ranks = [f"{printable(row['name'])} {row['rank']} of {row['of']}" for row in record.get("ranks", ())]
    return [*lines, *([f"ranks: {', '.join(ranks)}"] if ranks else [])]


def _remarks(record: dict[str, Any]) -> list[str]:
    """Return what a reader of the row must know, a line each."""
    remarks = []
    if "members" in record:
        count = f"{record['members']:,} members, {record['non_members']:,} non-members"
        remarks.append(f"{count}; bound of {record['bound']['unit']}")
    verdict = record.get("verdict") or {}
    if verdict.get("reason"):
        remarks.append(f"not tested: {verdict['reason']}")
    if verdict.get("state") == "above":
        remarks.append("above its bound if one model's scores are independent of each other, which is not proven")
    exposed = record.get("most_exposed", ())
    return [*remarks, *(f"{printable(row['user'])}: {row['score']:.3f}" for row in exposed)]


def _percent(figure: Mapping[str, float | None] | None) -> str:
    value, low, high = (None if figure is None else figure[name] for name in ("value", "low", "high"))
    if value is None:
        return "–"
    share = f"{nonzero(100 * value, '.1f')} %"
    if low is None or high is None:
        return share
    return f"{share} ({nonzero(100 * low, '.0f')}–{nonzero(100 * high, '.0f')})"


def _at_most(bound: float) -> str:
    return "no bound" if bound >= 1 else f"≤ {round_up(100 * bound, 3)} %"
