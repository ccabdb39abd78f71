"""A tagger that takes every word in capitals for an organisation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from fl_sim.data_prep.records import Mention

_CAPITALS = re.compile(r"\b[A-Z]{2,}\b")


class CapitalTagger:
    """Marks words of at least two capital letters."""

    labels = frozenset({"ORG"})

    def tag(self, texts: Iterable[str]) -> Iterator[tuple[Mention, ...]]:
        """Yield the mentions of every text."""
        for text in texts:
            yield tuple(Mention(match.start(), match.end(), "ORG") for match in _CAPITALS.finditer(text))

    def describe(self) -> dict[str, str]:
        """Return what decides which mentions are found."""
        return {"pattern": _CAPITALS.pattern}
