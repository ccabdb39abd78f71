"""Folders that appear whole or not at all."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from data_prep.records import CorpusError


def require_free(out: Path) -> None:
    """Raise :class:`CorpusError` unless ``out`` is absent or an empty folder."""
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise CorpusError(f"{out}: exists and is not a folder; choose another output folder")
    if out.is_dir() and any(out.iterdir()):
        raise CorpusError(f"{out}: the output folder exists and is not empty; remove it or choose another")


@contextmanager
def folder_appearing_at(out: Path) -> Iterator[Path]:
    """Give a temporary folder beside ``out`` to write in, and rename it to ``out`` once the block is through.

    Whatever ends the block early (an error, Ctrl-C) removes the temporary folder, and the parents it needed;
    only a killed process leaves one behind, named ``.NAME.partial-…``.
    Raises :class:`CorpusError` where ``out`` is taken, :class:`OSError` where its place cannot be written.
    """
    require_free(out)
    made = _make_parents(out.parent)
    scratch = out.parent / f".{out.name}.partial-{uuid.uuid4().hex[:8]}"
    try:
        scratch.mkdir()
        yield scratch
        scratch.rename(out)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        with suppress(OSError):  # somebody else may have put something there meanwhile
            for parent in made:
                parent.rmdir()
        raise


def _make_parents(parent: Path) -> list[Path]:
    """Make ``parent`` and what it needs; returns what was made, innermost first."""
    missing = []
    while not parent.exists():
        missing.append(parent)
        parent = parent.parent
    for folder in reversed(missing):
        folder.mkdir()
    return missing
