"""Continue a run that was interrupted or killed; the result is that of an uninterrupted run."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``fl-sim resume``."""
    parser.add_argument("folder", metavar="DIR", help="the run's folder")
    anchor = "the file that keeps the head hash of the ledger from now on, or none; default: as the run began"
    parser.add_argument("--anchor", metavar="FILE", help=anchor)
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.add_argument("--quiet", action="store_true", help="show no progress bar and no notes (the result has them)")


def run(args: argparse.Namespace) -> int:
    """Resume the run in ``DIR``; return the exit code 0, 3 if it diverged, or 130 if it was interrupted."""
    from fl_sim.api.runs import open_run
    from fl_sim.clients.worker.libraries import OF_A_RUN, load_libraries

    open_run(args.folder)  # a folder that is none is told before libraries are imported for seconds
    load_libraries(*OF_A_RUN)

    from fl_sim.api.runs import resume
    from fl_sim.cli.console import follow

    return follow(
        lambda bar: resume(args.folder, observers=bar, anchor=args.anchor), as_json=args.json, quiet=args.quiet
    )
