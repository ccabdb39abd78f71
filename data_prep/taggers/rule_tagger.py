"""Rules over a blank English spaCy pipeline, nothing to download: names by their capitals, the rest by its form.

They aim at recall: a word that is wrongly taken for an entity costs training data and no privacy, a missed name loses
its entity's coin (its sentences are still protected each on its own, as extended entities).
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
"""Words after which the vocabulary starts afresh, so that memory does not grow with the corpus (0.4 kB a word)."""


class RuleTagger:
    """``rules``, ``patterns``, or both, which cost one pass over the text.

    ``rules`` finds capitalised names and what has a form: e-mails, URLs, phone, card and account numbers, dates,
    times, sums. Of candidates that overlap the longest stays, then the first. ``patterns`` finds what has a form
    only, the longest of those that overlap, and besides everything that Presidio's recognisers find (which need the
    extra ``pii``; :class:`CorpusError` without it).
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

        found = pattern_rules.LABELS | (LABELS if self._patterns else frozenset())
        return found | ({NAME} if self._rules else frozenset())

    def tag(self, texts: Iterable[str]) -> Iterator[tuple[Mention, ...]]:
        """Mentions of each text in the order of their places."""
        engine = self._engine
        for text in texts:
            yield engine.mentions(replace_surrogates(text))

    def describe(self) -> dict[str, str]:
        """Which rules, their version, and the versions of what they stand on."""
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
    """The loaded rules; made when the first text comes, because spaCy and Presidio take seconds to import."""

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
            if any(triggers for _, triggers in read):
                formed += shift(self._tokens.find(document), offset)
            if self._rules:
                words, starts, spaced = [word for word, _ in read], [row[1] for row in rows], [row[2] for row in rows]
                named += shift(find_names(piece, words, starts, spaced), offset)
        found: list[Iterable[Mention]] = []
        if self._rules:
            found.append(keep_longest([*formed, *named]))
        if self._recognisers is not None:
            found += [keep_longest(formed), self._recognisers.find(text)]
        return unite(found)

    def _start_vocabulary(self) -> None:
        import spacy

        with without_plugins():
            self._pipeline: Language = spacy.blank("en")
        self._tokens = pattern_rules.TokenPatterns(self._pipeline.vocab)
        self._words: dict[int, tuple[Word, bool]] = {}

    def _read(self, orth: int) -> tuple[Word, bool]:
        """What the rules ask of the token with this hash, kept for the next time."""
        text = self._pipeline.vocab.strings[orth]
        self._words[orth] = make_word(text), pattern_rules.may_match(text)
        return self._words[orth]
