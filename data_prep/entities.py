"""How mentions are found in a sentence; which of them are the same entity, :mod:`data_prep.identity` says.

The privacy proof needs the entity set of a sentence to depend on that sentence alone. So a tagger sees one sentence
at a time.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import Protocol

from data_prep.identity import entity_key
from data_prep.records import CorpusError, Mention, Sentence

__all__ = ["DEFAULT_TAGGER", "Tagger", "entity_key", "make_tagger", "tagged"]

DEFAULT_TAGGER = "rules"


class Tagger(Protocol):
    """Finds entities. Whatever implements it must look at each text alone."""

    def tag(self, texts: Iterable[str]) -> Iterator[tuple[Mention, ...]]:
        """The mentions of every text, in the order of the texts."""

    def describe(self) -> dict[str, str]:
        """Name, version and whatever else of the tagger a manifest should record."""


def tagged(sentences: Iterable[Sentence], tagger: Tagger) -> Iterator[Sentence]:
    """The same sentences with the tagger's mentions in place of their own."""
    kept, read = itertools.tee(sentences)
    found = tagger.tag(sentence.text for sentence in read)
    for sentence, mentions in zip(kept, found, strict=True):
        yield dataclasses.replace(sentence, mentions=mentions)


def make_tagger(name: str) -> Tagger:
    """``rules``, or ``spacy:NAME_OR_PATH`` for a spaCy pipeline with a named-entity component.

    Raises :class:`CorpusError` for any other name and for a pipeline that cannot be loaded or finds no
    entities.
    """
    if name == "rules":
        from data_prep.tagger_rules import RuleTagger

        return RuleTagger()
    kind, _, pipeline = name.partition(":")
    if kind == "spacy" and pipeline:
        from data_prep.tagger_spacy import SpacyTagger

        return SpacyTagger(pipeline)
    raise CorpusError(f"tagger {name!r} must be rules, gold or spacy:NAME_OR_PATH")
