"""Write output files whole or not at all, in place of nothing or of a regular file: never of a device or a link.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     path = Path(folder) / "table.csv"
...     replace_file(path, b"run,epsilon")
...     path.read_bytes(), [file.name for file in path.parent.iterdir()]
(b'run,epsilon', ['table.csv'])
>>> replace_file(Path("/dev/null"), b"")
Traceback (most recent call last):
OSError: [Errno 22] a device; allowed: a regular file: '/dev/null'
"""

from __future__ import annotations

import glob
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fl_sim.input_files import check_regular

_TEMPORARY, _RANDOM_BYTES = ".tmp", 4


def check_replaceable(path: Path) -> None:
    """Check that ``path`` is a regular file, or that nothing is there.

    Raises:
        OSError: it is a link, a device, a folder or the like; the message names the path.
    """
    with suppress(FileNotFoundError):
        check_regular(path, follow_links=False)


def replace_file(path: Path, content: bytes) -> None:
    """Replace the file at ``path`` atomically: a reader, or a crash, sees the old content or the new.

    Raises:
        OSError: it cannot be written, or is no regular file; the message names the path.
    """
    replace_file_by(path, lambda temporary: temporary.write_bytes(content))


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
        sync_folder(path.parent)


@contextmanager
def naming(path: Path, temporary: Path | None = None) -> Iterator[None]:
    """Let an error of the system in the block name ``path``: that of a full disk names no file.

    Args:
        path: the file that is written.
        temporary: another file that stands for it.
    """
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename in (None, str(temporary)):
            error.filename, error.filename2 = str(path), None
        raise


def remove_temporaries(folder: Path, name: str | None = None) -> None:
    """Remove the temporary files that a killed :func:`replace_file` left in ``folder``, as far as they can be removed.

    Args:
        folder: of files that no other process writes.
        name: of the file that was to be replaced; None for any.
    """
    pattern = f".{'*' if name is None else glob.escape(name)}.{'?' * 2 * _RANDOM_BYTES}{_TEMPORARY}"
    with suppress(OSError):
        for file in folder.glob(pattern):
            file.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Sync a folder's entries to disk."""
    if os.name == "nt":  # Windows cannot open folders, and its renames need no such step
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
