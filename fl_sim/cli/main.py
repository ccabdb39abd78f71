"""Run the ``fl-sim`` command: find the verb, run it, report bad input in one line with exit code 2.

>>> main(["report", "no/such/run"])
2
"""

from __future__ import annotations

import difflib
import errno
import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO, cast

import click
from click.shell_completion import shell_complete

from fl_sim.cli.verbs import Running, fl_sim, with_flags
from fl_sim.formats import printable_lines
from fl_sim.stop_signals import Stopped, exit_status, raise_missed_stop, raising_stops

EXIT_BAD_INPUT = 2
EXIT_DIVERGED = 3
EXIT_NO_READER = 141

_COMPLETE = "_FL_SIM_COMPLETE"
"""The variable with which a shell asks for completion (docs/configuration.md)."""

# Errors of the operating system about a disk or a limit; they often lack a file name.
_RESOURCES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE)

_OF_PROGRESS_BARS = re.compile(r"(\x1b\[(?:[0-9;]*m|1A|2K|\?25[lh])|\r)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb, or print the help screen if there is none.

    Returns:
        The exit code: 0 done, 2 bad input, 3 diverged, 130 Ctrl-C, 143 SIGTERM, 129 SIGHUP, 141 the output pipe was
        closed by its reader.
    """
    _tolerate_narrow_terminals()
    words = list(sys.argv[1:] if argv is None else argv)
    if asked := os.environ.get(_COMPLETE):
        return shell_complete(fl_sim, {}, "fl-sim", _COMPLETE, asked)
    with safe_streams():
        return _until_stopped(words)


def _until_stopped(words: list[str]) -> int:
    """Run the verb; return the exit code, also that of a stop by a signal."""
    running = Running()
    try:
        with raising_stops():
            return _run(words, running)
    except KeyboardInterrupt as error:
        name = error.name if isinstance(error, Stopped) else "SIGINT"
        said = "interrupted" if name == "SIGINT" else f"interrupted by {name}"
        print(f"{running.path}: {'; '.join([said, *_notes(error)])}", file=sys.stderr)
        return exit_status(name)


def _run(words: list[str], running: Running) -> int:
    """Parse the words and run the verb; return the exit code."""
    try:
        with fl_sim.make_context("fl-sim", words, obj=running) as context:
            code = int(fl_sim.invoke(context) or 0)
        sys.stdout.flush()  # here, where a full disk or a closed pipe is still reported in one line
        return code
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.ClickException as error:
        print(f"{running.path}: {_usage_words(error)} (see {running.path} --help)", file=sys.stderr)
        return EXIT_BAD_INPUT
    except BrokenPipeError:
        _drop_output()
        return EXIT_NO_READER
    except (ValueError, OSError, ModuleNotFoundError, MemoryError) as error:
        if not _is_foreseen(error):
            raise
        try:
            raise_missed_stop()  # a library may have made this error of it
        except Stopped as stop:
            stop.add_note(_one_line(error))
            raise
        try:
            sys.stdout.flush()
        except OSError:
            _drop_output()
        print(f"{running.path}: {with_flags(_one_line(error), running)}", file=sys.stderr)
        return EXIT_BAD_INPUT


def _usage_words(error: click.ClickException) -> str:
    """Return in one line what is wrong with the words of a command line."""
    if isinstance(error, click.MissingParameter) and error.param is not None:
        return f"{_name(error.param)} is missing"
    if isinstance(error, click.BadParameter) and error.param is not None:
        words = " ".join(error.message.split()).removesuffix(".")
        return f"{_name(error.param)}{' ' if words.startswith('is ') else ': '}{words}"
    if isinstance(error, click.NoSuchOption):
        near = difflib.get_close_matches(error.option_name, error.possibilities or (), cutoff=0.65)
        error = click.NoSuchOption(error.option_name, possibilities=near, ctx=error.ctx)
    return " ".join(error.format_message().split()).removesuffix(".")


def _name(parameter: click.Parameter) -> str:
    """Return the flag of a parameter, or the placeholder of an argument."""
    return parameter.opts[0] if isinstance(parameter, click.Option) else parameter.make_metavar(click.Context(fl_sim))


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
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError):
        return error.filename is not None or error.errno in _RESOURCES
    if isinstance(error, ModuleNotFoundError):
        return _package(error) in _text_packages()
    return type(error).__module__.partition(".")[0] == "fl_sim"


def _package(error: ModuleNotFoundError) -> str:
    return (error.name or "").partition(".")[0]


def _text_packages() -> set[str]:
    """Return the packages of the extra ``text``, which the plain installation lacks."""
    from importlib import metadata

    from packaging.requirements import Requirement

    needs = [Requirement(text) for text in metadata.requires("fl-sim") or ()]
    return {"ray"} | {need.name.lower() for need in needs if need.marker and need.marker.evaluate({"extra": "text"})}


def _one_line(error: Exception) -> str:
    words = str(error)
    if isinstance(error, ModuleNotFoundError):
        words = f"{_package(error)} is not installed: pip install 'fl-sim[text]'"
    if isinstance(error, MemoryError):
        words = f"out of memory: {words}"
    if isinstance(error, OSError) and error.strerror:
        words = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return "; ".join(" ".join(part.split()) for part in (words, *_notes(error)))


def _notes(error: BaseException) -> list[str]:
    """Return the notes that were added to the error on its way up."""
    return list(getattr(error, "__notes__", []))


class SafeStream:
    """A text stream that escapes what a terminal would obey, and is the stream below in all else."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        if name == "writelines":  # the stream's own would pass by :meth:`write`
            return lambda lines: self.write("".join(lines))
        return getattr(self._stream, name)

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

    def isatty(self) -> bool:
        """Return whether the stream below is a terminal; libraries ask at exit, when it may be closed."""
        return not self._stream.closed and bool(self._stream.isatty())

    @property
    def errors(self) -> str:
        """The error handler of the stream below; click replaces a stream that names none."""
        return getattr(self._stream, "errors", None) or "strict"


@contextmanager
def safe_streams() -> Iterator[None]:
    """Make standard output and standard error safe within the block.

    A user's name can hold the bytes that clear a screen, set a window's title, write to the clipboard, or turn the
    direction of what follows. They are written as escapes (``\\u001b``), with which JSON stays valid. On a terminal the
    colours and the line movements of progress bars pass.

    >>> import contextlib
    >>> with contextlib.redirect_stdout(io.StringIO()) as printed, safe_streams():
    ...     print("user \\x1b[2J\\u202eadA")
    >>> printed.getvalue()
    'user \\\\u001b[2J\\\\u202eadA\\n'
    """
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = cast(TextIO, SafeStream(sys.stdout)), cast(TextIO, SafeStream(sys.stderr))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


if __name__ == "__main__":
    sys.exit(main())
