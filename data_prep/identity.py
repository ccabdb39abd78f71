"""Entity identity: which mentions name the same entity.

Two mentions name the same entity if they have the same key. The key is a function of the mention's characters, so the
entities of a sentence depend on that sentence alone, as docs/privacy.md, section 2, requires. One option,
:attr:`Identity.link_within_document`, looks at other sentences; a closure keeps the proof valid (section 14 there).

Giving two entities the same key costs no privacy: both are protected together. Giving one entity two keys does: ε then
covers only the mentions under one of them. In doubt, surfaces are therefore merged, but never two whose letters differ
by more than a word of the lists below.

First an index that finds names in texts by their words, whether a tagger marked them or not.

>>> index = NameIndex(["Ada Byron", "Leeds"])
>>> sorted(index.names_in("ada byron's way to Leeds"))
[('ada', 'byron'), ('leeds',)]

>>> entity_key("Mr. Johnson's") == entity_key("JOHNSON")
True
>>> entity_key("the Acme & Co. Ltd")
'acme'
"""

from __future__ import annotations

import dataclasses
import functools
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from fl_sim.data_prep.records import CorpusError, Mention, Sentence, Settings
from fl_sim.data_prep.taggers.categories import Category, possible_categories

Name = tuple[str, ...]
"""The words of a name, without case."""

_WORD = re.compile(r"\w+")


def name_of(text: str) -> Name:
    """Return the words of ``text``, without case and punctuation."""
    return tuple(_WORD.findall(text.casefold()))


class NameIndex:
    """Finds names in texts by their words."""

    def __init__(self, names: Iterable[str]) -> None:
        self._by_first: dict[str, set[Name]] = defaultdict(set)
        for text in names:
            name = name_of(text)
            if name:
                self._by_first[name[0]].add(name)

    def names_in(self, text: str) -> set[Name]:
        """Return the names whose words follow one another in ``text``."""
        words = name_of(text)
        return {
            name
            for position, word in enumerate(words)
            for name in self._by_first.get(word, ())
            if words[position : position + len(name)] == name
        }


Entity = tuple[str, str]
"""An entity of a sentence: its key, and the label of the mention."""

Nested = Literal["all", "outermost", "longest"]
NESTED = get_args(Nested)

_EDGES = " \t\r\n.,;:!?\"'`´‘’“”„«»()[]{}<>*_~…-–—"
_TYPOGRAPHIC = str.maketrans(
    {**dict.fromkeys("‘’‛ʼ´`", "'"), **dict.fromkeys("“”„‟", '"'), **dict.fromkeys("‐‑‒–—−", "-")}
)
_POSSESSIVE = re.compile(r"(?:\s*['’][sS])+$")
_INITIALS = re.compile(r"(?<![\w.@])(?:[^\W\d_]\.)+[^\W\d_]?(?![\w.@])")
_TITLE_WORDS = """
mr mister mrs ms miss mx master sir madam madame dame lady lord
monsieur mme mlle herr frau señor señora senor senora signor signora
dr doctor prof professor
president premier chancellor sen senator rep congressman congresswoman gov governor mayor
ambassador minister secretary chairman chairwoman spokesman spokeswoman
pope bishop archbishop rev reverend rabbi imam
gen maj col colonel lt lieutenant capt captain sgt sergeant cpl corporal cmdr admiral adm
inspector detective judge
"""
_TITLES = frozenset(_TITLE_WORDS.split())
_LONG_TITLES = frozenset(
    {("vice", "president"), ("prime", "minister"), ("foreign", "minister"), ("secretary", "general")}
)
_FIRST_OF_TITLES = _TITLES | {first for first, _ in _LONG_TITLES}
_OPENS_NO_NAME = frozenset({"of", "for", "and", "&", "to", "in", "at", "-"})
_SUFFIX_WORDS = """
inc incorporated ltd limited llc llp lp plc corp corporation co company gmbh ag kg sa nv bv spa srl ab oy asa se kk pty
pte jr jnr sr snr esq phd md
"""
_SUFFIXES = frozenset(_SUFFIX_WORDS.split())
_LEFT_HANGING = frozenset({"&", "and"})


