"""Compare two checkouts of fl_sim in everything that a refactoring must not change.

    python scripts/compare_checkouts.py main .                     # git refs, or folders
    python scripts/compare_checkouts.py main . --only 'run/uedp*' --only flags
    python scripts/compare_checkouts.py --list

Both checkouts prepare the same small corpora, do the same runs and answer the same commands, only through their command
line. Then ε, models, metrics, records, files, flags and JSON keys are compared (docs/development.md). The exit code is
0 if nothing changed, 1 if something did, and 2 if the checkouts could not be compared.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

from checkout_comparison.checkouts import CommandError, Side, console_script, find_checkout
from checkout_comparison.checks import Check, chosen_checks
from checkout_comparison.differences import Addition, InputError, Items, Outcome, compare, read_additions
from checkout_comparison.steps import Step, all_steps, with_needs
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

ADDITIONS = Path(__file__).with_name("compare_checkouts_additions.toml")
EXIT_DIFFERENT, EXIT_BAD_INPUT = 1, 2
MOST_LINES = 12
"""Differences printed per check; --json has all of them."""

Failures = dict[str, str]
"""The steps that failed in a checkout, with the reason."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the requested checks and print the outcome; return the exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        checks = chosen_checks(args.only)
        if args.list:
            print(*(check.name for check in checks), sep="\n")
            return 0
        if args.new is None:
            raise InputError("two checkouts are needed: OLD and NEW")
        began = time.monotonic()
        additions = read_additions(ADDITIONS)
        with _comparison_folder(args.keep) as folder:
            sides = [
                _prepare_side(label, checkout, folder) for label, checkout in (("old", args.old), ("new", args.new))
            ]
            outcomes = _run_checks(sides, checks, additions, args.jobs)
    except InputError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    seconds = time.monotonic() - began
    _show(outcomes, seconds)
    if args.json is not None:
        report = {
            "seconds": round(seconds, 1),
            "seconds_of_steps": {side.label: side.seconds for side in sides},
            "checks": [asdict(outcome) for outcome in outcomes],
        }
        args.json.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0 if all(outcome.passed for outcome in outcomes) else EXIT_DIFFERENT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="compare_checkouts.py", description=(__doc__ or "").partition("\n")[0], allow_abbrev=False
    )
    parser.add_argument("old", nargs="?", metavar="OLD", help="older checkout: a folder or a git ref")
    parser.add_argument("new", nargs="?", metavar="NEW", help="newer checkout")
    parser.add_argument("--only", action="append", default=[], metavar="GLOB", help="only checks with such a name")
    parser.add_argument("--list", action="store_true", help="list the checks")
    parser.add_argument("--jobs", type=int, choices=(1, 2), default=2, help="checkouts at a time (default 2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the full result")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="new folder for all files of the comparison; kept")
    return parser


