"""Which mentions are the same entity: a normalisation in named steps, and what else counts as mentioned.

Two mentions name one entity if they have one key. A key is made from the mention's own characters, so that the
entities of a sentence depend on that sentence alone, which is what the proof of docs/privacy.md needs. The one
option that looks further, :attr:`Identity.link_within_document`, keeps the proof by a closure (section 14 there).

Merging two entities that differ costs nothing in privacy: what is hidden together is hidden. Keeping one entity apart
under two keys does cost: hiding one of them leaves the other. So whatever is in doubt is merged, but never two
surfaces whose letters differ by more than a word of the lists below.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fl_sim.data_prep.records import CorpusError, Mention, Sentence
from fl_sim.data_prep.taggers.categories import Category, possible_categories

Entity = tuple[str, str]
"""An entity that a sentence mentions: its key, and the label under which it was found."""

NESTED = ("all", "outermost", "longest")

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
    """Compatibility forms unified (NFKC), typographic quotes and dashes to plain ones, invisible characters out."""
    if key.isascii():
        return key
    visible = "".join(c for c in unicodedata.normalize("NFKC", key) if unicodedata.category(c) != "Cf")
    return unicodedata.normalize("NFKC", visible.translate(_TYPOGRAPHIC))


def _case(key: str) -> str:
    """Case folded; "ß" is "ss"."""
    return key.casefold()


def _space(key: str) -> str:
    """Runs of white space, line breaks too, to one space; none at the ends."""
    return " ".join(key.split())


def _punctuation(key: str) -> str:
    """Punctuation at both ends dropped."""
    return key.strip(_EDGES)


def _possessive(key: str) -> str:
    """A possessive 's at the end dropped."""
    return _POSSESSIVE.sub("", key) if key[-1:] in "sS" else key


def _initials(key: str) -> str:
    """The points of initials dropped: "U.S." is "US", "J.R.R. Tolkien" is "JRR Tolkien"."""
    return _INITIALS.sub(lambda found: found[0].replace(".", ""), key) if "." in key else key


def _determiner(key: str) -> str:
    """A leading "the" dropped: "the Bank of England" is "Bank of England"."""
    first, _, rest = key.partition(" ")
    return rest if first.casefold() == "the" else key


def _title(key: str) -> str:
    """Titles and honorifics before a name dropped: "Mr. Johnson" is "Johnson"; not in "President of France"."""
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
    """Legal forms and the like after a name dropped: "Acme & Co. Ltd" is "Acme", "King Jr." is "King"."""
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
"""The normalisation, step by step in this order, from the first again until nothing changes. A step that would leave
nothing, or of something only punctuation, is not taken: "Dr" alone stays "dr", and "?!" stays as it is."""


