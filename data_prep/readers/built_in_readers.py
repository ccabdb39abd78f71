"""The readers that ship: the flags of each kind of raw corpora, and the corpus that they describe.

A command line makes all of them, so whatever reads is imported in ``read``.

>>> parser = argparse.ArgumentParser()
>>> CsvReader().add_arguments(parser)
>>> args = parser.parse_args(["--source", "a.csv", "--text-column", "body", "--user-column", "sender"])
>>> args.source.name, args.text_column, args.test_fraction
('a.csv', 'body', 0.1)
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from fl_sim.data_prep.readers.reader_registry import Reader

if TYPE_CHECKING:
    from fl_sim.data_prep.readers.cleaning import Cleaning
    from fl_sim.data_prep.readers.raw_corpora import RawCorpus

Options = TypeVar("Options")


class Conll2003Reader(Reader):
    """Reads the shared task's folder."""

    help = "the shared task's folder: documents are users"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        _add_source(parser, "folder with eng.train, eng.testa, eng.testb (.xz and .gz too)")

    def read(self, args: argparse.Namespace, cleaning: Cleaning) -> RawCorpus:
        from fl_sim.data_prep.readers import raw_corpora

        return raw_corpora.conll2003(args.source, cleaning)


class AgNewsReader(Reader):
    """Reads AG's news, whose users are drawn."""

    help = "AG's news with classes; users are drawn, N(15, 2²) rows each"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        _add_source(parser, "folder with train.csv (or train_partial.csv) and test.csv (.xz and .gz too), or one file")
        parser.add_argument(
            "--text", default="title+description", help="title+description (default), description or title"
        )
        _add_split_sentences(parser, False)
        parser.add_argument("--max-users", type=int, metavar="N", help="keep the first N users drawn of each split")
        parser.add_argument("--seed", type=int, default=0, help="of the users' sizes and rows (default 0)")

    def read(self, args: argparse.Namespace, cleaning: Cleaning) -> RawCorpus:
        from fl_sim.data_prep.readers import raw_corpora
        from fl_sim.data_prep.readers.raw_corpora import AgNewsOptions

        return raw_corpora.ag_news(args.source, _from_flags(AgNewsOptions, args), cleaning)


class SecStandinReader(Reader):
    """Reads contract clauses that stand in for the paper's private ones."""

    help = "clauses of contracts, companies as users"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        _add_source(parser, "folder with sentences.jsonl (.xz and .gz too), or that file")
        _add_held_out(parser, "users")

    def read(self, args: argparse.Namespace, cleaning: Cleaning) -> RawCorpus:
        from dataclasses import replace

        from fl_sim.data_prep.readers import raw_corpora

        options = replace(raw_corpora.SEC_STANDIN, test_fraction=args.test_fraction, seed=args.seed)
        return raw_corpora.sec_standin(args.source, options, cleaning)


class ShakespeareReader(Reader):
    """Reads plays by speaker."""

    help = "speeches, speakers as users"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        _add_source(parser, "an edition by speaker, a .jsonl file (.xz and .gz too), or a folder with one")
        parser.add_argument("--held-out", default="speeches", help="hold out single speeches (default), or speakers")
        _add_held_out(parser, "speeches or speakers")
        _add_split_sentences(parser, True)

    def read(self, args: argparse.Namespace, cleaning: Cleaning) -> RawCorpus:
        from fl_sim.data_prep.readers import raw_corpora
        from fl_sim.data_prep.readers.raw_corpora import ShakespeareOptions

        return raw_corpora.shakespeare(args.source, _from_flags(ShakespeareOptions, args), cleaning)


class IobReader(Reader):
    """Reads tagged files with a token a line."""

    help = "any tagged file with a token a line (CoNLL, IOB1, IOB2, IOBES)"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        _add_source(parser, "a tagged file with a token a line, or a folder of them (.xz and .gz too)")
        column = "counted from 1, or -1 for the last (default: found by looking)"
        parser.add_argument("--token-column", type=int, metavar="N", help=column)
        parser.add_argument("--tag-column", type=int, metavar="N", help=column)
        parser.add_argument("--scheme", default="auto", help="of the tags: auto (default), iob1, iob2 or iobes (BILOU)")
        parser.add_argument(
            "--sentences-per-user",
            type=int,
            metavar="N",
            help="N sentences in a row are a user (default: a document is, where marked; else 15 sentences)",
        )
        _add_held_out(parser, "users, where file names do not tell the splits")

    def read(self, args: argparse.Namespace, cleaning: Cleaning) -> RawCorpus:
        from fl_sim.data_prep.readers import raw_corpora
        from fl_sim.data_prep.readers.iob import IobOptions

        return raw_corpora.iob(args.source, _from_flags(IobOptions, args), cleaning)


