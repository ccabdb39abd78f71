"""Raw corpora: what to read, what to record of it, and whether it marks its entities.

>>> raw = RawCorpus("letters", lambda: iter([Sentence("train", "ann", "Dear Ada", ())]), has_gold=False)
>>> [sentence.text for sentence in raw.sentences()]
['Dear Ada']
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from fl_sim.data_prep.readers.ag_news import AgNewsOptions, ag_news_files, read_ag_news
from fl_sim.data_prep.readers.cleaning import Cleaning, Reading
from fl_sim.data_prep.readers.conll import conll2003_files, read_conll2003
from fl_sim.data_prep.readers.hugging_face import HfDataset, read_hf
from fl_sim.data_prep.readers.iob import IobOptions, iob_files, read_iob
from fl_sim.data_prep.readers.preprocessing import Preprocessing
from fl_sim.data_prep.readers.shakespeare import ShakespeareOptions, read_shakespeare, shakespeare_file
from fl_sim.data_prep.readers.tables import TableOptions, read_table
from fl_sim.data_prep.records import CorpusError, Sentence
from fl_sim.data_prep.store.textfiles import check_beginning

SPLIT_SENTENCES_TOOL = "spacy"
_LINE_KINDS = frozenset({"conll2003", "iob", "ag-news", "jsonl", "csv", "tsv", "sec-standin", "shakespeare"})
SEC_STANDIN_FILE = "sentences.jsonl"
SEC_STANDIN = TableOptions(text_column="sentence", document_column="doc", split_sentences=False)
"""The columns of the stand-in for the paper's SEC contracts."""


