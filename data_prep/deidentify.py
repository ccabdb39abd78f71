"""De-identify a prepared corpus: replace mentions by their category, remove them, or replace them by surrogates.

The result is a prepared corpus with the same users, sentences, splits and classes under the same ids. It gives no
guarantee: mentions that the tagger missed stay in the text (docs/deidentification.md).

>>> sentence = Sentence("train", "ann", "Ada Byron's firm", (Mention(0, 11, "PERSON"),))
>>> Rewriter("category").rewrite(sentence).sentence.text
"[PERSON]'s firm"
>>> Rewriter("remove").rewrite(sentence).sentence.text
'firm'
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_sim.data_prep.canaries.planted_canaries import PlantedCanaries, read_canaries
from fl_sim.data_prep.canaries.planting import WARNING as CANARY_WARNING
from fl_sim.data_prep.identity import DEFAULT_IDENTITY, Identity
from fl_sim.data_prep.prepare import append_corpus, write_corpus
from fl_sim.data_prep.readers.prepared_corpus import sentences_of
from fl_sim.data_prep.records import CorpusError, Mention, Sentence
from fl_sim.data_prep.store.atomic import folder_appearing_at
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.layout import CANARIES_FILE
from fl_sim.data_prep.surrogates import SurrogateMaker, match_case
from fl_sim.data_prep.taggers.categories import Category, category_of
from fl_sim.private_files import owner_only

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
        _write(corpus, scratch / "corpus", rewriter, recorder, _settings(corpus, mode, seed), identity, beside)
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
    return tuple(_hull(mentions) for mentions in hulls)


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
    settings: dict[str, Any],
    identity: Identity,
    beside: dict[str, str],
) -> None:
    for number, part in enumerate(corpus.parts):
        rewritten = (recorder.rewrite(rewriter, sentence) for sentence in sentences_of(corpus, number))
        described: dict[str, Any] = {
            "name": f"{part.manifest.name}-deidentified",
            "sources": part.manifest.sources,
            "settings": settings,
            "tagger": part.manifest.tagger,
            "sought_labels": corpus.sought_labels(part),
            "identity": identity,
        }
        if number == 0:
            write_corpus(rewritten, out, needs_entities=False, beside=beside, **described)
        else:
            append_corpus(Corpus.open(out), rewritten, joined_at=part.manifest.joined_at, **described)


def _settings(corpus: Corpus, mode: str, seed: int) -> dict[str, Any]:
    """Return the settings of the parent corpus, and how it was de-identified."""
    deidentified: dict[str, Any] = {"mode": mode, "parent": corpus.fingerprint, "parent_name": corpus.manifest.name}
    if mode == "surrogate":
        deidentified["seed"] = seed
        warnings = [SURROGATE_WARNING]
    else:
        warnings = [WARNING.format(mode=mode)]
    if corpus.has_canaries:
        warnings.append(CANARY_WARNING)
    return {**corpus.manifest.settings, "deidentified": deidentified, "warnings": warnings}


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


def _hull(mentions: Sequence[Mention]) -> Mention:
    longest = max(mentions, key=lambda m: (m.end - m.start, -m.start))
    return Mention(mentions[0].start, max(mention.end for mention in mentions), longest.label)


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
