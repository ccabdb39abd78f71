"""Add the flags of entity identity to the commands that make a corpus.

>>> parser = argparse.ArgumentParser()
>>> add_identity(parser)
>>> identity_of(parser.parse_args(["--identity", "unicode,case"])).steps
('unicode', 'case')
"""

from __future__ import annotations

import argparse

from fl_sim.data_prep.identity import DEFAULT_IDENTITY, NESTED, Identity


def add_identity(parser: argparse.ArgumentParser) -> None:
    """Add the flags of entity identity as a group."""
    group = parser.add_argument_group("which mentions are one entity (docs/identity.md)")
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
        "changes what ε protects (docs/privacy.md, section 14)",
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
