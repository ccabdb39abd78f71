"""Propose sampling rates, cap and noise for a corpus, a target ε and a compute budget."""

from __future__ import annotations

import argparse
import json
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fl_sim.formats import aligned, format_delta, format_epsilon, nonzero, round_down, round_up

if TYPE_CHECKING:
    from fl_sim.config import PrivacyConfig
    from fl_sim.experiments.plan.guarantees import EnforcedBounds
    from fl_sim.search.planner import Goal, Proposal, Settings
    from fl_sim.strategies.accounting.guarantee import ProtectedUnit

_PRIVATE = (
    "The planner reads the sizes of the private corpus: a proposal reveals information about it, and no ε covers that. "
    "So the command has privacy.settings_from_corpus=true, which record and report carry. Plan on public text of the "
    "same kind with --public, or choose the settings beforehand, to do without it."
)
_PUBLIC = "The corpus is public, as stated, so its sizes may set what is released."
_CONTRIBUTION_QUANTILES = ("p95", "max")
_WHOLE_FROM = 10_000.0  # signal-to-noise ratios are shown without decimals


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``fl-sim plan``."""
    parser.add_argument(
        "--corpus", required=True, metavar="DIR", help="a folder made by fl-sim prepare, or: bundled, irc"
    )
    parser.add_argument("--split", default="train", metavar="NAME", help="the training split (default train)")
    parser.add_argument("--target-epsilon", required=True, type=float, metavar="E", help="the largest ε allowed")
    parser.add_argument(
        "--target-unit",
        choices=("user", "user_entity"),
        default="user_entity",
        help="the protected unit: any user, or any user with any entity (default)",
    )
    parser.add_argument(
        "--sentences-per-round",
        required=True,
        type=float,
        metavar="B",
        help="compute budget: the expected number of sentences per round whose gradients are computed",
    )
    parser.add_argument("--rounds", required=True, type=int, metavar="T", help="the largest number of rounds")
    parser.add_argument("--delta", type=float, default=1e-5, metavar="D", help="δ at which ε is stated (default 1e-5)")
    parser.add_argument("--entity-bound", metavar="K", help="k, as privacy.entity_bound: a number or unbounded")
    parser.add_argument(
        "--entity-bound-by", metavar="RULE", help="as privacy.entity_bound_by: greedy, weights or stated"
    )
    parser.add_argument("--user-sentences", metavar="M", help="m, as privacy.user_sentences: a number or unbounded")
    parser.add_argument(
        "--public", action="store_true", help="the corpus is public text, so that its sizes may set what is released"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def run(args: argparse.Namespace) -> int:
    """Print the proposal; return the exit code 0."""
    from fl_sim.cli.progress_bar import counting, say
    from fl_sim.data_prep.store.corpus import Corpus
    from fl_sim.experiments.plan.guarantees import EnforcedBounds
    from fl_sim.search.planner import Goal, propose
    from fl_sim.storage.run_folder import encode

    start = time.monotonic()
    goal = Goal(args.target_epsilon, args.target_unit, args.delta, args.sentences_per_round, args.rounds)
    privacy = _privacy(args)
    corpus = Corpus.open(args.corpus, verify=True)
    say(f"enforcing the bounds on users and entities of {args.corpus}", args.quiet)
    bounds = replace(EnforcedBounds.of(privacy, corpus.ownership(args.split), seed=0), settings_from_corpus=True)
    _, named = bounds.target(goal.unit, clips_sentences=True, population=bounds.ownership.num_users)
    units = tuple(named.values())
    say(f"looking for the best signal-to-noise ratio at ε {goal.target_epsilon:g}", args.quiet)
    with counting("settings tried", args.quiet) as show:
        proposal = propose(bounds, units, goal, observe=show)
    say("computing ε of what is proposed, and of its alternatives", args.quiet)
    report = {"corpus": corpus.manifest.name, "split": args.split} | _asked(goal) | bounds.record()
    report |= _proposed(proposal, goal, bounds, units) | {"command": _command(args, goal, proposal.best)}
    report |= {"seconds": round(time.monotonic() - start, 1), "note": _PUBLIC if args.public else _PRIVATE}
    if args.json:
        print(json.dumps(encode(report), ensure_ascii=False, allow_nan=False))
    else:
        print(_text(report))
    return 0


_BOUNDS = ("entity_bound", "entity_bound_by", "user_sentences")


def _privacy(args: argparse.Namespace) -> PrivacyConfig:
    """Return a run's privacy configuration with the bounds of the flags; refuse impossible ones."""
    from fl_sim.config import RunConfig, parse_value

    given = {f"privacy.{name}": getattr(args, name) for name in _BOUNDS if getattr(args, name) is not None}
    values = {key: parse_value(key, text) for key, text in given.items()}
    return RunConfig.from_mapping(values | {"privacy.settings_from_corpus": not args.public}).privacy


def _asked(goal: Goal) -> dict[str, Any]:
    return {
        "target_epsilon": goal.target_epsilon,
        "target_unit": goal.unit,
        "delta": goal.delta,
        "sentences_per_round": goal.sentences_per_round,
        "rounds": goal.rounds,
    }


