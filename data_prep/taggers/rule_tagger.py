"""Tag by rules over a blank English spaCy pipeline, without a download: names by their capitals, the rest by form.

The rules aim at recall. A word wrongly taken for an entity costs training data but no privacy; a missed name is not
sampled with its entity (its sentences are still protected each by itself, as extended entities).

>>> [mentions] = RuleTagger().tag(["However, Ada Byron left on 12 March 2024."])
>>> mentions
(Mention(start=9, end=18, label='NAME'), Mention(start=27, end=40, label='DATE'))
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from fl_sim.data_prep.records import Mention
from fl_sim.data_prep.spacy_plugins import without_plugins
from fl_sim.data_prep.taggers import pattern_rules
from fl_sim.data_prep.taggers.name_rules import NAME, Word, find_names, make_word
from fl_sim.data_prep.taggers.spans import keep_longest, replace_surrogates, shift, split_text, unite

if TYPE_CHECKING:
    from spacy.language import Language

    from fl_sim.data_prep.taggers.presidio_tagger import Recognisers

RULES_VERSION = "2"
_MOST_WORDS = 500_000
"""The vocabulary is cleared after so many words (0.4 kB each), so that memory does not grow with the corpus."""


class RuleTagger:
    """Finds ``rules``, ``patterns``, or both in one pass over the text.

    ``rules`` are capitalised names, and entities with a form: e-mails, URLs, phone, card and account numbers, dates,
    times, sums. Of candidates that overlap the longest is kept, then the first. ``patterns`` are entities with a form
    only, the longest of those that overlap, and all that Presidio's recognisers find.

    Raises:
        CorpusError: ``patterns`` are asked for without the ``pii`` extra.
    """

    def __init__(self, *, rules: bool = True, patterns: bool = False) -> None:
        self._rules = rules
        self._patterns = patterns
        if patterns:
            from fl_sim.data_prep.taggers.presidio_tagger import require_presidio

            require_presidio()

    @property
    def labels(self) -> frozenset[str]:
        from fl_sim.data_prep.taggers.presidio_tagger import LABELS

        formed = pattern_rules.LABELS | (LABELS if self._patterns else frozenset())
        return formed | ({NAME} if self._rules else frozenset())

    def tag(self, texts: Iterable[str]) -> Iterator[tuple[Mention, ...]]:
        """Yield the mentions of each text, in the order of their places."""
        engine = self._engine
        for text in texts:
            yield engine.mentions(replace_surrogates(text))

    def describe(self) -> dict[str, str]:
        """Return which rules are used, their version, and the versions of the packages below."""
        from fl_sim.data_prep.taggers.presidio_tagger import presidio_versions

        chosen = {"rules": self._rules, "patterns": self._patterns}
        described = {
            "tagger": "+".join(name for name, used in chosen.items() if used),
            "rules_version": RULES_VERSION,
            "spacy": importlib.metadata.version("spacy"),
        }
        return described | presidio_versions() if self._patterns else described

    @functools.cached_property
    def _engine(self) -> _Engine:
        return _Engine(self._rules, self._patterns)


class _Engine:
    """The loaded rules; made at the first text, because spaCy and Presidio take seconds to import."""

    def __init__(self, rules: bool, patterns: bool) -> None:
        self._rules = rules
        self._patterns = patterns
        self._recognisers: Recognisers | None = None
        if patterns:
            from fl_sim.data_prep.taggers.presidio_tagger import Recognisers

            self._recognisers = Recognisers()
        self._start_vocabulary()

    def mentions(self, text: str) -> tuple[Mention, ...]:
        if len(self._words) > _MOST_WORDS:
            self._start_vocabulary()
        formed: list[Mention] = list(pattern_rules.find_shapes(text))
        named: list[Mention] = []
        for offset, piece in split_text(text):
            document = self._pipeline.make_doc(piece)
            rows = document.to_array(["ORTH", "IDX", "SPACY"]).tolist() if len(document) else []
            read = [self._words.get(row[0]) or self._read(row[0]) for row in rows]
            if any(may_match for _, may_match in read):
                formed += shift(self._tokens.find(document), offset)
            if self._rules:
                words, starts, spaced = [word for word, _ in read], [row[1] for row in rows], [row[2] for row in rows]
                named += shift(find_names(piece, words, starts, spaced), offset)
        groups: list[Iterable[Mention]] = []
        if self._rules:
            groups.append(keep_longest([*formed, *named]))
        if self._recognisers is not None:
            groups += [keep_longest(formed), self._recognisers.find(text)]
        return unite(groups)

    def _start_vocabulary(self) -> None:
        import spacy

        with without_plugins():
            self._pipeline: Language = spacy.blank("en")
        self._tokens = pattern_rules.TokenPatterns(self._pipeline.vocab)
        self._words: dict[int, tuple[Word, bool]] = {}

    def _read(self, orth: int) -> tuple[Word, bool]:
        """Return the properties of the token with this hash, and cache them."""
        text = self._pipeline.vocab.strings[orth]
        self._words[orth] = make_word(text), pattern_rules.may_match(text)
        return self._words[orth]
