"""``fl-sim report`` and ``fl-sim list``: what runs guarantee and are worth, as text, JSON, page, table or picture."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from fl_sim.api.runs import PICTURES, X, compare, open_run, plot_runs
from fl_sim.cli.flags import is_default, print_json
from fl_sim.cli.from_signature import FILE, FOLDER, options_of
from fl_sim.cli.progress_bar import say
from fl_sim.cli.verbs import Verb, as_json, quiet
from fl_sim.cli.watching import watch
from fl_sim.cli.written_files import check_writable, csv_text
from fl_sim.config import ConfigError
from fl_sim.files import replace_private_file
from fl_sim.reporting.run_list import list_runs


@click.command(cls=Verb)
@click.argument("runs", type=FOLDER, nargs=-1, required=True, metavar="RUN...")
@click.option("--html", type=FILE, metavar="FILE", help="Also write a page with pictures, one file.")
@click.option("--csv", type=FILE, metavar="FILE", help="Also write a table with a row per run.")
@click.option("--picture", type=FILE, metavar="FILE", help="Also draw the runs (.png, .pdf or .svg).")
@options_of(plot_runs, but=("runs",))
@click.option("--full", is_flag=True, help="Print all that is said of a run: its settings and what ε leaves out, too.")
@click.option("--watch", "wait", is_flag=True, help="First show runs that are at work, until they have ended.")
@click.option("--users", "for_whom", is_flag=True, help="Print for whom the model of a run works, instead.")
@as_json
@quiet
def report(
    runs: tuple[Path, ...],
    html: Path | None,
    csv: Path | None,
    picture: Path | None,
    x: X | None,
    unit: str | None,
    full: bool,
    wait: bool,
    for_whom: bool,
    as_json: bool,
    quiet: bool,
) -> int:
    """Print what a run is worth and what it guarantees, or compare several runs.

    Differences are to the first run. Exit code 2 means that the ledger of a run does not support its ε, which is left
    out (docs/report.md).
    """
    _check(runs, picture, {"--users": for_whom, "--full": full})
    check_writable("--html", html)
    check_writable("--csv", csv)
    check_writable("--picture", picture, new_folder=True)
    if wait:
        watch(runs, html, on_screen=not as_json, quiet=quiet)
    opened = [open_run(path) for path in runs]
    found = compare(opened) if len(opened) > 1 or html or csv else None
    if picture is not None:
        for run in opened:
            say(f"fl-sim report: {run.folder.truncated_tail}", quiet=quiet or not run.folder.truncated_tail)
        plot_runs(opened, x, unit).save(picture)
    if found is not None and csv is not None:
        replace_private_file(csv, csv_text(found.table()).encode())
    if found is not None and html is not None:
        found.save(html)
    first = opened[0]
    if found is not None and len(opened) > 1:
        print_json(found.record()) if as_json else print(found.text(), end="")
    elif as_json:
        print_json(first.facts())
    else:
        print(first.report_users() if for_whom else first.report(full=full), end="")
    problems = first.problems if found is None else found.problems
    for problem in problems:
        print(f"fl-sim report: {problem}; no ε of this run can be trusted", file=sys.stderr)
    return 2 if problems else 0


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


def _check(runs: Sequence[Path], picture: Path | None, of_one: Mapping[str, bool]) -> None:
    """Refuse flags that would be ignored, and a picture of another kind."""
    for name in ("x", "unit"):
        if picture is None and not is_default(name):
            raise ConfigError(f"--{name} is given without --picture; allowed: with it")
    for flag in (name for name, given in of_one.items() if given and len(runs) > 1):
        raise ConfigError(f"{flag} is given with {len(runs)} runs; allowed: with one")
    if all(of_one.values()):
        raise ConfigError("--users is given with --full; allowed: one of them")
    if picture is not None and picture.suffix not in PICTURES:
        raise ConfigError(f"--picture is {picture}; allowed: a file that ends in {', '.join(PICTURES)}")
