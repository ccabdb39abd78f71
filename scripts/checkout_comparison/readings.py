"""Read what commands printed and wrote as items that can be compared: keys, figures, digests, names of files."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from checkout_comparison.checkouts import CommandError, Side
from checkout_comparison.differences import Items

# What two runs of one and the same checkout do not have in common: (document, key, why). Found by comparing a
# checkout with itself. Of these the key is compared, and of "whole" ones nothing below it either.
VOLATILE = [
    ("*", "*seconds", "how long it took"),
    ("*ledger*.json*", "*run", "the run's random id"),
    ("*ledger.jsonl", "*hash", "over the run's id"),
    ("*ledger.jsonl", "*previous", "over the run's id"),
    ("*ledger*.json*", "*last", "over the run's id"),
    ("*", "*ledger.run", "the run's random id"),
    ("*", "*ledger.last", "over the run's id"),
    ("reproduce", "record.when", "when it was made"),
    ("reproduce", "record.commit", "of which commit"),
]
WHOLE = [
    ("*", "*git", "the commit, and whether there is one"),
    ("*environment.json", "*", "versions and the machine"),
]

_UNREAD = "*"
_TEXT = "text"


def keys_and_values(document: str, value: Any, side: Side) -> Items:
    """The paths of all keys of a JSON value, and what stands at each, an index of a list being ``#``.

    Numbers have all their digits. A text with white space is for people and may be worded anew; other texts are
    names, and compared. ``document`` says which keys are volatile.
    """
    found: dict[str, list[str]] = {}
    for path, leaf in _leaves(document, value, ""):
        found.setdefault(place_free(path, side), []).append(_shown(leaf, side))
    return {
        path: _UNREAD if _is(document, path, VOLATILE) else ", ".join(leaves) for path, leaves in sorted(found.items())
    }


def json_items(path: Path, side: Side) -> Items:
    """:func:`keys_and_values` of a JSON file, or of a file with a JSON value in every line."""
    text = path.read_text(encoding="utf-8")
    value = [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else json.loads(text)
    return keys_and_values(path.name, value, side)


def toml_items(path: Path, side: Side) -> Items:
    """:func:`keys_and_values` of a TOML file: comments and order do not count."""
    return keys_and_values(path.name, tomllib.loads(path.read_text(encoding="utf-8")), side)


def printed_items(step: str, side: Side) -> Items:
    """:func:`keys_and_values` of the JSON object that the command of ``step`` printed."""
    said = side.said[step]
    try:
        return keys_and_values(step, json.loads(said.out), side)
    except json.JSONDecodeError as error:
        raise CommandError(
            f"{side.label}: {step}: printed no JSON (exit code {said.code}: {said.last_line})"
        ) from error


def file_names(folder: Path) -> Items:
    """The relative paths of all files of a folder."""
    return {path.relative_to(folder).as_posix(): "file" for path in sorted(folder.rglob("*")) if path.is_file()}


def file_digests(folder: Path, *, but: Callable[[Path], bool] = lambda path: False) -> Items:
    """The SHA-256 of every file of a folder, less those for which ``but`` holds."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and not but(path))
    return {path.relative_to(folder).as_posix(): digest(path.read_bytes()) for path in files}


def tensor_digests(path: Path) -> Items:
    """Name, type, shape and SHA-256 of every tensor of a safetensors file, and the names of its metadata.

    (Not of the whole file: a checkpoint's metadata hold the run's id.)
    """
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    found = {f"metadata.{name}": _UNREAD for name in header.pop("__metadata__", {})}
    for name, facts in header.items():
        begin, end = facts["data_offsets"]
        found[name] = f"{facts['dtype']} {facts['shape']} {digest(content[start + begin : start + end])}"
    return found


def parquet_columns(path: Path) -> Items:
    """The columns of a Parquet file and their types."""
    import pyarrow.parquet

    return {field.name: str(field.type) for field in pyarrow.parquet.read_schema(path)}


def under(prefix: str, items: Items) -> Items:
    """``items`` with a prefix to their names."""
    return {f"{prefix}: {name}": value for name, value in items.items()}


def digest(content: bytes) -> str:
    """The SHA-256 of ``content``, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def place_free(text: str, side: Side) -> str:
    """``text`` without the folders that differ between the checkouts for want of another place."""
    for folder, name in ((side.work, "WORK"), (side.older_work, "WORK"), (side.checkout, "CHECKOUT")):
        text = text.replace(str(folder), name)
    return text


def _leaves(document: str, value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if path and _is(document, path, WHOLE):
        yield path, _UNREAD
    elif isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(document, item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value:
        for item in value:
            yield from _leaves(document, item, f"{path}.#" if path else "#")
    else:
        yield path, value


def _shown(leaf: Any, side: Side) -> str:
    if not isinstance(leaf, str):
        return repr(leaf)
    text = place_free(leaf, side)
    return _TEXT if any(map(str.isspace, text)) else text


def _is(document: str, path: str, patterns: list[tuple[str, str, str]]) -> bool:
    return any(fnmatchcase(document, of) and fnmatchcase(path, key) for of, key, _ in patterns)
