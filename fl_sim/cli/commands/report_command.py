"""``fl-sim report`` and ``fl-sim list``: what runs guarantee and are worth, as text, JSON, page, table or picture."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from fl_sim.api.runs import PICTURES, Run, X, compare, open_run, plot_runs
from fl_sim.cli.flags import PAGE, TABLE, check_writable, csv_text, is_default, print_json
from fl_sim.cli.from_signature import FILE, FOLDER, options_of
from fl_sim.cli.progress_bar import counting, say
from fl_sim.cli.verbs import Verb, as_json, quiet
from fl_sim.config import ConfigError
from fl_sim.files import replace_private_file
from fl_sim.reporting.run_facts import RUNNING, state_of
from fl_sim.reporting.run_list import list_runs
from fl_sim.storage.run_claim import is_starting

_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_OF_A_PAGE = 5


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
    check_writable("--html", html, begins=PAGE)
    check_writable("--csv", csv, begins=TABLE)
    check_writable("--picture", picture, new_folder=True)
    files = [path.absolute() for path in (html, csv, picture) if path is not None]
    if len(set(files)) < len(files):
        raise ConfigError(f"two of --html, --csv and --picture are {files[-1]}; allowed: a file for each")
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


def watch(runs: Sequence[Path], html: Path | None, *, on_screen: bool, quiet: bool) -> None:
    """Return when none of the runs is at work; until then show how far they are, after every round.

    Args:
        html: also write their page there after every round.
        on_screen: show the report on a terminal; elsewhere the rounds are counted on standard error, unless ``quiet``.

    Raises:
        ResultsError: a folder is no run folder, is corrupt or was removed.
    """
    shown: Sequence[tuple[str, int | None]] = ()
    with _screen(on_screen and sys.stdout.isatty(), quiet) as show:
        while True:
            if not any(map(is_starting, runs)):
                opened = [open_run(path) for path in runs]
                found = [(state_of(run.folder), run.folder.last_round) for run in opened]
                if not any(state == RUNNING for state, _ in found):
                    return
                if found != shown:
                    show(opened)
                    if html is not None:
                        compare(opened).save(html, _SECONDS_OF_A_PAGE)
                shown = found
            time.sleep(_SECONDS_BETWEEN_LOOKS)


@contextmanager
def _screen(on_terminal: bool, quiet: bool) -> Iterator[Callable[[Sequence[Run]], None]]:
    """Give a function that shows runs in place of what it showed before."""
    if on_terminal:
        with Live(console=Console(file=sys.stdout), auto_refresh=False, transient=True) as live:
            yield lambda opened: live.update(Text(_text(opened)), refresh=True)
        return
    with counting("rounds", quiet) as count:
        yield lambda opened: count(
            sum(run.folder.last_round or 0 for run in opened), sum(run.folder.setting("rounds") or 0 for run in opened)
        )


def _text(opened: Sequence[Run]) -> str:
    return opened[0].report() if len(opened) == 1 else compare(opened).text()
