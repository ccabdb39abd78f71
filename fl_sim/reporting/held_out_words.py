"""What a run records of its held-out users, in words: intervals, deciles, users by size, mentions, personal models.

>>> interval({"value": 2.3926, "low": 2.3645, "high": 2.4265}, "bits_per_byte")
'2.39 (2.36 to 2.43)'
>>> interval({"value": 0.125, "low": float("nan"), "high": float("nan")}, "error")
'12.5%'
>>> size_words({"lowest": 4, "highest": 7}), size_words({"lowest": 64, "highest": None})
('4–7', '64 or more')
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fl_sim.formats import nonzero

_NAMES = {
    "bits_per_byte": ("bits per byte", ",.2f"),
    "perplexity_per_word": ("perplexity per word", ",.1f"),
    "perplexity_per_token": ("perplexity per token", ",.1f"),
    "accuracy": ("tokens guessed right", ".1%"),
    "error": ("error", ".1%"),
}
"""The names of figures in texts, and their form."""

PARTS = {
    "entity_tokens": "entity tokens",
    "other_tokens": "other tokens",
    "with_mention": "sentences with an entity",
    "without_mention": "sentences without",
}
"""The names of the parts of the held-out text."""

PER_TOKEN = "explained by the tokenizer: compare runs of one tokenizer alone"


def held_out_lines(held_out: Mapping[str, Any] | None) -> list[str]:
    """Return what a run's result says by user, one line per subject; none for a run without it."""
    if not held_out:
        return []
    metric = held_out["deciles"]["metric"]
    name = _NAMES[metric][0]
    lines = [
        f"{held_out['sentences']:,} held-out sentences of {held_out['users']:,} users; in brackets 95 % intervals "
        "(percentile bootstrap over users)",
        "; ".join(_figures(held_out["figures"])),
    ]
    if held_out["deciles"]["values"]:
        deciles = " ".join(_shown(value, metric) for value in held_out["deciles"]["values"])
        lines.append(f"deciles over users, {name}: {deciles}")
    sizes = [f"{size_words(row)}: {interval(row[metric], metric)}" for row in held_out["by_sentences"]]
    lines.append(f"users by their number of sentences, {name}: {', '.join(sizes)}")
    parts = [
        f"{PARTS[part]} {interval(figures[metric], metric)} ({nonzero(100 * figures['share'], '.0f')} % of all)"
        for part, figures in held_out["by_mention"].items()
    ]
    return [*lines, *([f"{name}: {', '.join(parts)}"] if parts else [])]


def personal_lines(personal: Mapping[str, Any] | None) -> list[str]:
    """Return what a comparison with personal models says, one line per subject; none without one."""
    if not personal:
        return []
    metric, figures, trained = personal["metric"], personal["figures"], personal["trained"]
    words = {
        "start": "the start",
        "run": "this run",
        "alone": f"the start trained on the user alone ({trained['alone']})",
        "continued": f"this run trained on the user ({trained['continued']})",
        "personal": f"this run trained on the user ({trained.get('personal')})",
    }
    shown = ", ".join(f"{words[name]} {interval(figure, metric)}" for name, figure in figures.items())
    lines = [
        f"on the second half of the sentences of {personal['users']:,} held-out users, {metric_words(metric)}: {shown}",
    ]
    for name, difference in personal["differences"].items():
        if name in personal["better"]:
            better = f"better than this run for {nonzero(100 * personal['better'][name], '.0f')} % of these users"
            lines.append(f"{words[name]}: {interval(difference, metric)} from this run; {better}")
    rates = " and ".join(f"{rate:g}" for rate in dict.fromkeys(personal["learning_rate"].values()))
    steps = f"{personal['steps']:,} steps of Adam at {rates} on the first half"
    return [*lines, f"personal models: {steps}, without noise; no ε covers them"]


def interval(figure: Mapping[str, float], name: str) -> str:
    """Return a figure with its interval: "2.39 (2.36 to 2.43)"; without the interval if it is undefined."""
    value = _shown(figure["value"], name)
    if math.isnan(figure["low"]):
        return value
    return f"{value} ({_shown(figure['low'], name)} to {_shown(figure['high'], name)})"


def size_words(row: Mapping[str, Any]) -> str:
    """Return the numbers of sentences of a class of users: "1", "4–7", "64 or more"."""
    lowest, highest = row["lowest"], row["highest"]
    if highest is None:
        return f"{lowest} or more"
    return str(lowest) if lowest == highest else f"{lowest}–{highest}"


def metric_words(name: str) -> str:
    """Return the name of a figure in words."""
    return _NAMES[name][0]


def _figures(figures: Mapping[str, Mapping[str, float]]) -> list[str]:
    notes = {"perplexity_per_token": f", {PER_TOKEN}"}
    return [f"{_NAMES[name][0]} {interval(figure, name)}{notes.get(name, '')}" for name, figure in figures.items()]


def _shown(value: float, name: str) -> str:
    return nonzero(value, _NAMES[name][1]) if math.isfinite(value) else "not finite"
