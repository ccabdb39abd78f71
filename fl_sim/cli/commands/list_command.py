"""``fl-sim list``: the runs in folders, a line each."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from fl_sim.cli.flags import print_json
from fl_sim.cli.from_signature import options_of
from fl_sim.cli.verbs import Verb, as_json
from fl_sim.reporting.run_list import list_runs


@click.command("list", cls=Verb)
@options_of(list_runs)
@as_json
def list(folders: tuple[Path, ...], as_json: bool) -> int:
    """List the runs in folders (runs by default): strategy, ε, utility, rounds done of planned, and state.

    Exit code 2 means that a folder cannot be read, or that the ledger of a run does not support its ε, which is left
    out (docs/report.md).
    """
    found = list_runs(folders)
    print_json(found.record()) if as_json else print(found.text(), end="")
    for problem in found.problems:
        print(f"fl-sim list: {problem}", file=sys.stderr)
    if not found.runs and not found.problems:
        print(f"fl-sim list: {', '.join(map(str, folders))}: no run is here", file=sys.stderr)
    return 2 if found.problems else 0
