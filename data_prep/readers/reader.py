"""What a reader is: the settings of a kind of raw corpora, and the corpus that it describes; readers by name.

>>> reader = make_reader("csv", {"source": "a.csv", "text_column": "body", "user_column": "sender"})
>>> reader.source, reader.test_fraction
(PosixPath('a.csv'), 0.1)
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar, get_type_hints

from fl_sim.data_prep.identity import DEFAULT_IDENTITY, Identity
from fl_sim.data_prep.readers.cleaning import Preprocessing, Reading
from fl_sim.data_prep.records import OF_THIS_CORPUS, CorpusError, Sentence, Settings
from fl_sim.data_prep.store.manifest import plugin_record
from fl_sim.plugins import PluginError, Registry

Part = TypeVar("Part")

BY_PLACE = (
    "Whose a sentence is may depend on its place in the source: where one is taken out, others come to other users, or "
    f"are held out. {OF_THIS_CORPUS}, and says nothing of the source's."
)
"""The warning of a corpus whose source names no users."""


@dataclass(frozen=True)
class RawCorpus:
    """A corpus before preparation.

    Attributes:
        sentences: starts a new reading at each call.
        has_gold: whether it marks its entities.
        sources: the files that are read, by the name that the manifest gives them.
        settings: what shapes the corpus, for the manifest.
        tools: distributions whose versions go to the manifest.
        reading: counts what the last reading met.
        preprocessing: changes the text of every sentence after its entities are identified.
        identity: which mentions are the same entity, unless the caller says so.
        stores_entities: whether sentences have stored entities, so that ``identity`` cannot be another one.
    """

    name: str
    sentences: Callable[[], Iterator[Sentence]]
    has_gold: bool
    sources: Mapping[str, Path] = field(default_factory=dict)
    settings: Settings = field(default_factory=dict)
    tools: tuple[str, ...] = ()
    reading: Reading = field(default_factory=Reading)
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    identity: Identity = DEFAULT_IDENTITY
    stores_entities: bool = False

    @classmethod
    def from_files(
        cls,
        kind: str,
        name: str,
        read: Callable[[Reading], Iterator[Sentence]],
        files: Iterable[Path] | Mapping[str, Path],
        *,
        settings: Settings | None = None,
        has_gold: bool = False,
        splits_sentences: bool = False,
        tools: tuple[str, ...] = (),
    ) -> RawCorpus:
        """Return a corpus that is read from files.

        Args:
            kind: the reader's name.
            name: the corpus's name.
            read: reads all sentences; called anew for every reading.
            files: the files that ``read`` reads, by the name that the manifest gives them (by default their own).
            settings: what shapes the corpus besides, for the manifest; JSON values.
            has_gold: whether the sentences carry their entities.
            splits_sentences: whether ``read`` splits texts into sentences (:meth:`Reading.clean`).
            tools: further distributions whose versions shape the corpus.
        """
        reading = Reading()

        def sentences() -> Iterator[Sentence]:
            reading.notes.clear()
            reading.rows = 0
            return read(reading)

        return cls(
            name=name,
            sentences=sentences,
            has_gold=has_gold,
            sources=files if isinstance(files, Mapping) else {path.name: path for path in files},
            settings={"kind": kind, **(settings or {})},
            tools=("spacy", *tools) if splits_sentences else tools,
            reading=reading,
        )

    def identified_by(self, identity: Identity | None) -> Identity:
        """Return the identity to prepare with: the one asked for, or by default the corpus's own.

        Raises:
            CorpusError: another one is asked for, and the text that its keys would come from is preprocessed.
        """
        if self.stores_entities and identity not in (None, self.identity):
            raise CorpusError(
                f"corpus {self.name}: `identity` is not that of the source, whose text is preprocessed already; "
                "allowed: the source's, or another one for the original text"
            )
        return self.identity if identity is None else identity

    def with_preprocessing(self, preprocessing: Preprocessing) -> RawCorpus:
        """Return the corpus with ``preprocessing``."""
        settings = {**self.settings, **preprocessing.manifest_settings()}
        return replace(self, preprocessing=preprocessing, settings=settings)


class Reader(Protocol):
    """Reads one kind of raw corpora: a dataclass whose fields are its settings, and flags of ``fl-sim prepare KIND``.

    The first line of its docstring says what it reads, the section Attributes what each setting means.
    """

    def read(self) -> RawCorpus:
        """Return the corpus that the settings describe; no text is read yet.

        Raises:
            CorpusError: a setting or the source is bad.
        """


def _is_reader(part: Any) -> bool:
    described = isinstance(part, type) and dataclasses.is_dataclass(part) and bool(inspect.getdoc(part))
    return described and callable(getattr(part, "read", None))


_FOLDER = "fl_sim.data_prep.readers"
READERS = Registry(
    "fl_sim.readers",
    "reader",
    {
        "conll2003": f"{_FOLDER}.raw_corpora:Conll2003Reader",
        "ag-news": f"{_FOLDER}.raw_corpora:AgNewsReader",
        "sec-standin": f"{_FOLDER}.raw_corpora:SecStandinReader",
        "iob": f"{_FOLDER}.iob:IobReader",
        "jsonl": f"{_FOLDER}.tables:JsonlReader",
        "csv": f"{_FOLDER}.tables:CsvReader",
        "tsv": f"{_FOLDER}.tables:TsvReader",
        "parquet": f"{_FOLDER}.tables:ParquetReader",
        "hf": f"{_FOLDER}.hugging_face:HuggingFaceReader",
        "prepared": f"{_FOLDER}.prepared_corpus:PreparedReader",
    },
    check=_is_reader,
    interface="a dataclass with a docstring and read()",
)
"""What follows ``fl-sim prepare``."""


def what_it_reads(reader: type[Reader]) -> str:
    """Return the first line of a reader's docstring."""
    return (inspect.getdoc(reader) or "").partition("\n")[0]


