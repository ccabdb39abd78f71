"""Attack finished runs: what their models give away of users and sentences, beside what ε allows any attack.

Exit code 1 means that an attack reached more than a run's ledger allows (docs/audit.md).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

EXIT_BEYOND = 1

_OPTIONS = (
    "seed", "max_users", "sentences_per_user", "secrets", "entities", "candidates", "entity",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``fl-sim leak``."""
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="a run folder with a model")
    parser.add_argument(
        "--attacks",
        nargs="+",
        metavar="NAME",
        help="users, canaries, entities (default: all that make sense for a run)",
    )
    parser.add_argument("--seed", type=int, metavar="S", help="of the attacked units and intervals (default 0)")
    parser.add_argument("--max-users", type=int, metavar="N", help="attack at most N users of each side (default 500)")
    parser.add_argument(
        "--sentences-per-user",
        type=int,
        metavar="N",
        help="read at most N sentences of a user, or of the named entity (default 20)",
    )
    parser.add_argument(
        "--secrets", type=int, metavar="N", help="rank each canary among N secrets of its distribution (default 1000)"
    )
    parser.add_argument("--entities", type=int, metavar="N", help="attack at most N names (default 200)")
    parser.add_argument("--candidates", type=int, metavar="N", help="rank each name among N of its kind (default 50)")
    parser.add_argument("--entity", metavar="NAME", help="attack this name alone, in all its mentions")
    parser.add_argument(
        "--reference", action="append", default=[], metavar="RUN",
        help="a run that never saw the attacked users, or the named entity, whose model is the reference; may be given "
        "several times (default: the model with which the attacked run began)",
    )  # fmt: skip
    parser.add_argument(
        "--raw", metavar="CORPUS", help="attack with this text: the corpus from which the run's was de-identified"
    )
    parser.add_argument(
        "--show-names",
        action="store_true",
        help="name entities and users; such output is private",
    )
    parser.add_argument("--html", metavar="FILE", type=Path, help="also write a page with pictures, one file")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def run(args: argparse.Namespace) -> int:
    """Attack the runs and print the result; return 1 if an attack is beyond or above its bound, else 0."""
    from fl_sim.api.leakage import leak
    from fl_sim.api.runs import open_run
    from fl_sim.cli.progress_bar import counting
    from fl_sim.cli.written_files import check_writable
    from fl_sim.files import owner_only
    from fl_sim.reporting.leak_words import leak_text
    from fl_sim.storage.run_folder import encode, replace_file

    check_writable("html", args.html)
    for path in args.runs:
        open_run(path)  # a folder that is none is told before libraries are imported for seconds
    options = {name: getattr(args, name) for name in _OPTIONS if getattr(args, name) is not None}
    found = leak(
        args.runs,
        attacks=args.attacks,
        raw=args.raw,
        progress=lambda words: counting(words, args.quiet),
        references=tuple(args.reference),
        show_names=args.show_names,
        **options,
    )
    print(json.dumps(encode(found.record()), ensure_ascii=False) if args.json else leak_text(found.record()))
    if args.html is not None:
        with owner_only():
            replace_file(args.html, found.page().encode())
    for state, words in _FAILS.items():
        for attack in found.in_state(state):
            print(f"fl-sim leak: {attack} is {words} (docs/audit.md).", file=sys.stderr)
    return 0 if found.holds else EXIT_BEYOND


_FAILS = {
    "beyond": "BEYOND ITS BOUND: what the ledger proves is not so. Either the run was not what its ledger says, or "
    "members and held-out users differ in more than training",
    "above": "ABOVE ITS BOUND at the lower end of its interval: what the ledger proves is not so, if the scores of one "
    "model are independent of each other. Train again with another seed, and attack that run",
}
