"""Create files and folders for their owner alone: 0600 and 0700, whatever the process's umask.

What holds private text, entities, ledgers or models is written within :func:`owner_only`, by any library. The umask
belongs to the whole process, so files that another thread makes meanwhile are private, too.

>>> import tempfile
>>> from pathlib import Path
>>> with tempfile.TemporaryDirectory() as folder, owner_only():
...     file = Path(folder) / "corpus" / "text"
...     file.parent.mkdir()
...     _ = file.write_text("Ada left.")
...     oct(file.stat().st_mode & 0o777), oct(file.parent.stat().st_mode & 0o777)
('0o600', '0o700')
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_OTHERS = 0o077

_lock = threading.Lock()
_blocks: list[int] = []  # the umask before each of the blocks under way, of any thread


@contextmanager
def owner_only() -> Iterator[None]:
    """Give no rights to others on what is created in the block; also a decorator, as ``@owner_only()``."""
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
    """Take the rights of others on what is in ``folder``, as earlier versions created it, as far as it is ours."""
    for path in (folder, *folder.rglob("*")):
        with suppress(OSError):
            mode = path.lstat().st_mode
            if mode & _OTHERS and not path.is_symlink():
                path.chmod(mode & ~_OTHERS & 0o7777)
