"""Run the ``fl-sim`` command: find the verb, run it, report bad input in one line with exit code 2.

Nothing is printed that a terminal would obey: names come from data, and data may hold escape sequences.

A user's name can hold the bytes that clear a screen, set a window's title, write to the clipboard, or turn the
direction of what follows. Within :func:`safe_streams` they are written as escapes (``\\u001b``), with which JSON stays
valid. On a terminal the colours and the line movements of progress bars pass.

>>> import contextlib
>>> with contextlib.redirect_stdout(io.StringIO()) as printed, safe_streams():
...     print("user \\x1b[2J\\u202eadA")
>>> printed.getvalue()
'user \\\\u001b[2J\\\\u202eadA\\n'

>>> args = build_parser().parse_args(["report", "runs/first", "--json"])
>>> args.verb, args.run.name, args.json
('report', 'first', True)
>>> sorted(VERBS["privacy"])
['account', 'audit', 'entities', 'leak', 'plan']
"""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from fl_sim import __version__
from fl_sim.formats import printable_lines
from fl_sim.stop_signals import Stopped, exit_status, raising_stops

_OF_PROGRESS_BARS = re.compile(r"(\x1b\[(?:[0-9;]*m|1A|2K|\?25[lh])|\r)")


class SafeStream(io.TextIOBase):
    """A text stream that escapes what a terminal would obey, and is like the stream below in all else."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text, harmless; return how many characters it had."""
        if text.isascii() and text.isprintable():
            self._stream.write(text)
        elif self._stream.isatty():
            parts = _OF_PROGRESS_BARS.split(text)
            self._stream.write("".join(p if n % 2 else printable_lines(p) for n, p in enumerate(parts)))
        else:
            self._stream.write(printable_lines(text))
        return len(text)

    def flush(self) -> None:
        """Flush the stream below."""
        self._stream.flush()

    def isatty(self) -> bool:
        """Return whether the stream below is a terminal; libraries ask at exit, when it may be closed."""
        return not self._stream.closed and bool(self._stream.isatty())

    def fileno(self) -> int:
        """Return the descriptor of the stream below."""
        return int(self._stream.fileno())

    def writable(self) -> bool:
        """Return True."""
        return True

    @property
    def encoding(self) -> Any:  # type: ignore[override]
        """The encoding of the stream below."""
        return getattr(self._stream, "encoding", "utf-8")

    @property
    def buffer(self) -> Any:
        """The bytes of the stream below."""
        return self._stream.buffer


@contextmanager
def safe_streams() -> Iterator[None]:
    """Make standard output and standard error safe within the block."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = SafeStream(sys.stdout), SafeStream(sys.stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


_CORPUS, _RUN, _PRIVACY = "cli.corpus_commands", "cli.run_commands", "cli.privacy_commands"
_PROJECT = "cli.project_commands"

VERBS: dict[str, dict[str, tuple[str, str]]] = {
    "projects": {
        "new": (_PROJECT, "make a small project that runs, with parts of its own"),
    },
    "corpora": {
        "prepare": (_CORPUS, "make a corpus from text, a table, a dataset or a generator"),
        "stats": (_CORPUS, "count users, sentences and entities of a prepared corpus"),
        "identity": (_CORPUS, "compare entities and their contributions by identity setting"),
        "ner": (_CORPUS, "train a tagger, or evaluate one against gold entities"),
        "deidentify": (_CORPUS, "remove entities, or replace them by categories or surrogates"),
        "public-weights": (_CORPUS, "write weights of names, from the frequencies in a public corpus"),
    },
    "runs": {
        "run": (_RUN, "simulate a private training run"),
        "resume": (_RUN, "continue an interrupted run"),
        "report": (_RUN, "print a run's privacy and utility, or write a page of runs"),
        "compare": (_RUN, "print runs side by side: ε, utility, settings, warnings"),
        "plot": (_RUN, "plot runs: ε against rounds, utility against ε"),
        "sweep": (_RUN, "run a grid or random search of settings, and print a table"),
        "tune": (_RUN, "find settings on public text for a private run of stated size"),
        "utility": (_RUN, "show for whom a run's model works, beside personal models"),
        "generate": (_RUN, "continue prompts with the model of a run"),
        "pretrain": (_RUN, "train an initial model on public text"),
        "doctor": (_PROJECT, "check this installation, its devices and engines"),
        "completion": (_PROJECT, "print the completion of bash, zsh or fish"),
    },
    "privacy": {
        "account": (_PRIVACY, "compute ε, or the setting that meets a target ε"),
        "plan": (_PRIVACY, "propose the settings with the best signal-to-noise at a target ε"),
        "entities": (_PRIVACY, "compute ε of every entity of a corpus, and its distribution"),
        "audit": (_PRIVACY, "attack a mechanism: a lower bound on ε, beside the claimed ε"),
        "leak": (_PRIVACY, "attack a run's model, beside the most that ε allows"),
    },
    "research": {
        "reproduce": ("research", "make a figure or table of the UeDP paper, or one of ours"),
        "represent": ("research", "classify perturbed representations, and attack them"),
    },
}
"""The verbs by group: the package of the verb's module, which is imported on use only, and what the verb does."""

