"""The list of mutations: tests/mutations/*.toml, a file per subject."""

from __future__ import annotations

import ast
import functools
import hashlib
import subprocess
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path("tests/mutations")
_REQUIRED = ("id", "file", "find", "replace", "tests", "fault")
_OPTIONAL = ("equivalent",)


class CatalogueError(ValueError):
    """Report a list of mutations that cannot be read, or an id that is not in it, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """Describe one fault and the tests that should notice it.

    Attributes:
        id: its name, unique in the catalogue.
        subject: the heading of its file.
        file: the mutated module, relative to the root.
        find: a text that occurs exactly once in the module.
        replace: the text in its place.
        tests: files or node ids for pytest; the first failure ends the run.
        fault: the meaning, in a few words.
        equivalent: why no test can notice it; None if a test should.
    """

    id: str
    subject: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...]
    fault: str
    equivalent: str | None = None

    def mutated(self, source: str) -> str:
        """Return the mutated text of the module.

        Raises:
            CatalogueError: ``find`` does not occur exactly once, or nothing changes.
        """
        number = source.count(self.find)
        if number != 1 or self.find == self.replace:
            raise CatalogueError(f"{self.id}: find occurs {number} times in {self.file}; allowed: once, and a change")
        return source.replace(self.find, self.replace)


def read_catalogue(root: Path) -> list[Mutation]:
    """Return all mutations under ``root``, by file name and then in the order of each file.

    Raises:
        CatalogueError: a file is no TOML of this form, or an id occurs twice.
    """
    mutations = [mutation for file in sorted((root / FOLDER).glob("*.toml")) for mutation in _read_file(file)]
    seen: set[str] = set()
    for mutation in mutations:
        if mutation.id in seen:
            raise CatalogueError(f"id is {mutation.id} twice; allowed: every id once")
        seen.add(mutation.id)
    return mutations


def _read_file(file: Path) -> Iterator[Mutation]:
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise CatalogueError(f"{file}: {error}") from error
    subject, entries = content.get("subject"), content.get("mutation")
    if not isinstance(subject, str) or not isinstance(entries, list):
        raise CatalogueError(f'{file}: allowed: subject = "…" and [[mutation]] entries')
    for entry in entries:
        yield _mutation(file, subject, entry)


def _mutation(file: Path, subject: str, entry: dict[str, Any]) -> Mutation:
    name = entry.get("id", "an entry without id")
    missing, unknown = set(_REQUIRED) - entry.keys(), entry.keys() - {*_REQUIRED, *_OPTIONAL}
    if missing or unknown:
        raise CatalogueError(f"{file}, {name}: lacks {sorted(missing)}, has unknown {sorted(unknown)}")
    if not isinstance(entry["tests"], list) or not entry["tests"]:
        raise CatalogueError(f"{file}, {name}: tests is {entry['tests']!r}; allowed: a list with at least one test")
    return Mutation(subject=subject, **(entry | {"tests": tuple(entry["tests"])}))


def chosen(mutations: Sequence[Mutation], ids: Iterable[str]) -> list[Mutation]:
    """Return the mutations ``ids``, in this order.

    Raises:
        CatalogueError: an id is not in the catalogue.
    """
    by_id = {mutation.id: mutation for mutation in mutations}
    try:
        return [by_id[name] for name in ids]
    except KeyError as error:
        raise CatalogueError(f"id is {error.args[0]}; allowed: an id of {FOLDER}") from error


def changed_first(root: Path, mutations: Sequence[Mutation], commit: str, number: int) -> list[Mutation]:
    """Return ``number`` mutations: first those of modules that changed since ``commit``.

    Among both kinds a hash of the module's content decides, so that a change chooses others. Where git does not know
    the commit, no module counts as changed.
    """
    command = ["git", "diff", "--name-only", commit, "--"]
    changed = set(subprocess.run(command, cwd=root, capture_output=True, text=True, check=False).stdout.splitlines())

    def rank(mutation: Mutation) -> tuple[bool, str]:
        content = (root / mutation.file).read_bytes()
        order = hashlib.sha256(hashlib.sha256(content).digest() + mutation.id.encode()).hexdigest()
        return mutation.file not in changed, order

    return sorted((one for one in mutations if one.equivalent is None), key=rank)[:number]


def problems(root: Path, mutation: Mutation) -> list[str]:
    """Return what is wrong with an entry, one line each: text, syntax after the change, absent tests."""
    path = root / mutation.file
    if not path.is_file():
        return [f"{mutation.id}: there is no {mutation.file}"]
    found = [f"{mutation.id}: there is no test {test}" for test in mutation.tests if not _exists(root, test)]
    try:
        compile(mutation.mutated(path.read_text(encoding="utf-8")), mutation.file, "exec", dont_inherit=True)
    except CatalogueError as error:
        found.append(str(error))
    except SyntaxError as error:
        found.append(f"{mutation.id}: {error}")
    return found


def _exists(root: Path, test: str) -> bool:
    """Return whether a file, or the function or method of a node id, exists; parameters are not checked."""
    name, _, part = test.partition("[")[0].partition("::")
    return (root / name).is_file() and (not part or part in _tests_of(root / name))


@functools.lru_cache(maxsize=256)
def _tests_of(file: Path) -> frozenset[str]:
    """Return the classes, functions and methods (``Class::method``) of a file."""
    names = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return frozenset(names)
