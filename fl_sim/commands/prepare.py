"""Turn raw text into a prepared corpus: a folder of Parquet files with a manifest."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fl_sim.identity_flags import add_identity, identity_of

if TYPE_CHECKING:
    from data_prep.corpora import RawCorpus
    from data_prep.corpus import Corpus
    from data_prep.records import Sentence

NAME = "prepare"
HELP = "make a corpus from conll2003, jsonl, csv or parquet files, or from the synthetic generator"

_SENTENCES_PER_TICK = 500
_TABLES = {
    "jsonl": "a file of JSON objects, one a line (.xz and .gz too)",
    "csv": "a CSV file with a header (.tsv for tabs; .xz and .gz too)",
    "parquet": "a Parquet file",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    conll = kinds.add_parser("conll2003", help="the shared task's folder: documents are users, gold tags are entities")
    conll.add_argument("--source", type=Path, required=True, help="folder with eng.train, eng.testa, eng.testb")
    for kind, meaning in _TABLES.items():
        _add_table_arguments(kinds.add_parser(kind, help=meaning))
    made = kinds.add_parser("synthetic", help="made-up users who write about their lives (needs the generate extra)")
    made.add_argument("--users", type=int, default=None, help="how many, all splits together (default: as bundled)")
    made.add_argument("--seed", type=int, default=None, help="default: as bundled")
    for kind_parser in kinds.choices.values():
        kind_parser.add_argument("--out", type=Path, required=True, help="folder to make; must not exist or be empty")
        kind_parser.add_argument("--json", action="store_true", help="print one JSON object")
        add_identity(kind_parser)
        if kind_parser is not made:
            kind_parser.add_argument(
                "--tagger", help="gold, rules or spacy:NAME_OR_PATH (default: gold marks if any, else rules)"
            )


def run(args: argparse.Namespace) -> int:
    from data_prep.atomic import require_free
    from data_prep.corpora import prepare

    require_free(args.out)
    identity, tagger = identity_of(args), getattr(args, "tagger", None)
    with _progress() as watch:
        corpus = prepare(_raw_corpus(args), args.out, tagger=tagger, identity=identity, watch=watch)
    _report(corpus, as_json=args.json)
    return 0


def _add_table_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--source", type=Path, required=True, help="the file to read")
    parser.add_argument("--text-column", required=True, metavar="NAME")
    parser.add_argument("--user-column", required=True, metavar="NAME", help="whose text it is")
    parser.add_argument("--entities-column", metavar="NAME", help="gold entities: a list of {start, end, label}")
    parser.add_argument("--split-column", metavar="NAME", help="train, validation, test, ... of each row")
    parser.add_argument("--test-fraction", type=float, default=0.1, help="share of users held out (default 0.1)")
    parser.add_argument("--seed", type=int, default=0, help="of the hash that holds users out (default 0)")
    parser.add_argument(
        "--split-sentences",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="cut each text into sentences, or keep a row whole",
    )


def _raw_corpus(args: argparse.Namespace) -> RawCorpus:
    from data_prep import corpora

    if args.kind == "conll2003":
        return corpora.conll2003(args.source)
    if args.kind == "synthetic":
        return corpora.synthetic(args.users, args.seed)
    options = corpora.TableOptions(
        text_column=args.text_column,
        user_column=args.user_column,
        entities_column=args.entities_column,
        split_column=args.split_column,
        test_fraction=args.test_fraction,
        seed=args.seed,
        split_sentences=args.split_sentences,
    )
    return corpora.table(args.kind, args.source, options)


@contextmanager
def _progress() -> Iterator[Callable[[Iterable[Sentence]], Iterator[Sentence]]]:
    """Give a function that counts the sentences passing through it, on a line of stderr if a terminal."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.completed:,} sentences"),
        TextColumn("{task.fields[rate]:,.0f} a second"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("reading", total=None, rate=0.0)

        def watch(sentences: Iterable[Sentence]) -> Iterator[Sentence]:
            for count, sentence in enumerate(sentences, start=1):
                if count % _SENTENCES_PER_TICK == 0:
                    rate = count / max(progress.tasks[task].elapsed or 0.0, 1e-9)
                    progress.update(task, completed=count, rate=rate)
                yield sentence

        yield watch


def _report(corpus: Corpus, as_json: bool) -> None:
    counts = {split: record.model_dump() for split, record in corpus.manifest.splits.items()}
    if as_json:
        print(json.dumps({"corpus": str(corpus.path), "fingerprint": corpus.fingerprint, "splits": counts}))
        return
    for split, count in counts.items():
        figures = ", ".join(f"{number:,} {what}" for what, number in count.items())
        print(f"{split}: {figures}")
    for warning in corpus.warnings:
        print(f"warning: {warning}")
    print(f"prepared {corpus.path}; next: fl-sim stats {corpus.path}")
