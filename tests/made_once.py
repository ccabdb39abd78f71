"""Corpora and runs that many tests need are made once, on disk, and copied by tests that write.

They lie under a digest of the code that makes them, so a change of the code makes new ones, and behind a lock, so that
the processes of one session, and sessions side by side, share them.

>>> folder = made_once("example", lambda draft: (draft.mkdir(), (draft / "file").write_text("made")))
>>> (folder / "file").read_text(), made_once("example", lambda draft: None) == folder
('made', True)
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

_ROOT = Path(__file__).resolve().parents[1]
_MAKERS = (
    "clients",
    "data_prep",
    "fl_sim",
    "strategies",
    "tests/tiny.py",
    "tests/e2e/small_runs.py",
    "tests/documented/small_size",
)
_KEPT_SECONDS = 24 * 3600


def made_once(name: str, make: Callable[[Path], object]) -> Path:
    """Return the folder ``name`` that ``make(draft)`` makes if it is not there yet. Tests must not write into it."""
    folder = _shared_folder() / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f"{folder.name}.lock")):
        if not folder.exists():
            draft = folder.with_name(f"{folder.name}.draft")
            shutil.rmtree(draft, ignore_errors=True)  # of a session that was killed
            make(draft)
            draft.rename(folder)
    return folder


def copy_of(name: str, make: Callable[[Path], object], folder: Path) -> Path:
    """Copy what :func:`made_once` returns to ``folder``, for a test that writes; return ``folder``.

    The tokens that runs keep beside a corpus, maybe just now, are left out.
    """
    shutil.copytree(made_once(name, make), folder, ignore=shutil.ignore_patterns("tokens"), dirs_exist_ok=True)
    return folder


@functools.cache
def _shared_folder() -> Path:
    """Return the folder of this state of the code; remove those of other states that nobody used for a day."""
    folder = Path(tempfile.gettempdir()) / f"fl-sim-tests-{os.getuid()}" / _digest_of_code()
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(folder)
    for other in folder.parent.iterdir():
        if time.time() - other.stat().st_mtime > _KEPT_SECONDS:
            shutil.rmtree(other, ignore_errors=True)
    return folder


def _digest_of_code() -> str:
    digest = hashlib.sha256()
    for maker in _MAKERS:
        path = _ROOT / maker
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(file.relative_to(_ROOT).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]
