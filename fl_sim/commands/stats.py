"""Print what a prepared corpus holds: users, sentences, entities and their reach."""

from __future__ import annotations

import argparse
import json

NAME = "stats"
HELP = "users, sentences, entities and entity reach of a prepared corpus"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("corpus", metavar="DIR", help="a folder made by fl-sim prepare, or: bundled")
    parser.add_argument("--verify", action="store_true", help="check the checksum of every file first")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    from rich.console import Console

    from data_prep.cleaning import MEANING, Note
    from data_prep.corpus import Corpus
    from data_prep.stats import corpus_stats, stats_table
    from data_prep.table_two import explained, shown, table_two

    corpus = Corpus.open(args.corpus, verify=args.verify)
    stats = corpus_stats(corpus)
    if args.json:
        print(json.dumps(stats, ensure_ascii=False))
        return 0
    console = Console()
    figures = table_two(corpus)
    console.print(shown(figures, stats["name"]))
    console.print(explained(figures), highlight=False)
    console.print(stats_table(stats))
    for name, times in stats["bad_text"].items():
        console.print(f"survived: {times:,} {MEANING[Note(name)]}")
    return 0
