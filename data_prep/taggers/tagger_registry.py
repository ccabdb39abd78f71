"""Who finds the mentions: taggers by name, several of them united, and which of what they find counts.

The privacy proof needs the entity set of a sentence to depend on that sentence alone. So a tagger looks at each text by
itself, whatever it is given together with it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fl_sim.data_prep.records import CorpusError, Mention, Sentence
from fl_sim.data_prep.taggers.categories import IDENTIFIERS, Selection
from fl_sim.data_prep.taggers.spans import united

GOLD = "gold"
RULES = "rules"
PATTERNS = "patterns"
FORMS = "gold, rules, patterns, spacy:NAME_OR_PATH or stanza[:LANGUAGE]"
"""What a tagger's name can be; a + between two unites them."""

EVERYTHING = Selection.parse("all")
_JOINT = re.compile(r"\+(?=(?:gold|rules|patterns|stanza)(?:\+|$)|(?:spacy|stanza):)")


class Tagger(Protocol):
    """Finds entities. Whatever implements it must look at each text alone.

    Making one is cheap and checks what can be checked; models are loaded when the first text comes.
    """

    @property
    def labels(self) -> frozenset[str]:
        """The labels that it can give; empty if that is not known."""

    def tag(self, texts: Iterable[str]) -> Iterator[tuple[Mention, ...]]:
        """The mentions of every text, in the order of the texts; texts are read as they are needed, a little ahead."""

    def describe(self) -> dict[str, str]:
        """Name, versions and whatever else decides what is found: what a manifest records and a cache compares."""


@dataclass(frozen=True)
class Marking:
    """What marks a corpus's sentences: their own marks (``gold``), a tagger, or both; and which mentions count."""

    gold: bool
    tagger: Tagger | None
    selection: Selection = EVERYTHING

    def mark(self, sentences: Iterable[Sentence]) -> Iterator[Sentence]:
        """The same sentences in the same order, with the mentions that count in place of their own."""
        if self.tagger is None:
            for sentence in sentences:
                yield dataclasses.replace(sentence, mentions=self._own(sentence))
            return
        kept, read = itertools.tee(sentences)
        found = self.tagger.tag(sentence.text for sentence in read)
        for sentence, mentions in zip(kept, found, strict=True):
            every = united([self._own(sentence), mentions]) if self.gold else mentions
            yield dataclasses.replace(sentence, mentions=every)

    def describe(self) -> dict[str, str]:
        """What the manifest records: the tagger's own description, ``gold``, and the entities that count."""
        described = self.tagger.describe() if self.tagger else {"tagger": GOLD}
        if self.gold and self.tagger:
            described["tagger"] = f"{GOLD}+{described['tagger']}"
        return described | _entities(self.selection)

    def _own(self, sentence: Sentence) -> tuple[Mention, ...]:
        if self.selection.everything:
            return sentence.mentions
        return tuple(mention for mention in sentence.mentions if self.selection.keeps(mention.label))


def make_marking(
    names: str | Sequence[str] | None = None,
    *,
    has_gold: bool,
    entities: str = "all",
    high_recall: bool = False,
    processes: int = 1,
    batch_size: int | None = None,
) -> Marking:
    """The marking that ``names`` ask for: by default the corpus's own marks if it has them, else the best tagger here.

    ``entities`` lists what counts (:meth:`fl_sim.data_prep.taggers.categories.Selection.parse`). ``high_recall``
    unites the chosen
    with ``rules`` and ``patterns``. ``processes`` and ``batch_size`` are those of :func:`make_tagger`.
    Raises :class:`CorpusError` for names that nothing has, and for ``gold`` where the corpus marks nothing.
    """
    chosen = parse_names(names) if names else (GOLD if has_gold else default_tagger(),)
    if GOLD in chosen and not has_gold:
        raise CorpusError("--tagger gold needs marked entities: name their column with --entities-column")
    if high_recall:
        chosen = with_high_recall(chosen)
    selection = Selection.parse(entities)
    others = tuple(name for name in chosen if name != GOLD)
    tagger = make_tagger(others, selection=selection, processes=processes, batch_size=batch_size) if others else None
    return Marking(GOLD in chosen, tagger, selection)


def make_tagger(
    names: str | Sequence[str],
    *,
    selection: Selection = EVERYTHING,
    processes: int = 1,
    batch_size: int | None = None,
) -> Tagger:
    """The tagger of that name, or the union of several: every span that any of them finds and ``selection`` keeps.

    ``processes`` more than 1 share the texts out (not inside a script without ``if __name__ == "__main__"``);
    ``batch_size`` is what a spaCy pipeline takes at once. Raises :class:`CorpusError` for an unknown name, a pipeline
    that cannot be found, and an optional package that is not installed.
    """
    parsed = parse_names(names)
    if GOLD in parsed:
        raise CorpusError("the gold tagger marks the sentences of a corpus; it finds nothing in a text")
    if processes < 1:
        raise CorpusError(f"tagging processes must be at least 1, not {processes}")
    make = functools.partial(_united, parsed, selection, batch_size)
    if processes == 1:
        return make()
    from fl_sim.data_prep.taggers.parallel_tagger import ParallelTagger

    return ParallelTagger(make, processes)


