"""Taggers by name: built in, of other packages, by import path, and several united, in one process or several.

An ε of entities is about the mentions that were marked. A corpus with marks of nicknames alone says nothing of persons,
organisations and places, so whoever reads an ε must know which kinds no tagger looked for (:func:`unsought_kinds`).

>>> parse_names("spacy:en_core_web_sm+rules")
('spacy:en_core_web_sm', 'rules')
"""

from __future__ import annotations

import collections
import functools
import itertools
import multiprocessing
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

from fl_sim.data_prep.records import CorpusError, Mention
from fl_sim.data_prep.store.corpus import Corpus, Part
from fl_sim.data_prep.store.manifest import OFF, STRUCTURED, comparable, plugin_record
from fl_sim.data_prep.taggers import structured_data
from fl_sim.data_prep.taggers.categories import (
    IDENTIFIER_KINDS,
    IDENTIFIERS,
    Category,
    Selection,
    is_known,
    possible_categories,
)
from fl_sim.data_prep.taggers.spans import unite
from fl_sim.data_prep.taggers.tagger import EVERYTHING, GOLD, Marking, Tagger, describe_selection
from fl_sim.plugins import PluginError, Registry
from fl_sim.stop_signals import follow_parent, raising_stops, stops_deferred

RULES = "rules"
SPACY = "spacy"
FORMS = "gold, rules, presidio, structured, spacy:NAME_OR_PATH, an installed tagger or my_module:MyTagger"
"""The forms of a tagger's name; a + between two names unites their taggers."""

TAGGERS = Registry(
    "fl_sim.taggers",
    "tagger",
    {
        GOLD: "fl_sim.data_prep.taggers.tagger:Marking",
        RULES: "fl_sim.data_prep.taggers.rule_tagger:RuleTagger",
        "presidio": "fl_sim.data_prep.taggers.presidio_tagger:PresidioTagger",
        STRUCTURED: "fl_sim.data_prep.taggers.structured_data:StructuredTagger",
        SPACY: "fl_sim.data_prep.taggers.spacy_tagger:SpacyTagger",
    },
    check=callable,
    interface="a class that is made without arguments and has labels, tag(texts) and describe()",
)
"""Taggers by name. A built-in name decides by itself what follows its colon: ``spacy:x`` is never an import path."""

_TRIED = 32
"""Texts by which a plug-in is tried."""

_TEXTS = 256
_AHEAD = 3
"""Batches per process that are read ahead."""

_tagger: Tagger
_ready = False

NAME_KINDS: Mapping[str, frozenset[Category]] = {
    "persons": frozenset({Category.PERSON}),
    "organisations": frozenset({Category.ORG}),
    "places": frozenset({Category.LOC, Category.GPE}),
}
"""Kinds of names: found by a tagger with a label that may mean one of the categories."""

STRUCTURED_KINDS = {kind: labels for kind, labels in IDENTIFIER_KINDS.items() if labels & structured_data.LABELS}
"""Kinds of structured data, with their labels; the label PII means all of them."""


def make_marking(
    names: str | Sequence[str] | None = None,
    *,
    has_gold: bool,
    entities: str = "all",
    high_recall: bool = False,
    structured: bool = True,
    processes: int = 1,
    batch_size: int | None = None,
) -> Marking:
    """Return the marking of a corpus by the taggers called ``names``.

    Args:
        names: taggers; by default the corpus's own marks if it has them, else the best tagger that is installed.
        has_gold: whether the corpus marks its entities.
        entities: which mentions count (:meth:`fl_sim.data_prep.taggers.categories.Selection.parse`).
        high_recall: whether to unite the taggers with ``rules``.
        structured: whether to look for structured personal data besides (:mod:`.structured_data`).
        processes, batch_size: as of :func:`make_tagger`.

    Raises:
        CorpusError: a name has no known form, or is ``gold`` where the corpus marks nothing.
        PluginError: a tagger cannot be imported, has the wrong interface, or a name that is taken twice.
    """
    chosen = parse_names(names) if names else (GOLD if has_gold else default_tagger(),)
    if GOLD in chosen and not has_gold:
        raise CorpusError("`tagger` gold needs marked entities: name their column with `entities_column`")
    if high_recall:
        chosen = with_high_recall(chosen)
    selection = Selection.parse(entities)
    others = tuple(name for name in chosen if name != GOLD)
    if not others:
        return Marking(True, _united((), selection, None, structured) if structured else None, selection)
    tagger = make_tagger(others, selection=selection, structured=structured, processes=processes, batch_size=batch_size)
    return Marking(GOLD in chosen, tagger, selection)