EXIT_BAD_INPUT = 2
EXIT_DIVERGED = 3
EXIT_NO_READER = 141

_OURS = ("fl_sim",)

# Errors of the operating system about a disk or a limit; they often lack a file name.
_RESOURCES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE)


class _Parser(argparse.ArgumentParser):
    """Parse arguments; report an error in one line on stderr, without the usage block.

    Abbreviated flags are refused: ``--epsilon`` would be read as ``--epsilon-budget``, but look like the target.
    """

    def __init__(self, *, module: str | None = None, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)
        self._module = module

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments after the verb's module has added its flags."""
        self.complete()
        return super().parse_known_args(args, namespace)

    def complete(self) -> None:
        """Let the verb's module add its flags, if it has not yet."""
        if self._module is not None:
            module, self._module = importlib.import_module(self._module), None
            self.description = module.__doc__
            module.add_arguments(self)
            self.set_defaults(command=module.run)

    def error(self, message: str) -> NoReturn:
        """Exit with code 2 and one line that names the mistake."""
        self.exit(EXIT_BAD_INPUT, f"{self.prog}: {message} (see {self.prog} --help)\n")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser with one subcommand per verb of :data:`VERBS`; a verb's module is imported when it is used."""
    parser = _Parser(
        prog="fl-sim",
        usage="fl-sim [-h] [--version] VERB ...",
        description=_help(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"fl-sim {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", prog="fl-sim", help=argparse.SUPPRESS)
    for group in VERBS.values():
        for name, (package, _) in group.items():
            verbs.add_parser(name, module=f"fl_sim.{package}.{name.replace('-', '_')}_command")
    return parser


def _help() -> str:
    """Return the head of the help screen: what the program does, and the verbs by group."""
    lines = ["Simulate federated learning with user-entity differential privacy.", ""]
    for group, verbs in VERBS.items():
        lines += [f"{group}:", *(f"  {name:<11} {words}" for name, (_, words) in verbs.items()), ""]
    return "\n".join([*lines, "fl-sim VERB --help shows the flags of a verb."])


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb, or print the help screen if there is none.

    Returns:
        The exit code: 0 done, 2 bad input, 3 diverged, 130 Ctrl-C, 143 SIGTERM, 129 SIGHUP, 141 the output pipe was
        closed by its reader.
    """
    _tolerate_narrow_terminals()
    with safe_streams():
        return _until_stopped(argv)


def _until_stopped(argv: Sequence[str] | None) -> int:
    """Parse the command line and run the verb; return the exit code, also that of a stop by a signal."""
    program = "fl-sim"
    try:
        with raising_stops():
            parser = build_parser()
            args = parser.parse_args(argv)
            if args.verb is None:
                parser.print_help()
                return 0
            program = f"fl-sim {args.verb}"
            return _run(args, program)
    except KeyboardInterrupt as error:
        name = error.name if isinstance(error, Stopped) else "SIGINT"
        words = "interrupted" if name == "SIGINT" else f"interrupted by {name}"
        print(f"{program}: {'; '.join([words, *_notes(error)])}", file=sys.stderr)
        return exit_status(name)


def _run(args: argparse.Namespace, program: str) -> int:
    """Run the verb; return the exit code."""
    try:
        code = int(args.command(args))
        sys.stdout.flush()  # here, where a full disk or a closed pipe is still reported in one line
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
        print(f"{program}: {_one_line(error)}", file=sys.stderr)
        return EXIT_BAD_INPUT


def _drop_output() -> None:
    """Discard the buffered output, so that Python does not write to the closed pipe at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _tolerate_narrow_terminals() -> None:
    """Print characters that the terminal lacks, such as ε, as escapes instead of failing after a finished run."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _is_foreseen(error: Exception) -> bool:
    """Return whether ``error`` is an input error of the project, or the system's error for a file or a limit.

    Any other error is a bug; its traceback is shown.
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
    """Return the notes that were added to the error on its way up."""
    return list(getattr(error, "__notes__", []))


if __name__ == "__main__":
    sys.exit(main())
