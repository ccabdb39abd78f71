"""What an entity is: how mentions are found in one sentence, and which mentions are the same entity.

The privacy proof needs the entity set of a sentence to depend on that sentence alone. So a tagger sees one
sentence at a time, and an entity's identity is a function of the mention's own characters: nothing links
"Johnson" to "David Johnson" in another sentence.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Protocol

from data_prep.records import CorpusError, Mention, Sentence

_EDGES = " \t\r\n.,;:!?\"'`´‘’“”„«»()[]{}<>*_~…-–—"
_POSSESSIVE = re.compile(r"\s*['’]s$")

DEFAULT_TAGGER = "rules"


class Tagger(Protocol):
    """Finds entities. Whatever implements it must look at each text alone."""

    def tag(self, texts: Iterable[str]) -> Iterator[tuple[Mention, ...]]:
        """The mentions of every text, in the order of the texts."""

    def describe(self) -> dict[str, str]:
        """Name, version and whatever else of the tagger a manifest should record."""


def entity_key(surface: str) -> str:
    """The identity of the entity that ``surface`` names: the same key means the same entity and one coin.

    Compatibility forms are unified (NFKC), case is folded, white space collapsed, and surrounding
    punctuation and a possessive 's dropped, until nothing changes; a surface of nothing but punctuation is
    kept. The label is no part of it: "Jordan" the person and "Jordan" the country are one entity, so hiding
    one hides both.
    """
    key = _folded(surface)
    while True:
        shorter = _POSSESSIVE.sub("", _folded(key).strip(_EDGES)).strip(_EDGES)
        if shorter in ("", key):
            return key
        key = shorter


def _folded(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()).split())


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
