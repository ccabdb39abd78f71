"""Add the flags that several verbs share: mechanism, contribution bounds, published algorithm.

>>> parser = argparse.ArgumentParser()
>>> groups = add_mechanism(parser), add_adjacency(parser), add_published(parser)
>>> args = parser.parse_args(["--z", "1.1", "--rounds", "100", "--reach-users", "15"])
>>> args.z, args.rounds, args.reach_users
(1.1, 100, 15)
"""

from __future__ import annotations

import argparse

Group = argparse._ArgumentGroup


def add_mechanism(parser: argparse.ArgumentParser, title: str = "the mechanism") -> Group:
    """Add the flags of z, T, δ, sampling rates, ŵ and clipping; return their group."""
    group = parser.add_argument_group(title)
    group.add_argument("--z", type=float, metavar="Z", help="noise multiplier: noise std / user clip")
    group.add_argument("--rounds", type=int, metavar="T", help="number of rounds")
    group.add_argument(
        "--delta", type=float, metavar="D", help="δ at which ε is stated (default: a run's own, else 1e-5)"
    )
    group.add_argument("--q-u", type=float, metavar="RATE", help="user sampling rate (default 1)")
    group.add_argument("--q-e", type=float, metavar="RATE", help="entity sampling rate (default 1)")
    group.add_argument("--q-s", type=float, metavar="RATE", help="sentence sampling rate (default 1)")
    group.add_argument("--user-cap", type=float, metavar="W", help="user clip in sentence clips (default 1)")
    group.add_argument(
        "--clipping",
        choices=("sentence", "user"),
        help="what is clipped besides the user's sum (default sentence)",
    )
    return group


def add_adjacency(parser: argparse.ArgumentParser) -> Group:
    """Add the flags of n' and of the entity's contribution bound (F, n); return their group."""
    group = parser.add_argument_group("the protected user and entity")
    group.add_argument(
        "--user-sentences", type=float, metavar="N", help="n', the most sentences of one user (default inf)"
    )
    group.add_argument(
        "--reach-users",
        type=int,
        metavar="F",
        help="F, the most users that mention the protected entity (default 1; published: all)",
    )
    group.add_argument(
        "--reach-sentences", type=int, metavar="N", help="the most sentences of one user that mention it (default 1)"
    )
    return group


def add_published(parser: argparse.ArgumentParser) -> Group:
    """Add the flags of the published algorithm's corpus and estimator; return their group."""
    group = parser.add_argument_group("the published algorithm")
    group.add_argument("--estimator", choices=("f_e", "f_e_plus", "user_level"), help="the estimator")
    group.add_argument("--users", type=int, metavar="U", help="number of users")
    group.add_argument("--users-per-round", type=float, metavar="N", help="expected users per round")
    group.add_argument("--sentences", type=int, metavar="S", help="number of sentences")
    group.add_argument("--sensitive-sentences", type=int, metavar="S", help="number of sentences with an entity")
    return group
