"""Print the statistics of a prepared corpus: users, sentences, entities and their contribution bounds."""

from __future__ import annotations

import argparse
import importlib
import json

TABLES = ("fl_sim.research.uedp_paper.table_two",)
"""Modules with a ``table_of(corpus)`` to print with the statistics; given by name, because nothing imports research."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``fl-sim stats``."""
    parser.add_argument("corpus", metavar="DIR", help="a folder made by fl-sim prepare, or: bundled, irc")
    parser.add_argument("--verify", action="store_true", help="check the checksum of every file first")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the statistics; return the exit code 0."""
    from rich.console import Console

    from fl_sim.api.corpora import corpus_stats, open_corpus
    from fl_sim.data_prep.corpus_stats import stats_table
    from fl_sim.data_prep.readers.cleaning import MEANING, Note
    from fl_sim.formats import table_cell

    corpus = open_corpus(args.corpus, verify=args.verify)
    stats = corpus_stats(corpus)
    tables = [importlib.import_module(name).table_of(corpus) for name in TABLES]
    if args.json:
        plain = {table.key: table.plain() for table in tables}
        last = {"note": stats["note"]}  # the note comes after everything that it is about
        print(
            json.dumps(
                {name: value for name, value in stats.items() if name not in last} | plain | last, ensure_ascii=False
            )
        )
        return 0
    console = Console()
    for table in tables:
        console.print(table.shown(stats["name"]))
        console.print(table.explained(), highlight=False)
    console.print(stats_table(stats))
    for name, times in stats["bad_text"].items():
        console.print(f"survived: {times:,} {MEANING[Note(name)]}")
    if stats["canaries"]:
        console.print(_canaries_in_words(stats["canaries"]), highlight=False)
    if stats["not_looked_for"]:
        console.print(f"nobody looked for: {', '.join(map(table_cell, stats['not_looked_for']))}")
    return 0


def _canaries_in_words(counts: dict[str, int]) -> str:
    return (
        f"canaries: {counts['included']:,} of {counts['number']:,} are included, with {counts['users']:,} users of "
        f"which {counts['users_left_out']:,} are left out; for a training on them: "
        f"--set privacy.population={counts['population']} (docs/audit.md)"
    )