def _proposed(proposal: Proposal, goal: Goal, bounds: EnforcedBounds, units: Sequence[ProtectedUnit]) -> dict[str, Any]:
    def described(settings: Settings) -> dict[str, Any]:
        return _described(settings, goal, bounds, units)

    return {
        "proposal": described(proposal.best),
        "alternatives": [described(settings) for settings in proposal.others],
        "fewer_rounds": [described(settings) for settings in proposal.fewer_rounds],
        "user_sampling": described(proposal.user_sampling) if proposal.user_sampling else None,
        "user_sampling_worse_by": proposal.user_sampling_factor,
    }


def _described(
    settings: Settings, goal: Goal, bounds: EnforcedBounds, units: Sequence[ProtectedUnit]
) -> dict[str, Any]:
    """Return settings, their cost and their ε as plain values."""
    from fl_sim.search.planner import epsilon_of_units
    from fl_sim.strategies.accounting.accountant import epsilon
    from fl_sim.strategies.accounting.adjacency import Adjacency

    event, rounds, user = settings.event, settings.rounds, bounds.guarantee.user
    report: dict[str, Any] = {
        "q_u": event.q_u,
        "q_e": event.q_e,
        "q_s": event.q_s,
        "user_cap": event.user_cap,
        "noise_multiplier": event.noise_multiplier,
        "rounds": rounds,
        "expected_sentences": settings.sentences,
        "signal": settings.signal,
        "signal_to_noise": settings.signal_to_noise,
        "epsilon_target": epsilon_of_units(event, units, rounds, goal.delta),
        "epsilon_user": epsilon(event, user, rounds, goal.delta),
    }
    for name in _CONTRIBUTION_QUANTILES:
        adjacency = Adjacency(user.user_sentences, bounds.entity_bounds[name])
        report[f"epsilon_user_entity_{name}"] = epsilon(event, adjacency, rounds, goal.delta)
        report[f"epsilon_user_entity_robust_{name}"] = epsilon(event.robust(), adjacency, rounds, goal.delta)
    return report


def _command(args: argparse.Namespace, goal: Goal, best: Settings) -> str:
    """Return the ``fl-sim run`` command of the settings; the run computes the noise for the target again."""
    event = best.event
    words = ["fl-sim", "run", "--corpus", args.corpus, "--strategy", "uedp", "--rounds", str(best.rounds)]
    for flag, value in {"q-u": event.q_u, "q-e": event.q_e, "q-s": event.q_s, "user-cap": event.user_cap}.items():
        words += [f"--{flag}", f"{value!r}"]
    words += ["--delta", f"{goal.delta!r}", "--target-epsilon", f"{goal.target_epsilon!r}"]
    words += ["--set", f"privacy.target_unit={goal.unit}"]
    for name in _BOUNDS:
        if getattr(args, name) is not None:
            words += ["--set", f"privacy.{name}={getattr(args, name)}"]
    if not args.public:
        words += ["--set", "privacy.settings_from_corpus=true"]
    if args.split != "train":
        words += ["--set", f"corpus.train_split={args.split}"]
    return shlex.join(words)


def _text(report: dict[str, Any]) -> str:
    worse = report["user_sampling_worse_by"]
    lines = [
        f"{report['corpus']}: ε ≤ {report['target_epsilon']:g} for {report['target_unit']} at δ = "
        f"{format_delta(report['delta'])}, about {report['sentences_per_round']:,g} sentences a round, "
        f"at most {report['rounds']} rounds",
        "",
        *_tables(report),
    ]
    if report["user_sampling"]:
        less = nonzero(worse, ".2f")
        lines += ["", f"Sampling users instead of sentences learns {less} times less at the same ε and compute."]
    else:
        lines += ["", "Sampling users instead of sentences cannot meet the target."]
    lines += [f"Run it: {report['command']}", "", report["note"]]
    return "\n".join(lines)


def _tables(report: dict[str, Any]) -> list[str]:
    """Return the settings of each proposal, and under them their ε, as two tables of at most 80 columns."""
    named = [
        ("proposed", report["proposal"]),
        *((f"alternative {number}", row) for number, row in enumerate(report["alternatives"], start=1)),
        *(("other rounds", row) for row in report["fewer_rounds"]),
        *([("user sampling", report["user_sampling"])] if report["user_sampling"] else []),
    ]
    settings = [["settings", "SNR", "q_u", "q_s", "q_e", "ŵ", "z", "T", "sentences"]]
    epsilons = [["their ε", "ε", "ε user", "ε p95", "robust", "ε max", "robust"]]
    for label, row in named:
        settings.append([label, *_settings_row(row)])
        epsilons.append([label, *_epsilon_row(row)])
    return [*aligned(settings), "", *aligned(epsilons)]


def _settings_row(row: dict[str, Any]) -> list[str]:
    return [
        nonzero(row["signal_to_noise"], ".1f" if row["signal_to_noise"] < _WHOLE_FROM else ".0f"),
        *(round_down(row[name], 3) for name in ("q_u", "q_s", "q_e")),
        f"{row['user_cap']:g}",
        round_up(row["noise_multiplier"], 4),
        str(row["rounds"]),
        nonzero(row["expected_sentences"], ",.0f"),
    ]


def _epsilon_row(row: dict[str, Any]) -> list[str]:
    of_entities = [f"epsilon_user_entity_{kind}{name}" for name in _CONTRIBUTION_QUANTILES for kind in ("", "robust_")]
    return [format_epsilon(row[name]) for name in ("epsilon_target", "epsilon_user", *of_entities)]
