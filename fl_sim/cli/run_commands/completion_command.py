"""Print the completion of a shell; ``source <(fl-sim completion bash)`` completes verbs, flags, choices and files."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``fl-sim completion``."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="whose script to print")


def run(args: argparse.Namespace) -> int:
    """Print the script; return the exit code 0."""
    from fl_sim.cli.completion_scripts import SCRIPTS, commands_of
    from fl_sim.cli.main import build_parser

    print(SCRIPTS[args.shell](commands_of(build_parser())), end="")
    return 0
