"""Say what looks wrong with a source: text that is there twice, a user column that names no users, a useless setting.

A warning changes nothing in the corpus. Each one is about a mistake that no error tells: the run works, and N, the
number of users that ε is about, counts something else.

>>> doubts = SourceDoubts({"kind": "jsonl", "user_column": "id"}, {})
>>> rows = [Sentence("train", f"row {n}", f"Text {n}.", (), document=str(n)) for n in range(12)]
>>> _ = list(doubts.watch(rows))
>>> doubts.warnings()[0].partition(":")[0]
'user column id has 12 users in 12 rows'
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fl_sim.data_prep.records import Sentence

FILES_WITHOUT_LINES = ("parquet", "hf", "prepared")
"""Kinds of sources whose text is Unicode already, so that no line of them can be bad UTF-8."""

_LEAST = 10  # fewer rows or repeated sentences say nothing
_REPEATED = 0.2
_USERS_PER_ROW = 0.99


@dataclass(eq=False)
class SourceDoubts:
    """Watch the sentences of one reading, and say afterwards what looks wrong.

    Attributes:
        settings: of the raw corpus: kind, columns, treatment of bad bytes.
        checksums: SHA-256 of the source files, by name.
    """

    settings: Mapping[str, Any]
    checksums: Mapping[str, str]
    _users: set[str] = field(default_factory=set)
    _hashes: array[int] = field(default_factory=lambda: array("q"))
    _rows: int = 0

    def watch(self, sentences: Iterable[Sentence]) -> Iterator[Sentence]:
        """Pass the sentences on, and count users, rows and sentences; a new reading counts anew."""
        self._users, self._hashes, self._rows = set(), array("q"), 0
        last: tuple[str, str | None] | None = None
        for sentence in sentences:
            self._users.add(sentence.user)
            self._hashes.append(hash((sentence.user, sentence.text)))
            row = sentence.user, sentence.document
            self._rows += row != last
            last = row
            yield sentence

    def warnings(self, replaced: int = 0) -> tuple[str, ...]:
        """Return what looks wrong, each a sentence.

        Args:
            replaced: lines of which bad bytes were replaced.
        """
        found = [*self._doubled_files(), self._repeated(), self._users_of_rows(), self._bad_bytes(replaced)]
        return tuple(warning for warning in found if warning)

    def _doubled_files(self) -> Iterator[str]:
        first: dict[str, str] = {}
        for name, checksum in self.checksums.items():
            if first.setdefault(checksum, name) != name:
                yield f"source {name} has the content of {first[checksum]}: all of its text is there twice"

    def _repeated(self) -> str | None:
        number = len(self._hashes)
        repeated = number - len(np.unique(np.frombuffer(self._hashes, dtype=np.int64))) if number else 0
        if repeated < max(_LEAST, _REPEATED * number):
            return None
        return (
            f"{repeated:,} of {number:,} sentences repeat an earlier one of the same user: is a part of the source "
            "there twice? (--id-column drops rows whose id came before)"
        )

    def _users_of_rows(self) -> str | None:
        column, users = self.settings.get("user_column"), len(self._users)
        if column is None or self._rows < _LEAST:
            return None
        if users >= _USERS_PER_ROW * self._rows:
            return (
                f"user column {column} has {users:,} users in {self._rows:,} rows: if it numbers rows and not people, "
                "N counts rows, and ε protects single rows"
            )
        return None

    def _bad_bytes(self, replaced: int) -> str | None:
        if self.settings.get("bad_bytes") != "replace" or replaced:
            return None
        if self.settings.get("kind") in FILES_WITHOUT_LINES:
            return f"--bad-bytes replace has no effect on {self.settings['kind']}, whose text is Unicode already"
        return "--bad-bytes replace replaced nothing: every line of the source is UTF-8"
