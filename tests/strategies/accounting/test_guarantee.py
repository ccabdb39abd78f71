"""Whom the headline protects: the bounds, the units of which the largest ε counts, and the record in the ledger."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound
from fl_sim.strategies.accounting.guarantee import Guarantee, ProtectedUnit
from fl_sim.strategies.primitives.limits import PrivacyError

BOUNDED = Guarantee(mention_graph="public", entity_bound=10, user_sentences=32)
SENTENCE = ProtectedUnit(Adjacency(32, ContributionBound(1, 1)), robust=True)
"""A sentence in which the tagger finds nothing is an entity of its own, which is not sampled."""


def entity(bound: ContributionBound, *, robust: bool = False, n: float = 32, displaced: bool = False) -> ProtectedUnit:
    return ProtectedUnit(Adjacency(n, bound, displaced), robust)


@pytest.mark.parametrize(
    ("changes", "clips", "bound"),
    [
        ({}, True, ContributionBound(10, 10, 10)),  # at most as many users as sentences
        ({"entity_users": 3}, True, ContributionBound(3, 10, 10)),
        ({"entity_bound": 500}, True, ContributionBound(100, 500, 500)),  # no more users than are enrolled
        ({"weighted": True, "bound_by": "weights"}, True, ContributionBound(100, 10, 10, weighted=True)),
        ({}, False, ContributionBound(10, 1)),  # a user counts once, however many sentences
        ({"entity_users": 3}, False, ContributionBound(3, 1)),
        ({"entity_bound": None, "entity_users": 3}, False, ContributionBound(3, 1)),
        ({"entity_bound": None, "entity_users": 300}, False, ContributionBound(100, 1)),
    ],
)
def test_the_units_of_the_headline(changes: dict[str, Any], clips: bool, bound: ContributionBound) -> None:
    guarantee = replace(BOUNDED, **changes)
    assert guarantee.units(clips_sentences=clips, population=100) == (entity(bound), SENTENCE)


@pytest.mark.parametrize("clips", [True, False])
def test_no_unit_without_a_bound_on_what_moves_the_sum(clips: bool) -> None:
    unbounded = replace(BOUNDED, entity_bound=None)
    assert unbounded.units(clips_sentences=clips, population=100) == ()
    # Users alone bound no sum of clipped sentences.
    of_users = replace(BOUNDED, entity_bound=None, entity_users=3)
    assert bool(of_users.units(clips_sentences=clips, population=100)) is not clips


def test_missed_mentions_come_on_top_and_their_entity_is_not_sampled() -> None:
    assert BOUNDED.units(clips_sentences=True, population=100, missed=True) == ()
    stated = replace(BOUNDED, missed_mentions=4)
    bound = ContributionBound(14, 14, 14)
    assert stated.units(clips_sentences=True, population=100, missed=True) == (entity(bound, robust=True), SENTENCE)
    assert stated.units(clips_sentences=True, population=100) == BOUNDED.units(clips_sentences=True, population=100)
    by_users = stated.units(clips_sentences=False, population=12, missed=True)
    assert by_users == (entity(ContributionBound(12, 1), robust=True), SENTENCE)
    none_missed = replace(BOUNDED, missed_mentions=0).units(clips_sentences=True, population=100, missed=True)
    assert none_missed == (entity(ContributionBound(10, 10, 10), robust=True), SENTENCE)


def test_any_entity_is_covered_only_where_a_bound_is_enforced() -> None:
    assert BOUNDED.covers_any_entity
    assert replace(BOUNDED, entity_bound=None, entity_users=3).covers_any_entity
    assert not replace(BOUNDED, entity_bound=None).covers_any_entity
    assert not replace(BOUNDED, bound_by="stated").covers_any_entity


def test_with_a_private_graph_a_users_limit_lets_other_sentences_in() -> None:
    private = replace(BOUNDED, mention_graph="private", bound_by="stated")
    bound = ContributionBound(10, 10, 10)
    first, second = private.units(clips_sentences=True, population=100)
    assert first == entity(bound, displaced=True)
    assert second.adjacency.displaced
    unlimited = replace(private, user_sentences=None)
    assert unlimited.units(clips_sentences=True, population=100)[0] == entity(bound, n=math.inf)
    assert not BOUNDED.with_entity(bound).displaced
    assert BOUNDED.user == Adjacency(32)
    assert unlimited.user == Adjacency(math.inf)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"entity_bound": 0}, "entity_bound is 0; allowed: an integer of at least 1, or nothing"),
        ({"entity_users": 0}, "entity_users is 0; allowed: an integer of at least 1, or nothing"),
        ({"user_sentences": -1}, "user_sentences is -1; allowed: an integer of at least 1, or nothing"),
        ({"missed_mentions": -1}, "missed_mentions is -1; allowed: an integer of at least 0, or nothing"),
        ({"mention_graph": "secret"}, "mention_graph is secret; allowed: public, private"),
        ({"bound_by": "luck"}, "bound_by is luck; allowed: greedy, weights, stated"),
    ],
)
def test_impossible_bounds_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PrivacyError, match=f"^{message}$"):
        replace(BOUNDED, **changes)


def test_a_record_gives_the_same_guarantee() -> None:
    for guarantee in (BOUNDED, Guarantee(), replace(BOUNDED, weighted=True, bound_by="weights", missed_mentions=0)):
        assert Guarantee.from_record(guarantee.record()) == guarantee
    assert Guarantee.from_record({}) == Guarantee(mention_graph="private")  # what ledgers without bounds guarantee
    with pytest.raises(TypeError):
        Guarantee.from_record({"entity_limit": 3})