def make_reader(kind: str, settings: Mapping[str, object]) -> Any:
    """Return the reader called ``kind`` with these settings; a path may be given as text.

    Args:
        kind: a name in :data:`READERS`, or an import path.
        settings: fields of the reader.

    Raises:
        CorpusError: a setting is unknown, missing or bad.
        PluginError: there is no such reader, or its interface is wrong.
    """
    return with_settings(READERS.load(kind), kind, settings)


def with_settings(made: Callable[..., Part], kind: str, settings: Mapping[str, object]) -> Part:
    """Return an object of a dataclass with these settings for its fields; a path may be given as text.

    Args:
        kind: what has the settings, for messages.

    Raises:
        CorpusError: a setting is unknown, missing or bad.
    """
    fields = {field.name: field for field in dataclasses.fields(made)}  # type: ignore[arg-type]
    for name in settings:
        if name not in fields:
            allowed = sorted(fields, key=lambda other: other != "source")
            raise CorpusError(f"`{name}` is no option of {kind}; allowed: {', '.join(allowed)}")
    for name, its in fields.items():
        needed = its.default is dataclasses.MISSING and its.default_factory is dataclasses.MISSING
        if needed and settings.get(name) is None:
            raise CorpusError(f"`{name}` is missing; allowed: a value is needed with {kind}")
    hints = get_type_hints(made)
    values = {
        name: Path(value) if hints[name] is Path and isinstance(value, str) else value
        for name, value in settings.items()
    }
    return made(**values)


def read_raw_corpus(kind: str, settings: Mapping[str, object]) -> RawCorpus:
    """Return the corpus that the reader called ``kind`` makes of its settings (:func:`make_reader`).

    A corpus of a plug-in records the plug-in, and its sentences are checked as they come.
    """
    raw = make_reader(kind, settings).read()
    if kind in READERS.built_in:
        return raw
    if not isinstance(raw, RawCorpus):
        raise PluginError(f"reader '{kind}' returns {raw!r:.100}; allowed: a RawCorpus")
    try:
        json.dumps(dict(raw.settings))
    except (TypeError, ValueError) as error:
        raise PluginError(f"reader '{kind}' has settings that are not JSON ({error}); allowed: JSON values") from error
    warnings = raw.settings.get("warnings", ())
    if not isinstance(warnings, list | tuple) or not all(isinstance(one, str) for one in warnings):
        raise PluginError(f"reader '{kind}' has warnings {warnings!r:.60}; allowed: a list of sentences")
    recorded = {**raw.settings, "reader": plugin_record(READERS, kind)}
    return replace(raw, sentences=lambda: _checked_sentences(kind, raw.sentences()), settings=recorded)


def _checked_sentences(kind: str, sentences: Iterator[Sentence]) -> Iterator[Sentence]:
    for sentence in sentences:
        if not isinstance(sentence, Sentence):
            raise PluginError(f"reader '{kind}' yields {sentence!r:.100}; allowed: Sentence")
        texts = [sentence.split, sentence.user, sentence.text, *(mention.label for mention in sentence.mentions)]
        try:
            "".join([*texts, "" if sentence.target is None else sentence.target]).encode()
        except (TypeError, UnicodeEncodeError) as error:
            raise PluginError(
                f"reader '{kind}' yields {sentence!r:.100}; allowed: text, without lone surrogates ({error})"
            ) from error
        if not sentence.user:
            raise PluginError(f"reader '{kind}' yields {sentence!r:.100}; allowed: the key of its user")
        yield sentence
