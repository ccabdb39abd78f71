"""Add the flags of taggers and sensitive entity kinds to the commands that tag text.

>>> parser = argparse.ArgumentParser()
>>> add_tagger(parser)
>>> args = parser.parse_args(["--tagger", "rules", "--entities", "org,loc"])
>>> marking_of(args, has_gold=False).tagger.describe()["tagger"]
'rules'
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fl_sim.data_prep.taggers.tagger import Marking


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
