"""Write weights of names from a public corpus: names that are frequent there weigh less in a private one."""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``fl-sim public-weights``."""
    parser.add_argument(
        "corpus", metavar="PUBLIC_CORPUS", help="a folder made by fl-sim prepare from public text, of no private user"
    )
    parser.add_argument("--split", default="train", metavar="NAME", help="the split to count (default train)")
    parser.add_argument(
        "--entity-bound", type=int, required=True, metavar="K", help="the weight that a name is to have in all"
    )
    parser.add_argument(
        "--sentences", type=int, required=True, metavar="S", help="the expected sentences of the private corpus"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the file to make; must not exist")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Write the weights and print their number; return the exit code 0."""
    from fl_sim.data_prep.public_names import write_public_weights
    from fl_sim.data_prep.store.corpus import Corpus

    corpus = Corpus.open(args.corpus)
    number = write_public_weights(corpus, args.split, args.entity_bound, args.sentences, args.out)
    if args.json:
        print(json.dumps({"weights": number, "fingerprint": corpus.fingerprint, "out": str(args.out)}))
    else:
        print(f"{number:,} names have a weight below 1; wrote {args.out}")
        print("these weights are public only if the corpus is: nothing of it may come from the private corpus")
    return 0
