"""Run many settings, a grid or random draws, with several seeds each; a stopped sweep continues where it stopped."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fl_sim.search.sweep import Outcome


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``fl-sim sweep``."""
    parser.add_argument(
        "config", metavar="CONFIG", help="a TOML file with base, seeds, set, grid and random (docs/settings.md)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="the sweep's folder; repeat the command to continue a stopped sweep",
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="parallel runs, one process each (default 1)")
    parser.add_argument("--json", action="store_true", help="print the table as one JSON object")
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")


def run(args: argparse.Namespace) -> int:
    """Run the sweep; return the exit code 0, 1 if a run failed, or 128 + n if signal n interrupted it."""
    import json
    import sys

    from fl_sim.cli.progress_bar import counting, say
    from fl_sim.config import ConfigError
    from fl_sim.search.sweep import FAILED, Sweep, as_text, read_table, run_sweep
    from fl_sim.stop_signals import exit_status
    from fl_sim.storage.run_folder import INTERRUPTED, encode

    if not 1 <= args.jobs <= 1024:
        raise ConfigError(f"--jobs is {args.jobs}; allowed: an integer from 1 to 1024")
    sweep = Sweep.load(args.config)
    number, ended = len(sweep.points()), 0
    say(f"{number:,} runs, {args.jobs} at a time", args.quiet)
    with counting("runs", args.quiet) as progress:

        def show(outcome: Outcome) -> None:
            nonlocal ended
            ended += outcome.status != INTERRUPTED
            progress(ended, number, f"{ended:,} of {number:,}, {outcome.point.name}")
            if outcome.reason and outcome.status != INTERRUPTED:
                say(f"{outcome.point.name} {outcome.status}: {outcome.reason}", args.quiet)

        outcomes = run_sweep(sweep, args.out.expanduser().absolute(), args.jobs, show)
    table = read_table(args.out)
    if args.json:
        print(json.dumps(encode(table)))
    else:
        print(as_text(table), end="")
    for outcome in outcomes:
        if outcome.status == INTERRUPTED:
            print(f"interrupted; continue with: fl-sim sweep {args.config} --out {args.out}", file=sys.stderr)
            return exit_status(outcome.reason)
    return 1 if any(outcome.status == FAILED for outcome in outcomes) else 0