def parse_names(names: str | Sequence[str]) -> tuple[str, ...]:
    """The single taggers that ``names`` unite, each once. Raises :class:`CorpusError` for a name of no known form."""
    listed = [names] if isinstance(names, str) else list(names)
    parsed = tuple(dict.fromkeys(name.strip() for entry in listed for name in _JOINT.split(entry)))
    for name in parsed:
        kind, colon, rest = name.partition(":")
        known = {
            GOLD: not colon,
            RULES: not colon,
            PATTERNS: not colon,
            "spacy": bool(rest),
            "stanza": not colon or rest,
        }
        if not known.get(kind):
            raise CorpusError(f"tagger {name!r} must be {FORMS}, or several of these with + between them")
    if not parsed:
        raise CorpusError(f"a tagger must be named: {FORMS}")
    return parsed


def default_tagger() -> str:
    """The best that is here: ``en_core_web_trf``, ``lg``, ``md`` or ``sm``, the pipeline that ships, or the rules."""
    from fl_sim.data_prep.taggers.spacy_tagger import default_pipeline

    pipeline = default_pipeline()
    return f"spacy:{pipeline}" if pipeline else RULES


def with_high_recall(names: str | Sequence[str]) -> tuple[str, ...]:
    """``names``, and what makes a missed entity unlikely: the rules on capital letters and the patterns."""
    return tuple(dict.fromkeys((*parse_names(names), RULES, PATTERNS)))


@dataclass(frozen=True)
class UnitedTagger:
    """Several taggers as one: every span that any member finds and the selection keeps (see :func:`spans.united`)."""

    members: Mapping[str, Tagger]
    selection: Selection = EVERYTHING

    @property
    def labels(self) -> frozenset[str]:
        every = [member.labels for member in self.members.values()]
        return frozenset().union(*every) if all(every) else frozenset()

    def tag(self, texts: Iterable[str]) -> Iterator[tuple[Mention, ...]]:
        copies = itertools.tee(texts, len(self.members))
        found = (
            _kept(member, self.selection, copy) for member, copy in zip(self.members.values(), copies, strict=True)
        )
        for groups in zip(*found, strict=True):
            yield united([_certain(groups), *groups])

    def describe(self) -> dict[str, str]:
        """A single member's description as it is; of several, each figure with the member's number before it."""
        described = [member.describe() for member in self.members.values()]
        if len(described) == 1:
            return described[0] | _entities(self.selection)
        numbered = {
            f"{number}.{key}": value for number, one in enumerate(described, start=1) for key, value in one.items()
        }
        return {"tagger": "+".join(one["tagger"] for one in described)} | numbered | _entities(self.selection)


def _certain(groups: Sequence[tuple[Mention, ...]]) -> list[Mention]:
    """What is known by its form: an e-mail address is one, whatever a model of names takes it for."""
    return [mention for group in groups for mention in group if mention.label in IDENTIFIERS]


def _united(names: Sequence[str], selection: Selection, batch_size: int | None) -> UnitedTagger:
    members: dict[str, Tagger] = {}
    both = {RULES, PATTERNS} <= set(names)
    for name in names:
        if both and name in (RULES, PATTERNS):
            name = f"{RULES}+{PATTERNS}"  # the same as the two, in one pass
        if name not in members:
            members[name] = _single(name, batch_size)
    return UnitedTagger(members, selection)


def _single(name: str, batch_size: int | None) -> Tagger:
    kind, _, rest = name.partition(":")
    if kind == "spacy":
        from fl_sim.data_prep.taggers.spacy_tagger import SpacyTagger

        return SpacyTagger(rest, batch_size=batch_size)
    if kind == "stanza":
        from fl_sim.data_prep.taggers.stanza_tagger import StanzaTagger

        return StanzaTagger(rest or "en")
    from fl_sim.data_prep.taggers.rule_tagger import RuleTagger

    parts = name.split("+")
    return RuleTagger(rules=RULES in parts, patterns=PATTERNS in parts)


def _kept(tagger: Tagger, selection: Selection, texts: Iterable[str]) -> Iterator[tuple[Mention, ...]]:
    if selection.everything:
        yield from tagger.tag(texts)
        return
    kept: dict[str, bool] = {}
    for mentions in tagger.tag(texts):
        for label in {mention.label for mention in mentions} - kept.keys():
            kept[label] = selection.keeps(label, tagger.labels)
        yield tuple(mention for mention in mentions if kept[mention.label])


def _entities(selection: Selection) -> dict[str, str]:
    return {"entities": ",".join(selection.names)}
