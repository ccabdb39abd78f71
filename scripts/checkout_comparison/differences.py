"""Compare what a check read in two checkouts: changed, missing, added and deliberately added items."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

Items = dict[str, str]
"""What a check reads in one checkout: the value of each item (a flag, a key, a file)."""

Kind = Literal["changed", "missing", "added", "allowed"]
Verdict = Literal["same", "same, with additions", "refused", "different", "failed"]

_SHOWN = 100
_DIGITS = 10


class InputError(ValueError):
    """The request cannot be met; the message is one line."""


@dataclass(frozen=True, slots=True)
class Addition:
    """Items that the newer checkout may have and the older one lacks.

    Attributes:
        check: pattern of the check's name.
        item: pattern of the item's name.
        reason: why it was added.
    """

    check: str
    item: str
    reason: str

    def covers(self, check: str, item: str) -> bool:
        """Return whether ``item`` of ``check`` was added deliberately; both patterns may contain ``*``."""
        return fnmatchcase(check, self.check) and fnmatchcase(item, self.item)


@dataclass(frozen=True, slots=True)
class Difference:
    """One item that differs between the checkouts."""

    kind: Kind
    item: str
    old: str | None
    new: str | None

    def line(self) -> str:
        """Return the difference as one line, short enough for a terminal."""
        if self.kind == "changed":
            return f"changed: {self.item}: {_short(self.old)} → {_short(self.new)}"
        return f"{self.kind}: {self.item}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a check.

    Attributes:
        check: name of the check.
        old: a short text for all items of the older checkout.
        new: the same for the newer checkout.
        differences: every item that differs.
        verdict: the result in a word.
        note: why the verdict is ``failed`` or ``refused``.
    """

    check: str
    old: str
    new: str
    differences: tuple[Difference, ...]
    verdict: Verdict
    note: str = ""

    @property
    def passed(self) -> bool:
        """Whether nothing changed that must stay the same."""
        return self.verdict not in ("different", "failed")


def compare(check: str, old: Items, new: Items, additions: Sequence[Addition] = ()) -> Outcome:
    """Compare the items of two checkouts.

    Args:
        check: name of the check.
        old: items of the older checkout.
        new: items of the newer checkout.
        additions: additions that are allowed.

    Returns:
        Every item that differs, and the verdict.
    """
    differences = tuple(_differences(check, old, new, additions))
    verdict: Verdict = "same"
    if any(difference.kind != "allowed" for difference in differences):
        verdict = "different"
    elif differences:
        verdict = "same, with additions"
    return Outcome(check, figure(old), figure(new), differences, verdict)


def figure(items: Items) -> str:
    """Return one short text for all ``items``: the only value, or their number and a digest."""
    if len(items) == 1:
        (only,) = items.values()
        if len(only) <= 2 * _DIGITS:
            return only
    content = json.dumps(items, sort_keys=True, ensure_ascii=False).encode()
    return f"{len(items)}: {hashlib.sha256(content).hexdigest()[:_DIGITS]}"


def read_additions(path: Path) -> list[Addition]:
    """Return the deliberate additions listed in ``path``.

    Raises:
        InputError: an entry lacks its check, item or reason, or has another key.
    """
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8")).get("addition", [])
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path}: {error}") from error
    keys = {"check", "item", "reason"}
    for entry in entries:
        if set(entry) != keys or not all(isinstance(value, str) and value.strip() for value in entry.values()):
            raise InputError(f"{path}: {entry} is not an addition; allowed: a check, an item and a reason, all texts")
    return [Addition(**entry) for entry in entries]


def _differences(check: str, old: Items, new: Items, additions: Sequence[Addition]) -> Iterable[Difference]:
    for item in sorted(old.keys() | new.keys()):
        if item not in new:
            yield Difference("missing", item, old[item], None)
        elif item not in old:
            allowed = any(addition.covers(check, item) for addition in additions)
            yield Difference("allowed" if allowed else "added", item, None, new[item])
        elif old[item] != new[item]:
            yield Difference("changed", item, old[item], new[item])


def _short(text: str | None) -> str:
    shown = "" if text is None else text
    return shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 1]}…"