def _unicode(key: str) -> str:
    """Unify compatibility forms (NFKC), make quotes and dashes plain, drop invisible characters."""
    if key.isascii():
        return key
    visible = "".join(c for c in unicodedata.normalize("NFKC", key) if unicodedata.category(c) != "Cf")
    return unicodedata.normalize("NFKC", visible.translate(_TYPOGRAPHIC))


def _case(key: str) -> str:
    """Fold case; "ß" becomes "ss"."""
    return key.casefold()


def _space(key: str) -> str:
    """Replace runs of white space by one space, and strip it at the ends."""
    return " ".join(key.split())


def _punctuation(key: str) -> str:
    """Drop punctuation at both ends."""
    return key.strip(_EDGES)


def _possessive(key: str) -> str:
    """Drop a possessive 's at the end."""
    return _POSSESSIVE.sub("", key) if key[-1:] in "sS" else key


def _initials(key: str) -> str:
    """Drop the points of initials: "U.S." is "US", "J.R.R. Tolkien" is "JRR Tolkien"."""
    return _INITIALS.sub(lambda match: match[0].replace(".", ""), key) if "." in key else key


def _determiner(key: str) -> str:
    """Drop a leading "the": "the Bank of England" is "Bank of England"."""
    first, _, rest = key.partition(" ")
    return rest if first.casefold() == "the" else key


def _title(key: str) -> str:
    """Drop titles and honorifics before a name: "Mr. Johnson" is "Johnson"; not in "President of France"."""
    first, _, rest = key.partition(" ")
    if not rest or first.strip(_EDGES).casefold() not in _FIRST_OF_TITLES:
        return key
    words = key.split(" ")
    plain = [word.strip(_EDGES).casefold() for word in words]
    titles = 0
    while titles < len(words):
        if tuple(plain[titles : titles + 2]) in _LONG_TITLES:
            titles += 2
        elif plain[titles] in _TITLES:
            titles += 1
        else:
            break
    if titles == len(words) or plain[titles] in _OPENS_NO_NAME:
        return key
    return " ".join(words[titles:])


def _suffix(key: str) -> str:
    """Drop legal forms and the like after a name: "Acme & Co. Ltd" is "Acme", "King Jr." is "King"."""
    words = key.split(" ")
    while len(words) > 1 and words[-1].replace(".", "").strip(_EDGES).casefold() in _SUFFIXES:
        words.pop()
        while words and words[-1].casefold() in _LEFT_HANGING:
            words.pop()
    return " ".join(words)


STEPS: Mapping[str, Callable[[str], str]] = {
    "unicode": _unicode,
    "case": _case,
    "space": _space,
    "punctuation": _punctuation,
    "possessive": _possessive,
    "initials": _initials,
    "determiner": _determiner,
    "title": _title,
    "suffix": _suffix,
}
"""The steps of the normalisation, applied in this order until nothing changes. A step is skipped if it would leave
nothing, or only punctuation of something else: "Dr" alone stays "dr", and "?!" stays as it is."""