@contextmanager
def _comparison_folder(keep: Path | None) -> Iterator[Path]:
    """Yield the folder for all files of the comparison: ``keep``, or a temporary one."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="compare-checkouts-", ignore_cleanup_errors=True) as folder:
            yield Path(folder).resolve()
        return
    try:
        keep.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"--keep {keep}: {error.strerror}; allowed: a new folder") from error
    yield keep.resolve()


def _run_checks(
    sides: Sequence[Side], checks: Sequence[Check], additions: Sequence[Addition], jobs: int
) -> list[Outcome]:
    """Do the steps of the checks in both checkouts, and compare the results.

    Args:
        sides: the older and the newer checkout.
        checks: the checks to run.
        additions: additions that are allowed.
        jobs: checkouts at a time.
    """
    steps = with_needs((name for check in checks for name in check.needs), all_steps())
    failures: list[Failures] = [{}, {}]
    columns = (TextColumn("{task.description:<30}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with ExitStack() as closing, Progress(*columns, console=Console(stderr=True)) as progress:
        for side in sides:
            closing.callback(side.close)
        tasks = [progress.add_task(side.label, total=len(steps)) for side in sides]

        def report_step(number: int) -> Callable[[str, int], None]:
            label, task = sides[number].label, tasks[number]
            return lambda name, by: progress.update(task, advance=by, description=f"{label}: {name}")

        for reads_older in (False, True):
            phase = [step for step in steps if step.reads_older is reads_older]
            with ThreadPoolExecutor(jobs) as pool:
                futures = [
                    pool.submit(_do_steps, phase, sides[number], failures[number], report_step(number))
                    for number in (0, 1)
                ]
                for future in futures:
                    future.result()
        return [_outcome(check, sides, failures, additions) for check in checks]


def _prepare_side(label: str, folder_or_ref: str, folder: Path) -> Side:
    """Find a checkout and make its working folder under ``folder``."""
    checkout = find_checkout(folder_or_ref, folder / f"{label}-checkout")
    work = folder / label
    work.mkdir()
    side = Side(label, checkout, console_script(checkout), work, folder / "old")
    side.prepare()
    return side


def _do_steps(steps: Sequence[Step], side: Side, failures: Failures, report: Callable[[str, int], None]) -> None:
    """Do the steps in order; note in ``failures`` each that fails or needs a failed one, and continue.

    Args:
        steps: the steps, after those that they need.
        side: the checkout.
        failures: filled with the failed steps.
        report: called with a step's name and the progress (0 before it, 1 after it).
    """
    for step in steps:
        report(step.name, 0)
        began = time.monotonic()
        failed_needs = [name for name in step.needs if name in failures]
        if failed_needs:
            failures[step.name] = failures[failed_needs[0]]
        else:
            try:
                step.action(side)
            except (CommandError, OSError, ValueError, KeyError) as error:
                failures[step.name] = str(error)
        side.seconds[step.name] = round(time.monotonic() - began, 2)
        report(step.name, 1)


def _outcome(
    check: Check, sides: Sequence[Side], failures: Sequence[Failures], additions: Sequence[Addition]
) -> Outcome:
    """Return the outcome of a check; ``failed`` with the reason if a checkout could not do or read what it needs."""
    reasons = [failed[name] for failed in failures for name in check.needs if name in failed]
    if reasons:
        return Outcome(check.name, "–", "–", (), "failed", reasons[0])
    refused = [side.results[check.may_refuse].code == EXIT_BAD_INPUT for side in sides] if check.may_refuse else []
    if refused == [False, True]:
        return Outcome(
            check.name, "resumed", "exit code 2", (), "refused", sides[1].results[str(check.may_refuse)].last_line
        )
    items = list[Items]()
    for side in sides:
        try:
            items.append(check.read(side))
        except (CommandError, OSError, ValueError, KeyError) as error:
            return Outcome(check.name, "–", "–", (), "failed", f"{side.label}: {type(error).__name__}: {error}")
    return compare(check.name, items[0], items[1], additions)


def _show(outcomes: Sequence[Outcome], seconds: float) -> None:
    """Print a table with a row per check, then the differences of each, and the total."""
    console = Console()
    table = Table("check", "old", "new", "verdict")
    for outcome in outcomes:
        colour = "green" if outcome.passed else "red"
        table.add_row(outcome.check, outcome.old, outcome.new, f"[{colour}]{outcome.verdict}[/]")
    console.print(table)
    for outcome in outcomes:
        lines = [difference.line() for difference in outcome.differences] + ([outcome.note] if outcome.note else [])
        for line in lines[:MOST_LINES]:
            console.print(f"{outcome.check}: {line}", markup=False, soft_wrap=True)
        if len(lines) > MOST_LINES:
            console.print(f"{outcome.check}: … and {len(lines) - MOST_LINES} more (--json)", markup=False)
    failed = sum(not outcome.passed for outcome in outcomes)
    total = f"{failed} of {len(outcomes)} checks differ" if failed else f"{len(outcomes)} checks: nothing changed"
    console.print(f"{total} ({seconds:.0f} s)")


if __name__ == "__main__":
    sys.exit(main())
