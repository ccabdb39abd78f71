"""Write results/flower/README.md from the records."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Mapping
from typing import Any

from fl_sim.formats import format_epsilon, format_lower_bound
from fl_sim.research.study_files import made_from

HEAD = (
    "Made by `python benchmarks/flower_privacy.py` from the JSON files here; do not edit. Flower {flwr}, with its own "
    "messages, strategies and client mods: what is stated of them was seen in these runs. What one node can do to a "
    "round of theirs, or of any app's, `fl-sim check` measures (docs/check.md)."
)


def page(records: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page, with a section per record that is there."""
    flwr = next((record["flwr"] for record in records.values()), "–")
    parts = ["# Flower's privacy wrapper and ours, side by side", HEAD.format(flwr=flwr)]
    for part, record in records.items():
        parts += [*_SECTIONS[part](record), f"*[{part}.json]({part}.json); {made_from(record['commit'])}.*"]
    return "\n\n".join(part if part.startswith(("#", "|")) else _filled(part) for part in parts) + "\n"


def _digits(record: Mapping[str, Any]) -> list[str]:
    settings = record["settings"]
    rows = [
        [
            row["words"],
            _epsilon(row["epsilon_stated"]),
            _epsilon(row["epsilon_proven"], absent="∞"),
            _accuracy(row["accuracies"]),
            row["why"],
        ]
        for row in record["rows"]
    ]
    setting = (
        f"The app of `examples/quickstart` (softmax regression): {settings['users']} users, one per node, "
        f"{settings['cohort']} of them in a round (ours: in expectation), {settings['rounds']} rounds, clip "
        f"{settings['clip_norm']:g}, noise multiplier {settings['noise_multiplier']:g}, δ = {settings['delta']:g}; "
        f"accuracy on held-out digits, mean and range of {settings['seeds']} seeds. *Proven* is the ε of any user, "
        "added or removed, for what the strategy does."
    )
    closing = (
        "Flower's accountant knows one mode for its fixed clipping: no amplification by sampling. It asks for equal "
        "weights, which the app must claim for its clients; with example counts the run ends. The wrapper without it "
        "states no ε."
    )
    table = _table(["", "ε stated", "ε proven", "accuracy", "proven for"], rows)
    return ["## Digits: ε and accuracy", setting, table, closing]


def _audit(record: Mapping[str, Any]) -> list[str]:
    settings = record["settings"]
    rows = [
        [
            row["words"],
            _epsilon(row["epsilon_stated"]),
            _epsilon(row["epsilon_proven"]),
            format_lower_bound(row["epsilon_at_least"]),
            _judged(row["judged"]),
            "**refuted**" if row["refuted"] else "holds",
        ]
        for row in record["rows"]
    ]
    heavy = next(row for row in record["rows"] if row["name"] == "flower_weighted")
    apart = (heavy["mean_present"] - heavy["mean_without"]) / heavy["noise_std"]
    setting = (
        "Nine users against one: they move a parameter down by the clip, the attacked user moves it up. With the user "
        f"{settings['nodes']} nodes are there, without {settings['nodes'] - 1}; {settings['cohort']} of them train "
        f"(ours: each with probability {settings['cohort'] / settings['nodes']:g}), noise multiplier "
        f"{settings['noise_multiplier']:g}. {heavy['trials']:,} rounds with and as many without the user, bounds by "
        f"Clopper and Pearson at confidence {settings['confidence']:g}, δ = {settings['delta']:g}. The last columns "
        "test the whole stated curve of δ and ε, at the point that the first half of the trials chooses."
    )
    closing = (
        f"A user that reports {settings['heavy_examples']:,} examples beside {settings['light_examples']} of each "
        f"other one moves Flower's average by {apart:.0f} standard deviations of its noise. With equal weights a "
        "cohort of fixed size still moves by 2C, where the accountant counts C under the relation that it names, "
        "adding or removing a user: the user who is drawn takes another one's place. (If the place stayed empty "
        "instead, C would be right.)"
    )
    table = _table(["", "ε stated", "ε proven", "ε found, at least", "stated, and found", ""], rows)
    return ["## One round under attack", setting, table, closing]


def _times(record: Mapping[str, Any]) -> list[str]:
    rows = [
        [
            f"{row['nodes']:,}",
            str(row["cohort"]),
            f"{row['parameters'] / 1e6:g} M",
            str(row["steps"]) if row["steps"] else "none",
            f"{row['plain_seconds']:.2f} s",
            f"{row['private_seconds']:.2f} s",
            f"{row['private_seconds'] - row['plain_seconds']:+.2f} s",
            f"{row['ratio']:.2f}",
            f"{row['enrolment_seconds']:.1f} s",
        ]
        for row in record["rows"]
    ]
    header = ["nodes", "cohort", "parameters", "local steps", "FedAvg", "private", "apart", "ratio", "enrolment, once"]
    setting = (
        f"Flower's simulation on two cores, medians of {record['rows'][0]['rounds']} rounds of either, in turns (load "
        f"of the machine {record['load']:g}, so read the ratios). A local step is a gradient of 32 examples; without "
        "any, a node returns at once, which no training does. Flower's engine looks for messages every 0.1 s, so the "
        "shortest rounds take one or two of its steps. A private round adds noise, ledger and checkpoint, and bounds "
        "on updates."
    )
    return ["## Time of a round", setting, _table(header, rows)]


_SECTIONS = {"digits": _digits, "audit": _audit, "times": _times}


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _filled(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _judged(verdict: Mapping[str, float]) -> str:
    claimed, found = format_epsilon(verdict["claimed"]), format_lower_bound(verdict["at_least"])
    return f"{claimed} at δ {verdict['delta']:g}: at least {found}"


def _epsilon(value: float | None, absent: str = "none") -> str:
    """Return an ε, rounded up."""
    return absent if value is None else format_epsilon(value)


def _accuracy(values: list[float]) -> str:
    return f"{100 * statistics.mean(values):.1f} % ({100 * min(values):.1f}–{100 * max(values):.1f})"
