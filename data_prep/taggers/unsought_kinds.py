"""The kinds of personal data that nobody looked for when a corpus was prepared.

An ε of entities is about the mentions that were marked. A corpus with marks of nicknames alone says nothing of persons,
organisations and places, so whoever reads an ε must know which kinds are missing.

>>> from fl_sim.data_prep.store.corpus import Corpus
>>> unsought_kinds(Corpus.open("bundled"))
()
>>> unsought_among(["NICK", "EMAIL", "LOC"])[:3]
('persons', 'organisations', 'phone numbers')
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fl_sim.data_prep.store.corpus import Corpus, Part
from fl_sim.data_prep.store.manifest import OFF, STRUCTURED, comparable
from fl_sim.data_prep.taggers import structured_data
from fl_sim.data_prep.taggers.categories import IDENTIFIER_KINDS, Category, Selection, is_known, possible_categories

NAME_KINDS: Mapping[str, frozenset[Category]] = {
    "persons": frozenset({Category.PERSON}),
    "organisations": frozenset({Category.ORG}),
    "places": frozenset({Category.LOC, Category.GPE}),
}
"""Kinds of names: found by a tagger with a label that may mean one of the categories."""

STRUCTURED_KINDS = {kind: labels for kind, labels in IDENTIFIER_KINDS.items() if labels & structured_data.LABELS}
"""Kinds of structured data, with their labels; the label PII means all of them."""


def unsought_kinds(corpus: Corpus) -> tuple[str, ...]:
    """Return the kinds that nobody looked for in at least one part of ``corpus``, in the order of the tables above.

    A kind was looked for if the tagger can give a label of it, or a mention in the corpus has one: which labels gold
    marks can have is known from the marks alone.
    """
    missing = {kind for part in corpus.parts for kind in unsought_among(_sought_labels(part))}
    return tuple(kind for kind in (*NAME_KINDS, *STRUCTURED_KINDS) if kind in missing)


def unsought_among(labels: Iterable[str]) -> tuple[str, ...]:
    """Return the kinds of which none of ``labels`` is; a label that no tagger of ours knows is of no kind."""
    plain = {label.strip().upper().replace("-", "_") for label in labels}
    categories = frozenset().union(*(possible_categories(label) for label in plain if is_known(label)))
    names = [kind for kind, wanted in NAME_KINDS.items() if categories.isdisjoint(wanted)]
    forms = [kind for kind, wanted in STRUCTURED_KINDS.items() if plain.isdisjoint(wanted | {Category.PII})]
    return (*names, *forms)


def _sought_labels(part: Part) -> frozenset[str]:
    """Return the labels of ``part``, with those of structured data: beside an unknown tagger they are not recorded."""
    labels = frozenset(part.manifest.sought_labels)
    if comparable(part.manifest.tagger)[STRUCTURED] == OFF:
        return labels
    selection = Selection.parse(part.manifest.tagger.get("entities", "all"))
    return labels.union(label for label in structured_data.LABELS if selection.keeps(label))
