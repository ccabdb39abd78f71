"""De-identify a prepared corpus: replace mentions by their category, or remove them.

The result is a prepared corpus with the same users, sentences, splits and classes under the same ids, and without
mentions. It gives no guarantee: mentions that the tagger missed stay in the text (docs/corpora.md).

>>> sentence = Sentence("train", "ann", "Ada Byron's firm", (Mention(0, 11, "PERSON"),))
>>> rewrite(sentence, "category").sentence.text, rewrite(sentence, "remove").sentence.text
("[PERSON]'s firm", 'firm')
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from fl_sim.data_prep.canaries import read_canaries
from fl_sim.data_prep.corpus_writer import PartOptions, append_corpus, write_corpus
from fl_sim.data_prep.identity import Identity, Name, NameIndex
from fl_sim.data_prep.readers.prepared_corpus import sentences_of
from fl_sim.data_prep.records import CorpusError, Mention, Sentence, Settings
from fl_sim.data_prep.store.atomic import folder_appearing_at
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.layout import CANARIES_FILE
from fl_sim.data_prep.taggers.categories import category_of
from fl_sim.files import owner_only

Mode = Literal["category", "remove"]
"""What stands in place of a mention: its category, such as [PERSON], or nothing."""

MODES: tuple[Mode, ...] = get_args(Mode)
EMPTY = "[EMPTY]"
"""The text of a sentence of which nothing is left."""

WARNING = (
    "De-identified ({mode}): what the tagger missed stands in the text as it was. This has no ε, and without "
    "entities no ε of a training on it speaks of one."
)

_POSSESSIVE = re.compile(r"\s*['’][sS]$")
_POSSESSIVE_AFTER = re.compile(r"^\s?['’][sS]\b")
_WORD = re.compile(r"\w+")


@dataclass
class Tally:
    """Counts of a de-identification.

    Attributes:
        changed: sentences with a mention.
        replaced: spans that were replaced; overlapping mentions are one span.
        emptied: sentences of which nothing was left.
        still_there: sentences with the spelling of some mention of the corpus outside all mentions, which was probably
            missed. Only spellings of at least three characters with a capital or a digit count, and single words only
            if the corpus never has them in lower case ("The" may be a mention once). In text that was lowered,
            spellings of several words count.
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
def deidentify(corpus: Corpus, out: Path, mode: Mode = "category") -> tuple[Corpus, Tally]:
    """Write ``corpus`` without its entities to the folder ``out``, and open it.

    Parts that were appended to ``corpus`` are appended to the result.

    Args:
        corpus: The corpus to read.
        out: The folder to make; it must not exist, or be empty.
        mode: The replacement of a mention: its category as [PERSON], or no text (remove).

    Returns:
        The corpus, and how many mentions and sentences were changed or are suspect.

    Raises:
        CorpusError: the mode does not exist, the corpus has no mention, or ``out`` is taken.
    """
    if mode not in MODES:
        raise CorpusError(f"mode {mode!r} must be one of {', '.join(MODES)}")
    if not any(counts.mentions for counts in corpus.manifest.splits.values()):
        raise CorpusError(f"{corpus.path}: has no mention of an entity, so there is nothing to de-identify")
    deidentified = {"mode": mode, **corpus.as_parent, "parent_name": corpus.manifest.name}
    warnings = [WARNING.format(mode=mode), *corpus.warnings]
    settings: Settings = {**corpus.manifest.settings, "deidentified": deidentified, "warnings": warnings}
    beside = {}
    if corpus.has_canaries:
        canaries = read_canaries(corpus).rewritten(lambda sentence: rewrite(sentence, mode).sentence)
        beside[CANARIES_FILE] = canaries.to_json()
    recorder = _Recorder(corpus, mode)
    with folder_appearing_at(out) as scratch:
        made = scratch / "corpus"
        for number, part in enumerate(corpus.parts):
            rewritten = map(recorder.rewrite, sentences_of(corpus, number))
            options: PartOptions = {
                "name": f"{part.manifest.name}-deidentified",
                "sources": part.manifest.sources,
                "settings": settings,
                "tagger": part.manifest.tagger,
                "sought_labels": part.manifest.sought_labels,
                "identity": Identity.of_corpus(corpus.manifest.settings),
            }
            if number == 0:
                write_corpus(rewritten, made, needs_entities=False, beside=beside, **options)
            else:
                append_corpus(Corpus.open(made), rewritten, joined_at=part.manifest.joined_at, **options)
        for path in made.iterdir():
            path.rename(scratch / path.name)
        made.rmdir()
    return Corpus.open(out), recorder.tally


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


