"""Simulate private federated training of a language model, and print its ε and utility."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    pass

Container = argparse.ArgumentParser | argparse._ArgumentGroup

# Short flags of configuration keys: (flag, key, metavar). A flag has the help of its key.
SHORTHANDS = (
    ("--corpus", "corpus.path", "DIR"),
    ("--strategy", "privacy.strategy", "NAME"),
    ("--rounds", "rounds", "T"),
    ("--q-u", "privacy.q_u", "RATE"),
    ("--q-e", "privacy.q_e", "RATE"),
    ("--q-s", "privacy.q_s", "RATE"),
    ("--z", "privacy.noise_multiplier", "Z"),
    ("--clip-norm", "privacy.clip_norm", "C"),
    ("--user-cap", "privacy.user_cap", "W"),
    ("--clipping", "privacy.clipping", "WHAT"),
    ("--estimator", "privacy.estimator", "NAME"),
    ("--noise", "privacy.noise", "SCALE"),
    ("--delta", "privacy.delta", "D"),
    ("--target-epsilon", "privacy.target_epsilon", "E"),
    ("--epsilon-budget", "privacy.epsilon_budget", "E"),
    ("--model", "model.name", "NAME"),
    ("--engine", "engine.name", "NAME"),
    ("--nodes", "engine.nodes", "K"),
    ("--seed", "seed", "S"),
    ("--out", "out", "DIR"),
    ("--anchor", "anchor", "FILE"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``fl-sim run``."""
    parser.add_argument(
        "config",
        nargs="?",
        metavar="CONFIG",
        help="a TOML file; default: `uedp` on the bundled corpus",
    )
    add_shorthands(parser, SHORTHANDS)
    parser.add_argument(
        "--auto",
        action="store_true",
        help="choose rates, noise, clip norm, rounds and server optimizer from what ships, for ε 8 or --target-epsilon "
        "(docs/settings.md)",
    )
    parser.add_argument(
        "--minutes", type=float, metavar="M", help="time that --auto has for search and training (default 5)"
    )
    parser.add_argument(
        "--track",
        action="append",
        default=[],
        metavar="NAME",
        help="send the figures of every round to tensorboard, wandb, mlflow or csv (docs/report.md); repeat it for "
        "several, which are added to the observers of the configuration",
    )
    parser.add_argument("--secure-noise", action="store_true", help=_help_of("privacy.secure_noise"))
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.add_argument("--quiet", action="store_true", help="show no progress bar and no notes (the result has them)")


def add_shorthands(parser: Container, shorthands: Sequence[tuple[str, str, str]]) -> None:
    """Add the flags of configuration keys, and ``--set`` for all others."""
    for flag, key, metavar in shorthands:
        parser.add_argument(flag, metavar=metavar, dest=key, help=_help_of(key))
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any other key, such as model.hidden=256"
    )


def overrides_of(args: argparse.Namespace, shorthands: Sequence[tuple[str, str, str]]) -> dict[str, Any]:
    """Return the settings that the flags of :func:`add_shorthands` give, by key.

    Raises:
        ConfigError: a word has another form, or a key has two values.
    """
    from fl_sim.config import add_setting, parse_assignments

    overrides = parse_assignments(args.set)
    for _, key, _ in shorthands:
        text = getattr(args, key)
        if text is not None:
            add_setting(overrides, key, text)
    return overrides


def _help_of(name: str) -> str:
    """Return the help of a flag: meaning, allowed values and default of its key, with argparse's escapes."""
    from fl_sim.config import run_keys

    key = run_keys()[name]
    default = f", default {key.default}" if key.default else ""
    return f"{key.meaning} ({key.allowed}{default})".replace("%", "%%")


def run(args: argparse.Namespace) -> int:
    """Run the configured simulation; return the exit code 0, 3 if it diverged, or 130 if it was interrupted."""
    from fl_sim.config import RunConfig, add_setting

    overrides = overrides_of(args, SHORTHANDS)
    if args.secure_noise:
        add_setting(overrides, "privacy.secure_noise", "true")
    config = RunConfig.load(args.config, overrides)
    if args.track:
        config = config.changed({"observers": tuple(dict.fromkeys((*config.observers, *args.track)))})

    from fl_sim.api.early_checks import check_early
    from fl_sim.clients.worker.libraries import OF_A_RUN, load_libraries

    _check_auto(args, overrides)
    check_early(config)
    load_libraries(*OF_A_RUN)

    from fl_sim.api import runs
    from fl_sim.cli.console import follow

    if args.auto:
        from fl_sim.cli.automatic_settings import chosen

        chosen_config = chosen(config, args.minutes, quiet=args.quiet)
        if isinstance(chosen_config, int):
            return chosen_config
        config = chosen_config
    return follow(lambda bar: runs.run(config, observers=bar), as_json=args.json, quiet=args.quiet)


def _check_auto(args: argparse.Namespace, overrides: dict[str, Any]) -> None:
    """Refuse settings that ``--auto`` chooses, and a time without it."""
    from fl_sim.config import ConfigError

    if not args.auto:
        if args.minutes is not None:
            raise ConfigError(f"--minutes is {args.minutes:g}; allowed: with --auto only")
        return
    if args.config is not None:
        raise ConfigError(f"CONFIG is {args.config} with --auto; allowed: flags and --set, because it chooses the rest")

    from fl_sim.search.automatic import CHOSEN

    for key in overrides:
        if key in CHOSEN:
            raise ConfigError(f"{key} is given with --auto, which chooses it; allowed: one of them")
