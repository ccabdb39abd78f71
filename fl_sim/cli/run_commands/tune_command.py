"""Tune settings on public text for a private run of stated size and noise; a stopped search continues where it stopped.

The private corpus is never read. The file DIR/tuned.toml has the settings and their origin; ``fl-sim run`` takes it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fl_sim.cli.run_commands import run_command

if TYPE_CHECKING:
    from fl_sim.config import RunConfig
    from fl_sim.settings_origin import Origin, Trial

_NOT_HERE = {"--epsilon-budget", "--estimator", "--noise", "--engine", "--nodes", "--seed", "--out", "--anchor"}
_SHORTHANDS = tuple(shorthand for shorthand in run_command.SHORTHANDS if shorthand[0] not in _NOT_HERE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``fl-sim tune``."""
    parser.add_argument(
        "--public", required=True, metavar="CORPUS", help="public text: a folder made by fl-sim prepare, bundled or irc"
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="the search's folder; repeat the command to continue"
    )
    parser.add_argument("--trials", type=int, default=9, metavar="K", help="settings that are tried (default 9)")
    parser.add_argument(
        "--trial-sentences",
        type=float,
        default=600.0,
        metavar="B",
        help="expected sentences a round of the last trials; the first have a third (default 600)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the settings and the trials (default 0)")
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="parallel trials, one process each (default 1)"
    )
    parser.add_argument("--quiet", action="store_true", help="show no trials")
    parser.add_argument("--json", action="store_true", help="print the origin of the settings as one JSON object")
    private = parser.add_argument_group("the private run, in public numbers")
    private.add_argument(
        "-c", "--config", metavar="FILE", help="its configuration; default: `uedp` on the bundled corpus"
    )
    private.add_argument("--users", metavar="N", help="its number of users, as privacy.population")
    private.add_argument(
        "--sentences",
        type=float,
        metavar="S",
        help="its expected sentences a round, as you state them; default: as many a user as on the public text",
    )
    run_command.add_shorthands(private, _SHORTHANDS)


def run(args: argparse.Namespace) -> int:
    """Run the search; return the exit code 0, or 128 + n if signal n interrupted it."""
    import json

    from rich.console import Console

    from fl_sim.config import add_setting
    from fl_sim.search.settings_search import PrivateRun, PublicText, Search, Tried, rungs, tune
    from fl_sim.stop_signals import exit_status

    overrides = run_command.overrides_of(args, _SHORTHANDS)
    if args.users is not None:
        add_setting(overrides, "privacy.population", args.users)
    search = Search(args.trials, args.trial_sentences, args.seed, args.jobs)
    config = _loaded(args.config, overrides)
    private = PrivateRun.of(config, args.sentences)
    public = PublicText.open(args.public, private)
    console = Console(stderr=True, quiet=args.quiet, soft_wrap=True, highlight=False)

    def show(tried: Tried) -> None:
        reason = f" ({tried.reason})" if tried.reason else ""
        console.print(f"{tried.name}: {in_words(tried.trial)}{reason}", markup=False)

    tried = " then ".join(str(rung.trials) for rung in rungs(search.trials, search.sentences))
    console.print(f"training {tried} settings on {args.public}, {search.jobs} at a time", markup=False)
    ended = tune(private, public, search, args.out.expanduser().absolute(), show)
    if isinstance(ended, Tried):
        print(f"interrupted; continue with the same command, --out {args.out}", file=sys.stderr)
        return exit_status(ended.reason)
    tuned = _loaded(str(ended), {})
    if args.json:
        print(json.dumps({"file": str(ended), **tuned.origin}))
    elif tuned.tuned_on is not None:
        print(_text(ended, tuned.tuned_on))
    return 0


def in_words(trial: Trial) -> str:
    """Return a trial in one line: "291.5 with rounds 2, clip_norm 1.0"."""
    settings = ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in trial.settings.items())
    return f"{'no score' if trial.score is None else f'{trial.score:g}'} with {settings}"


def _loaded(path: str | None, overrides: dict[str, object]) -> RunConfig:
    from fl_sim.config import RunConfig

    return RunConfig.load(path, overrides)


def _text(file: Path, origin: Origin) -> str:
    from fl_sim.formats import format_epsilon

    target = f"ε ≤ {format_epsilon(origin.epsilon)} ({origin.unit}) at δ {origin.delta:g}"
    if origin.epsilon is None:
        target = "no noise"
    last = max(trial.rung for trial in origin.trials)
    final = [trial for trial in origin.trials if trial.rung == last and trial.score is not None]
    return "\n".join(
        [
            f"Tuned on {origin.corpus} for {origin.users:,} users, about {origin.sentences:,.0f} sentences a round, "
            f"{target}; {origin.metric} on held-out public users:",
            *(f"  {in_words(trial)}" for trial in sorted(final, key=lambda trial: trial.score or 0.0)),
            f"Run it: fl-sim run {file}",
        ]
    )