def make_tagger(
    names: str | Sequence[str],
    *,
    selection: Selection = EVERYTHING,
    structured: bool = False,
    processes: int = 1,
    batch_size: int | None = None,
) -> Tagger:
    """Return the tagger of that name, or the union of several.

    Args:
        names: one name, names joined by +, or a sequence of such.
        selection: which mentions to keep.
        structured: whether to look for structured personal data besides; the manifest of a corpus records it.
        processes: how many processes share the texts. More than 1 need ``if __name__ == "__main__"`` in a script.
        batch_size: texts that a spaCy pipeline takes at once.

    Raises:
        CorpusError: a name is unknown, a pipeline is absent, or an optional package is not installed.
        PluginError: a tagger cannot be imported, has the wrong interface, or a name that is taken twice.
    """
    parsed = parse_names(names)
    if GOLD in parsed:
        raise CorpusError("the gold tagger marks the sentences of a corpus; it finds nothing in a text")
    if processes < 1:
        raise CorpusError(f"tagging processes must be at least 1, not {processes}")
    if batch_size is not None and batch_size < 1:
        raise CorpusError(f"the batch size must be at least 1, not {batch_size}")
    make = functools.partial(_united, parsed, selection, batch_size, structured)
    return make() if processes == 1 else ParallelTagger(make, processes)


