"""The records every reader produces: a sentence, who owns it, and where its entities stand in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


class CorpusError(ValueError):
    """The text, the folder or the setting at fault, in one line that says what to change."""


class ChangedCorpusError(CorpusError):
    """A corpus that is not, and never was, what somebody began to work on."""


@dataclass(frozen=True, slots=True)
class Mention:
    """One place where a sentence names an entity: characters ``[start, end)`` of its text, and a label."""

    start: int
    end: int
    label: str


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence of one user.

    ``mentions`` may overlap; each must lie inside ``text`` and cover something other than white space.
    ``target`` is the sentence's class where the corpus is one for classification; ``document`` names the text of
    this user that the sentence was cut from, where the source tells.
    Raises :class:`CorpusError` otherwise.
    """

    split: str
    user: str
    text: str
    mentions: tuple[Mention, ...]
    target: str | None = None
    document: str | None = None

    def __post_init__(self) -> None:
        for mention in self.mentions:
            if not 0 <= mention.start < mention.end <= len(self.text):
                raise CorpusError(
                    f"entity [{mention.start}, {mention.end}) of user {self.user!r} lies outside its text "
                    f"of {len(self.text)} characters"
                )
            if not self.surface(mention).strip():
                raise CorpusError(
                    f"entity [{mention.start}, {mention.end}) of user {self.user!r} covers only white space"
                )
            if not mention.label:
                raise CorpusError(f"entity [{mention.start}, {mention.end}) of user {self.user!r} has an empty label")

    def surface(self, mention: Mention) -> str:
        """The very characters that ``mention`` covers."""
        return self.text[mention.start : mention.end]


@dataclass(frozen=True)
class KnownIds:
    """The users and entities that a corpus has before sentences are added to it: key → id, in the order of the ids."""

    users: Mapping[str, int] = field(default_factory=dict)
    entities: Mapping[str, int] = field(default_factory=dict)
