"""``fl-sim account``: ε of a training or of recorded releases, or the setting that meets a target ε."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from fl_sim.api import accounts
from fl_sim.api.accounts import DELTA, Figures
from fl_sim.cli.flags import entity_bound, is_default, note_on_delta, print_json
from fl_sim.cli.from_signature import options_of
from fl_sim.cli.verbs import VerbGroup, as_json
from fl_sim.formats import format_figure
from fl_sim.strategies.accounting.adjacency import PrivacyError
from fl_sim.strategies.accounting.paper_model import PublishedSettings

_LARGE_DELTA = 0.01
_NOT_SAMPLED = "is protected by epsilon_user_entity_robust alone"
_OF_TEXT = ("q_e", "sentences", "sensitive_sentences")


@click.group(cls=VerbGroup)
def account() -> None:
    """Compute ε of a training or of recorded releases, or the setting that meets a target ε."""


@account.command()
@options_of(accounts.account, but=("entity",))
@click.option("--clip-norm", metavar="C", expose_value=False, help="The clip c of a run, which ε does not depend on.")
@entity_bound()
@as_json
def mechanism(as_json: bool, **settings: Any) -> None:
    """Compute ε of a training with user-entity or user-level privacy.

    With the flags of fl-sim run for rates, noise, rounds, clips and bounds, ε is that of the run. A rate or bound that
    is left out is 1 or none here, where a run takes the default of its strategy.
    """
    _show(accounts.account(**settings), as_json, default_delta=is_default("delta"))


@account.command()
@options_of(accounts.account, but=("entity", "noise_multiplier", "rounds", "known", "entity_bound"))
@options_of(accounts.calibrate, but=("strategy", "delta", "user_sentences", "entity"))
@entity_bound()
@as_json
def calibrate(
    target_epsilon: float,
    solve_for: accounts.Unknown,
    unit: accounts.Unit,
    users: int | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Compute the noise multiplier, or another setting, that meets a target ε, and ε at it."""
    value = accounts.calibrate(target_epsilon, solve_for=solve_for, unit=unit, **settings)
    settings[solve_for] = int(value) if solve_for == "rounds" else value
    _show(accounts.account(users=users, **settings), as_json, default_delta=is_default("delta"))


@account.command()
@options_of(PublishedSettings, but=_OF_TEXT)
@click.option("--q-e", type=float, metavar="RATE", help="The probability that an entity is sampled in a round.")
@click.option("--sentences", type=int, metavar="N", help="The number of sentences.")
@click.option("--sensitive-sentences", type=int, metavar="N", help="The number of sentences with an entity.")
@options_of(accounts.account_published, but=("settings", "entity"))
@entity_bound(users=None)
@as_json
def published(
    rounds: int,
    delta: float,
    user_sentences: float,
    entity: tuple[int | None, int, int | None],
    as_json: bool,
    **settings: Any,
) -> None:
    """Compute ε of the UeDP paper's algorithm: what its paper claims, which is no guarantee, and what is proven."""
    _check_text(settings)
    of_paper = PublishedSettings(**{name: value for name, value in settings.items() if value is not None})
    bound = (of_paper.users if entity[0] is None else entity[0], *entity[1:])
    figures = accounts.account_published(
        of_paper, rounds=rounds, delta=delta, user_sentences=user_sentences, entity=bound
    )
    _show(figures, as_json, default_delta=is_default("delta"))


def _check_text(settings: Mapping[str, object]) -> None:
    """Refuse missing numbers of the text, on which f_e and f_e_plus depend, and those that are ignored."""
    reads_text = settings["estimator"] in ("f_e", "f_e_plus")
    for name in _OF_TEXT:
        if (settings[name] is not None) != reads_text:
            flag = f"--{name.replace('_', '-')}"
            state = "is missing; allowed: a value" if reads_text else "is given; allowed: nothing"
            raise PrivacyError(f"{flag} {state} with --estimator {settings['estimator']}")


@account.command()
@options_of(accounts.account_runs, but=("entity",))
@entity_bound()
@as_json
def ledger(runs: tuple[Path, ...], delta: float | None, as_json: bool, **settings: Any) -> None:
    """Compute ε of all that runs on one corpus released together, from their ledgers."""
    figures = accounts.account_runs(runs, delta=delta, **settings)
    if delta is None:
        shared = accounts.shared_delta(runs)
        note_on_delta(shared or DELTA, "the default" if shared is None else "that of the run")
    _show(figures, as_json)


def _show(figures: Figures, as_json: bool, default_delta: bool = False) -> None:
    """Print the figures, with warnings about them on standard error."""
    if default_delta:
        note_on_delta(DELTA, "the default")
    _warn(figures)
    if as_json:
        print_json(figures)
        return
    lines = [f"{name:<27}{format_figure(name, value)}" for name, value in figures.items()]
    if "delta_times_users" in figures:
        lines.append(
            "delta_times_users: how many users' data a mechanism of the same δ might publish outright, on average."
        )
    if "epsilon_as_published" in figures:
        lines.append("epsilon_as_published is the paper's claim, not a guarantee: see docs/privacy-proofs.md.")
    print("\n".join(lines))


def _warn(figures: Figures) -> None:
    delta = figures["delta"]
    if figures.get("delta_times_users", 0) >= 1:
        print(
            f"warning: delta {delta:g} is not below 1/users = {delta / figures['delta_times_users']:.3g}: "
            "a mechanism that publishes one user's data would satisfy it",
            file=sys.stderr,
        )
    elif delta >= _LARGE_DELTA:
        print(
            f"warning: delta {delta:g} is large: a mechanism that publishes each user's data with this probability "
            "would satisfy it; it should be below 1/users",
            file=sys.stderr,
        )
    if figures.get("forks"):
        print(
            f"note: {figures['forks']} copies of a run went on separately; their common releases count once",
            file=sys.stderr,
        )
    if figures.get("public_names"):
        print(f"note: a name on the runs' list of public names {_NOT_SAMPLED}", file=sys.stderr)
    if len(figures.get("ledger", ())) > 1 and figures.get("epsilon_any", math.inf) < math.inf:
        print(f"note: a name that the tagger of one run never marks {_NOT_SAMPLED}", file=sys.stderr)
    if figures.get("noiseless_releases"):
        print(f"warning: {figures['noiseless_releases']} releases have no guarantee: ε is infinite", file=sys.stderr)
        return
    unproven = [name for name, value in figures.items() if name.startswith("epsilon") and value == math.inf]
    if unproven:
        print(f"warning: no finite ε can be proven at delta {delta:g}: {', '.join(unproven)}", file=sys.stderr)
