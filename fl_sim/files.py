"""Read and write files with care.

Input files may be hostile: regular files alone are read, and no more of them than is allowed. Private files and
folders are for their owner alone: 0600 and 0700, whatever the process's umask. Output files are written whole or not
at all, in place of nothing or of a regular file: never of a device or a link.

A device, FIFO or socket has no end, or blocks for ever. Every file that a command or a configuration names is opened
here, or by a library after :func:`check_regular`. What holds private text, entities, ledgers or models is written
within :func:`owner_only`, by any library.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     path = Path(folder) / "table.csv"
...     replace_file(path, b"run,epsilon")
...     path.read_bytes(), [file.name for file in path.parent.iterdir()]
(b'run,epsilon', ['table.csv'])
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import secrets
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

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
    """Check that ``path`` is a regular file, or a link to one, and return its state; nothing is opened.

    Raises:
        OSError: it is absent, a folder, a device, a FIFO or a socket; the message names the path.
    """
    return _checked(Path(path).stat(follow_symlinks=follow_links), path)


def open_regular(path: Path | str) -> BufferedReader:
    """Open a regular file for reading; OSError if it cannot be opened, or is no regular file."""
    check_regular(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        _checked(os.fstat(descriptor), path)  # it may have been exchanged in between
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of the bytes of a file, in hexadecimal."""
    with open_regular(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_bytes(path: Path | str, most: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file of at most ``most`` bytes; OSError if it is larger, or cannot be read."""
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        size = shown_bytes(most)
        raise OSError(errno.EFBIG, f"more than {size}; allowed: at most {size}", str(path))
    return content


def json_object(content: bytes) -> dict[str, Any]:
    """Return the JSON object that ``content`` is; ValueError if it is none or beyond Python's limits."""
    try:
        value = json.loads(content)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError("a JSON object is expected")
    return value


def cache_folder() -> Path:
    """Return fl_sim's folder in the user's cache; raise RuntimeError if there is no home."""
    given = os.environ.get("XDG_CACHE_HOME")
    if given and Path(given).is_absolute():
        return Path(given) / "fl-sim"
    try:
        return Path.home() / ".cache" / "fl-sim"
    except RuntimeError as error:
        raise RuntimeError("there is no home folder") from error


def canonical_json(value: Any) -> bytes:
    """Return the one JSON text of a value: keys sorted, no white space.

    >>> canonical_json({"b": 1, "a": [None, 2.0]})
    b'{"a":[null,2.0],"b":1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def sha256_of_json(value: Any) -> str:
    """Return the SHA-256 of :func:`canonical_json`, in hexadecimal digits."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


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


_OTHERS = 0o077

_lock = threading.Lock()
_blocks: list[int] = []  # the umask before each of the blocks under way, of any thread


@contextmanager
def owner_only() -> Iterator[None]:
    """Give no rights to others on what is created in the block; also a decorator, as ``@owner_only()``.

    The umask belongs to the whole process, so files that another thread makes meanwhile are private, too.
    """
    with _lock:
        before = os.umask(_OTHERS)
        os.umask(before | _OTHERS)
        _blocks.append(before)
    try:
        yield
    finally:
        with _lock:
            # With blocks in several threads, the first one's umask counts, and the last one restores it.
            first = _blocks[0]
            _blocks.pop()
            if not _blocks:
                os.umask(first)


def close_to_others(folder: Path) -> None:
    """Take the rights of others on what is in ``folder``, such as a copy with other rights, as far as it is ours."""
    for path in (folder, *folder.rglob("*")):
        with suppress(OSError):
            mode = path.lstat().st_mode
            if mode & _OTHERS and not path.is_symlink():
                path.chmod(mode & ~_OTHERS & 0o7777)


_TEMPORARY, _RANDOM_BYTES = ".tmp", 4


def check_replaceable(path: Path) -> None:
    """Check that ``path`` is a regular file, or that nothing is there; OSError names what else it is."""
    with suppress(FileNotFoundError):
        check_regular(path, follow_links=False)


def replace_file(path: Path, content: bytes) -> None:
    """Replace the file at ``path`` atomically: a reader, or a crash, sees the old content or the new."""
    replace_file_by(path, lambda temporary: temporary.write_bytes(content))


def replace_private_file(path: Path, content: bytes) -> None:
    """Replace the file at ``path`` as :func:`replace_file` does, and give no rights on it to others."""
    with owner_only():
        replace_file(path, content)


def replace_file_by(path: Path, write: Callable[[Path], object]) -> None:
    """Replace the file at ``path`` atomically by what ``write`` writes to another path in the same folder."""
    check_replaceable(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(_RANDOM_BYTES)}{_TEMPORARY}")
    with naming(path, temporary):
        try:
            write(temporary)
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def naming(path: Path, temporary: Path | None = None) -> Iterator[None]:
    """Let an error of the system in the block name ``path``, not ``temporary``: that of a full disk names no file."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename in (None, str(temporary)):
            error.filename, error.filename2 = str(path), None
        raise


def remove_temporaries(folder: Path, name: str | None = None) -> None:
    """Remove the temporary files that a killed :func:`replace_file` of ``name``, or of any file, left in ``folder``."""
    pattern = f".{'*' if name is None else glob.escape(name)}.{'?' * 2 * _RANDOM_BYTES}{_TEMPORARY}"
    with suppress(OSError):
        for file in folder.glob(pattern):
            file.unlink(missing_ok=True)
