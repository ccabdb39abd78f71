"""Show the effect of each identity setting on the entities of a corpus and their contribution bounds."""

from __future__ import annotations

import argparse
import json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``fl-sim identity``."""
    parser.add_argument("corpus", metavar="CORPUS", help="a folder made by fl-sim prepare, or: bundled, irc")
    parser.add_argument("--split", default="train", metavar="NAME", help="the split to count (default train)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the effect of each identity setting; return the exit code 0."""
    from rich.console import Console

    from fl_sim.data_prep.corpus_stats import CONTRIBUTIONS_ARE_PRIVATE, identity_effect, identity_table
    from fl_sim.data_prep.store.corpus import Corpus

    corpus = Corpus.open(args.corpus)
    rows = identity_effect(corpus, args.split)
    if args.json:
        report = {"corpus": corpus.manifest.name, "split": args.split, "rows": rows, "note": CONTRIBUTIONS_ARE_PRIVATE}
        print(json.dumps(report, ensure_ascii=False))
    else:
        Console().print(identity_table(corpus.manifest.name, args.split, rows))
    return 0