def parse_names(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return the single taggers that ``names`` unite, each once.

    Raises:
        CorpusError: a name has no known form, or there is none.
    """
    entries = [names] if isinstance(names, str) else list(names)
    parsed = tuple(dict.fromkeys(name.strip() for entry in entries for name in _split(entry)))
    for name in parsed:
        if not _is_known(name):
            raise CorpusError(f"tagger {name!r} must be {FORMS}, or several of these with + between them")
    if not parsed:
        raise CorpusError(f"a tagger must be named: {FORMS}")
    return parsed


def default_tagger() -> str:
    """Return the best installed: ``en_core_web_trf``, ``lg`` or ``md``, the bundled pipeline, or the rules."""
    from fl_sim.data_prep.taggers.spacy_tagger import default_pipeline

    pipeline = default_pipeline()
    return f"{SPACY}:{pipeline}" if pipeline else RULES


def with_high_recall(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return ``names`` and the tagger that makes a missed entity unlikely, ``rules``."""
    return tuple(dict.fromkeys((*parse_names(names), RULES)))


@dataclass(frozen=True)
class UnitedTagger:
    """Unites taggers: every span that any member finds and the selection keeps (:func:`spans.unite`).

    Attributes:
        members: by name.
        selection: which mentions to keep.
        structured: whether :data:`STRUCTURED` joined the members that were named.
    """

    members: Mapping[str, Tagger]
    selection: Selection = EVERYTHING
    structured: bool = False

    @property
    def labels(self) -> frozenset[str]:
        """Every label of every member; empty if one member's labels are unknown."""
        labels = [member.labels for member in self.members.values()]
        return frozenset().union(*labels) if all(labels) else frozenset()

    def tag(self, texts: Iterable[str]) -> Iterator[tuple[Mention, ...]]:
        """Yield the united mentions of every text."""
        copies = itertools.tee(texts, len(self.members))
        by_member = (
            _selected(member, self.selection, copy) for member, copy in zip(self.members.values(), copies, strict=True)
        )
        for groups in zip(*by_member, strict=True):
            # An e-mail address is one, whatever a model of names takes it for.
            known_by_form = [mention for group in groups for mention in group if mention.label in IDENTIFIERS]
            yield unite([known_by_form, *groups])

    def describe(self) -> dict[str, str]:
        """Return a single member's description as it is; of several, each key with the member's number before it.

        ``structured`` says which version of the expressions joined them; without it none did.
        """
        named = [name for name in self.members if name != STRUCTURED or not self.structured]
        described = [self.members[name].describe() for name in named]
        if len(described) > 1:
            numbered = {
                f"{number}.{key}": value for number, one in enumerate(described, 1) for key, value in one.items()
            }
            described = [{"tagger": "+".join(one["tagger"] for one in described)} | numbered]
        version = {STRUCTURED: structured_data.STRUCTURED_VERSION} if STRUCTURED in self.members else {}
        return (described[0] if described else {}) | version | describe_selection(self.selection)


@dataclass(frozen=True)
class PluginTagger:
    """Checks a tagger of another package or file: its interface at once, its mentions as they come.

    Attributes:
        name: an entry point's name or an import path.
        tagger: what the plug-in made.
    """

    name: str
    tagger: Tagger

    @classmethod
    def load(cls, name: str) -> PluginTagger:
        """Import and make the tagger called ``name``.

        Raises:
            PluginError: it cannot be imported or made, or its interface is wrong.
        """
        make = TAGGERS.load(name)
        try:
            tagger = make()
        except TypeError as error:
            raise PluginError(f"tagger '{name}' cannot be made ({error}); allowed: {TAGGERS.interface}") from error
        if not all(hasattr(tagger, part) for part in ("labels", "tag", "describe")):
            raise PluginError(f"tagger '{name}' is {tagger!r:.100}; allowed: {TAGGERS.interface}")
        checked = cls(name, tagger)
        checked.describe()
        return checked

    @property
    def labels(self) -> frozenset[str]:
        """The plug-in's labels."""
        return frozenset(self.tagger.labels)

    def tag(self, texts: Iterable[str]) -> Iterator[tuple[Mention, ...]]:
        """Yield the plug-in's mentions of every text.

        Raises:
            PluginError: it gives something else than mentions, not those of every text, or among the first ones others
                for a text when these come in reverse: the proof needs those of the text alone.
        """
        texts = iter(texts)
        first = list(itertools.islice(texts, _TRIED))
        forward, backward = (list(self.tagger.tag(tried)) for tried in (first, first[::-1]))
        if len(forward) == len(backward) == len(first) and forward != backward[::-1]:
            raise PluginError(
                f"tagger '{self.name}' finds other mentions when the same texts come in reverse; allowed: the mentions "
                "of each text alone"
            )
        expected, given = itertools.tee(itertools.chain(first, texts))
        tagged = iter(self.tagger.tag(given))
        nothing = object()
        for number, _ in enumerate(expected):
            mentions = next(tagged, nothing)
            if mentions is nothing:
                raise PluginError(
                    f"tagger '{self.name}' yields mentions of {number} texts; allowed: of every text, once"
                )
            if not isinstance(mentions, tuple | list) or not all(isinstance(mention, Mention) for mention in mentions):
                raise PluginError(f"tagger '{self.name}' yields {mentions!r:.100}; allowed: a tuple of Mention a text")
            yield tuple(mentions)
        if next(tagged, nothing) is not nothing:
            raise PluginError(f"tagger '{self.name}' yields mentions of more texts; allowed: of every text, once")

    def describe(self) -> dict[str, str]:
        """Return the plug-in's own description, its name, and where its code comes from."""
        described = self.tagger.describe()
        if not isinstance(described, dict) or not all(isinstance(value, str) for value in described.values()):
            raise PluginError(f"tagger '{self.name}' is described by {described!r:.100}; allowed: texts by name")
        return {"tagger": self.name} | described | {"tagger": self.name} | plugin_record(TAGGERS, self.name)


class ParallelTagger:
    """Tags in several processes, which start at the first text and end with this object; each takes whole batches.

    >>> from fl_sim.data_prep.taggers.rule_tagger import RuleTagger
    >>> ParallelTagger(RuleTagger, processes=2).describe() == RuleTagger().describe()
    True
    """

    def __init__(self, make: Callable[[], Tagger], processes: int) -> None:
        """Make one tagger here, to describe it; ``make``, which makes it, is pickled for the processes."""
        self._local = make()
        self._make = make
        self._processes = processes

    @property
    def labels(self) -> frozenset[str]:
        return self._local.labels

    def tag(self, texts: Iterable[str]) -> Iterator[tuple[Mention, ...]]:
        """Yield the same mentions in the same order as one process does."""
        source = iter(texts)
        waiting: collections.deque[Future[list[list[tuple[int, int, str]]]]] = collections.deque()
        try:
            while batch := list(itertools.islice(source, _TEXTS)):
                with stops_deferred():
                    waiting.append(self._pool.submit(_tag, batch))
                if len(waiting) > _AHEAD * self._processes:
                    yield from _mentions(waiting.popleft())
            while waiting:
                yield from _mentions(waiting.popleft())
        finally:
            for future in waiting:
                future.cancel()

    def describe(self) -> dict[str, str]:
        """Return the description of one tagger; the number of processes changes no mention."""
        return self._local.describe()

    @functools.cached_property
    def _pool(self) -> ProcessPoolExecutor:
        # Not by fork: the copy of a process with threads (torch, progress bars) may wait for ever.
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(self._processes, context, initializer=_start, initargs=(self._make,))
        weakref.finalize(self, _end, pool)
        return pool


def unsought_kinds(corpus: Corpus) -> tuple[str, ...]:
    """Return the kinds that nobody looked for in at least one part of ``corpus``, in the order of the tables above.

    A kind was looked for if the tagger can give a label of it, or a mention in the corpus has one: which labels gold
    marks can have is known from the marks alone.

    >>> unsought_kinds(Corpus.open("bundled"))
    ()
    """
    missing = {kind for part in corpus.parts for kind in unsought_among(_sought_labels(part))}
    return tuple(kind for kind in (*NAME_KINDS, *STRUCTURED_KINDS) if kind in missing)


def unsought_among(labels: Iterable[str]) -> tuple[str, ...]:
    """Return the kinds of which none of ``labels`` is; a label that no tagger of ours knows is of no kind.

    >>> unsought_among(["NICK", "EMAIL", "LOC"])[:3]
    ('persons', 'organisations', 'phone numbers')
    """
    plain = {label.strip().upper().replace("-", "_") for label in labels}
    categories = frozenset().union(*(possible_categories(label) for label in plain if is_known(label)))
    names = [kind for kind, wanted in NAME_KINDS.items() if categories.isdisjoint(wanted)]
    forms = [kind for kind, wanted in STRUCTURED_KINDS.items() if plain.isdisjoint(wanted | {Category.PII})]
    return (*names, *forms)


def _split(entry: str) -> list[str]:
    """Return the names in ``entry``: a + parts two names only where a name follows it, as paths may have one, too."""
    names: list[str] = []
    for part in entry.split("+"):
        if names and not _is_known(part.strip()):
            names[-1] += f"+{part}"
        else:
            names.append(part)
    return names


def _is_known(name: str) -> bool:
    kind, colon, rest = name.partition(":")
    if kind in TAGGERS.built_in:
        return bool(rest) if kind == SPACY else not colon
    return TAGGERS.knows(name)


def _united(names: Sequence[str], selection: Selection, batch_size: int | None, structured: bool) -> UnitedTagger:
    joins = structured and STRUCTURED not in names
    members = {name: _single(name, batch_size) for name in (*names, *((STRUCTURED,) if joins else ()))}
    return UnitedTagger(members, selection, joins)


def _single(name: str, batch_size: int | None) -> Tagger:
    kind, _, rest = name.partition(":")
    if kind not in TAGGERS.built_in:
        return PluginTagger.load(name)
    make = TAGGERS.load(kind)
    return make(rest, batch_size=batch_size) if kind == SPACY else make()


def _selected(tagger: Tagger, selection: Selection, texts: Iterable[str]) -> Iterator[tuple[Mention, ...]]:
    """Yield of every text the mentions of ``tagger`` that ``selection`` keeps."""
    if selection.everything:
        yield from tagger.tag(texts)
        return
    kept: dict[str, bool] = {}
    for mentions in tagger.tag(texts):
        for label in {mention.label for mention in mentions} - kept.keys():
            kept[label] = selection.keeps(label, tagger.labels)
        yield tuple(mention for mention in mentions if kept[mention.label])


def _end(pool: ProcessPoolExecutor) -> None:
    for process in list((pool._processes or {}).values()):
        process.terminate()  # ends the batch under way: not the process, with which the pool's locks would be lost
    pool.shutdown(cancel_futures=True)


def _start(make: Callable[[], Tagger]) -> None:
    global _tagger, _ready
    follow_parent(lambda name: None if _ready else os._exit(1))
    _tagger = make()
    _ready = True


def _tag(texts: list[str]) -> list[list[tuple[int, int, str]]]:
    with raising_stops():
        tagged = list(_tagger.tag(texts))
    return [[(mention.start, mention.end, mention.label) for mention in mentions] for mentions in tagged]


def _mentions(batch: Future[list[list[tuple[int, int, str]]]]) -> Iterator[tuple[Mention, ...]]:
    try:
        results = batch.result()
    except BrokenProcessPool as error:
        raise CorpusError("a tagging process died, perhaps for lack of memory; try fewer `processes`") from error
    for mentions in results:
        yield tuple(itertools.starmap(Mention, mentions))


def _sought_labels(part: Part) -> frozenset[str]:
    """Return the labels of ``part``, with those of structured data: beside an unknown tagger they are not recorded."""
    labels = frozenset(part.manifest.sought_labels)
    if comparable(part.manifest.tagger)[STRUCTURED] == OFF:
        return labels
    selection = Selection.parse(part.manifest.tagger.get("entities", "all"))
    return labels.union(label for label in structured_data.LABELS if selection.keeps(label))
