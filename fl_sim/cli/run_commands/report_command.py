"""Print the guarantee of a run, its cost in utility, and what the guarantee does not cover; or write a page of runs.

Exit code 2 means that the ledger of a run does not support its ε, which is left out (docs/report.md).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fl_sim.api.runs import Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``fl-sim report``."""
    parser.add_argument("run", metavar="DIR", type=Path, help="a run folder")
    parser.add_argument("others", metavar="RUN", nargs="*", type=Path, help="with --html: other run folders beside it")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a page with pictures, one file, instead")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    """Print the report of a run, or write the page of several; return 0, or 2 if an ε cannot be trusted."""
    from fl_sim.api.comparisons import compare
    from fl_sim.api.runs import open_run
    from fl_sim.cli.run_commands.compare_command import print_problems
    from fl_sim.cli.written_files import check_writable
    from fl_sim.config import ConfigError

    paths = [args.run, *args.others]
    if args.html is None and args.others:
        raise ConfigError(f"{len(paths)} runs are given; allowed: one, or several with --html (or fl-sim compare)")
    check_writable("html", args.html)
    opened = [open_run(path) for path in paths]
    if args.html is None:
        _print(opened[0], args.json)
        return print_problems("report", opened[0].problems)
    found = compare(opened)
    print(json.dumps({"files": [str(found.save(args.html))]}) if args.json else found.save(args.html))
    return print_problems("report", found.problems)


def _print(opened: Run, as_json: bool) -> None:
    from fl_sim.storage.run_folder import encode

    if as_json:
        print(json.dumps(encode(opened.facts()), ensure_ascii=False))
    else:
        sys.stdout.write(opened.report())
