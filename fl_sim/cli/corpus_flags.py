"""Add the flags that commands share which make a corpus: entity identity, taggers, cleaning and preprocessing.

>>> parser = argparse.ArgumentParser()
>>> add_identity(parser)
>>> identity_of(parser.parse_args(["--identity", "unicode,case"])).steps
('unicode', 'case')

>>> parser = argparse.ArgumentParser()
>>> add_tagger(parser)
>>> args = parser.parse_args(["--tagger", "rules", "--entities", "org,loc"])
>>> marking_of(args, has_gold=False).tagger.describe()["tagger"]
'rules'

>>> parser = argparse.ArgumentParser()
>>> add_preprocessing(parser)
>>> preprocessing_of(parser.parse_args(["--lower-case"])).lower_case
True
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fl_sim.data_prep.identity import DEFAULT_IDENTITY, NESTED, Identity

if TYPE_CHECKING:
    from fl_sim.data_prep.readers.cleaning import Cleaning, Preprocessing
    from fl_sim.data_prep.taggers.tagger import Marking


def add_identity(parser: argparse.ArgumentParser) -> None:
    """Add the flags of entity identity as a group."""
    group = parser.add_argument_group("which mentions are one entity (docs/corpora.md)")
    group.add_argument(
        "--identity", metavar="STEPS", help="steps of the normalisation, separated by commas (default: all)"
    )
    group.add_argument("--nested", choices=NESTED, help="which of several overlapping mentions count (default all)")
    group.add_argument(
        "--family-names", action="store_true", help="a person's name also mentions the entity of its last word"
    )
    group.add_argument(
        "--link-within-document",
        action="store_true",
        help="a part of a person's name also stands for the whole name in the same document; "
        "changes what ε protects (docs/privacy-proofs.md, section 14)",
    )


def identity_of(args: argparse.Namespace) -> Identity:
    """Return the identity that the flags describe.

    Raises:
        CorpusError: a step is unknown.
    """
    steps = DEFAULT_IDENTITY.steps
    if args.identity is not None:
        steps = tuple(step.strip() for step in args.identity.split(",") if step.strip())
    return Identity(steps, args.nested or "all", args.family_names, args.link_within_document)


def add_tagger(parser: argparse.ArgumentParser) -> None:
    """Add the flags of taggers as a group."""
    group = parser.add_argument_group("entities (docs/taggers.md)")
    group.add_argument(
        "--tagger",
        action="append",
        metavar="NAME",
        help="gold, rules, patterns, structured, spacy:NAME_OR_PATH or stanza[:LANGUAGE]; join several with + or "
        "repeat --tagger (default: gold marks if any, else the best pipeline that is installed)",
    )
    group.add_argument("--entities", default="all", metavar="WHAT", help="org,loc,gpe,pii,person,misc or all (default)")
    group.add_argument(
        "--high-recall", action="store_true", help="add rules and patterns: fewer misses, more false alarms"
    )
    group.add_argument(
        "--no-structured",
        dest="structured",
        action="store_false",
        help="do not look for e-mail and IP addresses, URLs, phone, card, account and social security numbers",
    )
    group.add_argument(
        "--processes", type=int, default=1, metavar="N", help="processes that tag in parallel (default 1)"
    )
    group.add_argument("--batch-size", type=int, metavar="N", help="texts per batch of a spaCy pipeline")


def marking_of(args: argparse.Namespace, has_gold: bool) -> Marking:
    """Return the marking that the flags describe.

    Args:
        args: values of the flags.
        has_gold: whether the corpus marks its entities.

    Raises:
        CorpusError: a tagger is unknown.
        PluginError: a tagger cannot be imported, has the wrong interface, or a name that is taken twice.
    """
    from fl_sim.data_prep.taggers.tagger_registry import make_marking

    return make_marking(
        args.tagger,
        has_gold=has_gold,
        entities=args.entities,
        high_recall=args.high_recall,
        structured=args.structured,
        processes=args.processes,
        batch_size=args.batch_size,
    )


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