class _TableReader(Reader):
    """Reads a table with a text and a user column; a subclass names its format."""

    kind = ""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        _add_source(parser, "the file to read")
        _add_columns(parser)

    def read(self, args: argparse.Namespace, cleaning: Cleaning) -> RawCorpus:
        from fl_sim.data_prep.readers import raw_corpora
        from fl_sim.data_prep.readers.tables import TableOptions

        return raw_corpora.table(self.kind, args.source, _from_flags(TableOptions, args), cleaning)


class JsonlReader(_TableReader):
    """Reads JSON lines."""

    kind = "jsonl"
    help = "a file of JSON objects, one a line (.xz and .gz too)"


class CsvReader(_TableReader):
    """Reads comma-separated values."""

    kind = "csv"
    help = "a CSV file with a header (.tsv for tabs; .xz and .gz too)"


class TsvReader(_TableReader):
    """Reads tab-separated values without quotes."""

    kind = "tsv"
    help = "tab-separated values with a header, no quoting (.xz and .gz too)"


class ParquetReader(_TableReader):
    """Reads Parquet."""

    kind = "parquet"
    help = "a Parquet file"


class HuggingFaceReader(Reader):
    """Reads a dataset of Hugging Face's."""

    help = "a dataset of Hugging Face's, by name or from a folder (needs the hf extra)"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--source", required=True, metavar="NAME_OR_DIR", help="name on the hub, or a local folder")
        parser.add_argument("--configuration", metavar="NAME", help="the dataset's configuration")
        parser.add_argument("--splits", metavar="NAMES", help="splits to read, with commas (default: all)")
        parser.add_argument("--revision", metavar="COMMIT", help="of the hub's dataset (default: the present one)")
        _add_columns(parser)

    def read(self, args: argparse.Namespace, cleaning: Cleaning) -> RawCorpus:
        from fl_sim.data_prep.readers import raw_corpora
        from fl_sim.data_prep.readers.hugging_face import HfDataset
        from fl_sim.data_prep.readers.tables import TableOptions

        splits = tuple(name.strip() for name in (args.splits or "").split(",") if name.strip())
        dataset = HfDataset(args.source, args.configuration, splits, args.revision)
        return raw_corpora.hugging_face(dataset, _from_flags(TableOptions, args), cleaning)


class PreparedReader(Reader):
    """Reads a prepared corpus again, with its marks."""

    help = "a corpus that is prepared already, or ships: its texts, users, splits, classes and marks"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--source", required=True, metavar="DIR", help="a folder made by fl-sim prepare, or: bundled, irc"
        )
        parser.add_argument("--max-users", type=int, metavar="N", help="keep at most N users of each split, by a hash")
        for what, meaning in (("user", "leave out this user"), ("entity", "leave out all sentences with this name")):
            parser.add_argument(
                f"--without-{what}", action="append", default=[], metavar=what.upper(),
                help=f"{meaning}; may be given several times. A model of that text can be the reference of fl-sim leak",
            )  # fmt: skip

    def read(self, args: argparse.Namespace, cleaning: Cleaning) -> RawCorpus:
        from fl_sim.data_prep.readers.prepared_corpus import Without, prepared_corpus

        without = Without(tuple(args.without_user), tuple(args.without_entity), args.max_users)
        return prepared_corpus(args.source, cleaning, without)


class _Once(argparse.Action):
    """Store a value; refuse a second one, which would silently take the place of the first."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        before = getattr(namespace, self.dest)
        if before is not None:
            parser.error(f"{option_string} is {before} and {values}; allowed: one of them, or a file with both")
        setattr(namespace, self.dest, values)


def _add_source(parser: argparse.ArgumentParser, meaning: str) -> None:
    parser.add_argument("--source", type=Path, required=True, action=_Once, help=meaning)


def _add_held_out(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--test-fraction", type=float, default=0.1, help=f"share of {what} held out (default 0.1)")
    parser.add_argument("--seed", type=int, default=0, help="of the hash that holds them out (default 0)")


def _add_split_sentences(parser: argparse.ArgumentParser, default: bool) -> None:
    parser.add_argument(
        "--split-sentences",
        action=argparse.BooleanOptionalAction,
        default=default,
        help=f"cut each text into sentences, or keep it whole (default: {'cut' if default else 'whole'})",
    )


def _add_columns(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--text-column", required=True, metavar="NAME")
    parser.add_argument("--user-column", required=True, metavar="NAME", help="whose text it is")
    parser.add_argument("--entities-column", metavar="NAME", help="gold entities: a list of {start, end, label}")
    parser.add_argument("--target-column", metavar="NAME", help="the row's class")
    parser.add_argument("--document-column", metavar="NAME", help="the text that the row is part of (default: the row)")
    parser.add_argument("--id-column", metavar="NAME", help="a row whose id came before is dropped and counted")
    parser.add_argument("--split-column", metavar="NAME", help="train, validation, test, ... of each row")
    _add_held_out(parser, "users")
    _add_split_sentences(parser, True)


def _from_flags(options: Callable[..., Options], args: argparse.Namespace) -> Options:
    """Return the options (a dataclass) whose fields are flags of the same names."""
    return options(**{field.name: getattr(args, field.name) for field in fields(cast(Any, options))})
