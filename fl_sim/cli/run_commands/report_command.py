"""Print the guarantee of a run, its cost in utility, and what the guarantee does not cover."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``fl-sim report``."""
    parser.add_argument("run", metavar="DIR", type=Path, help="a run folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    """Print the report of a run; return the exit code 0."""
    from fl_sim.api.runs import open_run
    from fl_sim.storage.run_folder import encode

    opened = open_run(args.run)
    if args.json:
        print(json.dumps(encode(opened.facts()), ensure_ascii=False))
    else:
        sys.stdout.write(opened.report())
    return 0
