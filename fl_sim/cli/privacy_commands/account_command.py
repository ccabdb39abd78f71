"""Say what ε a training costs, or has cost by its ledger; for the published algorithm also as its paper has it."""

from __future__ import annotations

import argparse
import json
import math
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from fl_sim.cli.mechanism_flags import add_adjacency, add_mechanism, add_published

if TYPE_CHECKING:
    from fl_sim.strategies.accounting.accountant import RoundEvent, Unknown
    from fl_sim.strategies.accounting.adjacency import Adjacency

NAME = "account"
HELP = "compute ε, or the setting that meets a target ε"

Report = dict[str, Any]

_COMMON = {"rounds", "delta", "z", "reach_users", "reach_sentences", "users"}
_SOLVING = {"target_epsilon", "target_unit", "solve_for", "q_u", "user_sentences", "reach_total"}
_ALLOWED = {
    "published": _COMMON | {"estimator", "users_per_round", "q_e", "sentences", "sensitive_sentences"},
    "uedp": _COMMON | _SOLVING | {"q_e", "q_s", "user_cap", "clipping"},
    "user_level": _COMMON | _SOLVING,
}
_OF_LEDGER = {"joined_at", "delta", "user_sentences", "reach_users", "reach_sentences", "reach_total"}
_FLAGS = sorted(set.union(_OF_LEDGER, *_ALLOWED.values()))
_SOLVED_FLAGS = {
    "noise_multiplier": "z",
    "rounds": "rounds",
    "q_u": "q_u",
    "q_s": "q_s",
    "user_cap": "user_cap",
}
_PLACEHOLDER = 1.0  # stands for the value that is being solved for
_LEAST_NOISE = 1e-3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of ``fl-sim account``."""
    parser.add_argument("--strategy", choices=sorted(_ALLOWED), help="what trains (or give --ledger)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    add_mechanism(parser)
    add_adjacency(parser).add_argument(
        "--reach-total", type=int, metavar="N", help="sentences altogether that mention it"
    )
    _add_target(parser)
    add_published(parser)
    _add_ledger(parser)


def _add_target(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("meeting a target")
    group.add_argument("--target-epsilon", type=float, metavar="E", help="find the setting that meets this ε")
    group.add_argument(
        "--target-unit",
        choices=("user", "user_entity", "user_entity_robust", "both"),
        help="whose ε the target bounds (default both: user, and user with entity)",
    )
    group.add_argument(
        "--solve-for", choices=sorted(_SOLVED_FLAGS), help="the setting to find (default noise_multiplier)"
    )


def _add_ledger(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what was released")
    group.add_argument("--ledger", nargs="+", metavar="DIR", help="run folders, of one corpus: ε of them all together")
    group.add_argument("--joined-at", type=int, metavar="ROUND", help="for a user and entity that joined in this round")


def run(args: argparse.Namespace) -> int:
    """Print the accounts of one mechanism, or of what ran; exit code 0."""
    _refuse_foreign_flags(args)
    of = _of_ledger if args.ledger else _published if args.strategy == "published" else _ours
    report = of(args)
    _warn(args, report)
    if args.json:
        print(json.dumps(_finite(report), ensure_ascii=False, allow_nan=False))
    else:
        sys.stdout.write(_text(report))
    return 0


def _of_ledger(args: argparse.Namespace) -> Report:
    from fl_sim.experiments.ledger_account import account_for, read_ledgers

    user, both = _adjacencies(args, default_users=1)
    ledgers = read_ledgers(args.ledger)
    report: Report = {"ledger": [str(ledger.folder) for ledger in ledgers]}
    if args.joined_at is not None:
        report["joined_at"] = args.joined_at
    return report | _protected(both) | account_for(ledgers, user, both, _required(args, "delta"), args.joined_at)


def _ours(args: argparse.Namespace) -> Report:
    from fl_sim.strategies.accounting.accountant import RoundEvent

    solved = _SOLVED_FLAGS[args.solve_for or "noise_multiplier"] if args.target_epsilon is not None else None
    if solved is None and (args.solve_for or args.target_unit):
        _refuse("solve-for" if args.solve_for else "target-unit", "given without --target-epsilon", "both or none")
    z = _PLACEHOLDER if solved == "z" else _required(args, "z")
    if 0 < z < _LEAST_NOISE:  # ε of hundreds of thousands, for which no grid is fine enough
        _refuse("z", f"{z:g}", f"at least {_LEAST_NOISE:g}, as in a run")
    event = RoundEvent(
        strategy=args.strategy,
        noise_multiplier=z,
        q_u=_or(args.q_u, 1.0),
        q_e=_or(args.q_e, 1.0),
        q_s=_or(args.q_s, 1.0),
        user_cap=_or(args.user_cap, 1.0),
        clipping=args.clipping or "sentence",
    )
    rounds = 1 if solved == "rounds" else _required(args, "rounds")
    if solved is not None:
        event, rounds = _solve(args, event, rounds)
    user, both = _adjacencies(args, default_users=1)
    delta = _required(args, "delta")
    report: Report = {"strategy": args.strategy} | _settings(event) | {"rounds": rounds, "delta": delta}
    report |= _protected(both)
    report |= _stated("epsilon_user", event, user, rounds, delta)
    report |= _stated("epsilon_user_entity", event, both, rounds, delta)
    report |= _stated("epsilon_user_entity_robust", event.robust(), both, rounds, delta)
    return report | _second_opinion(event, user, rounds, delta)


def _solve(args: argparse.Namespace, event: RoundEvent, rounds: int) -> tuple[RoundEvent, int]:
    """The event and the rounds with the one setting that was asked for filled in."""
    from dataclasses import replace

    from fl_sim.strategies.accounting.accountant import solve

    unknown: Unknown = args.solve_for or "noise_multiplier"
    user, both = _adjacencies(args, default_users=1)
    unit = args.target_unit or "both"
    adjacencies = {"user": [user], "both": [user, both]}.get(unit, [both])
    judged = event.robust() if unit == "user_entity_robust" else event
    value = solve(unknown, judged, adjacencies, rounds, _required(args, "delta"), args.target_epsilon)
    if unknown == "rounds":
        return event, int(value)
    changes: dict[str, Any] = {unknown: value}
    return replace(event, **changes), rounds


def _published(args: argparse.Namespace) -> Report:
    from fl_sim.strategies import published

    estimator = _required(args, "estimator")
    of_text = (
        {}
        if estimator == "user_level"
        else {
            "q_e": _required(args, "q_e"),
            "sentences": _required(args, "sentences"),
            "sensitive_sentences": _required(args, "sensitive_sentences"),
        }
    )
    settings = published.PublishedSettings(
        estimator=estimator,
        users=_required(args, "users"),
        users_per_round=_required(args, "users_per_round"),
        noise_multiplier=_required(args, "z"),
        **of_text,
    )
    rounds, delta = _required(args, "rounds"), _required(args, "delta")
    event = published.proven_event(settings)
    user, both = _adjacencies(args, default_users=settings.users)
    report: Report = {"strategy": "published", "estimator": estimator, "rounds": rounds, "delta": delta}
    report |= {"q_u": settings.q_u, "claimed_rate": settings.claimed_rate}
    report |= {"noise_multiplier": settings.noise_multiplier, "noise_per_user_clip": event.noise_multiplier}
    report |= _protected(both)
    report["epsilon_as_published"] = published.epsilon_as_published(settings, rounds, delta)
    report |= _stated("epsilon_user", event, user, rounds, delta)
    return report | _stated("epsilon_user_entity", event, both, rounds, delta)


def _adjacencies(args: argparse.Namespace, default_users: int) -> tuple[Adjacency, Adjacency]:
    """The user alone, and the user with the entity at the stated reach."""
    from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound

    entity_bound = ContributionBound(
        _or(args.reach_users, default_users), _or(args.reach_sentences, 1), args.reach_total
    )
    sentences = _or(args.user_sentences, math.inf)
    return Adjacency(sentences), Adjacency(sentences, entity_bound)


def _stated(name: str, event: RoundEvent, adjacency: Adjacency, rounds: int, delta: float) -> Report:
    """ε under ``name``, and beside it the δ that is proven at this ε."""
    from fl_sim.strategies.accounting import accountant

    epsilon = accountant.epsilon(event, adjacency, rounds, delta)
    at = accountant.delta(event, adjacency, rounds, epsilon) if math.isfinite(epsilon) else 1.0
    return {name: epsilon, name.replace("epsilon", "delta", 1): at}


def _second_opinion(event: RoundEvent, user: Adjacency, rounds: int, delta: float) -> Report:
    from fl_sim.strategies.accounting import rdp

    return {"epsilon_user_rdp": float(rdp.epsilon_curve(event, user, [rounds], delta)[0])}


def _settings(event: RoundEvent) -> Report:
    names = ("noise_multiplier", "q_u", "q_e", "q_s", "user_cap")
    return {name: getattr(event, name) for name in names} | {
        "clipping": "sentence" if event.clips_sentences else "user"
    }


def _protected(adjacency: Adjacency) -> Report:
    return {
        "user_sentences": adjacency.user_sentences,
        "reach_users": adjacency.entity_bound.users,
        "reach_sentences": adjacency.entity_bound.sentences_per_user,
        "reach_total": adjacency.entity_bound.total,
    }


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _required(args: argparse.Namespace, name: str) -> Any:
    value = getattr(args, name)
    if value is None:
        _refuse(name.replace("_", "-"), "missing", f"a value is needed with {_source(args)}")
    return value


def _refuse(flag: str, value: str, allowed: str) -> NoReturn:
    from fl_sim.strategies.accounting.adjacency import PrivacyError

    raise PrivacyError(f"--{flag} is {value}; allowed: {allowed}")


def _refuse_foreign_flags(args: argparse.Namespace) -> None:
    """A flag that would be ignored is a misunderstanding about the guarantee, so it is an error."""
    if bool(args.strategy) == bool(args.ledger):
        _refuse("strategy", "given with --ledger" if args.ledger else "missing", "one of --strategy and --ledger")
    allowed = _OF_LEDGER if args.ledger else _ALLOWED[args.strategy]
    for name in _FLAGS:
        if getattr(args, name) is not None and name not in allowed:
            flags = ", ".join("--" + flag.replace("_", "-") for flag in sorted(allowed))
            _refuse(name.replace("_", "-"), f"given with {_source(args)}", flags)


def _source(args: argparse.Namespace) -> str:
    return "--ledger" if args.ledger else f"--strategy {args.strategy}"


def _warn(args: argparse.Namespace, report: Report) -> None:
    if args.users and report["delta"] >= 1 / args.users:
        print(
            f"warning: delta {report['delta']:g} is not below 1/users = {1 / args.users:.3g}: "
            "giving away one user's data outright would meet it",
            file=sys.stderr,
        )
    if report.get("noiseless_releases"):
        print(f"warning: {report['noiseless_releases']} releases had no noise: nothing is promised", file=sys.stderr)
        return
    unproven = [name for name, value in report.items() if name.startswith("epsilon") and value == math.inf]
    if unproven:
        print(
            f"warning: nothing can be proven at delta {report['delta']:g}: {', '.join(unproven)}",
            file=sys.stderr,
        )


def _finite(report: Report) -> Report:
    """JSON knows no infinity: it becomes the word ``inf``."""
    return {name: "inf" if value == math.inf else value for name, value in report.items()}


def _text(report: Report) -> str:
    lines = [f"{name:<27}{_shown(value)}" for name, value in report.items()]
    if report.get("strategy") == "published":
        lines.append("epsilon_as_published is the paper's claim, not a guarantee: see docs/privacy.md.")
    return "\n".join(lines) + "\n"


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)
