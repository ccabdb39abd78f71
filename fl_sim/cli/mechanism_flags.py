"""Flags that several verbs share: the mechanism, whom ε protects, the published algorithm."""

from __future__ import annotations

import argparse

Group = argparse._ArgumentGroup


def add_mechanism(parser: argparse.ArgumentParser, title: str = "the mechanism") -> Group:
    """z, T, δ, rates, ŵ and clipping; the group, for what a verb adds to it."""
    group = parser.add_argument_group(title)
    group.add_argument("--z", type=float, metavar="Z", help="noise multiplier: noise std / user clip")
    group.add_argument("--rounds", type=int, metavar="T", help="number of rounds")
    group.add_argument("--delta", type=float, metavar="D", help="δ at which ε is stated")
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
    """n' and the reach (F, n); the group, for what a verb adds to it."""
    group = parser.add_argument_group("whom ε protects")
    group.add_argument("--user-sentences", type=float, metavar="N", help="bound on one user's sentences (default inf)")
    group.add_argument(
        "--reach-users",
        type=int,
        metavar="F",
        help="users that mention the entity (default 1; published: all)",
    )
    group.add_argument("--reach-sentences", type=int, metavar="N", help="sentences of each that mention it (default 1)")
    return group


def add_published(parser: argparse.ArgumentParser) -> Group:
    """The corpus and the estimator of the published algorithm; the group, for what a verb adds to it."""
    group = parser.add_argument_group("the published algorithm")
    group.add_argument("--estimator", choices=("f_e", "f_e_plus", "user_level"), help="which of its estimators")
    group.add_argument("--users", type=int, metavar="U", help="all users")
    group.add_argument("--users-per-round", type=float, metavar="N", help="expected users per round")
    group.add_argument("--sentences", type=int, metavar="S", help="all sentences")
    group.add_argument("--sensitive-sentences", type=int, metavar="S", help="sentences with an entity")
    return group
