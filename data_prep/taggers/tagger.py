"""The interface of a tagger, and how a tagger marks the sentences of a corpus.

The privacy proof needs the entities of a sentence to depend on that sentence alone. A tagger therefore looks at each
text by itself, whatever other texts come in the same batch.

>>> from fl_sim.data_prep.records import Mention, Sentence
>>> ada = Sentence("train", "u1", "Ada left.", (Mention(0, 3, "PER"),))
>>> [sentence.mentions for sentence in Marking(gold=True, tagger=None).mark([ada])]
[(Mention(start=0, end=3, label='PER'),)]
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from fl_sim.data_prep.records import Mention, Sentence
from fl_sim.data_prep.store.manifest import comparable
from fl_sim.data_prep.taggers.categories import Selection

GOLD = "gold"
EVERYTHING = Selection.parse("all")


class Tagger(Protocol):
    """Finds the mentions of entities in texts, each text by itself.

    Making a tagger is cheap and checks what can be checked; models are loaded when the first text comes.
    """

    @property
    def labels(self) -> frozenset[str]:
        """Every label that a mention can have; empty if that is unknown."""

    def tag(self, texts: Iterable[str]) -> Iterator[tuple[Mention, ...]]:
        """Yield the mentions of every text, in the order of the texts; read the texts as needed, a little ahead."""

    def describe(self) -> dict[str, str]:
        """Return all that decides which mentions are found: name, versions, settings.

        A manifest records it, and a second preparation compares it to know whether anything changed.
        """


@dataclass(frozen=True)
class Marking:
    """Marks the sentences of a corpus: with their own gold mentions, with a tagger's, or with both.

    Attributes:
        gold: whether a sentence's own mentions count.
        tagger: finds further mentions; None for gold alone.
        selection: which mentions count as sensitive.
    """

    gold: bool
    tagger: Tagger | None
    selection: Selection = EVERYTHING

    def with_stored(self, sentence: Sentence) -> Sentence:
        """Return the sentence with its stored entities if its own mentions count, else without."""
        return sentence if self.gold or sentence.stored is None else dataclasses.replace(sentence, stored=None)

    def mark(self, sentences: Iterable[Sentence]) -> Iterator[Sentence]:
        """Yield the same sentences in the same order, with the mentions that count in place of their own."""
        if self.tagger is None:
            for sentence in sentences:
                yield dataclasses.replace(sentence, mentions=self._gold_mentions(sentence))
            return
        kept, read = itertools.tee(sentences)
        tagged = self.tagger.tag(sentence.text for sentence in read)
        for sentence, mentions in zip(kept, tagged, strict=True):
            counted = _joined(self._gold_mentions(sentence), mentions) if self.gold else mentions
            yield dataclasses.replace(sentence, mentions=counted)

    def describe(self) -> dict[str, str]:
        """Return what the manifest records: the tagger's description, ``gold``, and the entities that count."""
        described = comparable(self.tagger.describe() if self.tagger else {})
        names = [*([GOLD] if self.gold else []), *filter(None, [described.get("tagger")])]
        return {**described, "tagger": "+".join(names), **describe_selection(self.selection)}

    @property
    def labels(self) -> frozenset[str]:
        """The labels that the tagger can give and the selection keeps; gold marks can have any."""
        labels = self.tagger.labels if self.tagger else frozenset()
        return frozenset(label for label in labels if self.selection.keeps(label, labels))

    def _gold_mentions(self, sentence: Sentence) -> tuple[Mention, ...]:
        if self.selection.everything:
            return sentence.mentions
        return tuple(mention for mention in sentence.mentions if self.selection.keeps(mention.label))


def _joined(gold: tuple[Mention, ...], mentions: tuple[Mention, ...]) -> tuple[Mention, ...]:
    """Return all gold mentions, several of one span too, and the mentions of other spans, by place."""
    spans = {(mention.start, mention.end) for mention in gold}
    added = [mention for mention in mentions if (mention.start, mention.end) not in spans]
    return tuple(sorted((*gold, *added), key=lambda mention: (mention.start, mention.end))) if added else gold


def describe_selection(selection: Selection) -> dict[str, str]:
    """Return what the manifest records of the entities that count."""
    return {"entities": ",".join(selection.names)}
