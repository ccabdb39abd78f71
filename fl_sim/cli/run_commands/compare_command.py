"""Print runs side by side: ε and what it rests on, utility, differences on the same users, settings, warnings.

Exit code 2 means that the ledger of a run does not support its ε, which is left out (docs/report.md).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``fl-sim compare``."""
    parser.add_argument(
        "runs", metavar="RUN", type=Path, nargs="+", help="run folders; differences are to the first one"
    )
    parser.add_argument("--csv", metavar="FILE", type=Path, help="also write a table with a row per run")
    parser.add_argument("--html", metavar="FILE", type=Path, help="also write a page with pictures, one file")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    """Print the comparison; return 0, or 2 if the ε of a run cannot be trusted."""
    from fl_sim.api.comparisons import compare
    from fl_sim.cli.written_files import check_writable, csv_text
    from fl_sim.files import owner_only
    from fl_sim.storage.run_folder import encode, replace_file

    for name in ("csv", "html"):
        check_writable(name, getattr(args, name))
    found = compare(args.runs)
    if args.csv is not None:
        with owner_only():
            replace_file(args.csv, csv_text(found.table()).encode())
    if args.html is not None:
        found.save(args.html)
    print(json.dumps(encode(found.record()), ensure_ascii=False) if args.json else found.text(), end="")
    if args.json:
        print()
    return print_problems("compare", found.problems)


def print_problems(verb: str, problems: list[str]) -> int:
    """Print on stderr why ε of runs cannot be trusted; return the exit code."""
    for problem in problems:
        print(f"fl-sim {verb}: {problem}; no ε of this run can be trusted", file=sys.stderr)
    return 2 if problems else 0
