"""Read what commands printed and wrote as comparable items: keys, figures, digests, names of files."""

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

# What differs between two runs of the same checkout: (document, key, reason), as a comparison of a checkout with itself
# shows. Only the presence of these keys is compared; under a key of WHOLE, nothing else is.
VOLATILE = [
    ("*", "*seconds", "duration"),
    ("*ledger*.json*", "*run", "the run's random id"),
    ("*ledger.jsonl", "*hash", "hash over the run's id"),
    ("*ledger.jsonl", "*previous", "hash over the run's id"),
    ("*ledger*.json*", "*last", "hash over the run's id"),
    ("*ledger*.json*", "*computation", "salted hash"),
    ("*", "*ledger.computation", "salted hash"),
    ("*", "*ledger.run", "the run's random id"),
    ("*", "*ledger.last", "hash over the run's id"),
    ("reproduce", "record.when", "time of the record"),
    ("reproduce", "record.commit", "commit of the record"),
]
WHOLE = [
    ("*", "*git", "the commit, if there is one"),
    ("*environment.json", "*", "versions and machine"),
]

_UNREAD = "*"
_TEXT = "text"


def keys_and_values(document: str, value: Any, side: Side) -> Items:
    """Return the paths of all keys of a JSON value with their values; an index of a list is ``#``.

    Numbers are compared with all digits. A text with white space is prose, whose wording may change; other texts are
    names and are compared.

    Args:
        document: name of the document, which decides what is volatile.
        value: the JSON value.
        side: the checkout; its folders are replaced in texts.
    """
    values: dict[str, list[str]] = {}
    for path, leaf in _leaves(document, value, ""):
        values.setdefault(without_folders(path, side), []).append(_shown(leaf, side))
    return {
        path: _UNREAD if _is(document, path, VOLATILE) else ", ".join(leaves) for path, leaves in sorted(values.items())
    }


def json_items(path: Path, side: Side) -> Items:
    """Return :func:`keys_and_values` of a JSON or JSON-lines file."""
    text = path.read_text(encoding="utf-8")
    value = [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else json.loads(text)
    return keys_and_values(path.name, value, side)


def toml_items(path: Path, side: Side) -> Items:
    """Return :func:`keys_and_values` of a TOML file; comments and order do not count."""
    return keys_and_values(path.name, tomllib.loads(path.read_text(encoding="utf-8")), side)


def printed_items(step: str, side: Side) -> Items:
    """Return :func:`keys_and_values` of the JSON object printed by the command of ``step``."""
    result = side.results[step]
    try:
        return keys_and_values(step, json.loads(result.out), side)
    except json.JSONDecodeError as error:
        raise CommandError(
            f"{side.label}: {step}: printed no JSON (exit code {result.code}: {result.last_line})"
        ) from error


def file_names(folder: Path) -> Items:
    """Return the relative paths of all files of a folder."""
    return {path.relative_to(folder).as_posix(): "file" for path in sorted(folder.rglob("*")) if path.is_file()}


def file_digests(folder: Path, *, but: Callable[[Path], bool] = lambda path: False) -> Items:
    """Return the SHA-256 of every file of a folder, except those for which ``but`` holds."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and not but(path))
    return {path.relative_to(folder).as_posix(): digest(path.read_bytes()) for path in files}


def tensor_digests(path: Path) -> Items:
    """Return type, shape and SHA-256 of every tensor of a safetensors file, and the names of its metadata.

    The whole file has no stable digest, because a checkpoint's metadata contain the run's id.
    """
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    items = {f"metadata.{name}": _UNREAD for name in header.pop("__metadata__", {})}
    for name, facts in header.items():
        begin, end = facts["data_offsets"]
        items[name] = f"{facts['dtype']} {facts['shape']} {digest(content[start + begin : start + end])}"
    return items


def under(prefix: str, items: Items) -> Items:
    """Return ``items`` with a prefix to their names."""
    return {f"{prefix}: {name}": value for name, value in items.items()}


def digest(content: bytes) -> str:
    """Return the SHA-256 of ``content`` in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def without_folders(text: str, side: Side) -> str:
    """Return ``text`` with the folders of the comparison replaced by fixed names."""
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
    text = without_folders(leaf, side)
    return _TEXT if any(map(str.isspace, text)) else text


def _is(document: str, path: str, patterns: list[tuple[str, str, str]]) -> bool:
    return any(fnmatchcase(document, of) and fnmatchcase(path, key) for of, key, _ in patterns)
