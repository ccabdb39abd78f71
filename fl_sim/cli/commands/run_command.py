"""``fl-sim run``, ``fl-sim resume`` and ``fl-sim sweep``: simulate private federated training of language models."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fl_sim.cli.flags import configuration_flags, print_json
from fl_sim.cli.from_signature import FILE, FOLDER
from fl_sim.cli.progress_bar import counting, say
from fl_sim.cli.verbs import Verb, as_json, quiet

if TYPE_CHECKING:
    from fl_sim.search.sweep import Ending


_baseline_too: Callable[[Any], Any] = click.option(
    "--baseline", is_flag=True,
    help="Also train the run's twin without privacy (OUT-noiseless): reports then show what privacy costs.",
)  # fmt: skip


@click.command(cls=Verb)
@click.argument("config", type=FILE, metavar="[CONFIG]", required=False)
@configuration_flags()
@click.option(
    "--track", multiple=True, metavar="NAME",
    help="Send the figures of every round to tensorboard, wandb, mlflow or csv, beside the observers of the "
    "configuration (docs/report.md). May be repeated.",
)  # fmt: skip
@_baseline_too
@as_json
@quiet
def run(
    config: Path | None, overrides: dict[str, object], track: Sequence[str], baseline: bool, as_json: bool, quiet: bool
) -> int:
    """Simulate private federated training of a language model, and print its ε and utility.

    CONFIG is a TOML file (docs/configuration.md) or one that ships, such as `irc`; by default `uedp` trains on the
    bundled corpus.
    """
    from fl_sim.config import RunConfig

    chosen = RunConfig.load(None if config is None else str(config), overrides)
    if track:
        chosen = chosen.changed({"observers": tuple(dict.fromkeys((*chosen.observers, *track)))})

    from fl_sim.api.early_checks import check_early
    from fl_sim.clients.worker.libraries import OF_A_RUN, load_libraries

    check_early(chosen)
    if baseline:
        from fl_sim.api.noiseless_twin import check_can_have_twin

        check_can_have_twin(chosen)
        say("--baseline: a run without privacy follows, of as many rounds and sentences; it takes about as long", quiet)
    load_libraries(*OF_A_RUN)

    from fl_sim.api import runs
    from fl_sim.cli.console import follow

    return follow(lambda bar: runs.run(chosen, observers=bar), baseline=baseline, as_json=as_json, quiet=quiet)


@click.command(cls=Verb)
@click.argument("run", type=FOLDER, metavar="RUN")
@click.option(
    "--anchor", metavar="FILE",
    help="The file that keeps the head hash of the ledger from now on, or none; by default as the run began.",
)  # fmt: skip
@_baseline_too
@as_json
@quiet
def resume(run: Path, anchor: str | None, baseline: bool, as_json: bool, quiet: bool) -> int:
    """Continue a run that was interrupted or killed; the result is that of an uninterrupted run.

    With --baseline a run that has ended gets its run without privacy.
    """
    from fl_sim.api.runs import open_run
    from fl_sim.clients.worker.libraries import OF_A_RUN, load_libraries

    opened = open_run(run)  # a folder that is none is refused before libraries are imported for seconds
    load_libraries(*OF_A_RUN)

    from fl_sim.api import runs
    from fl_sim.cli.console import follow

    has_ended = baseline and opened.finished and not opened.diverged
    return follow(
        lambda bar: opened if has_ended else runs.resume(run, observers=bar, anchor=anchor),
        baseline=baseline,
        as_json=as_json,
        quiet=quiet,
    )


@click.command(cls=Verb)
@click.argument("config", type=FILE, metavar="CONFIG")
@click.option("--out", type=FOLDER, required=True, metavar="DIR", help="The sweep's folder.")
@click.option(
    "--jobs", type=int, default=1, show_default=True, metavar="N", help="The number of runs at once, a process each."
)
@as_json
@quiet
def sweep(config: Path, out: Path, jobs: int, as_json: bool, quiet: bool) -> int:
    """Run many settings, a grid or random draws, with several seeds each; repeat the command to continue.

    CONFIG is a TOML file with base, seeds, set, grid and random (docs/settings.md). Exit code 1: a run failed.
    """
    from fl_sim.config import ConfigError
    from fl_sim.search.sweep import FAILED, Sweep, run_sweep
    from fl_sim.stop_signals import exit_status
    from fl_sim.storage.run_folder import INTERRUPTED

    if not 1 <= jobs <= 1024:
        raise ConfigError(f"--jobs is {jobs}; allowed: an integer from 1 to 1024")
    runs = Sweep.load(str(config))
    number, ended = len(runs.points()), 0
    say(f"{number:,} runs, {jobs} at a time", quiet)
    with counting("runs", quiet) as progress:

        def show(ending: Ending) -> None:
            nonlocal ended
            ended += ending.status != INTERRUPTED
            progress(ended, number, f"{ended:,} of {number:,}, {ending.name}")
            if ending.reason and ending.status != INTERRUPTED:
                say(f"{ending.name} {ending.status}: {ending.reason}", quiet)

        endings, table = run_sweep(runs, out.expanduser().absolute(), jobs, show)
    print_json(table) if as_json else print(table.text(), end="")
    for ending in endings:
        if ending.status == INTERRUPTED:
            print(f"interrupted; continue with: fl-sim sweep {config} --out {out}", file=sys.stderr)
            return exit_status(ending.reason)
    return 1 if any(ending.status == FAILED for ending in endings) else 0
