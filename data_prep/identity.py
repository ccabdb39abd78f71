"""Entity identity: which mentions name the same entity.

Two mentions name the same entity if they have the same key. The key is a function of the mention's characters, so the
entities of a sentence depend on that sentence alone, as docs/privacy.md, section 2, requires.

Giving two entities the same key costs no privacy: both are protected together. Giving one entity two keys does: ε then
covers only the mentions under one of them. In doubt, surfaces are therefore merged, but never two whose letters differ
by more than a word of the lists below.

>>> entity_key("Mr. Johnson's") == entity_key("JOHNSON")
True
>>> entity_key("the Acme & Co. Ltd")
'acme'
>>> sorted(NameIndex(["Ada Byron", "Leeds"]).names_in("ada byron's way to Leeds"))
[('ada', 'byron'), ('leeds',)]
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fl_sim.data_prep.records import CorpusError, Sentence, Settings
from fl_sim.data_prep.taggers.categories import Category, possible_categories

if TYPE_CHECKING:
    from fl_sim.data_prep.store.corpus import Corpus

Name = tuple[str, ...]
"""The words of a name, without case."""

_WORD = re.compile(r"\w+")


def name_of(text: str) -> Name:
    """Return the words of ``text``, composed (NFC), without case and punctuation."""
    return tuple(_WORD.findall(unicodedata.normalize("NFC", text).casefold()))


class NameIndex:
    """Finds names in texts by their words, whether a tagger marked them or not."""

    def __init__(self, names: Iterable[str], words_of: Callable[[str], Name] = name_of) -> None:
        self._words_of = words_of
        self._by_first: dict[str, set[Name]] = defaultdict(set)
        for name in filter(None, map(words_of, names)):
            self._by_first[name[0]].add(name)

    def names_in(self, text: str) -> set[Name]:
        """Return the names whose words follow one another in ``text``."""
        words = self._words_of(text)
        return {
            name
            for position, word in enumerate(words)
            for name in self._by_first.get(word, ())
            if words[position : position + len(name)] == name
        }


Entity = tuple[str, str]
"""An entity of a sentence: its key, and the label of the mention."""

_EDGES = " \t\r\n.,;:!?\"'`´()[]{}<>*_~-"
_ADDRESS = re.compile(r"[#@]+ ?(?=[^\W\d_])")  # of #Obama and @Obama; # is the end of C# and the beginning of numbers
_KEPT = "§•·"  # § begins a reference; bullets stay because six keys of the contracts that results/ records have them
_TYPOGRAPHIC = str.maketrans(
    {**dict.fromkeys("‘’‛ʼʻ′`", "'"), **dict.fromkeys("“”„‟", '"'), **dict.fromkeys("‐‑‒–—−", "-")}
)
# Unicode's Default_Ignorable_Code_Point, without those of category Cf.
_INVISIBLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0000-\U000e0fff]")
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


def visible(text: str) -> str:
    """Return ``text`` without invisible characters: control and format characters, fillers and variation selectors."""
    shown = (c for c in text if unicodedata.category(c) not in ("Cc", "Cf") or c.isspace())
    return _INVISIBLE.sub("", "".join(shown))


def _unicode(key: str) -> str:
    """Unify compatibility forms (NFKC), make quotes and dashes plain, drop invisible characters."""
    if key.isascii() and key.isprintable():
        return key.replace("`", "'")
    composed = unicodedata.normalize("NFKC", key.translate(_TYPOGRAPHIC))
    return visible(composed.replace(" \u0301", "'"))  # what NFKC makes of "´", here or in the source


def _case(key: str) -> str:
    """Fold case; "ß" becomes "ss", and all of Turkish's four i are one, as their case tells nothing elsewhere."""
    return key.casefold().replace("i\u0307", "i").replace("ı", "i")


def _space(key: str) -> str:
    """Replace runs of white space by one space, and strip it at the ends."""
    return " ".join(key.split())


@functools.cache
def punctuation() -> str:
    """Return Unicode's punctuation without ASCII's; planes above the first two have none."""
    return "".join(c for c in map(chr, range(0x80, 2 << 16)) if unicodedata.category(c)[0] == "P")


def _punctuation(key: str) -> str:
    """Drop punctuation at both ends, of any script, and the mark of an address; of ASCII's only what ends no name."""
    key = key.strip(_EDGES if key.isascii() else _edges())
    address = _ADDRESS.match(key)
    return key[address.end() :] if address else key


