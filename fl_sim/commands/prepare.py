"""Turn raw text into a prepared corpus: a folder of Parquet files with a manifest."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fl_sim.corpus_kinds import KINDS, MADE, raw_corpus
from fl_sim.identity_flags import add_identity, identity_of
from fl_sim.text_flags import add_cleaning, add_preprocessing

if TYPE_CHECKING:
    from data_prep.corpus import Corpus
    from data_prep.records import Sentence

NAME = "prepare"
HELP = "make a corpus from text: conll2003, ag-news, sec-standin, shakespeare, iob, tables, hf, or synthetic"

_SENTENCES_PER_TICK = 500


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    for name, kind in KINDS.items():
        kind_parser = kinds.add_parser(name, help=kind.help, description=kind.help)
        kind.add_arguments(kind_parser)
        kind_parser.add_argument("--out", type=Path, required=True, help="folder to make; must not exist or be empty")
        kind_parser.add_argument("--json", action="store_true", help="print one JSON object")
        add_identity(kind_parser)
        add_preprocessing(kind_parser)
        if name not in MADE:
            add_cleaning(kind_parser)
            kind_parser.add_argument(
                "--tagger", help="gold, rules or spacy:NAME_OR_PATH (default: gold marks if any, else rules)"
            )


def run(args: argparse.Namespace) -> int:
    from data_prep.atomic import require_free
    from data_prep.corpora import prepare

    require_free(args.out)
    identity, tagger = identity_of(args), getattr(args, "tagger", None)
    with _progress() as watch:
        corpus = prepare(raw_corpus(args), args.out, tagger=tagger, identity=identity, watch=watch)
    _report(corpus, as_json=args.json)
    return 0


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
    from data_prep.cleaning import MEANING, Note

    counts = {split: record.model_dump() for split, record in corpus.manifest.splits.items()}
    notes = corpus.manifest.notes
    if as_json:
        made = {"corpus": str(corpus.path), "fingerprint": corpus.fingerprint, "splits": counts, "notes": notes}
        print(json.dumps(made))
        return
    for split, count in counts.items():
        figures = ", ".join(f"{number:,} {what}" for what, number in count.items())
        print(f"{split}: {figures}")
    for name, times in notes.items():
        print(f"survived: {times:,} {MEANING[Note(name)]}")
    for warning in corpus.warnings:
        print(f"warning: {warning}")
    print(f"prepared {corpus.path}; next: fl-sim stats {corpus.path}")
