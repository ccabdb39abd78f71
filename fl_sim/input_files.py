"""Open and read input files that may be hostile: regular files alone, and no more of them than is allowed.

A device, FIFO or socket has no end, or blocks for ever; so may a link to one, whatever its name. Every file that a
command or a configuration names is opened here, or by a library after :func:`check_regular`.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:  # doctest: +ELLIPSIS
...     path = Path(folder) / "settings.toml"
...     _ = path.write_bytes(b"rounds = 5")
...     read_bytes(path), read_bytes(path, most=3)
Traceback (most recent call last):
OSError: [Errno 27] more than 3 bytes; allowed: at most 3 bytes: '...settings.toml'
>>> check_regular("/dev/zero")
Traceback (most recent call last):
OSError: [Errno 22] a device; allowed: a regular file: '/dev/zero'
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

MOST_BYTES = 1 << 26
"""The largest file of settings or records (64 MiB), unless a caller allows more: a TOML file, a manifest, a result."""

MOST_LOG_BYTES = 1 << 28
"""The largest file to which every round adds a line (256 MiB): 100,000 rounds of 2,600 bytes each."""

_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a FIFO (a pipe)",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def check_regular(path: Path | str, *, follow_links: bool = True) -> os.stat_result:
    """Check that ``path`` is a regular file, and return its state; nothing is opened, so nothing blocks.

    Args:
        path: of the file.
        follow_links: whether a link to a regular file is one.

    Raises:
        OSError: it is absent, a folder, a device, a FIFO or a socket; the message names the path.
    """
    return _checked(Path(path).stat(follow_symlinks=follow_links), path)


def open_regular(path: Path | str) -> BinaryIO:
    """Open a regular file for reading.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    check_regular(path)
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        _checked(os.fstat(descriptor), path)  # it may have been exchanged in between
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: Path | str, most: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file of at most ``most`` bytes.

    Raises:
        OSError: it cannot be read, is no regular file, or is larger.
    """
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        size = shown_bytes(most)
        raise OSError(errno.EFBIG, f"more than {size}; allowed: at most {size}", str(path))
    return content


def shown_bytes(count: int) -> str:
    """Return a number of bytes as people write it.

    >>> shown_bytes(1 << 24), shown_bytes(4 << 30), shown_bytes(1000)
    ('16 MiB', '4 GiB', '1,000 bytes')
    """
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit and count % unit == 0:
            return f"{count // unit:,} {name}"
    return f"{count:,} bytes"


def _checked(state: os.stat_result, path: Path | str) -> os.stat_result:
    if stat.S_ISREG(state.st_mode):
        return state
    if stat.S_ISDIR(state.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    kind = _KINDS.get(stat.S_IFMT(state.st_mode), "no file")
    raise OSError(errno.EINVAL, f"{kind}; allowed: a regular file", str(path))
