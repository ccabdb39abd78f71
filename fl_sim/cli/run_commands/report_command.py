"""Say what a run promises, what it cost in utility, and what the promise leaves out."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

NAME = "report"
HELP = "print a run's privacy and utility on one screen"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="DIR", type=Path, help="a run folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    from fl_sim.reporting import report
    from fl_sim.storage.run_folder import RunFolder, encode

    folder = RunFolder.open(args.run)
    if args.json:
        print(json.dumps(encode(report.report(folder)), ensure_ascii=False))
    else:
        sys.stdout.write(report.summary(folder))
    return 0