@functools.cache
def _edges() -> str:
    """Return what ends no name that is not ASCII."""
    return _EDGES + "".join(set(punctuation()).difference(_KEPT))


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
    if not rest or _punctuation(first).casefold() not in _FIRST_OF_TITLES:
        return key
    words = key.split(" ")
    plain = [_punctuation(word).casefold() for word in words]
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
    while len(words) > 1 and _punctuation(words[-1].replace(".", "")).casefold() in _SUFFIXES:
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
        family_names: A person's name of several words also mentions its last word, so that protecting "Johnson"
            covers every "David Johnson".

    Raises:
        CorpusError: a step does not exist.
    """

    steps: tuple[str, ...] = tuple(STEPS)
    family_names: bool = False

    def __post_init__(self) -> None:
        for step in self.steps:
            if step not in STEPS:
                raise CorpusError(f"identity step {step!r} is unknown, it must be one of {', '.join(STEPS)}")
        object.__setattr__(self, "steps", tuple(step for step in STEPS if step in self.steps))

    def key(self, surface: str) -> str:
        """Return the key of ``surface``: entities with the same key are the same, and are sampled together.

        The label is no part of the key: "Jordan" the person and "Jordan" the country are one entity, so both are
        protected together. A key is never empty, and is its own key.
        """
        return _normaliser(self.steps)(surface)

    def entities(self, sentence: Sentence) -> tuple[Entity, ...]:
        """Return the entities of ``sentence``, each once: stored ones, then in the order of its mentions.

        Nested mentions all count.
        """
        key_of = _normaliser(self.steps)
        stored = sentence.stored
        entities: dict[Entity, None] = {} if stored is None else dict.fromkeys(stored.entities)
        for mention in sentence.mentions:
            if stored is not None and mention in stored.mentions:
                continue
            key = key_of(sentence.text[mention.start : mention.end])
            entities[key, mention.label] = None
            if self.family_names and Category.PERSON in possible_categories(mention.label):
                _, _, last = key.rpartition(" ")
                entities[key_of(last), mention.label] = None
        return tuple(entities)

    @classmethod
    def of_corpus(cls, settings: Mapping[str, Any]) -> Identity:
        """Return the identity of a corpus with these manifest settings; the default one if they name none."""
        own = settings.get("identity")
        return DEFAULT_IDENTITY if own is None else cls(tuple(own["steps"]), own["family_names"])

    def manifest_settings(self) -> Settings:
        """Return the settings, for a manifest."""
        return {"steps": list(self.steps), "family_names": self.family_names}


DEFAULT_IDENTITY = Identity()


def entity_key(surface: str) -> str:
    """Return the key of ``surface`` under all steps (:meth:`Identity.key`)."""
    return DEFAULT_IDENTITY.key(surface)


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
                if shorter != key and shorter.strip() and (_punctuation(shorter) or not _punctuation(key)):
                    key = shorter
            if key == before:
                return key

    return key_of


NOBODY = -1
"""Stands for the entity of a user whom no sentence mentions."""


def entities_of_users(corpus: Corpus, split: str) -> NDArray[np.int64]:
    """Return the entity that each user is, int64 (U,), or :data:`NOBODY`.

    A user is an entity if the user's name has its key under the corpus's identity. Two users whose names have one key
    ("ada" and "Ada_") are one entity, so that mentions of either are protected with both.

    Raises:
        CorpusError: the corpus has no such split.
    """
    key_of = Identity.of_corpus(corpus.manifest.settings).key
    ids = {key: number for number, key in corpus.entities(split)["entity"].items()}
    names = corpus.users(split)["user"]
    return np.array([ids.get(key_of(name), NOBODY) for name in names], dtype=np.int64)


def keys_of_mentions(corpus: Corpus, split: str) -> list[str | None]:
    """Return the key of the entity of each mention of a split, in their order.

    It is None where the text was preprocessed and no longer tells it: "Kent's" became "kents", and its sentence
    mentions no entity of that key.

    Raises:
        CorpusError: the corpus has no such split.
    """
    key_of, table = Identity.of_corpus(corpus.manifest.settings).key, corpus.mentions(split)
    sentences, starts, ends = (table.column(name).to_numpy() for name in ("sentence", "start", "end"))
    texts = corpus.texts(split).to_pylist()
    keys = [key_of(texts[s][start:end]) for s, start, end in zip(sentences, starts, ends, strict=True)]
    ids = {key: number for number, key in corpus.entities(split)["entity"].items()}
    entities, counts = corpus.ownership(split).entities_of(sentences)
    meant = np.repeat(np.array([ids.get(key, NOBODY) for key in keys], dtype=np.int64), counts)
    found = np.bincount(np.repeat(np.arange(len(keys)), counts)[entities == meant], minlength=len(keys)) > 0
    return [key if known else None for key, known in zip(keys, found.tolist(), strict=True)]


def entity_of_name(corpus: Corpus, split: str, name: str) -> int | None:
    """Return the entity that a name means, whatever its case and punctuation; None if no sentence mentions it.

    Raises:
        CorpusError: the corpus has no such split.
    """
    key = Identity.of_corpus(corpus.manifest.settings).key(name)
    entities = corpus.entities(split)["entity"]
    ids = entities.index[entities == key]
    return int(ids[0]) if len(ids) else None
