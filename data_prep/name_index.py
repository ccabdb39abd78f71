"""Find names in texts by their words, without case and punctuation, whether a tagger marked them or not.

>>> index = NameIndex(["Ada Byron", "Leeds"])
>>> sorted(index.names_in("ada byron's way to Leeds"))
[('ada', 'byron'), ('leeds',)]
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

Name = tuple[str, ...]
"""The words of a name, without case."""

_WORD = re.compile(r"\w+")


def name_of(text: str) -> Name:
    """Return the words of ``text``, without case and punctuation."""
    return tuple(_WORD.findall(text.casefold()))


class NameIndex:
    """Finds names in texts by their words."""

    def __init__(self, names: Iterable[str]) -> None:
        self._by_first: dict[str, set[Name]] = defaultdict(set)
        for text in names:
            name = name_of(text)
            if name:
                self._by_first[name[0]].add(name)

    def names_in(self, text: str) -> set[Name]:
        """Return the names whose words follow one another in ``text``."""
        words = name_of(text)
        return {
            name
            for position, word in enumerate(words)
            for name in self._by_first.get(word, ())
            if words[position : position + len(name)] == name
        }