@dataclass(frozen=True)
class Identity:
    """What decides which entities a sentence mentions.

    steps: which of :data:`STEPS` make a key, in any order. nested: of mentions that overlap, ``all`` count (whoever
        hides "England" then hides "Bank of England" as well), or only the ``outermost`` (not inside another), or only
        the ``longest`` of those that overlap. family_names: a person's name of several words is also a mention of its
        last word, so that hiding "Johnson" hides every "David Johnson". link_within_document: a person's name that
        opens or closes a longer one of the same document also stands for that one, see :meth:`resolve`.
    Raises :class:`CorpusError` for a step or a treatment of nested mentions that does not exist.
    """

    steps: tuple[str, ...] = tuple(STEPS)
    nested: str = "all"
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
        """The identity of the entity that ``surface`` names: the same key means the same entity and one coin.

        The label is no part of it: "Jordan" the person and "Jordan" the country are one entity, so hiding one hides
        both. Never empty, and its own key.
        """
        return _normaliser(self.steps)(surface)

    def entities(self, sentence: Sentence) -> tuple[Entity, ...]:
        """The entities that ``sentence`` mentions by itself, each once, in the order of its mentions."""
        normalised = _normaliser(self.steps)
        found: dict[Entity, None] = {}
        for mention in self._counted(sentence.mentions):
            key = normalised(sentence.text[mention.start : mention.end])
            found[key, mention.label] = None
            if self.family_names and _may_be_person(mention.label):
                _, _, last = key.rpartition(" ")
                found[normalised(last), mention.label] = None
        return tuple(found)

    def resolve(self, sentences: Iterable[Sentence]) -> Iterator[tuple[Sentence, tuple[Entity, ...]]]:
        """Every sentence with the entities it counts as mentioning.

        Without :attr:`link_within_document` these are its own. With it, a sentence whose person's name opens or closes
        a longer one ("Johnson", "David Johnson") of the same user and document counts as mentioning *everything* that
        the sentences with the longer name count as mentioning; so no sentence that is left when an entity's sentences
        go has entities that came from those. A sentence of no document is on its own.
        Documents must come in one piece; raises :class:`CorpusError` for one that goes on after another began.
        """
        if not self.link_within_document:
            for sentence in sentences:
                yield sentence, self.entities(sentence)
            return
        for document in _documents(sentences):
            yield from zip(document, link_names([self.entities(sentence) for sentence in document]), strict=True)

    def manifest_settings(self) -> dict[str, Any]:
        """The settings, for a manifest."""
        return {
            "steps": list(self.steps),
            "nested": self.nested,
            "family_names": self.family_names,
            "link_within_document": self.link_within_document,
        }

    def warnings(self) -> tuple[str, ...]:
        """What a reader of ε must know of these settings, each a sentence."""
        warnings = []
        if self.nested != "all":
            warnings.append(
                f"Of nested mentions only the {self.nested} count: ε of an entity does not cover sentences that "
                "mention it inside another name."
            )
        if self.link_within_document:
            warnings.append(
                "Names are linked within documents: ε of an entity, the robust one too, is about the sentences that "
                "mention it together with those linked to one (docs/privacy.md, section 14)."
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
    """The key of ``surface`` under all steps, see :meth:`Identity.key`."""
    return DEFAULT_IDENTITY.key(surface)


def link_names(document: list[tuple[Entity, ...]]) -> list[tuple[Entity, ...]]:
    """The entities of a document's sentences once its persons' names are linked, in the order of the sentences.

    Sentence t depends on sentence s if a person's name of t is the first or the last words of a person's name of s. t
    is given the entities of all sentences that it depends on, directly or through others.
    """
    entities_beside: dict[str, dict[Entity, None]] = defaultdict(dict)
    longer: dict[str, dict[str, None]] = defaultdict(dict)
    for found in document:
        for key, label in found:
            if _may_be_person(label):
                entities_beside[key].update(dict.fromkeys(found))
                for part in _parts(key):
                    longer[part][key] = None
    return [_closure(found, longer, entities_beside) for found in document]


def _closure(
    found: tuple[Entity, ...], longer: Mapping[str, dict[str, None]], beside: Mapping[str, dict[Entity, None]]
) -> tuple[Entity, ...]:
    reached = dict.fromkeys(found)
    waiting = list(found)
    followed: set[str] = set()
    while waiting:
        key, label = waiting.pop()
        if not _may_be_person(label):
            continue
        for name in longer.get(key, ()):
            if name in followed:
                continue
            followed.add(name)
            waiting += [entity for entity in beside[name] if entity not in reached]
            reached.update(beside[name])
    return tuple(reached)


def _parts(key: str) -> Iterator[str]:
    """The first words and the last words of a name, the whole name left out."""
    words = key.split(" ")
    for cut in range(1, len(words)):
        yield " ".join(words[:cut])
        yield " ".join(words[cut:])


def _documents(sentences: Iterable[Sentence]) -> Iterator[list[Sentence]]:
    """Consecutive sentences of one split, user and document; a sentence of no document alone."""
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
    """The function from surface to key; names repeat, so it remembers the last quarter of a million."""
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
