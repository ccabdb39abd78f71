"""Check this installation and machine in a minute: versions, devices, engines, and the arithmetic that ε rests on."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fl_sim.diagnosis.finding import Finding

EXIT_FAILED = 1
_STYLES = {"ok": "green", "note": "dim", "warning": "yellow", "failed": "bold red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``fl-sim doctor``."""
    parser.add_argument("--quick", action="store_true", help="no runs: versions, machine and arithmetic alone")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def run(args: argparse.Namespace) -> int:
    """Print what was found; return 0, or 1 if a check failed."""
    from dataclasses import asdict

    from rich.console import Console

    from fl_sim.diagnosis.checkup import checkup
    from fl_sim.diagnosis.finding import worst

    console = Console(stderr=True, quiet=args.quiet)
    findings = checkup(quick=args.quick, observer=lambda what: console.print(f"checking: {what}", highlight=False))
    verdict = worst(findings)
    if args.json:
        print(json.dumps({"verdict": verdict, "findings": [asdict(f) for f in findings]}, ensure_ascii=False))
    else:
        _print(findings)
    return EXIT_FAILED if verdict == "failed" else 0


def _print(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table

    from fl_sim.formats import table_cell

    table = Table(box=None, pad_edge=False)
    for column in ("check", "found", "verdict", "advice"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        cells = (finding.name, finding.value, finding.verdict, finding.advice)
        table.add_row(*map(table_cell, cells), style=_STYLES[finding.verdict])
    Console().print(table)