@dataclass(frozen=True)
class Identity:
    """Decides which entities a sentence mentions.

    Attributes:
        steps: A step of the normalisation that makes a key, of :data:`STEPS`; all by default.
        nested: Which overlapping mentions count: ``all``; only the ``outermost``, those not inside another; or only the
            ``longest`` of those that overlap. With ``all``, protecting "England" covers "Bank of England" too.
        family_names: A person's name of several words also mentions its last word, so that protecting "Johnson"
            covers every "David Johnson".
        link_within_document: A person's name that begins or ends a longer one of the same document also stands for the
            longer one; this changes what ε protects (docs/corpora.md).

    Raises:
        CorpusError: a step or a treatment of nested mentions does not exist.
    """

    steps: tuple[str, ...] = tuple(STEPS)
    nested: Nested = "all"
    family_names: bool = False
    link_within_document: bool = False

    def __post_init__(self) -> None:
        for step in self.steps:
            if step not in STEPS:
                raise CorpusError(f"identity step {step!r} is unknown, it must be one of {', '.join(STEPS)}")
        object.__setattr__(self, "steps", tuple(step for step in STEPS if step in self.steps))
        if self.nested not in NESTED:
            raise CorpusError(f"nested mentions {self.nested!r} must be one of {', '.join(NESTED)}")

    def key(self, surface: str) -> str:
        """Return the key of ``surface``: entities with the same key are the same, and are sampled together.

        The label is no part of the key: "Jordan" the person and "Jordan" the country are one entity, so both are
        protected together. A key is never empty, and is its own key.
        """
        return _normaliser(self.steps)(surface)

    def entities(self, sentence: Sentence) -> tuple[Entity, ...]:
        """Return the entities of ``sentence`` by itself, each once, in the order of its mentions."""
        key_of = _normaliser(self.steps)
        entities: dict[Entity, None] = {}
        for mention in self._counted(sentence.mentions):
            key = key_of(sentence.text[mention.start : mention.end])
            entities[key, mention.label] = None
            if self.family_names and _may_be_person(mention.label):
                _, _, last = key.rpartition(" ")
                entities[key_of(last), mention.label] = None
        return tuple(entities)

    def resolve(self, sentences: Iterable[Sentence]) -> Iterator[tuple[Sentence, tuple[Entity, ...]]]:
        """Yield every sentence with the entities that it counts as mentioning.

        Without :attr:`link_within_document` these are the sentence's own. With it, a sentence whose person's name
        begins or ends a longer one ("Johnson", "David Johnson") of the same user and document counts as mentioning all
        entities of the sentences with the longer name. So if all sentences of an entity are removed, no remaining
        sentence has an entity because of them. A sentence without a document stands alone.

        Raises:
            CorpusError: the sentences of a document do not follow one another.
        """
        if not self.link_within_document:
            for sentence in sentences:
                yield sentence, self.entities(sentence)
            return
        for document in _documents(sentences):
            yield from zip(document, link_names([self.entities(sentence) for sentence in document]), strict=True)

    @classmethod
    def from_manifest(cls, settings: Mapping[str, Any]) -> Identity:
        """Return the identity whose :meth:`manifest_settings` these are."""
        return cls(**{**settings, "steps": tuple(settings["steps"])})

    @classmethod
    def of_corpus(cls, settings: Mapping[str, Any]) -> Identity:
        """Return the identity of a corpus with these manifest settings; the default one if they name none."""
        own = settings.get("identity")
        return DEFAULT_IDENTITY if own is None else cls.from_manifest(own)

    def of_single_names(self) -> Identity:
        """Return the same without links within documents, which need a document's other names."""
        return dataclasses.replace(self, link_within_document=False)

    def manifest_settings(self) -> Settings:
        """Return the settings, for a manifest."""
        return {
            "steps": list(self.steps),
            "nested": self.nested,
            "family_names": self.family_names,
            "link_within_document": self.link_within_document,
        }

    def warnings(self) -> tuple[str, ...]:
        """Return what a reader of ε must know of these settings, a sentence each."""
        warnings = []
        if self.nested != "all":
            warnings.append(
                f"Of nested mentions only the {self.nested} count: ε of an entity does not cover sentences that "
                "mention it inside another name."
            )
        if self.link_within_document:
            warnings.append(
                "Names are linked within documents: ε of an entity, the robust one too, is about the sentences that "
                "mention it together with those linked to one (docs/privacy-proofs.md, section 14)."
            )
        return tuple(warnings)

    def _counted(self, mentions: tuple[Mention, ...]) -> tuple[Mention, ...]:
        if self.nested == "all" or len(mentions) < 2:
            return mentions
        if self.nested == "outermost":
            return tuple(m for m in mentions if not any(_is_inside(m, other) for other in mentions))
        kept: list[Mention] = []
        for mention in sorted(mentions, key=lambda m: (m.start - m.end, m.start)):
            if all(mention.end <= other.start or other.end <= mention.start for other in kept):
                kept.append(mention)
        return tuple(sorted(kept, key=lambda m: m.start))


