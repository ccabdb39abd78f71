"""Copies of the tree, each for one job, in which files are mutated and restored."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

from mutation_testing.catalogue import Mutation

Item = TypeVar("Item")
Result = TypeVar("Result")

LEFT_OUT = ("notebooks", "results", "docs/images")
_NO_SOURCES = {".git", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".venv", "__pycache__", "runs"}


def files_of(root: Path) -> list[Path]:
    """Return the files of the tree, relative to ``root``: those that git does not ignore; without .git, all of them."""
    names = _from_git(root) if (root / ".git").exists() else _walked(root)
    return [name for name in names if not any(name.is_relative_to(folder) for folder in LEFT_OUT)]


def _from_git(root: Path) -> list[Path]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True).stdout.decode()
    names = [Path(name) for name in listed.split("\0") if name]
    return [name for name in names if (root / name).is_symlink() or (root / name).exists()]


def _walked(root: Path) -> list[Path]:
    found: list[Path] = []
    for name_of_folder, folders, files in os.walk(root):
        folder = Path(name_of_folder)
        linked = [name for name in folders if (folder / name).is_symlink()]
        folders[:] = [name for name in folders if name not in _NO_SOURCES and name not in linked]
        found += [(folder / name).relative_to(root) for name in (*files, *linked)]
    return found


def copy_tree(root: Path, target: Path) -> None:
    """Copy the tree to the new folder ``target``; links stay links, so that they lead into the copy.

    Raises:
        ValueError: a link is absolute or leads out of the tree.
    """
    for name in files_of(root):
        source, copy = root / name, target / name
        if source.is_symlink() and not source.resolve().is_relative_to(root.resolve()):
            raise ValueError(f"{source}: leads out of the tree; allowed: links within it")
        if source.is_symlink() and source.readlink().is_absolute():
            raise ValueError(f"{source}: is absolute; allowed: relative links")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, copy, follow_symlinks=False)


@contextmanager
def mutated(copy: Path, mutation: Mutation) -> Iterator[None]:
    """Put a fault into a copy of the tree, and take it out again."""
    path = copy / mutation.file
    original = path.read_bytes()
    changed = mutation.mutated(original.decode()).encode()
    try:
        _write(path, changed)
        yield
    finally:
        _write(path, original)


def _write(path: Path, content: bytes) -> None:
    """Write a module and remove its bytecode, which could pass for that of a file of equal size and second."""
    path.write_bytes(content)
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink(missing_ok=True)


class Copies:
    """Hold copies of a tree, each used by one piece of work at a time.

    Args:
        root: the tree.
        folder: an empty folder for the copies.
        number: how many there are.
        check: called with each copy; raises if it cannot be used.
    """

    def __init__(self, root: Path, folder: Path, number: int, check: Callable[[Path], None]) -> None:
        self._free: SimpleQueue[Path] = SimpleQueue()
        for index in range(number):
            copy = folder / f"copy-{index}"
            copy_tree(root, copy)
            check(copy)
            self._free.put(copy)

    def map(self, work: Callable[[Path, Item], Result], items: Sequence[Item]) -> list[Result]:
        """Return ``work(copy, item)`` of each item, in their order, with as many at a time as there are copies."""

        def one(item: Item) -> Result:
            copy = self._free.get()
            try:
                return work(copy, item)
            finally:
                self._free.put(copy)

        with ThreadPoolExecutor(self._free.qsize()) as pool:
            try:
                return list(pool.map(one, items))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
