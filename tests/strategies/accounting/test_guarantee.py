"""Whom the headline protects: the bounds, the units of which the largest ε counts, and the record in the ledger."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import asdict, replace
from typing import Any

import pytest

from fl_sim.strategies.accounting.accountant import RoundEvent, epsilon
from fl_sim.strategies.accounting.adjacency import ANY_NUMBER, NO_ENTITY, Adjacency, ContributionBound, covering
from fl_sim.strategies.accounting.guarantee import Guarantee, ProtectedUnit, most_known
from fl_sim.strategies.primitives.limits import PrivacyError
from tests.strategies.accounting.oracles import weighted_epsilon

BOUNDED = Guarantee(known="graph", entity_bound=10, user_sentences=32)
SENTENCE = ProtectedUnit(Adjacency(32, ContributionBound(1, 1)), robust=True)
"""A sentence in which the tagger finds nothing is an entity of its own, which is not sampled."""


COUNTED = replace(BOUNDED, known="counts")


def entity(bound: ContributionBound, *, robust: bool = False, n: float = 32) -> ProtectedUnit:
    return ProtectedUnit(Adjacency(n, bound), robust)


@pytest.mark.parametrize(
    ("changes", "clips", "bound"),
    [
        ({}, True, ContributionBound(10, 10, 10)),  # at most as many users as sentences
        ({"entity_users": 3}, True, ContributionBound(3, 10, 10)),
        ({"entity_bound": 500}, True, ContributionBound(100, 500, 500)),  # no more users than are enrolled
        (  # any number of a user's sentences may have weights that add up to k
            {"known": "nothing", "user_sentences": None, "public_weights": True},
            True,
            ContributionBound(100, ANY_NUMBER, 10, weighted=True),
        ),
        ({}, False, ContributionBound(10, 1)),  # a user counts once, however many sentences
        ({"entity_users": 3}, False, ContributionBound(3, 1)),
        ({"entity_bound": None, "entity_users": 3}, False, ContributionBound(3, 1)),
        ({"entity_bound": None, "entity_users": 300}, False, ContributionBound(100, 1)),
    ],
)
def test_the_units_of_the_headline(changes: dict[str, Any], clips: bool, bound: ContributionBound) -> None:
    guarantee = replace(BOUNDED, **changes)
    n = guarantee.user.user_sentences
    sentence = ProtectedUnit(Adjacency(n, ContributionBound(1, 1)), robust=True)
    assert guarantee.units(clips_sentences=clips, population=100) == (entity(bound, n=n), sentence)


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
    assert COUNTED.covers_any_entity
    stated = replace(BOUNDED, known="nothing", user_sentences=None)
    assert not stated.covers_any_entity
    assert stated.units(clips_sentences=True, population=100)[0] == entity(ContributionBound(10, 10, 10), n=math.inf)
    assert stated.user == Adjacency(math.inf)


def test_by_counts_both_bounds_are_sums_of_weights() -> None:
    """Of an entity any number of users may have any number of sentences, and so may a user."""
    bound = ContributionBound(100, ANY_NUMBER, 10, weighted=True)
    of_entity, of_sentence = COUNTED.units(clips_sentences=True, population=100)
    assert of_entity == ProtectedUnit(Adjacency(32, bound, weighted=True), robust=False)
    assert of_sentence == ProtectedUnit(Adjacency(32, ContributionBound(1, 1), weighted=True), robust=True)
    (missed, _) = replace(COUNTED, missed_mentions=4).units(clips_sentences=True, population=100, missed=True)
    assert missed.adjacency.entity_bound == replace(bound, sentences=14)
    assert COUNTED.user == Adjacency(32, weighted=True)
    no_user_bound = replace(COUNTED, user_sentences=None)
    assert (no_user_bound.user, no_user_bound.weighted) == (Adjacency(), True)
    no_bound = replace(no_user_bound, entity_bound=None)
    assert (no_bound.weighted, no_bound.covers_any_entity) == (False, False)


@pytest.mark.parametrize(("population", "z"), [(1, 1.0), (2, 0.5), (2, 1.0)])
def test_a_sum_of_weights_bounds_no_users_number_of_sentences(population: int, z: float) -> None:
    """One sampled user may own all sentences of the entity: 400 of weight 1/400 are no single sentence."""
    stated = Guarantee(entity_bound=1, public_weights=True)
    event = RoundEvent("uedp", z, q_u=0.9, user_cap=4)
    unit, _ = stated.units(clips_sentences=True, population=population)
    attained = weighted_epsilon(400, 1, 4, z, q_u=0.9, user_sentences=math.inf)
    assert attained <= epsilon(event, unit.adjacency, 1, 1e-5) <= 1.13 * attained


def test_what_a_release_shows_is_for_its_own_bounds_to_say() -> None:
    bound, weights = ContributionBound(3, 4, 6), ContributionBound(3, 4, 1.5, weighted=True)
    for claimed in (False, True):
        assert COUNTED.seen(Adjacency(5, bound, claimed)) == Adjacency(5, bound, weighted=True)
        assert BOUNDED.seen(Adjacency(0, bound, claimed)) == Adjacency(0, bound)
    assert BOUNDED.seen(Adjacency(5, bound)) == Adjacency(5, bound)
    assert BOUNDED.seen(Adjacency(5, weights)) == Adjacency(5, ContributionBound(3, 4))
    assert BOUNDED.seen(Adjacency(5, weighted=True)) == Adjacency(math.inf)  # five of weight are any number
    assert COUNTED.seen(Adjacency(5, weights)) == Adjacency(5, weights, weighted=True)


def test_a_sum_of_weights_is_bounded_by_what_is_stated_and_by_the_number_of_sentences() -> None:
    assert ContributionBound(3, 4, 1.5, weighted=True).total_weight == 1.5
    assert ContributionBound(3, 4, 100, weighted=True).total_weight == 12
    assert ContributionBound(3, 4).total_weight == 12


@pytest.mark.parametrize("robust", [False, True])
def test_a_unit_survives_its_record(robust: bool) -> None:
    bounds = (NO_ENTITY, ContributionBound(3, 4, 6), ContributionBound(3, 4, 1.5, weighted=True))
    for bound, weighted in itertools.product(bounds, (False, True)):
        unit = ProtectedUnit(Adjacency(5, bound, weighted), robust)
        assert ProtectedUnit.from_record(json.loads(json.dumps(asdict(unit)))) == unit


def test_a_covering_bound_holds_for_every_entity_within_one_of_them() -> None:
    plain, weights = ContributionBound(3, 4, 6), ContributionBound(5, 2, 1.5, weighted=True)
    assert covering([plain, weights]) == covering([weights, plain]) == ContributionBound(5, 4, 6, weighted=True)
    assert covering([plain, ContributionBound(1, 9)]) == ContributionBound(3, 9, 9)
    assert covering([weights]) == weights


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"entity_bound": 0}, "entity_bound is 0; allowed: an integer from 1 to 1,000,000, or nothing"),
        ({"entity_users": 0}, "entity_users is 0; allowed: an integer from 1 to 1,000,000,000,000, or nothing"),
        ({"user_sentences": -1}, "user_sentences is -1; allowed: an integer from 1 to 1,000,000, or nothing"),
        ({"missed_mentions": -1}, "missed_mentions is -1; allowed: an integer from 0 to 1,000,000, or nothing"),
        ({"known": "secret"}, "known is secret; allowed: nothing, counts, graph"),
        ({"known": "nothing"}, "user_sentences is 32; allowed: nothing, where nothing is known"),
    ],
)
def test_impossible_bounds_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PrivacyError, match=f"^{message}$"):
        replace(BOUNDED, **changes)


def test_a_record_gives_the_same_guarantee() -> None:
    for guarantee in (BOUNDED, Guarantee(), replace(COUNTED, counts="ab", missed_mentions=0)):
        assert Guarantee.from_record(guarantee.record()) == guarantee
    assert Guarantee.from_record({}) == Guarantee(known="nothing")  # what ledgers without bounds guarantee
    with pytest.raises(TypeError):
        Guarantee.from_record({"entity_limit": 3})


def test_together_releases_hold_for_whoever_knows_the_most() -> None:
    nothing = Guarantee()
    assert most_known([]) == most_known([nothing, nothing]) == "nothing"
    assert most_known([COUNTED, nothing]) == "counts"
    assert most_known([COUNTED, BOUNDED, nothing]) == "graph"
