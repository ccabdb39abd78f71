"""Readers by name: the kinds of raw corpora that ``fl-sim prepare KIND`` reads, built in or of other packages.

>>> load_reader("csv").help
'a CSV file with a header (.tsv for tabs; .xz and .gz too)'
>>> load_reader("no_such_module:Reader")
Traceback (most recent call last):
fl_sim.plugins.PluginError: reader 'no_such_module:Reader' cannot be imported (No module named 'no_such_module')
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from fl_sim.plugins import PluginError, Registry

if TYPE_CHECKING:  # a command line lists all readers, and must not import what they read with
    from fl_sim.data_prep.readers.cleaning import Cleaning
    from fl_sim.data_prep.readers.raw_corpora import RawCorpus
    from fl_sim.data_prep.records import Sentence

_MODULE = "fl_sim.data_prep.readers.built_in_readers"


class Reader(Protocol):
    """Reads one kind of raw corpora. Importing and making a reader is cheap: it imports what it reads with in `read`.

    Attributes:
        help: what it reads, in a line.
    """

    help: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the reader's own flags, such as ``--source``."""

    def read(self, args: argparse.Namespace, cleaning: Cleaning) -> RawCorpus:
        """Return the corpus that the flags describe.

        Args:
            args: the values of the reader's own flags.
            cleaning: how to treat bad text.

        Raises:
            CorpusError: a flag or the source is bad.
        """


def _is_reader(part: Any) -> bool:
    return isinstance(getattr(part, "help", None), str) and all(
        callable(getattr(part, method, None)) for method in ("add_arguments", "read")
    )


READERS = Registry(
    "fl_sim.readers",
    "reader",
    {
        "conll2003": f"{_MODULE}:Conll2003Reader",
        "ag-news": f"{_MODULE}:AgNewsReader",
        "sec-standin": f"{_MODULE}:SecStandinReader",
        "shakespeare": f"{_MODULE}:ShakespeareReader",
        "iob": f"{_MODULE}:IobReader",
        "jsonl": f"{_MODULE}:JsonlReader",
        "csv": f"{_MODULE}:CsvReader",
        "tsv": f"{_MODULE}:TsvReader",
        "parquet": f"{_MODULE}:ParquetReader",
        "hf": f"{_MODULE}:HuggingFaceReader",
        "prepared": f"{_MODULE}:PreparedReader",
    },
    check=_is_reader,
    interface="a class with help, add_arguments(parser) and read(args, cleaning)",
)
"""What follows ``fl-sim prepare``."""


def load_reader(kind: str) -> Reader:
    """Return the reader called ``kind``.

    Raises:
        PluginError: there is none, it cannot be imported or made, its interface is wrong, or its name is taken twice.
    """
    reader = READERS.load(kind)
    try:
        return reader() if isinstance(reader, type) else reader
    except TypeError as error:
        raise PluginError(f"reader '{kind}' cannot be made ({error}); allowed: {READERS.interface}") from error


def read_raw_corpus(kind: str, args: argparse.Namespace, cleaning: Cleaning) -> RawCorpus:
    """Return the corpus that the reader called ``kind`` makes of its flags.

    A corpus of a plug-in records the plug-in, and its sentences are checked as they come.

    Args:
        kind: a name in :data:`READERS`, or an import path.
        args: the values of the reader's flags.
        cleaning: how to treat bad text.

    Raises:
        CorpusError: a flag or the source is bad.
        PluginError: there is no such reader, or its interface is wrong.
    """
    raw = load_reader(kind).read(args, cleaning)
    return raw if kind in READERS.built_in else _checked(kind, raw)


def _checked(kind: str, raw: Any) -> RawCorpus:
    from fl_sim.data_prep.readers.raw_corpora import RawCorpus
    from fl_sim.data_prep.store.manifest import plugin_record

    if not isinstance(raw, RawCorpus):
        raise PluginError(f"reader '{kind}' returns {raw!r:.100}; allowed: a RawCorpus")
    try:
        json.dumps(dict(raw.settings))
    except (TypeError, ValueError) as error:
        raise PluginError(f"reader '{kind}' has settings that are not JSON ({error}); allowed: JSON values") from error
    settings = {**raw.settings, "reader": plugin_record(READERS, kind)}
    return replace(raw, sentences=lambda: _checked_sentences(kind, raw.sentences()), settings=settings)


def _checked_sentences(kind: str, sentences: Iterator[Sentence]) -> Iterator[Sentence]:
    from fl_sim.data_prep.records import Sentence

    for sentence in sentences:
        if not isinstance(sentence, Sentence):
            raise PluginError(f"reader '{kind}' yields {sentence!r:.100}; allowed: Sentence")
        yield sentence