DEFAULT_IDENTITY = Identity()


def entity_key(surface: str) -> str:
    """Return the key of ``surface`` under all steps (:meth:`Identity.key`)."""
    return DEFAULT_IDENTITY.key(surface)


def link_names(document: list[tuple[Entity, ...]]) -> list[tuple[Entity, ...]]:
    """Return the entities of a document's sentences after linking its persons' names, in the order of the sentences.

    Sentence t depends on sentence s if a person's name of t is the first or the last words of a person's name of s. t
    gets the entities of all sentences that it depends on, directly or through others.

    Args:
        document: the entities of each sentence by itself.
    """
    entities_beside: dict[str, dict[Entity, None]] = defaultdict(dict)
    longer: dict[str, dict[str, None]] = defaultdict(dict)
    for entities in document:
        for key, label in entities:
            if _may_be_person(label):
                entities_beside[key].update(dict.fromkeys(entities))
                for part in _parts(key):
                    longer[part][key] = None
    return [_closure(entities, longer, entities_beside) for entities in document]


def _closure(
    entities: tuple[Entity, ...], longer: Mapping[str, dict[str, None]], beside: Mapping[str, dict[Entity, None]]
) -> tuple[Entity, ...]:
    """Return ``entities`` and those of every sentence with a longer name, until nothing is added.

    Args:
        entities: those of a sentence by itself.
        longer: name → the longer names of the document that it begins or ends.
        beside: name → the entities of the sentences that mention it.
    """
    closure = dict.fromkeys(entities)
    pending = list(entities)
    visited: set[str] = set()
    while pending:
        key, label = pending.pop()
        if not _may_be_person(label):
            continue
        for name in longer.get(key, ()):
            if name in visited:
                continue
            visited.add(name)
            pending += [entity for entity in beside[name] if entity not in closure]
            closure.update(beside[name])
    return tuple(closure)


def _parts(key: str) -> Iterator[str]:
    """Yield every proper prefix and suffix of a name, by words."""
    words = key.split(" ")
    for cut in range(1, len(words)):
        yield " ".join(words[:cut])
        yield " ".join(words[cut:])


def _documents(sentences: Iterable[Sentence]) -> Iterator[list[Sentence]]:
    """Yield consecutive sentences of the same split, user and document; a sentence without a document alone."""
    closed: set[tuple[str, str, str]] = set()
    waiting: list[Sentence] = []
    current: tuple[str, str, str] | None = None
    for sentence in sentences:
        name = None if sentence.document is None else (sentence.split, sentence.user, sentence.document)
        if waiting and (name is None or name != current):
            yield waiting
            waiting = []
            if current is not None:
                closed.add(current)
        if name in closed:
            raise CorpusError(
                f"document {sentence.document!r} of user {sentence.user!r} goes on after another began; to link within "
                "documents the sentences of a document must follow one another"
            )
        waiting.append(sentence)
        current = name
    if waiting:
        yield waiting


@functools.lru_cache(maxsize=64)
def _normaliser(steps: tuple[str, ...]) -> Callable[[str], str]:
    """Return the function from surface to key; it remembers a quarter of a million surfaces, because names repeat."""
    functions = [STEPS[step] for step in steps]

    @functools.lru_cache(maxsize=1 << 18)
    def key_of(surface: str) -> str:
        key = surface
        while True:
            before = key
            for step in functions:
                shorter = step(key)
                if shorter.strip() and (shorter.strip(_EDGES) or not key.strip(_EDGES)):
                    key = shorter
            if key == before:
                return key

    return key_of


@functools.lru_cache(maxsize=4096)
def _may_be_person(label: str) -> bool:
    return Category.PERSON in possible_categories(label)


def _is_inside(inner: Mention, outer: Mention) -> bool:
    return outer.start <= inner.start and inner.end <= outer.end and inner.end - inner.start < outer.end - outer.start
