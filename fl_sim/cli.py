"""The ``fl-sim`` command: find the verb, run it, turn every foreseeable mistake into one clear line and exit code 2."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Sequence
from typing import NoReturn

from fl_sim import __version__, commands

EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130


class _Parser(argparse.ArgumentParser):
    """Argument errors are one line on stderr, without the usage block."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_BAD_INPUT, f"{self.prog}: {message} (see {self.prog} --help)\n")


def build_parser() -> argparse.ArgumentParser:
    """The parser with one subcommand per module of :mod:`fl_sim.commands`."""
    parser = _Parser(prog="fl-sim", description=importlib.import_module("fl_sim").__doc__)
    parser.add_argument("--version", action="version", version=f"fl-sim {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for info in sorted(pkgutil.iter_modules(commands.__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{commands.__name__}.{info.name}")
        verb = verbs.add_parser(module.NAME, help=module.HELP, description=module.__doc__)
        module.add_arguments(verb)
        verb.set_defaults(command=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code (0 done, 2 bad input, 130 interrupted)."""
    args = build_parser().parse_args(argv)
    try:
        return int(args.command(args))
    except (ValueError, OSError) as error:
        if not _is_foreseen(error):
            raise
        print(f"fl-sim {args.verb}: {_one_line(error)}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        print(f"fl-sim {args.verb}: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def _is_foreseen(error: Exception) -> bool:
    """Whether ``error`` is one of the project's own input errors, or the system's word on a file."""
    if isinstance(error, OSError):
        return error.filename is not None
    return any(package in type(error).__module__ for package in ("fl_sim", "strategies", "clients", "data_prep"))


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())


if __name__ == "__main__":
    sys.exit(main())