@dataclass(frozen=True)
class RawCorpus:
    """A corpus before preparation.

    Attributes:
        name: of the corpus.
        sentences: starts a new reading at each call.
        has_gold: whether it marks its entities.
        sources: the files that are read, by the name that the manifest gives them.
        settings: what shapes the corpus, for the manifest.
        tools: distributions whose versions go to the manifest.
        reading: how to treat bad text; its notes are those of the last reading.
        preprocessing: changes the text of every sentence after its entities are identified.
    """

    name: str
    sentences: Callable[[], Iterator[Sentence]]
    has_gold: bool
    sources: Mapping[str, Path] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[str, ...] = ()
    reading: Reading = field(default_factory=Reading)
    preprocessing: Preprocessing = field(default_factory=Preprocessing)

    @classmethod
    def from_files(
        cls,
        kind: str,
        name: str,
        read: Callable[[Reading], Iterator[Sentence]],
        files: Iterable[Path] | Mapping[str, Path],
        *,
        cleaning: Cleaning | None = None,
        settings: Mapping[str, Any] | None = None,
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
            cleaning: how to treat bad text.
            settings: what shapes the corpus besides, for the manifest; JSON values.
            has_gold: whether the sentences carry their entities.
            splits_sentences: whether ``read`` splits texts into sentences (:meth:`Reading.clean`).
            tools: further distributions whose versions shape the corpus.
        """
        reading = Reading(cleaning or Cleaning())

        def sentences() -> Iterator[Sentence]:
            reading.notes.clear()
            return read(reading)

        return cls(
            name=name,
            sentences=sentences,
            has_gold=has_gold,
            sources=files if isinstance(files, Mapping) else {path.name: path for path in files},
            settings={"kind": kind, **(settings or {}), **reading.cleaning.manifest_settings()},
            tools=(*((SPLIT_SENTENCES_TOOL,) if splits_sentences else ()), *tools),
            reading=reading,
        )

    def check_sources(self) -> None:
        """Refuse a source that is no file, consists of holes, or begins with a line without end, before it is read.

        Raises:
            CorpusError, OSError: the message names the file.
        """
        for path in self.sources.values():
            self.reading.limits.check_stored(path)
            if self.settings.get("kind") in _LINE_KINDS and path.stat().st_size:
                check_beginning(path, self.reading.limits)

    def with_preprocessing(self, preprocessing: Preprocessing) -> RawCorpus:
        """Return the corpus with ``preprocessing``."""
        settings = {**self.settings, **preprocessing.manifest_settings()}
        return replace(self, preprocessing=preprocessing, settings=settings)


def conll2003(source: Path, cleaning: Cleaning | None = None) -> RawCorpus:
    """Return CoNLL-2003 in the folder ``source``."""
    files = conll2003_files(source).values()
    return RawCorpus.from_files(
        "conll2003", "conll2003", partial(read_conll2003, source), files, cleaning=cleaning, has_gold=True
    )


def ag_news(source: Path, options: AgNewsOptions | None = None, cleaning: Cleaning | None = None) -> RawCorpus:
    """Return AG News in a folder or in one file; users are drawn."""
    options = options or AgNewsOptions()
    return RawCorpus.from_files(
        "ag-news",
        "ag_news",
        partial(read_ag_news, source, options),
        ag_news_files(source).values(),
        cleaning=cleaning,
        settings=options.manifest_settings(),
        splits_sentences=options.split_sentences,
    )


def sec_standin(source: Path, options: TableOptions = SEC_STANDIN, cleaning: Cleaning | None = None) -> RawCorpus:
    """Return contract clauses by company or contract, from ``sentences.jsonl`` in a folder, or from that file."""
    path = _file_in(source, SEC_STANDIN_FILE)
    settings = {"test_fraction": options.test_fraction, "seed": options.seed}
    reader = partial(read_table, "jsonl", path, options)
    return RawCorpus.from_files("sec-standin", "sec_standin", reader, [path], cleaning=cleaning, settings=settings)


def shakespeare(source: Path, options: ShakespeareOptions | None = None, cleaning: Cleaning | None = None) -> RawCorpus:
    """Return speeches by speaker, from a file or from the one edition in a folder."""
    options = options or ShakespeareOptions()
    path = shakespeare_file(source)
    return RawCorpus.from_files(
        "shakespeare",
        path.name.split(".")[0],
        partial(read_shakespeare, path, options),
        [path],
        cleaning=cleaning,
        settings=options.manifest_settings(),
        splits_sentences=options.split_sentences,
    )


def iob(source: Path, options: IobOptions | None = None, cleaning: Cleaning | None = None) -> RawCorpus:
    """Return a tagged file with a token a line, or a folder of them."""
    options = options or IobOptions()
    return RawCorpus.from_files(
        "iob",
        source.name.split(".")[0],
        partial(read_iob, source, options),
        list(iob_files(source)),
        cleaning=cleaning,
        settings=options.manifest_settings(),
        has_gold=True,
    )


def table(kind: str, source: Path, options: TableOptions, cleaning: Cleaning | None = None) -> RawCorpus:
    """Return a ``jsonl``, ``csv``, ``tsv`` or ``parquet`` file with a text and a user column."""
    return RawCorpus.from_files(
        kind,
        source.name.split(".")[0],
        partial(read_table, kind, source, options),
        [source],
        cleaning=cleaning,
        settings=options.manifest_settings(),
        has_gold=options.entities_column is not None,
        splits_sentences=options.split_sentences,
    )


def hugging_face(dataset: HfDataset, options: TableOptions, cleaning: Cleaning | None = None) -> RawCorpus:
    """Return a dataset of Hugging Face's, from the hub or a folder; needs the ``hf`` extra."""
    dataset = dataset.pin_revision()
    return RawCorpus.from_files(
        "hf",
        dataset.name,
        partial(read_hf, dataset, options),
        dataset.files(),
        cleaning=cleaning,
        settings={**dataset.manifest_settings(), **options.manifest_settings()},
        has_gold=options.entities_column is not None,
        splits_sentences=options.split_sentences,
        tools=("datasets",),
    )


def synthetic(users: int | None = None, seed: int | None = None) -> RawCorpus:
    """Return the corpus of our generator, by default the bundled one; needs the ``generate`` extra (Faker)."""
    try:
        from fl_sim.data_prep.synthetic.synthetic_corpus import DEFAULT_SEED, DEFAULT_USERS, synthetic_sentences
    except ImportError as error:
        raise CorpusError(f"the synthetic corpus needs {error.name}: pip install 'fl-sim[generate]'") from error
    users = DEFAULT_USERS if users is None else users
    seed = DEFAULT_SEED if seed is None else seed
    return RawCorpus(
        "synthetic",
        lambda: synthetic_sentences(users, seed),
        has_gold=True,
        settings={"kind": "synthetic", "users": users, "seed": seed},
        tools=("faker",),
    )


def _file_in(source: Path, name: str) -> Path:
    """Return ``source``, or the file ``name`` in that folder, plain or compressed; :class:`CorpusError` if absent."""
    if not source.is_dir():
        return source
    for suffix in ("", ".xz", ".gz"):
        if (source / f"{name}{suffix}").is_file():
            return source / f"{name}{suffix}"
    raise CorpusError(f"{source}: no {name} (or .xz, .gz) in this folder")
