"""Any spaCy pipeline with a named-entity component, as a tagger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import spacy
from spacy.language import Language

from data_prep.records import CorpusError, Mention

_ENTITY_COMPONENTS = ("ner", "entity_ruler", "span_ruler")


class SpacyTagger:
    """Tags with an installed spaCy package or a pipeline folder; each text is a document of its own."""

    def __init__(self, name_or_path: str) -> None:
        self._name = name_or_path
        try:
            self._pipeline: Language = spacy.load(name_or_path)
        except (OSError, ValueError, ImportError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise CorpusError(f"spaCy pipeline {name_or_path!r} cannot be loaded: {reason}") from error
        if not any(component in self._pipeline.pipe_names for component in _ENTITY_COMPONENTS):
            present = ", ".join(self._pipeline.pipe_names) or "no component"
            raise CorpusError(
                f"spaCy pipeline {name_or_path!r} finds no entities: "
                f"it has {present}, but none of {', '.join(_ENTITY_COMPONENTS)}"
            )

    def tag(self, texts: Iterable[str]) -> Iterator[tuple[Mention, ...]]:
        """The pipeline's ``doc.ents`` as character spans."""
        for document in self._pipeline.pipe(texts):
            yield tuple(Mention(ent.start_char, ent.end_char, ent.label_) for ent in document.ents if ent.text.strip())

    def describe(self) -> dict[str, str]:
        """Pipeline name and version, as its own meta data state them; never the path it was loaded from."""
        meta = self._pipeline.meta
        return {
            "tagger": "spacy",
            "pipeline": f"{meta['lang']}_{meta['name']}",
            "pipeline_version": str(meta["version"]),
            "spacy": spacy.__version__,
        }
