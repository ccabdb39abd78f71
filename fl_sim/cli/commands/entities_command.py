"""``fl-sim entities``: ε of every entity of a corpus, or of one user and one entity."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from fl_sim.api import entities as api
from fl_sim.api.entities import Entities
from fl_sim.cli.flags import mechanism, print_json
from fl_sim.cli.from_signature import FOLDER, options_of
from fl_sim.cli.progress_bar import counting, say
from fl_sim.cli.verbs import VerbGroup, as_json, quiet
from fl_sim.experiments.plan.entity_report import QUANTILES
from fl_sim.formats import format_delta, format_epsilon, percent_down, printable
from fl_sim.strategies.accounting.guarantee import Guarantee

_PRIVATE = (
    "These figures are computed from the private corpus: they are for its owner, and no ε covers their publication."
)


@click.group(cls=VerbGroup)
def entities() -> None:
    """Compute ε of every entity of a corpus from its profile: the sentences of each user that mention it."""


def _shown(open_entities: Callable[..., Entities]) -> Callable[..., None]:
    """Add the flags that say what to show of the entities, and print it: a report of all, or one user and entity."""

    @functools.wraps(open_entities)
    def show(
        user: str | None, entity: str | None, as_json: bool, quiet: bool, within: tuple[float, ...], show_names: bool,
        **settings: Any,
    ) -> None:  # fmt: skip
        found = open_entities(**settings)
        if user is not None or entity is not None:
            figures, text = found.pair(user=user, entity=entity), _pair_text
        else:
            say("computing ε of every entity from its mentions", quiet)
            with counting("ε computed", quiet) as progress:
                figures = found.report(within=within, show_names=show_names, observer=progress)
            text = _text
        print_json(figures | {"note": _PRIVATE}) if as_json else print(text(figures))

    of_report, of_pair = options_of(Entities.report, but=("self", "observer")), options_of(Entities.pair, but=("self",))
    return of_report(of_pair(as_json(quiet(show))))


@entities.command()
@click.argument("run", type=FOLDER, metavar="RUN")
@_shown
def run(run: Path) -> Entities:
    """Compute ε from the corpus, the mechanism and the released rounds of a run."""
    return api.entities_of_run(run)


@entities.command()
@mechanism
@options_of(api.entities_of_corpus, but=("strategy", "noise_multiplier"))
@_shown
def corpus(**settings: Any) -> Entities:
    """Compute ε from a corpus and a mechanism."""
    return api.entities_of_corpus(**settings)


def _text(report: dict[str, Any]) -> str:
    detected, robust = report["epsilon_user_entity"], report["epsilon_user_entity_robust"]
    lines = [
        f"{report['corpus']}, split {report['split']}: {report['entities']:,} entities, "
        f"{report['distinct_profiles']:,} different profiles; {report['rounds']} rounds",
        f"ε at δ = {format_delta(report['delta'])} of a user with at most {report['user_sentences']:,g} "
        f"{_sentences(report)}: "
        f"{format_epsilon(report['epsilon_user'])}; together with any entity: {format_epsilon(report['epsilon_any'])}; "
        "together with an entity of this corpus:",
        "",
        f"{'entities':<12}{'detected':>10}{'robust':>10}",
    ]
    for name in QUANTILES:
        lines.append(f"{name:<12}{format_epsilon(detected[name]):>10}{format_epsilon(robust[name]):>10}")
    for bound, share in detected["share_within"].items():
        within = [f"{percent_down(one)} %" for one in (share, robust["share_within"][bound])]
        lines.append(f"{'ε ≤ ' + bound:<12}" + "".join(f"{one:>10}" for one in within))
    lines += ["", *_worst_lines(report["worst"]), "", _PRIVATE]
    return "\n".join(lines)


def _pair_text(report: dict[str, Any]) -> str:
    who = "any user" if report["user"] is None else f"user {printable(report['user'])}"
    lines = [
        f"{report['corpus']}, split {report['split']}; {report['rounds']} rounds, ε at δ = "
        f"{format_delta(report['delta'])}",
        f"{who}, {report['user_sentences_kept']:,g} {_sentences(report)} that take part: "
        f"{format_epsilon(report['epsilon_user'])}",
    ]
    if report["entity"] is None:
        lines.append("No sentence mentions an entity of that name.")
    elif report["entity_is_public"]:
        lines.append(f"together with entity {printable(report['entity'])}, which is declared public: ∞")
    else:
        detected, robust = report["epsilon_user_entity"], report["epsilon_user_entity_robust"]
        lines.append(
            f"together with entity {printable(report['entity'])}{', the same' if report['entity_is_user'] else ''}, in "
            f"{report['entity_sentences_kept']:,} sentences of {report['entity_users_kept']:,} users that take part: "
            f"{format_epsilon(detected)}, robust {format_epsilon(robust)}"
        )
    return "\n".join([*lines, "", _PRIVATE])


def _sentences(report: dict[str, Any]) -> str:
    """Return what is counted of a user: sentences, or where counts bound them the sum of their weights."""
    bounds = Guarantee.from_record(report["guarantee"])
    return "sentences by weight" if bounds.user.weighted else "sentences"


def _worst_lines(worst: list[dict[str, Any]]) -> list[str]:
    lines = [f"{'worst: users':>12}{'sentences':>11}{'most of one':>13}{'entities':>10}{'detected':>10}{'robust':>10}"]
    for row in worst:
        figures = f"{row['users']:>12,}{row['sentences']:>11,}{row['max_per_user']:>13,}{row['entities']:>10,}"
        both = (format_epsilon(row[name]) for name in ("epsilon_user_entity", "epsilon_user_entity_robust"))
        named = "  " + ", ".join(row["names"]) if "names" in row else ""
        lines.append(figures + "".join(f"{epsilon:>10}" for epsilon in both) + named)
    return lines
