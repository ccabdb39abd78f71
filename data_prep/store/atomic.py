"""Folders that appear whole or not at all."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fl_sim.data_prep.records import CorpusError


def require_free(out: Path) -> None:
    """Raise :class:`CorpusError` unless ``out`` is absent or an empty folder."""
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise CorpusError(f"{out}: exists and is not a folder; choose another output folder")
    if out.is_dir() and any(out.iterdir()):
        raise CorpusError(f"{out}: the output folder exists and is not empty; remove it or choose another")


@contextmanager
def folder_appearing_at(out: Path, *, replace: bool = False) -> Iterator[Path]:
    """Give a temporary folder beside ``out`` to write in, and rename it to ``out`` once the block is through.

    Whatever ends the block early (an error, Ctrl-C) removes the temporary folder, and the parents it needed. A killed
    process leaves it behind, named ``.NAME.partial``; whoever comes next clears it away. With ``replace`` what is at
    ``out`` gives way at the end, in two renames: after a power cut between them it lies at ``.NAME.replaced``.
    Raises :class:`CorpusError` where ``out`` is taken or another process is writing it, :class:`OSError` where its
    place cannot be written.
    """
    if not replace:
        require_free(out)
    made = _make_parents(out.parent)
    scratch = out.parent / f".{out.name}.partial"
    lock = _claimed(scratch, out)
    try:
        yield scratch
        if replace and out.exists():
            _exchange(scratch, out)
        else:
            scratch.rename(out)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        with suppress(OSError):  # somebody else may have put something there meanwhile
            for parent in made:
                parent.rmdir()
        raise
    finally:
        os.close(lock)


def _claimed(scratch: Path, out: Path) -> int:
    """An empty folder ``scratch`` that is locked until the descriptor returned is closed or this process ends."""
    while True:
        scratch.mkdir(exist_ok=True)
        lock = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if scratch.exists() and os.path.samestat(os.fstat(lock), scratch.stat()):
                for left in scratch.iterdir():
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
                return lock
        except BlockingIOError as error:
            os.close(lock)
            raise CorpusError(
                f"{out}: another process is writing this folder; wait for it, or choose another"
            ) from error
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)  # its last owner renamed or removed it just now


def _exchange(new: Path, out: Path) -> None:
    old = out.parent / f".{out.name}.replaced"
    shutil.rmtree(old, ignore_errors=True)
    out.rename(old)
    new.rename(out)
    shutil.rmtree(old, ignore_errors=True)


def _make_parents(parent: Path) -> list[Path]:
    """Make ``parent`` and what it needs; returns what was made, innermost first."""
    missing = []
    while not parent.exists():
        missing.append(parent)
        parent = parent.parent
    for folder in reversed(missing):
        folder.mkdir()
    return missing
