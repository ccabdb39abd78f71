"""A comparison of runs as text of 80 columns: ε, utility, paired differences, settings that differ, warnings.

Every ε is rounded up; one that the ledger does not support is not printed.

>>> by_value({"A": "1", "B": "1", "C": "2"})
'1 in A, B; 2 in C'
>>> signed({"value": -5.17, "low": -6.94, "high": -3.48}, "perplexity")
'-5.2 (-6.9 to -3.5)'
>>> signed({"value": 0.1, "low": float("nan"), "high": float("nan")}, "error")
'+10.0 points'
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fl_sim.formats import format_delta, format_epsilon, format_number, printable, printable_lines
from fl_sim.reporting.report import how_it_ended, interval, measured_in_words, metric_words

WIDTH = 80

_STATES = {
    "no guarantee": "∞: no guarantee",
    "not trusted": "none: the ledger does not support one (see the warnings)",
    "no round": "none: no round is recorded",
}
_FORMS = {"perplexity": ("{:+,.1f}", "", 1.0), "error": ("{:+.1f}", " points", 100.0)}


def comparison_text(record: Mapping[str, Any]) -> str:
    """Return a comparison as text that ends with a newline.

    Args:
        record: ``Comparison.record()``.
    """
    runs = record["runs"]
    blocks = [_heads(runs), _privacy(runs), _utility(runs), _paired(record["paired"])]
    blocks += [_settings(runs, record["settings"]), _wrapped("Note", record["notes"]), _warnings(runs)]
    return printable_lines("\n".join("\n".join(block) + "\n" for block in map(list, blocks) if block))


def ended_words(facts: Mapping[str, Any]) -> str:
    """Return how far a run came: "6 of 6 rounds, finished"."""
    done, planned = format_number(facts["rounds_done"]), format_number(facts["rounds"])
    return f"{done} of {planned} rounds, {how_it_ended(facts['stopped'])}"


def state_words(state: str) -> str:
    """Return in words why a run has no finite ε."""
    return _STATES[state]


def setting_words(value: Any) -> str:
    """Return the value of a setting as a configuration would have it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}" if math.isfinite(value) else "∞"
    return printable(value)


def by_value(values: Mapping[str, str], between: str = "; ") -> str:
    """Return values with the runs that have them."""
    kinds = dict.fromkeys(values.values())
    runs = {kind: ", ".join(key for key, value in values.items() if value == kind) for kind in kinds}
    return between.join(f"{kind} in {keys}" for kind, keys in runs.items())


def signed(figure: Mapping[str, float], metric: str) -> str:
    """Return a difference with its sign and interval; that of errors in points of percent."""
    form, unit, scale = _FORMS[metric]
    words = form.format(scale * figure["value"])
    if math.isnan(figure["low"]):
        return words + unit
    return f"{words} ({form.format(scale * figure['low'])} to {form.format(scale * figure['high'])}){unit}"


def end_figures(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the held-out figures at a run's end by name, each with its interval; empty if none was recorded."""
    figures = (facts["held_out"] or {}).get("figures") or {}
    return {metric_words(name): interval(figure, name) for name, figure in figures.items()}


def pooled_warnings(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return every warning once, with the keys of the runs that have it."""
    pooled: dict[str, list[str]] = {}
    for run in runs:
        for warning in run["report"]["warnings"]:
            pooled.setdefault(printable(warning), []).append(run["key"])
    return pooled


def _heads(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for run in runs:
        words = f"{printable(run['name'])}: {run['report']['strategy']}, {ended_words(run['report'])}"
        yield from _hanging(f"{run['key']}  ", words)


def _privacy(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield f"{'Privacy':<9}{'ε':>9}{'ε missed':>10}{'any user':>10}  {'δ':<8}{'mentions':<10}ε of any user with"
    for run in runs:
        head = run["headline"]
        if head["state"] != "proven":
            yield f"  {run['key']:<7}{'':>3}{state_words(head['state'])}"
            continue
        epsilons = (format_epsilon(head[name]) for name in ("epsilon", "epsilon_missed", "epsilon_user"))
        figures = "{:>9}{:>10}{:>10}".format(*epsilons)
        graph = head["mention_graph"] or "–"
        yield f"  {run['key']:<7}{figures}  {format_delta(head['delta']):<8}{graph:<10}{_entity(run)}"


_ENTITIES = {"any": "any entity", "user": "no entity"}


def _entity(run: Mapping[str, Any]) -> str:
    if run["headline"]["unit"] in _ENTITIES:
        return _ENTITIES[run["headline"]["unit"]]
    return f"an entity in ≤ {(run['report']['bounds'] or {}).get('entity_bound')}, stated"


def _utility(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "Utility, held-out (95 % intervals by bootstrap over users)"
    for run in runs:
        facts = run["report"]
        utility = facts["utility"]
        if utility["final"] is None:
            yield from _hanging(f"  {run['key']:<3}", measured_in_words(facts["measured"]) or "none is recorded")
            continue
        figures = "; ".join(f"{name} {words}" for name, words in end_figures(facts).items())
        ends = f"{utility['metric']} {_plain(utility['initial'], utility)} → {_plain(utility['final'], utility)}"
        yield from _hanging(f"  {run['key']:<3}", f"{ends}{'; ' if figures else ''}{figures}")


def _plain(value: float, utility: Mapping[str, Any]) -> str:
    if not math.isfinite(value):
        return "not finite"
    return f"{value:.1%}" if utility["metric"] == "error" else f"{value:,.1f}"


def _paired(pairs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if pairs:
        yield f"Difference to {pairs[0]['baseline']} on the same held-out users (below 0: better)"
    for pair in pairs:
        yield from _hanging(f"  {pair['run']:<3}", pair_words(pair))


def pair_words(pair: Mapping[str, Any]) -> str:
    """Return a paired difference in words, or why there is none."""
    if "reason" in pair:
        return f"none: {pair['reason']}"
    better = f"better for {100 * pair['better_for']:.0f} % of {pair['users']:,} users"
    return f"{pair['metric']} {signed(pair, pair['metric'])}; {better}"


def _settings(runs: Sequence[Mapping[str, Any]], settings: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    if settings:
        yield "Settings that differ"
    for name, values in settings.items():
        keys = (run["key"] for run in runs)
        yield from _hanging(f"  {name}: ", by_value(dict(zip(keys, map(setting_words, values), strict=True))))


def _warnings(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for warning, keys in pooled_warnings(runs).items():
        yield from _hanging("Warning  ", f"{', '.join(keys)}: {warning}")


def _wrapped(label: str, texts: Sequence[str]) -> Iterator[str]:
    for text in texts:
        yield from _hanging(f"{label:<9}", text)


def _hanging(label: str, text: str) -> list[str]:
    """Return lines of 80 columns with ``label`` in front, the others indented."""
    indent = " " * min(len(label), 9)
    return textwrap.wrap(text, WIDTH, initial_indent=label, subsequent_indent=indent, break_on_hyphens=False)
