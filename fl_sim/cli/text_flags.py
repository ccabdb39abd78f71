"""Add the flags of cleaning and preprocessing to the commands that make a corpus.

>>> parser = argparse.ArgumentParser()
>>> add_preprocessing(parser)
>>> preprocessing_of(parser.parse_args(["--lower-case"])).lower_case
True
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fl_sim.data_prep.readers.cleaning import Cleaning, Preprocessing


def add_cleaning(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the treatment of bad text, and of the limits of a source."""
    limits = add_text_cleaning(parser)
    limits.add_argument(
        "--max-kinds", type=int, metavar="N", help="most classes, and most labels of entities (default 1,000)"
    )


def add_text_cleaning(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the flags of texts without labels; return the group of the limits."""
    group = parser.add_argument_group("bad text (docs/corpora.md)")
    group.add_argument("--max-characters", type=int, metavar="N", help="cut longer sentences (default 10,000)")
    group.add_argument("--bad-bytes", metavar="HOW", help="refuse (default) lines that are not UTF-8, or replace")
    group = parser.add_argument_group("limits of the source, which real text does not reach (docs/corpora.md)")
    group.add_argument(
        "--max-record-mb", type=int, metavar="N", help="longest line, row or tagged sentence, in MiB (default 16)"
    )
    group.add_argument(
        "--max-unpacking", type=int, metavar="N", help="a packed byte stands for at most N bytes (default 100)"
    )
    return group


def add_preprocessing(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the UeDP paper's preprocessing."""
    group = parser.add_argument_group("preprocessing, after entities are marked (docs/corpora.md)")
    group.add_argument("--preprocess", choices=["paper"], help="the same as --lower-case --strip-punctuation")
    group.add_argument("--lower-case", action="store_true", help="change all letters to lower case")
    group.add_argument("--strip-punctuation", action="store_true", help="remove punctuation, keep single spaces")


def cleaning_of(args: argparse.Namespace) -> Cleaning:
    """Return the treatment of bad text; the defaults for a kind without these flags.

    Raises:
        CorpusError: a value is not allowed.
    """
    from fl_sim.data_prep.readers.cleaning import Cleaning
    from fl_sim.data_prep.store.textfiles import SourceLimits

    plain = Cleaning()
    if "max_characters" not in args:
        return plain
    given = {name: getattr(args, f"max_{name}", None) for name in ("record_mb", "unpacking", "kinds")}
    limits = SourceLimits(**{name: value for name, value in given.items() if value is not None})
    longest = plain.max_characters if args.max_characters is None else args.max_characters
    return Cleaning(longest, args.bad_bytes or plain.bad_bytes, limits)


def preprocessing_of(args: argparse.Namespace) -> Preprocessing:
    """Return the preprocessing that the flags describe."""
    from fl_sim.data_prep.readers.cleaning import Preprocessing

    if args.preprocess == "paper":
        return Preprocessing.of_paper()
    return Preprocessing(args.lower_case, args.strip_punctuation)
