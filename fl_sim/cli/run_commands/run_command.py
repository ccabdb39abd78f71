"""Simulate private federated training of a language model and say what it cost."""

from __future__ import annotations

import argparse

NAME = "run"
HELP = "simulate a private training run"

# Flags that are shorthand for configuration keys: (flag, key, metavar, help).
SHORTHANDS = (
    ("--corpus", "corpus.path", "DIR", "a prepared corpus (fl-sim prepare), or the one that ships: bundled"),
    ("--strategy", "privacy.strategy", "NAME", "uedp, user_level, published or noiseless"),
    ("--rounds", "rounds", "T", "how many rounds to release"),
    ("--q-u", "privacy.q_u", "RATE", "user sampling rate"),
    ("--q-e", "privacy.q_e", "RATE", "entity sampling rate"),
    ("--q-s", "privacy.q_s", "RATE", "sentence sampling rate"),
    ("--z", "privacy.noise_multiplier", "Z", "noise multiplier"),
    ("--clip-norm", "privacy.clip_norm", "C", "clip of a sentence's gradient (uedp) or a user's update"),
    ("--user-cap", "privacy.user_cap", "W", "a user's cap in sentences per round"),
    ("--clipping", "privacy.clipping", "WHAT", "sentence, or user for the user's sum alone (uedp)"),
    ("--estimator", "privacy.estimator", "NAME", "f_e or f_e_plus (published)"),
    ("--noise", "privacy.noise", "SCALE", "as-stated or as-coded (published)"),
    ("--delta", "privacy.delta", "D", "δ at which every ε is stated"),
    ("--target-epsilon", "privacy.target_epsilon", "E", "find the noise that meets this ε"),
    ("--epsilon-budget", "privacy.epsilon_budget", "E", "stop before this ε would be exceeded"),
    ("--model", "model.name", "NAME", "small-gpt2, or a causal LM by hub name or folder"),
    ("--engine", "engine.name", "NAME", "ray or inline"),
    ("--nodes", "engine.nodes", "K", "how many SuperNodes share the users"),
    ("--seed", "seed", "S", "root seed of every random draw"),
    ("--out", "out", "DIR", "the run's folder; must be new"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of ``fl-sim run``."""
    parser.add_argument("config", nargs="?", metavar="CONFIG", help="a TOML file; default: the built-in main job")
    for flag, key, metavar, text in SHORTHANDS:
        parser.add_argument(flag, metavar=metavar, dest=key, help=text)
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any other key, such as model.hidden=256"
    )
    parser.add_argument(
        "--secure-noise",
        action="store_true",
        help="noise and coins from the operating system, not from the seed (docs/privacy.md)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.add_argument("--quiet", action="store_true", help="no progress bar and no notes (the result has them)")


def run(args: argparse.Namespace) -> int:
    """Run the configured simulation; exit code 0, or 130 if it was interrupted."""
    from fl_sim.config import RunConfig, add_setting, parse_assignments

    overrides = parse_assignments(args.set)
    for _, key, _, _ in SHORTHANDS:
        text = getattr(args, key)
        if text is not None:
            add_setting(overrides, key, text)
    if args.secure_noise:
        add_setting(overrides, "privacy.secure_noise", "true")
    config = RunConfig.load(args.config, overrides)

    from fl_sim.clients.libraries import load_libraries

    load_libraries()

    from fl_sim.cli.console import follow
    from fl_sim.engines.engine import Engine
    from fl_sim.experiments.experiment import Experiment

    with Engine(config.engine) as engine:
        return follow(Experiment.create(config, engine.start), engine, as_json=args.json, quiet=args.quiet)
