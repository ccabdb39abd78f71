"""A run as the terminal shows it: notes and a progress bar on stderr, the summary or the JSON result on stdout."""

from __future__ import annotations

import json
import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fl_sim.cli.main import EXIT_INTERRUPTED
from fl_sim.engines.engine import Engine
from fl_sim.engines.simulation import execute
from fl_sim.experiments.experiment import Experiment, Row
from fl_sim.reporting import report
from fl_sim.storage.run_folder import encode
from fl_sim.storage.utility import UTILITIES


def follow(experiment: Experiment, engine: Engine, *, as_json: bool, quiet: bool) -> int:
    """Run ``experiment`` on ``engine`` under a progress bar and print its summary, or its result as one JSON object.

    Returns:
        The exit code: 0, or 130 where the run was interrupted (and can be resumed).
    """
    console = Console(stderr=True, quiet=quiet, soft_wrap=True)
    for warning in experiment.planned.warnings:
        console.print(f"note: {warning}", markup=False, highlight=False, style="yellow")
    with _progress(console) as progress:
        rounds = experiment.planned.rounds
        task = progress.add_task("starting", total=rounds, completed=max(experiment.folder.last_round or 0, 0))

        def show(row: Row) -> None:
            progress.update(task, completed=row["round"], description=_describe(row))

        def show_reading(done: int, total: int) -> None:
            progress.update(task, description=f"reading, {done:,} of {total:,} sentences")

        experiment.reading = show_reading
        folder = execute(experiment, engine, show)
    result = folder.result or {}
    if as_json:
        print(json.dumps(encode({"folder": str(folder.path), **result})))
    else:
        print(report.summary(folder), end="")
        print(f"\nResults are in {folder.path}")
    if result.get("stopped") == "interrupted":
        print(f"interrupted after round {result['rounds']}; go on with: fl-sim resume {folder.path}", file=sys.stderr)
        return EXIT_INTERRUPTED
    return 0


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=console.quiet,
    )


def _describe(row: Row) -> str:
    measured = [f"{u.column} {u.show(row[u.column])}, " for u in UTILITIES.values() if u.column in row]
    return f"{''.join(measured)}ε user {row['epsilon_user']:.2f}, user+entity {row['epsilon_user_entity_p95']:.2f}"
