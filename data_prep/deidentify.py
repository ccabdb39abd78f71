"""De-identify a prepared corpus: replace mentions by their category, remove them, or replace them by surrogates.

The result is a prepared corpus with the same users, sentences, splits and classes under the same ids. It gives no
guarantee: mentions that the tagger missed stay in the text (docs/corpora.md).

First the surrogates: made-up names, numbers and dates.

Names are composed from lists of our own; numbers and dates keep the shape of the original. A surrogate depends on the
seed and the entity's key, and on other entities only if it would coincide with one of them.

>>> maker = SurrogateMaker(0, str.casefold, {"ada byron"})
>>> maker.surrogate("ada byron", Category.PERSON) == maker.surrogate("ada byron", Category.PERSON)
True
>>> match_case("ADA", "Greta")
'GRETA'

>>> sentence = Sentence("train", "ann", "Ada Byron's firm", (Mention(0, 11, "PERSON"),))
>>> Rewriter("category").rewrite(sentence).sentence.text
"[PERSON]'s firm"
>>> Rewriter("remove").rewrite(sentence).sentence.text
'firm'
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fl_sim.data_prep.canaries import WARNING as CANARY_WARNING
from fl_sim.data_prep.canaries import PlantedCanaries, read_canaries
from fl_sim.data_prep.corpus_writer import PartOptions, append_corpus, write_corpus
from fl_sim.data_prep.identity import DEFAULT_IDENTITY, Identity
from fl_sim.data_prep.readers.prepared_corpus import sentences_of
from fl_sim.data_prep.records import CorpusError, Mention, Sentence, Settings
from fl_sim.data_prep.store.atomic import folder_appearing_at
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.layout import CANARIES_FILE
from fl_sim.data_prep.taggers.categories import Category, category_of
from fl_sim.files import owner_only


def _words(text: str) -> list[str]:
    return text.split()


def pick(values: Sequence[str], rng: np.random.Generator) -> str:
    """Return one of ``values``, uniformly."""
    return values[int(rng.integers(len(values)))]


_FIRST_NAMES = _words("""
Adela Aidan Alma Amos Anton Astrid Basil Bella Boris Brenda Bruno Callum Celia Cyril Dalia Damon Delia Doris Edgar Edith
Elias Elsa Enid Ezra Fabian Felix Fiona Flora Gavin Gemma Gideon Greta Hanna Harvey Hazel Hugo Ida Igor Ines Iris Ivan
Jarvis Joan Jonas Judith Karl Kira Lars Lena Leo Lydia Magnus Maia Mara Marcus Mavis Miles Mona Nadia Nigel Nina Nora
Odette Olga Oscar Otto Paula Percy Petra Quentin Ralph Rhea Rita Rowan Rufus Sasha Selma Silas Sonia Stella Tessa Theo
Tilda Tobias Ursula Valerie Vera Victor Viola Wanda Wilma Winston Xavier Yara Yusuf Zara Zelda
""")
_STEMS = _words("""
Ash Bar Bel Brad Bram Cal Car Chad Clay Cor Cran Dal Dar Den Dun Ed El Fair Far Fen Fos Gar Glen Gren Hal Har Haw Hol
Hux Kel Ken Kin Lan Lin Lor Mar Mel Mer Mil Mor Nor Oak Os Pen Pres Rad Ram Red Ros Row Sel Shel Stan Sut Tal Thorn Tre
Wal War Wes Whit Win Wood
""")
_LINKS = _words("a e i o en er in ing ar ber der lin mar nor ral sel ten ver")
_PERSON_ENDS = _words(
    "by croft den don field gate hurst ing land ley low man mer more ner shaw stone ter ward well wood"
)
_PLACE_ENDS = _words("""
borough bridge bury chester dale ford ham haven holm mere minster mouth port stead stow thorpe ton ville wick worth
""")
_PEOPLE_ENDS = _words("ese ian ish ic an")
_THING_ENDS = _words("a ex ia ix o on or um us")
_KINDS: Mapping[Category, list[str]] = {
    Category.ORG: _words(
        "Group Holdings Partners Systems Industries Associates Trust Council Institute Union Club Bank"
    ),
    Category.FAC: _words("Hall Bridge Street Road Square Tower Station House Park Stadium"),
    Category.EVENT: _words("Cup Open Festival Summit Trophy Games Fair Rally"),
    Category.LAW: _words("Act Treaty Directive Code Accord"),
    Category.WORK_OF_ART: _words("Song Story Suite Letters Portrait Chronicle"),
    Category.PRODUCT: _words("Plus Pro Mini Max Classic Duo"),
}
_PLACES = frozenset({Category.GPE, Category.LOC, Category.FAC})
_NUMBERS = frozenset(
    {
        Category.PII,
        Category.DATE,
        Category.TIME,
        Category.PERCENT,
        Category.MONEY,
        Category.QUANTITY,
        Category.ORDINAL,
        Category.CARDINAL,
    }
)
_CYCLES = [
    _words("january february march april may june july august september october november december"),
    _words("jan feb mar apr jun jul aug sep sept oct nov dec"),
    _words("monday tuesday wednesday thursday friday saturday sunday"),
    _words("two three four five six seven eight nine ten eleven twelve twenty thirty forty fifty"),
    _words("first second third fourth fifth sixth seventh eighth ninth tenth"),
]
_CYCLE_OF = {word: cycle for cycle in _CYCLES for word in cycle}
_NUMBER = re.compile(r"\d+")
_YEAR = re.compile(r"(?:1[5-9]|20|21)\d\d")
_LETTER = re.compile(r"[a-z]")
_MOST_WORDS = 4
_ATTEMPTS_PER_LENGTH = 8


class SurrogateMaker:
    """Gives every entity key one surrogate, whose own key is neither a real entity's nor another surrogate's."""

    def __init__(self, seed: int, key_of: Callable[[str], str], taken: Collection[str]) -> None:
        """Start without surrogates.

        Args:
            seed: of the draws.
            key_of: the key of a surface.
            taken: the keys of all real entities.
        """
        self._seed = seed
        self._key_of = key_of
        self._taken = set(taken)
        self._surrogates: dict[str, str] = {}

    def surrogate(self, key: str, category: Category) -> str:
        """Return the surrogate of the entity ``key``; the category of the first call decides."""
        surrogate = self._surrogates.get(key)
        if surrogate is None:
            surrogate = self._surrogates[key] = self._draw(key, category)
            self._taken.add(self._key_of(surrogate))
        return surrogate

    def _draw(self, key: str, category: Category) -> str:
        attempt = 0
        while True:  # ends, because names grow with the attempts
            rng = _generator(self._seed, category, key, attempt)
            surrogate = _candidate(key, category, attempt // _ATTEMPTS_PER_LENGTH, rng)
            if surrogate and self._key_of(surrogate) not in self._taken:
                return surrogate
            attempt += 1


def match_case(surface: str, surrogate: str) -> str:
    """Return ``surrogate`` in upper or lower case if all of ``surface`` is."""
    if surface.isupper() and sum(character.isalpha() for character in surface) > 1:
        return surrogate.upper()
    return surrogate.lower() if surface.islower() else surrogate


def _generator(seed: int, category: Category, key: str, attempt: int) -> np.random.Generator:
    digest = hashlib.sha256(f"{seed}\0{category}\0{attempt}\0{key}".encode("utf-8", "surrogatepass")).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


def _candidate(key: str, category: Category, length: int, rng: np.random.Generator) -> str:
    """Return a surrogate of the entity ``key``.

    Args:
        key: the entity's key.
        category: of the entity.
        length: how many syllables or digits the surrogate has more than usual.
        rng: draws it.
    """
    if "@" in key:
        return f"{_name(_PERSON_ENDS, length, rng)}@{_name(_PLACE_ENDS, length, rng)}.example".lower()
    if category is Category.PII and ("/" in key or key.startswith("www.")):
        return f"www.{_name(_PLACE_ENDS, length, rng)}.example".lower()
    if category in _NUMBERS:
        if key.count("(") != key.count(")"):  # a key has lost the brackets at its ends
            key = key.replace("(", "").replace(")", " ")
        changed = " ".join(_redraw(word, category, rng) for word in key.split())
        if changed != key and length < 2:
            return changed
        return _plain_number(category, length, rng)
    words = key.split(" ")[:_MOST_WORDS]
    numbers = [_redraw(word, category, rng) for word in words if _NUMBER.search(word)]
    return " ".join([*numbers, *_names(category, max(len(words) - len(numbers), 1), length, rng)])


def _names(category: Category, words: int, length: int, rng: np.random.Generator) -> list[str]:
    if category is Category.PERSON:
        return [*(pick(_FIRST_NAMES, rng) for _ in range(words - 1)), _name(_PERSON_ENDS, length, rng)]
    if category in (Category.NORP, Category.LANGUAGE):
        return [_name(_PEOPLE_ENDS, length, rng) for _ in range(words)]
    ends = _PLACE_ENDS if category in _PLACES else _THING_ENDS
    if words > 1 and category in _KINDS:
        return [*(_name(ends, length, rng) for _ in range(words - 1)), pick(_KINDS[category], rng)]
    return [_name(ends, length, rng) for _ in range(words)]


def _name(ends: list[str], length: int, rng: np.random.Generator) -> str:
    links = [pick(_LINKS, rng) for _ in range(length + int(rng.integers(2)))]
    return "".join([pick(_STEMS, rng), *links, pick(ends, rng)])


def _redraw(word: str, category: Category, rng: np.random.Generator) -> str:
    """Return ``word`` with other digits; months, weekdays and number words become others; codes get other letters."""
    cycle = _CYCLE_OF.get(word.strip(".,"))
    if cycle is not None:
        other = pick([name for name in cycle if name != word.strip(".,")], rng)
        return word.replace(word.strip(".,"), other if category is not Category.DATE else other.capitalize())
    if not _NUMBER.search(word):
        return word
    if category is Category.PII:
        word = _LETTER.sub(lambda _: chr(ord("a") + int(rng.integers(26))), word).upper()
    return _NUMBER.sub(lambda match: _digits_like(match[0], category, rng), word)


def _digits_like(digits: str, category: Category, rng: np.random.Generator) -> str:
    if category in (Category.DATE, Category.TIME):
        if _YEAR.fullmatch(digits):
            return str(rng.integers(1950, 2050))
        if len(digits) <= 2:
            return f"{rng.integers(1, 10 if len(digits) == 1 else 13):0{len(digits)}d}"
    first = digits[0] if digits[0] == "0" else str(rng.integers(1, 10))
    return first + "".join(str(rng.integers(10)) for _ in digits[1:])


def _plain_number(category: Category, length: int, rng: np.random.Generator) -> str:
    if category is Category.DATE:
        return f"{rng.integers(1, 29)} {pick(_CYCLES[0], rng).capitalize()} {rng.integers(1500, 2200) + 1000 * length}"
    number = int(rng.integers(10 ** (length + 1), 10 ** (length + 2)))
    if category is Category.TIME:
        return f"{number} minutes"
    if category is Category.PERCENT:
        return f"{number} percent"
    return f"{number} dollars" if category is Category.MONEY else str(number)


MODES = ("category", "remove", "surrogate")
EMPTY = "[EMPTY]"
"""The text of a sentence of which nothing is left."""

WARNING = (
    "De-identified ({mode}): what the tagger missed stands in the text as it was. This has no ε, and without "
    "entities no ε of a training on it speaks of one."
)
SURROGATE_WARNING = (
    "De-identified (surrogate): what the tagger missed stands in the text as it was. The surrogates were chosen by "
    "looking at the whole corpus, which no ε of a training on it covers."
)

_POSSESSIVE = re.compile(r"\s*['’][sS]$")
_POSSESSIVE_AFTER = re.compile(r"^\s?['’][sS]\b")
_WORD = re.compile(r"\w+")


@dataclass
class Tally:
    """Counts of a de-identification.

    Attributes:
        sentences: all.
        changed: sentences with a mention.
        mentions: of the corpus.
        replaced: spans that were replaced; overlapping mentions are one span.
        emptied: sentences of which nothing was left.
        still_there: sentences with the spelling of some mention of the corpus outside all mentions, which was probably
            missed. Only spellings of at least three characters with a capital or a digit count, and single words only
            if the corpus never has them in lower case ("The" may be a mention once).
        names_still_there: how many such spellings there are.
    """

    sentences: int = 0
    changed: int = 0
    mentions: int = 0
    replaced: int = 0
    emptied: int = 0
    still_there: int = 0
    names_still_there: int = 0


@owner_only()
def deidentify(corpus: Corpus, out: Path, mode: str, seed: int = 0) -> tuple[Corpus, Tally]:
    """Write ``corpus`` without its entities to the folder ``out``, and open it.

    Parts that were appended to ``corpus`` are appended to the result.

    Args:
        corpus: with mentions.
        out: the folder to make.
        mode: ``category`` replaces a mention by ``[PERSON]`` and the like, ``remove`` by nothing, ``surrogate`` by a
            made-up entity of the same category: the same for every mention of an entity, different ones for different
            entities, and none of the corpus. Only with surrogates does the result have mentions and entities.
        seed: draws the surrogates.

    Raises:
        CorpusError: the mode does not exist, the seed is negative, the corpus has no mention, or ``out`` is taken.
    """
    if mode not in MODES:
        raise CorpusError(f"mode {mode!r} must be one of {', '.join(MODES)}")
    if seed < 0:
        raise CorpusError(f"seed {seed} must not be negative")
    if not any(counts.mentions for counts in corpus.manifest.splits.values()):
        raise CorpusError(f"{corpus.path}: has no mention of an entity, so there is nothing to de-identify")
    identity = Identity.of_corpus(corpus.manifest.settings).of_single_names()
    tally = Tally()
    canaries = read_canaries(corpus) if corpus.has_canaries else None
    surrogates = None
    if mode == "surrogate":
        known = itertools.chain(_all_sentences(corpus), canaries.all_sentences() if canaries else ())
        surrogates = assign_surrogates(known, identity, seed)
    rewriter = Rewriter(mode, identity, surrogates)
    beside = _canary_file(canaries, rewriter)
    recorder = _Recorder(corpus, tally)
    with folder_appearing_at(out) as scratch:
        _write(corpus, scratch / "corpus", rewriter, recorder, _settings(corpus, mode, seed), beside)
        for path in (scratch / "corpus").iterdir():
            path.rename(scratch / path.name)
        (scratch / "corpus").rmdir()
    return Corpus.open(out), tally


def merge_overlapping(mentions: Iterable[Mention]) -> tuple[Mention, ...]:
    """Return mentions without overlaps: overlapping ones become one that covers them, with the label of the longest."""
    hulls: list[list[Mention]] = []
    end = 0
    for mention in sorted(mentions, key=lambda m: (m.start, -m.end)):
        if hulls and mention.start < end:
            hulls[-1].append(mention)
        else:
            hulls.append([mention])
        end = max(end, mention.end)
    longest = [max(hull, key=lambda m: (m.end - m.start, -m.start)) for hull in hulls]
    return tuple(
        Mention(hull[0].start, max(mention.end for mention in hull), long.label)
        for hull, long in zip(hulls, longest, strict=True)
    )


def _all_sentences(corpus: Corpus) -> Iterator[Sentence]:
    return itertools.chain.from_iterable(sentences_of(corpus, part) for part in range(len(corpus.parts)))


def _canary_file(canaries: PlantedCanaries | None, rewriter: Rewriter) -> dict[str, str]:
    """Return the file of the canaries as they stand in the rewritten corpus; no file for a corpus without canaries."""
    if canaries is None:
        return {}
    return {CANARIES_FILE: canaries.rewritten(lambda sentence: rewriter.rewrite(sentence).sentence).to_json()}


def _write(
    corpus: Corpus,
    out: Path,
    rewriter: Rewriter,
    recorder: _Recorder,
    settings: Settings,
    beside: dict[str, str],
) -> None:
    for number, part in enumerate(corpus.parts):
        rewritten = (recorder.rewrite(rewriter, sentence) for sentence in sentences_of(corpus, number))
        options: PartOptions = {
            "name": f"{part.manifest.name}-deidentified",
            "sources": part.manifest.sources,
            "settings": settings,
            "tagger": part.manifest.tagger,
            "sought_labels": part.manifest.sought_labels,
            "identity": rewriter.identity,
        }
        if number == 0:
            write_corpus(rewritten, out, needs_entities=False, beside=beside, **options)
        else:
            append_corpus(Corpus.open(out), rewritten, joined_at=part.manifest.joined_at, **options)


def _settings(corpus: Corpus, mode: str, seed: int) -> Settings:
    """Return the settings of the parent corpus, and how it was de-identified."""
    deidentified = {"mode": mode, "parent": corpus.fingerprint, "parent_name": corpus.manifest.name}
    seeded = {"seed": seed} if mode == "surrogate" else {}
    warnings = [SURROGATE_WARNING if mode == "surrogate" else WARNING.format(mode=mode)]
    if corpus.has_canaries:
        warnings.append(CANARY_WARNING)
    return {**corpus.manifest.settings, "deidentified": {**deidentified, **seeded}, "warnings": warnings}


@dataclass(frozen=True)
class RewrittenSentence:
    """A sentence without its entities.

    Attributes:
        sentence: with its new text.
        kept: the pieces of the old text between the mentions.
        replacements: what is between these pieces now.
    """

    sentence: Sentence
    kept: tuple[str, ...]
    replacements: tuple[str, ...]


@dataclass(frozen=True)
class Rewriter:
    """Replaces the entities of sentences.

    Attributes:
        mode: one of :data:`MODES`.
        identity: of the corpus.
        surrogates: entity key → surrogate, with mode ``surrogate``.
    """

    mode: str
    identity: Identity = DEFAULT_IDENTITY
    surrogates: Mapping[str, str] | None = None

    def rewrite(self, sentence: Sentence) -> RewrittenSentence:
        """Return ``sentence`` without its entities; its text is :data:`EMPTY` if nothing is left."""
        hulls = merge_overlapping(sentence.mentions)
        bounds = [0, *(place for hull in hulls for place in (hull.start, hull.end)), len(sentence.text)]
        kept = [sentence.text[start:end] for start, end in zip(bounds[::2], bounds[1::2], strict=True)]
        if self.mode == "remove":
            kept, replacements = _close_gaps(kept), [""] * len(hulls)
        else:
            replacements = [self._replacement(sentence.surface(hull), hull.label) for hull in hulls]
        text, mentions = kept[0], []
        for hull, replacement, piece in zip(hulls, replacements, kept[1:], strict=True):
            if self.mode == "surrogate":
                mentions.append(Mention(len(text), len(text) + len(replacement), hull.label))
            text += replacement + piece
        if hulls and not text.strip():
            text = EMPTY
        rewritten = dataclasses.replace(sentence, text=text, mentions=tuple(mentions))
        return RewrittenSentence(rewritten, tuple(kept), tuple(replacements))

    def _replacement(self, surface: str, label: str) -> str:
        possessive = _POSSESSIVE.search(surface)
        name = surface[: possessive.start()] if possessive else surface
        tail = possessive[0] if possessive and name.strip() else ""
        if self.surrogates is None:
            return f"[{category_of(label)}]{tail}"
        return match_case(name, self.surrogates[self.identity.key(surface)]) + tail


def assign_surrogates(sentences: Iterable[Sentence], identity: Identity, seed: int) -> dict[str, str]:
    """Return a surrogate for every entity key, drawn in the order of first mentions.

    Args:
        sentences: all of the corpus.
        identity: of the corpus.
        seed: of the draws.

    Returns:
        Key → surrogate, of the category that most mentions of the entity have.
    """
    categories: dict[str, Counter[Category]] = {}
    real: set[str] = set()
    for sentence in sentences:
        real.update(key for key, _ in identity.entities(sentence))
        for hull in merge_overlapping(sentence.mentions):
            key = identity.key(sentence.surface(hull))
            categories.setdefault(key, Counter())[category_of(hull.label)] += 1
    maker = SurrogateMaker(seed, identity.key, real | set(categories))
    return {key: maker.surrogate(key, counts.most_common(1)[0][0]) for key, counts in categories.items()}


@dataclass
class _Recorder:
    """Counts, and looks for missed names, while sentences are rewritten."""

    corpus: Corpus
    tally: Tally

    def __post_init__(self) -> None:
        self._names: dict[str, set[tuple[str, ...]]] = defaultdict(set)
        self._still_there: set[tuple[str, ...]] = set()
        surfaces: set[str] = set()
        words: set[str] = set()
        for sentence in _all_sentences(self.corpus):
            surfaces.update(sentence.surface(mention) for mention in sentence.mentions)
            words.update(_WORD.findall(sentence.text))
        for surface in surfaces:
            name = tuple(_WORD.findall(surface))
            distinctive = any(character.isupper() or character.isdigit() for character in surface)
            if distinctive and sum(map(len, name)) > 2 and (len(name) > 1 or name[0].lower() not in words):
                self._names[name[0]].add(name)

    def rewrite(self, rewriter: Rewriter, sentence: Sentence) -> Sentence:
        """Return ``sentence`` rewritten, after counting it."""
        rewritten = rewriter.rewrite(sentence)
        replaced = len(rewritten.replacements)
        missed = {name for piece in rewritten.kept for name in self._in(piece)}
        self._still_there |= missed
        tally = self.tally
        tally.sentences += 1
        tally.changed += replaced > 0
        tally.mentions += len(sentence.mentions)
        tally.replaced += replaced
        tally.emptied += replaced > 0 and rewritten.sentence.text == EMPTY
        tally.still_there += bool(missed)
        tally.names_still_there = len(self._still_there)
        return rewritten.sentence

    def _in(self, piece: str) -> Iterator[tuple[str, ...]]:
        words = tuple(_WORD.findall(piece))
        for position, word in enumerate(words):
            for name in self._names.get(word, ()):
                if words[position : position + len(name)] == name:
                    yield name


def _close_gaps(kept: list[str]) -> list[str]:
    """Return the pieces without the possessives and doubled spaces that removing the mentions would leave."""
    closed = kept[:1]
    for piece in kept[1:]:
        piece = _POSSESSIVE_AFTER.sub("", piece, count=1)
        if not closed[-1] or closed[-1][-1].isspace():
            spaced, piece = piece, piece.lstrip()
            if not piece or spaced[0] in ".,;:!?)":
                closed[-1] = closed[-1].rstrip()
        closed.append(piece)
    return closed