@dataclass(frozen=True)
class RewrittenSentence:
    """A sentence with its new text, and without mentions.

    Attributes:
        kept: the pieces of the old text between the mentions.
        replacements: what is between these pieces now.
    """

    sentence: Sentence
    kept: tuple[str, ...]
    replacements: tuple[str, ...]


def rewrite(sentence: Sentence, mode: Mode) -> RewrittenSentence:
    """Return ``sentence`` without its entities; its text is :data:`EMPTY` if nothing is left."""
    hulls = merge_overlapping(sentence.mentions)
    bounds = [0, *(place for hull in hulls for place in (hull.start, hull.end)), len(sentence.text)]
    kept = [sentence.text[start:end] for start, end in zip(bounds[::2], bounds[1::2], strict=True)]
    if mode == "remove":
        kept, replacements = _close_gaps(kept), [""] * len(hulls)
    else:
        replacements = [f"[{category_of(hull.label)}]{_possessive(sentence.surface(hull))}" for hull in hulls]
    text = kept[0] + "".join(itertools.chain.from_iterable(zip(replacements, kept[1:], strict=True)))
    if hulls and not text.strip():
        text = EMPTY
    rewritten = dataclasses.replace(sentence, text=text, mentions=())
    return RewrittenSentence(rewritten, tuple(kept), tuple(replacements))


def _possessive(surface: str) -> str:
    """Return the 's at the end of a name, which stays; nothing if there is none, or nothing else."""
    possessive = _POSSESSIVE.search(surface)
    return possessive[0] if possessive and surface[: possessive.start()].strip() else ""


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


class _Recorder:
    """Rewrites sentences, counts them, and looks for names that were missed."""

    def __init__(self, corpus: Corpus, mode: Mode) -> None:
        self.tally = Tally()
        self._mode = mode
        self._still_there: set[Name] = set()
        surfaces: set[str] = set()
        words: set[str] = set()
        for sentence in itertools.chain.from_iterable(sentences_of(corpus, part) for part in range(len(corpus.parts))):
            surfaces.update(sentence.surface(mention) for mention in sentence.mentions)
            words.update(_WORD.findall(sentence.text))
        lowered = bool(corpus.manifest.settings.get("lower_case"))
        distinctive = (surface for surface in surfaces if _is_distinctive(surface, words, lowered))
        self._names = NameIndex(distinctive, words_of=_words_in_their_case)

    def rewrite(self, sentence: Sentence) -> Sentence:
        """Return ``sentence`` rewritten, after counting it."""
        rewritten = rewrite(sentence, self._mode)
        replaced = len(rewritten.replacements)
        missed = {name for piece in rewritten.kept for name in self._names.names_in(piece)}
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


def _words_in_their_case(text: str) -> Name:
    return tuple(_WORD.findall(text))


def _is_distinctive(surface: str, words: Collection[str], lowered: bool) -> bool:
    """Return whether a mention's spelling is unlikely outside names (:class:`Tally`) in a corpus of these words."""
    name = _words_in_their_case(surface)
    distinctive = lowered or any(character.isupper() or character.isdigit() for character in surface)
    return distinctive and sum(map(len, name)) > 2 and (len(name) > 1 or name[0].lower() not in words)
