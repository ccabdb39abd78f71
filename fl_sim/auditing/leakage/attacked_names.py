"""Find the entities whose names an attack ranks: those of the training split whose names stand in no other split.

A model may know a name from public text, or from the language itself ("May", "Bill"). A name therefore counts as
*private* if its words follow one another in no text of the other splits, marked or not. Names are compared by their
words, without case and punctuation; those with fewer than three letters or digits are not private. Which mentions are
one entity is decided by the corpus's identity (docs/corpora.md).

>>> sentence = Occurrence.of("I saw Ada's boat.", 6, 11)
>>> sentence.name, sentence.with_name("Eve")
('Ada', "I saw Eve's boat.")
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass

from fl_sim.data_prep.identity import Identity, NameIndex, name_of
from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.taggers.categories import category_of

_POSSESSIVE = re.compile(r"\s*['’][sS]$")
_FEWEST_CHARACTERS = 3


@dataclass(frozen=True, slots=True)
class Occurrence:
    """Hold a mention with the text of its sentence before and after it; a possessive 's belongs to what follows."""

    before: str
    name: str
    after: str

    @classmethod
    def of(cls, text: str, start: int, end: int) -> Occurrence:
        """Return the mention of the characters ``[start, end)`` of ``text``."""
        tail = _POSSESSIVE.search(text[start:end])
        if tail and tail.start():
            end = start + tail.start()
        return cls(text[:start], text[start:end], text[end:])

    def with_name(self, name: str) -> str:
        """Return the sentence with another name."""
        return f"{self.before}{name}{self.after}"


@dataclass(frozen=True, slots=True)
class Target:
    """Hold an entity of the training split.

    Attributes:
        key: the key that the corpus's identity gives it.
        kind: its category.
        name: its commonest surface.
        occurrences: its mentions in the training split.
        is_private: whether its names stand in no other split.
    """

    key: str
    kind: str
    name: str
    occurrences: tuple[Occurrence, ...]
    is_private: bool = True


def training_entities(corpus: Corpus, split: str) -> list[Target]:
    """Return the entities of a split by the mentions of the corpus, in the order of their first mentions.

    Args:
        corpus: the attacked text; of a de-identified corpus, the one with the names.
        split: the training split; all other splits are public here.
    """
    identity = Identity.of_corpus(corpus.manifest.settings)
    mentions: dict[str, list[tuple[Occurrence, str]]] = defaultdict(list)
    texts = corpus.texts(split).to_pylist()
    columns = (corpus.mentions(split).column(name).to_pylist() for name in ("sentence", "start", "end", "label"))
    for sentence, start, end, label in zip(*columns, strict=True):
        text = texts[sentence]
        mentions[identity.key(text[start:end])].append((Occurrence.of(text, start, end), label))
    index = NameIndex(occurrence.name for entity in mentions.values() for occurrence, _ in entity)
    others = (str(text) for name in corpus.splits if name != split for text in corpus.texts(name).to_pylist())
    public = {name for text in others for name in index.names_in(text)}
    entities = []
    for key, entity in mentions.items():
        occurrences, labels = zip(*entity, strict=True)
        surfaces = Counter(occurrence.name for occurrence in occurrences)
        names = {name_of(surface) for surface in surfaces}
        private = not names & public and all(sum(map(len, name)) >= _FEWEST_CHARACTERS for name in names)
        kind = str(category_of(Counter(labels).most_common(1)[0][0]))
        entities.append(Target(key, kind, surfaces.most_common(1)[0][0], occurrences, private))
    return entities


def entity_of_name(corpus: Corpus, split: str, entities: list[Target], name: str) -> Target:
    """Return the entity that the corpus's identity gives to ``name``.

    Raises:
        CorpusError: the split has no mention of it.
    """
    key = Identity.of_corpus(corpus.manifest.settings).key(name)
    for entity in entities:
        if entity.key == key:
            return entity
    raise CorpusError(f"entity is '{name}'; allowed: one that split {split} of {corpus.path} mentions")
