"""The records of every reader: a sentence, its user, and the mentions of entities in it.

>>> sentence = Sentence("train", "ann", "Ada left Leeds.", (Mention(0, 3, "PERSON"), Mention(9, 14, "GPE")))
>>> [sentence.surface(mention) for mention in sentence.mentions]
['Ada', 'Leeds']
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Settings = Mapping[str, object]
"""What shapes a corpus, as its manifest records it: JSON values by name."""

OF_THIS_CORPUS = "So ε is of a user and an entity that are taken out of this corpus"
"""Is part of each warning that ε says less, or nothing, of a user or an entity of the source; model cards repeat it."""


class CorpusError(ValueError):
    """Text, a folder or a setting is bad; the message says in one line what to change."""


class ChangedCorpusError(CorpusError):
    """A corpus has another fingerprint than the one asked for, and never had that one."""


@dataclass(frozen=True, slots=True)
class Mention:
    """A mention of an entity: the characters ``[start, end)`` of a sentence's text, and a label."""

    start: int
    end: int
    label: str


@dataclass(frozen=True, slots=True)
class StoredEntities:
    """The entities of a sentence whose text was preprocessed, so that its characters no longer tell which they are.

    Attributes:
        entities: the key of each, and a label; an entity with several labels is there with each.
        mentions: what is left of their mentions; one of which nothing is left is not among them.
    """

    entities: tuple[tuple[str, str], ...]
    mentions: frozenset[Mention]


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of a user.

    Attributes:
        split: such as ``train``.
        user: the user's key.
        mentions: the entities; they may overlap, lie inside ``text``, have a label, and cover more than white space.
        target: the class, in a corpus for classification.
        stored: the entities that are known from an earlier preparation; None if the mentions tell them all.

    Raises:
        CorpusError: a mention is bad.
    """

    split: str
    user: str
    text: str
    mentions: tuple[Mention, ...]
    target: str | None = None
    stored: StoredEntities | None = None

    def __post_init__(self) -> None:
        for mention in self.mentions:
            if not 0 <= mention.start < mention.end <= len(self.text):
                wrong = f"lies outside its text of {len(self.text)} characters"
            elif not self.surface(mention).strip():
                wrong = "covers only white space"
            elif not mention.label:
                wrong = "has an empty label"
            else:
                continue
            raise CorpusError(f"entity [{mention.start}, {mention.end}) of user {self.user!r} {wrong}")

    def surface(self, mention: Mention) -> str:
        """Return the characters that ``mention`` covers."""
        return self.text[mention.start : mention.end]


@dataclass(frozen=True)
class KnownIds:
    """The ids of a split's users and entities before sentences are appended: key → id, in the order of the ids."""

    users: Mapping[str, int] = field(default_factory=dict)
    entities: Mapping[str, int] = field(default_factory=dict)
