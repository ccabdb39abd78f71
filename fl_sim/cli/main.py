"""The ``fl-sim`` command: find the verb, run it, turn every foreseeable mistake into one clear line and exit code 2."""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from fl_sim import __version__

VERBS = (
    "cli.privacy_commands.account",
    "cli.privacy_commands.audit",
    "cli.corpus_commands.deidentify",
    "cli.privacy_commands.entities",
    "cli.corpus_commands.identity",
    "cli.corpus_commands.ner",
    "cli.privacy_commands.plan",
    "cli.run_commands.plot",
    "cli.corpus_commands.prepare",
    "cli.run_commands.pretrain",
    "cli.run_commands.report",
    "research.represent",
    "research.reproduce",
    "cli.run_commands.resume",
    "cli.run_commands.run",
    "cli.corpus_commands.stats",
    "cli.run_commands.sweep",
)
"""The verbs' modules by name: the command line is where all parts meet, and imports none of them by itself."""

EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
EXIT_NO_READER = 141

_OURS = ("fl_sim",)

# What the system says of a disk or of its own limits, often without the name of a file.
_RESOURCES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE)


class _Parser(argparse.ArgumentParser):
    """Argument errors are one line on stderr, without the usage block; a flag has to be written out.

    (``--epsilon`` for ``--epsilon-budget`` would be taken for the target by whoever wrote it.)
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_BAD_INPUT, f"{self.prog}: {message} (see {self.prog} --help)\n")


def build_parser() -> argparse.ArgumentParser:
    """The parser with one subcommand per module of :data:`VERBS`."""
    parser = _Parser(prog="fl-sim", description=importlib.import_module("fl_sim").__doc__)
    parser.add_argument("--version", action="version", version=f"fl-sim {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name in VERBS:
        module = importlib.import_module(f"fl_sim.{name}_command")
        verb = verbs.add_parser(module.NAME, help=module.HELP, description=module.__doc__)
        module.add_arguments(verb)
        verb.set_defaults(command=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code (0 done, 2 bad input, 130 interrupted, 141 nobody reads the output)."""
    _tolerate_narrow_terminals()
    args = build_parser().parse_args(argv)
    try:
        code = int(args.command(args))
        sys.stdout.flush()  # here, where a full disk or a closed pipe is still told in one line
        return code
    except BrokenPipeError:
        _drop_output()
        return EXIT_NO_READER
    except (ValueError, OSError) as error:
        if not _is_foreseen(error):
            raise
        try:
            sys.stdout.flush()
        except OSError:
            _drop_output()
        print(f"fl-sim {args.verb}: {_one_line(error)}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except KeyboardInterrupt as error:
        print(f"fl-sim {args.verb}: {'; '.join(['interrupted', *_notes(error)])}", file=sys.stderr)
        return EXIT_INTERRUPTED


def _drop_output() -> None:
    """What is still buffered has nowhere to go, and Python must not try again when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _tolerate_narrow_terminals() -> None:
    """A terminal without ε shows it as an escape; a finished run must not end in an error for want of a letter."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _is_foreseen(error: Exception) -> bool:
    """Whether ``error`` is one of the project's own input errors, or the system's word on a file or its limits.

    Everything else is a bug, and bugs show their traceback.
    """
    if isinstance(error, OSError):
        return error.filename is not None or error.errno in _RESOURCES
    return type(error).__module__.partition(".")[0] in _OURS


def _one_line(error: Exception) -> str:
    words = str(error)
    if isinstance(error, OSError) and error.strerror:
        words = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return "; ".join(" ".join(part.split()) for part in (words, *_notes(error)))


def _notes(error: BaseException) -> list[str]:
    """What those who passed the error on had to add."""
    return list(getattr(error, "__notes__", []))


if __name__ == "__main__":
    sys.exit(main())
