"""Tag with Stanza's named-entity models, if Stanza and its models are installed.

>>> try:
...     labels = StanzaTagger("xx").labels
... except CorpusError as error:  # Stanza or its models of this language are not installed
...     "Stanza" in str(error)
True
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
from collections.abc import Iterable, Iterator
from typing import Any

from fl_sim.data_prep.records import CorpusError, Mention
from fl_sim.data_prep.taggers.spans import replace_surrogates, unite


class StanzaTagger:
    """Tags with Stanza's default models of a language; nothing is downloaded.

    Stanza gets one text at a time, because in a batch the other sentences would change the last bits of its scores.

    Raises:
        CorpusError: Stanza is not installed, or at the first text its models are absent.
    """

    def __init__(self, language: str = "en") -> None:
        if importlib.util.find_spec("stanza") is None:
            raise CorpusError("tagger stanza needs Stanza: pip install stanza")
        self._language = language

    @functools.cached_property
    def labels(self) -> frozenset[str]:
        """The tags of the loaded model."""
        return frozenset(self._pipeline.processors["ner"].get_known_tags())

    def tag(self, texts: Iterable[str]) -> Iterator[tuple[Mention, ...]]:
        for text in texts:
            if not text.strip():
                yield ()
                continue
            entities = self._pipeline(replace_surrogates(text)).ents
            yield unite([[Mention(entity.start_char, entity.end_char, entity.type) for entity in entities]])

    def describe(self) -> dict[str, str]:
        return {"tagger": "stanza", "language": self._language, "stanza": importlib.metadata.version("stanza")}

    @functools.cached_property
    def _pipeline(self) -> Any:
        import stanza

        try:
            return stanza.Pipeline(self._language, processors="tokenize,ner", download_method=None, verbose=False)
        except (OSError, ValueError) as error:
            raise CorpusError(
                f"Stanza has no models for {self._language!r} here; get them with "
                f'python -c "import stanza; stanza.download({self._language!r})"'
            ) from error
