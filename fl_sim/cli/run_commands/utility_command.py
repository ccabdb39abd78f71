"""Show for whom a run's model works: by user, on entities, and beside models trained on a user's own text."""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``fl-sim utility``."""
    parser.add_argument("run", metavar="DIR", type=Path, help="a run folder")
    parser.add_argument(
        "--personal", action="store_true",
        help="train models on single held-out users, and keep their figures in DIR/personal.json",
    )  # fmt: skip
    parser.add_argument("--users", type=int, metavar="N", help="with --personal: at most so many users (default 20)")
    parser.add_argument("--steps", type=int, metavar="N", help="with --personal: steps of Adam per model (default 20)")
    parser.add_argument(
        "--learning-rate", type=float, metavar="R",
        help="with --personal: of Adam (default 3e-4 where all parameters train, else 1e-3)",
    )  # fmt: skip
    parser.add_argument("--rank", type=int, metavar="R", help="with --personal: of a user's adapters (default 4)")
    parser.add_argument(
        "--most-sentences", type=int, metavar="N", help="with --personal: at most so many of a user (default 64)"
    )
    parser.add_argument("--seed", type=int, metavar="S", help="with --personal: of users and steps (default 0)")
    parser.add_argument("--plot", metavar="FILE.png", type=Path, help="draw the figures (.png, .pdf, .svg)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def run(args: argparse.Namespace) -> int:
    """Print the figures by user; return the exit code 0."""
    from fl_sim.api.runs import PICTURES, PRIVATE_BY_USER, open_run
    from fl_sim.cli.progress_bar import counting
    from fl_sim.cli.written_files import check_no_other
    from fl_sim.storage.run_folder import ResultsError, encode

    names = ("users", "steps", "learning_rate", "rank", "most_sentences", "seed")
    options = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if options and not args.personal:
        flag = f"--{next(iter(options)).replace('_', '-')}"
        raise ResultsError(f"{flag} is given without --personal; allowed: with it")
    if args.plot is not None and args.plot.suffix not in PICTURES:
        raise ResultsError(f"--plot is {args.plot}; allowed: a file that ends in {', '.join(PICTURES)}")
    check_no_other("--plot", args.plot)
    opened = open_run(args.run)
    if args.personal:
        with counting("personal models", args.quiet) as show:
            opened.compare_personal(observer=show, **options)
    if args.plot is not None:
        opened.plot_users().save(args.plot)
    if args.json:
        facts = opened.facts()
        shown = {name: facts[name] for name in ("run", "held_out", "personal")} | {"note": PRIVATE_BY_USER}
        print(json.dumps(encode(shown), ensure_ascii=False))
    else:
        print(opened.report_users())
    return 0
