"""Compare what one check read in two checkouts: what is missing, changed or added, and what was added on purpose."""

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
"""What a check reads in one checkout: a name (of a flag, a key, a file) and what stands there."""

Kind = Literal["changed", "missing", "added", "allowed"]
Verdict = Literal["same", "same, with additions", "refused", "different", "failed"]

_SHOWN = 100
_DIGITS = 10


class InputError(ValueError):
    """What was asked for cannot be: one line for whoever asked."""


@dataclass(frozen=True, slots=True)
class Addition:
    """Items that the newer checkout may have and the older has not, and why."""

    check: str
    item: str
    reason: str

    def covers(self, check: str, item: str) -> bool:
        """Whether ``item`` of ``check`` was added on purpose; both patterns may hold ``*``."""
        return fnmatchcase(check, self.check) and fnmatchcase(item, self.item)


@dataclass(frozen=True, slots=True)
class Difference:
    """One item that is not the same in both."""

    kind: Kind
    item: str
    old: str | None
    new: str | None

    def line(self) -> str:
        """The difference in words, short enough for a terminal."""
        if self.kind == "changed":
            return f"changed: {self.item}: {_short(self.old)} → {_short(self.new)}"
        return f"{self.kind}: {self.item}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a check found.

    Attributes:
        old: a figure that stands for all that was read in the older checkout; ``new`` likewise.
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
        """Whether nothing changed that must not."""
        return self.verdict not in ("different", "failed")


def compare(check: str, old: Items, new: Items, additions: Sequence[Addition] = ()) -> Outcome:
    """Every item that is not the same in both, and the verdict."""
    found = tuple(_differences(check, old, new, additions))
    verdict: Verdict = "same"
    if any(difference.kind != "allowed" for difference in found):
        verdict = "different"
    elif found:
        verdict = "same, with additions"
    return Outcome(check, figure(old), figure(new), found, verdict)


def figure(items: Items) -> str:
    """One short text for all ``items``: the only value, or how many there are and a digest of them."""
    if len(items) == 1:
        (only,) = items.values()
        if len(only) <= 2 * _DIGITS:
            return only
    content = json.dumps(items, sort_keys=True, ensure_ascii=False).encode()
    return f"{len(items)}: {hashlib.sha256(content).hexdigest()[:_DIGITS]}"


def read_additions(path: Path) -> list[Addition]:
    """The deliberate additions that ``path`` lists.

    Raises:
        InputError: an entry lacks its check, item or reason, or has something else.
    """
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8")).get("addition", [])
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path}: {error}") from error
    wanted = {"check", "item", "reason"}
    for entry in entries:
        if set(entry) != wanted or not all(isinstance(value, str) and value.strip() for value in entry.values()):
            raise InputError(f"{path}: {entry} is no addition; allowed: a check, an item and a reason, all texts")
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
    words = "" if text is None else text
    return words if len(words) <= _SHOWN else f"{words[: _SHOWN - 1]}…"
