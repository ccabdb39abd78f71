"""Attack a mechanism and print a lower bound on ε, beside the claimed and the proven ε.

Exit code 1 means that the attack refuted an ε that our accountant proves (docs/audit.md).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from fl_sim.cli.mechanism_flags import add_adjacency, add_mechanism, add_published

if TYPE_CHECKING:
    from fl_sim.auditing.cases import Finding

EXIT_REFUTED = 1

_OWN = ("uedp", "user_level")
_MECHANISM = {"z", "rounds", "delta", "q_e", "reach_users", "trials"}
_PUBLISHED = _MECHANISM | {"estimator", "users", "users_per_round", "sentences", "sensitive_sentences", "entities"}
_OURS = _MECHANISM | {"reach_sentences", "user_sentences", "mutation", "companions", "q_u"}
_ALLOWED: dict[str, set[str]] = {
    "uedp": _OURS | {"q_s", "user_cap", "clipping"},
    "user_level": _OURS,
    "published": _PUBLISHED,
    "published-as-coded": _PUBLISHED,
    "table": {"trials"},
    "canaries": {"rounds", "z", "delta"},
    "random_canaries": {"rounds", "z", "delta", "mutation", "case"},
    "sensitivity": {"mutation"},
    "ledger": set(),
}
_MODES = ("table", "canaries", "random_canaries", "sensitivity", "ledger")
_FLAGS = sorted(set.union(*_ALLOWED.values()))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``fl-sim audit``.

    Those of the mechanism are as in ``fl-sim account``, with T = 1 and δ = 1e-5 by default.
    """
    parser.add_argument(
        "--strategy", choices=(*_OWN, "published", "published-as-coded"), help="the mechanism that trains"
    )
    parser.add_argument(
        "--table", action="store_true", help="audit every mechanism with an entity that 1, 15 or all users mention"
    )
    parser.add_argument("--markdown", action="store_true", help="with --table: print it in Markdown, for a document")
    parser.add_argument("--canaries", type=int, metavar="M", help="plant M canary users in one real training")
    parser.add_argument(
        "--random-canaries", type=int, metavar="M", help="train real models with M units of random gradients"
    )
    parser.add_argument("--case", nargs="+", metavar="NAME", help="with --random-canaries: these cases (default: all)")
    parser.add_argument(
        "--sensitivity", action="store_true", help="compare real rounds on adjacent corpora with their bound"
    )
    parser.add_argument("--ledger", nargs="+", metavar="DIR", help="check the ledgers of these run folders")
    parser.add_argument("--trials", type=int, metavar="N", help="trainings per corpus (default 20000)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="root seed (default 0)")
    parser.add_argument(
        "--confidence", type=float, default=0.95, metavar="P", help="joint confidence of all bounds (default 0.95)"
    )
    parser.add_argument("--pin-noise", action="store_true", help="also bound the true noise of our mechanisms (slower)")
    parser.add_argument("--mutation", metavar="NAME", help="break the mechanism on purpose (see docs/audit.md)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    add_mechanism(parser)
    add_adjacency(parser).add_argument(
        "--companions", type=int, metavar="K", help="other entities in each of these sentences (default 0)"
    )
    add_published(parser).add_argument(
        "--entities", type=int, metavar="E", help="number of entities (as coded: sets the noise)"
    )


def run(args: argparse.Namespace) -> int:
    """Print the bounds of the audit; return the exit code 0, or 1 if a proven ε was refuted."""
    _check(args)
    if args.table:
        return _table(args)
    if args.canaries is not None:
        return _canaries(args)
    if args.random_canaries is not None:
        return _random_canaries(args)
    if args.sensitivity:
        return _sensitivity(args)
    if args.ledger:
        return _ledger(args)
    findings = _own(args) if args.strategy in _OWN else _published(args)
    settings = {"strategy": args.strategy, "mutation": args.mutation, "seed": args.seed}
    if args.json:
        print(json.dumps(settings | {"audits": [finding.record() for finding in findings]}, allow_nan=False))
    else:
        sys.stdout.write("".join(map(_text, findings)))
    return 0 if all(finding.holds for finding in findings) else EXIT_REFUTED


def _own(args: argparse.Namespace) -> list[Finding]:
    from fl_sim.api.audits import audit

    return audit(
        args.strategy,
        noise_multiplier=_required(args, "z"),
        q_u=_or(args.q_u, 1.0),
        q_e=_or(args.q_e, 1.0),
        q_s=_or(args.q_s, 1.0),
        user_cap=_or(args.user_cap, 1.0),
        clipping=args.clipping or "sentence",
        user_sentences=_or(args.user_sentences, math.inf),
        entity=(_or(args.reach_users, 1), _or(args.reach_sentences, 1)),
        companions=_or(args.companions, 0),
        mutation=args.mutation,
        **_attack(args),
    )


def _published(args: argparse.Namespace) -> list[Finding]:
    from fl_sim.api.audits import audit_published
    from fl_sim.strategies.accounting.paper_model import PublishedSettings

    as_coded = args.strategy == "published-as-coded"
    settings = PublishedSettings(
        estimator=_required(args, "estimator"),
        users=_required(args, "users"),
        users_per_round=_required(args, "users_per_round"),
        noise_multiplier=_required(args, "z"),
        q_e=_or(args.q_e, 1.0),
        sentences=_or(args.sentences, 1),
        sensitive_sentences=_or(args.sensitive_sentences, 1),
    )
    return audit_published(
        settings,
        entities=_required(args, "entities") if as_coded else args.entities,
        entity_users=args.reach_users,
        as_coded=as_coded,
        **_attack(args),
    )


def _attack(args: argparse.Namespace) -> dict[str, Any]:
    """Return the API's arguments that all attacks share."""
    return {
        "rounds": _or(args.rounds, 1),
        "delta": _or(args.delta, 1e-5),
        "trials": _trials(args),
        "seed": args.seed,
        "confidence": args.confidence,
        "pin_noise": args.pin_noise,
        "progress": _progress,
    }


def _table(args: argparse.Namespace) -> int:
    from fl_sim.auditing.cases import audit_table, markdown, text

    table = audit_table(
        trials=_trials(args),
        seed=args.seed,
        confidence=args.confidence,
        pin_noise=args.pin_noise,
        progress=lambda name: print(name, file=sys.stderr),
    )
    shown = markdown(table) if args.markdown else text(table)
    sys.stdout.write(json.dumps(table.record(), allow_nan=False) + "\n" if args.json else shown)
    return 0 if table.holds else EXIT_REFUTED


def _canaries(args: argparse.Namespace) -> int:
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from fl_sim.auditing.one_run_audit import audit_training

    wanted = {"rounds": args.rounds, "privacy.noise_multiplier": args.z, "privacy.delta": args.delta}
    overrides = {key: value for key, value in wanted.items() if value is not None}
    with TemporaryDirectory() as work:
        result = audit_training(
            Path(work), canaries=args.canaries, seed=args.seed, confidence=args.confidence, overrides=overrides
        )
    record = result.record()
    sys.stdout.write(json.dumps(record, allow_nan=False) + "\n" if args.json else _lines(record))
    return 0 if record["holds"] else EXIT_REFUTED


def _random_canaries(args: argparse.Namespace) -> int:
    from fl_sim.api.audits import audit_real_rounds
    from fl_sim.auditing.real_rounds.canary_cases import markdown

    audits = audit_real_rounds(
        args.case or (),
        canaries=args.random_canaries,
        rounds=_or(args.rounds, 30),
        delta=_or(args.delta, 1e-5),
        noise_multiplier=args.z,
        mutation=args.mutation,
        seed=args.seed,
        confidence=args.confidence,
        progress=_progress,
    )
    report = {"mutation": args.mutation, "seed": args.seed, "audits": [audit.record() for audit in audits]}
    sys.stdout.write(json.dumps(report, allow_nan=False) + "\n" if args.json else markdown(audits))
    return 0 if all(audit.holds for audit in audits) else EXIT_REFUTED


def _sensitivity(args: argparse.Namespace) -> int:
    from fl_sim.api.audits import audit_sensitivity

    differences = audit_sensitivity(mutation=args.mutation, seed=args.seed, progress=_progress)
    records = [difference.record() for difference in differences]
    if args.json:
        print(json.dumps({"mutation": args.mutation, "seed": args.seed, "rounds": records}, allow_nan=False))
    else:
        for found in differences:
            verdict = "holds" if found.holds else "REFUTED"
            print(f"{found.name:<34}{found.length:<12.6g}of {found.bound:<12.6g}{verdict}")
    return 0 if all(difference.holds for difference in differences) else EXIT_REFUTED


def _ledger(args: argparse.Namespace) -> int:
    from fl_sim.api.audits import audit_ledgers

    audits = audit_ledgers(args.ledger, seed=args.seed, progress=_progress)
    if args.json:
        print(json.dumps({"seed": args.seed, "ledgers": [audit.record() for audit in audits]}, allow_nan=False))
    else:
        for audit in audits:
            print(audit.folder)
            for check in audit.checks:
                print(f"  {check.name:<34}{'holds' if check.holds else 'REFUTED':<9}{check.detail}")
    return 0 if all(audit.holds for audit in audits) else EXIT_REFUTED


def _progress(name: str) -> None:
    print(f"auditing {name}", file=sys.stderr)


def _text(finding: Finding) -> str:
    return _lines(finding.record()) + "\n"


def _lines(record: dict[str, Any]) -> str:
    from fl_sim.formats import format_figure

    return "".join(f"{name:<24}{format_figure(name, value)}\n" for name, value in record.items() if value is not None)


def _trials(args: argparse.Namespace) -> int:
    return int(_or(args.trials, 20_000))


def _check(args: argparse.Namespace) -> None:
    """Refuse flags that would be ignored, because their user misunderstands the audit."""
    modes = [mode for mode in _MODES if getattr(args, mode) not in (None, False)]
    modes += [args.strategy] if args.strategy else []
    if len(modes) != 1:
        _refuse("strategy", f"one of {len(modes)} modes", f"exactly one of --strategy, {_listed(_MODES)}")
    if args.markdown and not args.table:
        _refuse("markdown", "given without --table", "with it")
    allowed = _ALLOWED[modes[0]]
    for name in _FLAGS:
        if getattr(args, name) is not None and name not in allowed:
            flags = ", ".join("--" + flag.replace("_", "-") for flag in sorted(allowed))
            _refuse(name.replace("_", "-"), f"given with {modes[0]}", flags)


def _listed(modes: tuple[str, ...]) -> str:
    *others, last = (f"--{mode.replace('_', '-')}" for mode in modes)
    return f"{', '.join(others)} and {last}"


def _required(args: argparse.Namespace, name: str) -> Any:
    value = getattr(args, name)
    if value is None:
        _refuse(name.replace("_", "-"), "missing", f"a value is needed with --strategy {args.strategy}")
    return value


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _refuse(flag: str, value: str, allowed: str) -> NoReturn:
    from fl_sim.strategies.accounting.adjacency import PrivacyError

    raise PrivacyError(f"--{flag} is {value}; allowed: {allowed}")
