"""Make a corpus without its entities: replace them by their category or by surrogates, or remove them."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fl_sim.data_prep.deidentify import Tally
    from fl_sim.data_prep.store.corpus import Corpus

_MODES = ("category", "remove", "surrogate")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``fl-sim deidentify``."""
    parser.add_argument("corpus", metavar="CORPUS", help="a folder made by fl-sim prepare, or: bundled, irc")
    parser.add_argument("--out", type=Path, required=True, help="folder to make; must not exist or be empty")
    parser.add_argument(
        "--mode",
        choices=_MODES,
        default="category",
        help="the replacement of a mention: its category as [PERSON], no text, or a made-up entity (default category)",
    )
    parser.add_argument("--seed", type=int, help="seed of the made-up entities (default 0); only with --mode surrogate")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Make the de-identified corpus and print its counts; return the exit code 0."""
    from fl_sim.config import ConfigError
    from fl_sim.data_prep.deidentify import deidentify
    from fl_sim.data_prep.store.corpus import Corpus

    if args.seed is not None and args.mode != "surrogate":
        raise ConfigError(
            f"--seed is given with --mode {args.mode}; allowed: with --mode surrogate, the only random mode"
        )
    corpus, tally = deidentify(Corpus.open(args.corpus, verify=True), args.out, args.mode, args.seed or 0)
    if args.json:
        figures = {"corpus": str(corpus.path), "fingerprint": corpus.fingerprint, **dataclasses.asdict(tally)}
        print(json.dumps(figures | {"warnings": corpus.warnings}, ensure_ascii=False))
    else:
        print(_text(corpus, tally))
    return 0


def _text(corpus: Corpus, tally: Tally) -> str:
    changed = f"{tally.changed:,} of {tally.sentences:,} sentences"
    lines = [
        f"{tally.mentions:,} mentions at {tally.replaced:,} places, in {changed}",
        f"{tally.emptied:,} sentences had no other text and are kept as one placeholder",
        f"{tally.still_there:,} sentences contain the spelling of a mention where no mention was marked "
        f"({tally.names_still_there:,} names): probably missed",
        *(f"warning: {warning}" for warning in corpus.warnings),
        f"made {corpus.path}; next: fl-sim run --corpus {corpus.path} --strategy noiseless",
    ]
    return "\n".join(lines)
