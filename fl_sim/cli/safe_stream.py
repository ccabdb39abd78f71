"""Print nothing that a terminal would obey: names come from data, and data may hold escape sequences.

A user's name can hold the bytes that clear a screen, set a window's title, write to the clipboard, or turn the
direction of what follows. Within :func:`safe_streams` they are written as escapes (``\\u001b``), with which JSON stays
valid. On a terminal the colours and the line movements of progress bars pass.

>>> import contextlib, io
>>> with contextlib.redirect_stdout(io.StringIO()) as printed, safe_streams():
...     print("user \\x1b[2J\\u202eadA")
>>> printed.getvalue()
'user \\\\u001b[2J\\\\u202eadA\\n'
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from fl_sim.formats import printable_lines

_OF_PROGRESS_BARS = re.compile(r"(\x1b\[(?:[0-9;]*m|1A|2K|\?25[lh])|\r)")


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
    """Make standard output and standard error safe within the block."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = cast(TextIO, SafeStream(sys.stdout)), cast(TextIO, SafeStream(sys.stderr))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
