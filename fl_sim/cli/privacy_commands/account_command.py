"""Compute ε of a training or of recorded releases; for the published algorithm, print its paper's claim, too."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from fl_sim.cli.mechanism_flags import add_adjacency, add_mechanism, add_published

if TYPE_CHECKING:
    from fl_sim.api.accounts import Unit
    from fl_sim.strategies.accounting.accountant import Unknown

Report = dict[str, Any]

_DELTA = 1e-5  # that of a run, too
_COMMON = {"rounds", "delta", "z", "reach_users", "reach_sentences", "users"}
_SOLVING = {"target_epsilon", "target_unit", "solve_for", "q_u", "user_sentences", "reach_total"}
_OF_LEDGER = {"joined_at", "delta", "users", "user_sentences", "reach_users", "reach_sentences", "reach_total"}
_SOLVED_FLAGS = {
    "noise_multiplier": "z",
    "rounds": "rounds",
    "q_u": "q_u",
    "q_s": "q_s",
    "user_cap": "user_cap",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``fl-sim account``."""
    parser.add_argument("--strategy", choices=sorted(_MECHANISMS), help="the mechanism that trains (or give --ledger)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    add_mechanism(parser)
    add_adjacency(parser).add_argument(
        "--reach-total", type=int, metavar="N", help="the most sentences of all users together that mention it"
    )
    parser.add_argument(
        "--epoch-rounds",
        type=int,
        metavar="T",
        help="random allocation: each user takes part in one of every T rounds, chosen uniformly (sets q_u to 1/T)",
    )
    _add_target(parser)
    add_published(parser)
    _add_ledger(parser)


def _add_target(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("meeting a target")
    group.add_argument("--target-epsilon", type=float, metavar="E", help="compute the setting that meets this ε")
    group.add_argument(
        "--target-unit",
        choices=("user", "user_entity", "user_entity_robust", "both"),
        help="the protected unit of the target (default both: user, and user with entity)",
    )
    group.add_argument(
        "--solve-for", choices=sorted(_SOLVED_FLAGS), help="the setting to compute (default noise_multiplier)"
    )


def _add_ledger(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("recorded releases")
    group.add_argument(
        "--ledger", nargs="+", metavar="DIR", help="run folders of one corpus: ε of all their releases together"
    )
    group.add_argument(
        "--joined-at",
        type=int,
        metavar="ROUND",
        help="compute ε of a user and an entity that joined in this round: no sentence before it was the user's or "
        "mentioned the entity, detected or not; the robust ε does not rely on detection and counts all releases",
    )


def run(args: argparse.Namespace) -> int:
    """Print the account of one mechanism or of recorded releases; return the exit code 0."""
    _refuse_foreign_flags(args)
    of = _of_ledger if args.ledger else _MECHANISMS[args.strategy].report
    report = of(args)
    if args.users is not None:
        report["delta_times_users"] = report["delta"] * args.users
    _warn(args, report)
    if args.json:
        print(json.dumps(_finite(report), ensure_ascii=False, allow_nan=False))
    else:
        sys.stdout.write(_text(report))
    return 0


def _of_ledger(args: argparse.Namespace) -> Report:
    from fl_sim.api.accounts import account_runs

    delta = _delta(args)
    return account_runs(args.ledger, delta=delta, joined_at=args.joined_at, **_protected(args, default_users=1))


def _ours(args: argparse.Namespace) -> Report:
    from fl_sim.api.accounts import LEAST_NOISE, account, calibrate

    solved = _SOLVED_FLAGS[args.solve_for or "noise_multiplier"] if args.target_epsilon is not None else None
    if solved is None and (args.solve_for or args.target_unit):
        _refuse("solve-for" if args.solve_for else "target-unit", "given without --target-epsilon", "both or none")
    given = {name: _or(getattr(args, name), 1.0) for name in ("q_u", "q_e", "q_s", "user_cap")}
    settings = given | {"noise_multiplier": None if solved == "z" else _required(args, "z")}
    if settings["noise_multiplier"] is not None and 0 < settings["noise_multiplier"] < LEAST_NOISE:
        _refuse("z", f"{args.z:g}", f"at least {LEAST_NOISE:g}, as in a run")
    settings |= {"rounds": None if solved == "rounds" else _required(args, "rounds")}
    settings |= {"delta": _delta(args), "clipping": args.clipping or "sentence"}
    settings |= _protected(args, default_users=1) | _epochs(args)
    if solved is not None:
        unknown: Unknown = args.solve_for or "noise_multiplier"
        unit: Unit = args.target_unit or "both"
        value = calibrate(args.target_epsilon, args.strategy, solve_for=unknown, unit=unit, **settings)
        settings[unknown] = int(value) if unknown == "rounds" else value
    return account(args.strategy, **settings)


def _epochs(args: argparse.Namespace) -> dict[str, Any]:
    """Return the API's argument for random allocation; refuse a user sampling rate that contradicts it."""
    from fl_sim.strategies.accounting.random_allocation import check_epoch

    if args.epoch_rounds is not None and args.q_u is not None:
        check_epoch(args.epoch_rounds, args.q_u, args.strategy)
    return {"epoch_rounds": args.epoch_rounds}


def _published(args: argparse.Namespace) -> Report:
    from fl_sim.api.accounts import account_published
    from fl_sim.strategies.accounting.paper_model import PublishedSettings

    estimator = _required(args, "estimator")
    of_text = ("q_e", "sentences", "sensitive_sentences") if estimator in ("f_e", "f_e_plus") else ()
    settings = PublishedSettings(
        estimator=estimator,
        users=_required(args, "users"),
        users_per_round=_required(args, "users_per_round"),
        noise_multiplier=_required(args, "z"),
        **{name: _required(args, name) for name in of_text},
    )
    rounds, delta = _required(args, "rounds"), _delta(args)
    protected = _protected(args, default_users=settings.users)
    return account_published(settings, rounds=rounds, delta=delta, **protected)


def _protected(args: argparse.Namespace, default_users: int) -> dict[str, Any]:
    """Return the API's arguments for the protected user and entity."""
    entity = _or(args.reach_users, default_users), _or(args.reach_sentences, 1), args.reach_total
    return {"user_sentences": _or(args.user_sentences, math.inf), "entity": entity}


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _required(args: argparse.Namespace, name: str) -> Any:
    value = getattr(args, name)
    if value is None:
        _refuse(name.replace("_", "-"), "missing", f"a value is needed with {_source(args)}")
    return value


def _delta(args: argparse.Namespace) -> float:
    """Return δ as it was given; else that of the runs if they share one, else 1e-5, and say so on standard error."""
    if args.delta is not None:
        return float(args.delta)
    of_runs = {_delta_of(folder) for folder in args.ledger or ()}
    (shared,) = of_runs if len(of_runs) == 1 else (None,)
    delta, source = (_DELTA, "the default") if shared is None else (shared, "that of the run")
    print(f"note: δ is {delta:g}, {source}; --delta states ε at another", file=sys.stderr)
    return delta


def _delta_of(folder: str) -> float | None:
    """Return δ of a run's configuration; None where there is a ledger alone."""
    from fl_sim.storage.run_folder import RunFolder

    try:
        return RunFolder.open(folder).setting("delta")
    except (ValueError, OSError):  # whatever is wrong with the folder, the ledger decides
        return None


def _refuse(flag: str, value: str, allowed: str) -> NoReturn:
    from fl_sim.strategies.accounting.adjacency import PrivacyError

    raise PrivacyError(f"--{flag} is {value}; allowed: {allowed}")


def _refuse_foreign_flags(args: argparse.Namespace) -> None:
    """Refuse flags that would be ignored, because their user misunderstands the guarantee."""
    if bool(args.strategy) == bool(args.ledger):
        _refuse("strategy", "given with --ledger" if args.ledger else "missing", "one of --strategy and --ledger")
    allowed = _OF_LEDGER if args.ledger else _MECHANISMS[args.strategy].flags
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
            "a mechanism that publishes one user's data would satisfy it",
            file=sys.stderr,
        )
    if report.get("forks"):
        print(
            f"note: {report['forks']} copies of a run went on separately; their common releases count once",
            file=sys.stderr,
        )
    if report.get("noiseless_releases"):
        print(f"warning: {report['noiseless_releases']} releases have no guarantee: ε is infinite", file=sys.stderr)
        return
    unproven = [name for name, value in report.items() if name.startswith("epsilon") and value == math.inf]
    if unproven:
        print(
            f"warning: no finite ε can be proven at delta {report['delta']:g}: {', '.join(unproven)}",
            file=sys.stderr,
        )


def _finite(report: Report) -> Report:
    """Return the report with the text "inf" for infinite values, which JSON does not have."""
    return {name: "inf" if value == math.inf else value for name, value in report.items()}


def _text(report: Report) -> str:
    from fl_sim.formats import format_figure

    lines = [f"{name:<27}{format_figure(name, value)}" for name, value in report.items()]
    if "delta_times_users" in report:
        lines.append(
            "delta_times_users: how many users' data a mechanism of the same δ might publish outright, on average."
        )
    if "epsilon_as_published" in report:
        lines.append("epsilon_as_published is the paper's claim, not a guarantee: see docs/privacy-proofs.md.")
    return "\n".join(lines) + "\n"


class _Account(NamedTuple):
    """The function that makes the account of one kind of mechanism, and the flags that it reads."""

    report: Callable[[argparse.Namespace], Report]
    flags: set[str]


_MECHANISMS = {
    "published": _Account(
        _published, _COMMON | {"estimator", "users_per_round", "q_e", "sentences", "sensitive_sentences"}
    ),
    "uedp": _Account(_ours, _COMMON | _SOLVING | {"q_e", "q_s", "user_cap", "clipping"}),
    "user_level": _Account(_ours, _COMMON | _SOLVING | {"epoch_rounds"}),
}
_FLAGS = sorted(set.union(_OF_LEDGER, *(mechanism.flags for mechanism in _MECHANISMS.values())))
