"""Bounds from the configuration: what is enforced on a split, what is only stated, and what was kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fl_sim.config import ConfigError, RunConfig
from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.contribution_limits import DeclaredCounts
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.experiments.plan.guarantees import Declared, EnforcedBounds
from tests.fl_sim.ownerships import ownership, village

NOTHING = {"known": "nothing", "population": 20}
GRAPH = {"known": "graph"}


def bounds_of(incidence: Ownership, declared: Declared | None = None, **privacy: Any) -> EnforcedBounds:
    config = RunConfig.from_mapping({"privacy": privacy})
    return EnforcedBounds.of(config.privacy, incidence, declared or Declared())


def sentences_with(incidence: Ownership, weights: np.ndarray, entity: int) -> float:
    """Return the sum of the weights of the sentences that mention an entity."""
    owners = np.repeat(np.arange(incidence.num_sentences), incidence.entities_per_sentence)
    return float(weights[owners[incidence.entity_ids == entity]].sum())


def of_users(incidence: Ownership, weights: np.ndarray) -> np.ndarray:
    """Return the number of kept sentences of each user."""
    return np.bincount(incidence.user_of_sentence[weights > 0], minlength=incidence.num_users)


# Counts


def test_the_default_bounds_are_sums_of_weights_of_every_entity_and_every_user() -> None:
    """Entity 0 is in 70 sentences, entity 1 in 30; the first user has 40 sentences and the others two."""
    incidence = ownership([[0]] * 40, *([[0], [1]] for _ in range(30)))
    bounds = bounds_of(incidence)
    assert (bounds.guarantee.known, bounds.guarantee.entity_bound, bounds.guarantee.user_sentences) == (
        "counts",
        10,
        32,
    )
    assert sentences_with(incidence, bounds.weights, 0) == pytest.approx(10)
    assert sentences_with(incidence, bounds.weights, 1) == pytest.approx(10)
    assert sorted(set(bounds.weights.round(6).tolist())) == [round(10 / 70, 6), round(10 / 30, 6)]
    assert bounds.contributions().sentences.tolist() == [10, 10]
    of_user = bounds_of(incidence, entity_bound="unbounded").weights
    assert of_user[:40].sum() == pytest.approx(32)
    assert (of_user[40:] == 1).all()


def test_weights_are_of_declared_counts_and_the_record_has_their_digest() -> None:
    incidence = village()
    counts = DeclaredCounts.of(incidence)
    twice = DeclaredCounts.exactly(2 * counts.users, 2 * counts.entities)
    bounds = bounds_of(incidence, Declared(counts=twice), entity_bound=11, user_sentences="unbounded")
    assert sorted(set(bounds.weights.round(6).tolist())) == [0.25, 1.0]
    assert bounds.guarantee.record()["counts"] == twice.digest != counts.digest
    assert bounds_of(incidence).guarantee.counts == counts.digest
    assert bounds_of(incidence, **GRAPH).guarantee.counts == ""


def test_counts_may_be_rounded_up() -> None:
    """22 sentences with entity 0 count as 32."""
    bounds = bounds_of(village(), entity_bound=8, user_sentences="unbounded", round_counts=True)
    assert sorted(set(bounds.weights.round(6).tolist())) == [0.25, 1.0]
    assert bounds.guarantee.counts not in ("", bounds_of(village()).guarantee.counts)


def test_a_corpus_beyond_its_declared_counts_is_refused() -> None:
    counts = DeclaredCounts.of(village())
    fewer = replace(counts, entities=np.minimum(counts.entities, 21))
    with pytest.raises(CorpusError, match=r"^entity 0 has declared count 21; allowed: at least 22, its"):
        bounds_of(village(), Declared(counts=fewer))


@pytest.mark.parametrize("bound", [1, 8, "unbounded"])
@pytest.mark.parametrize("incidence", [village(), ownership([[0], [0, 1]] * 5, [[1]], [[0], [], [2]])])
def test_counts_alone_give_the_same_guarantee_and_the_most_that_entities_contribute(
    bound: int | str, incidence: Ownership
) -> None:
    privacy = {"entity_bound": bound, "user_sentences": 3}
    whole, counts = bounds_of(incidence, **privacy), DeclaredCounts.of(incidence)
    unnamed = replace(incidence.without_entities(range(incidence.num_entities)), num_entities=0)
    alone = bounds_of(unnamed, Declared(counts=counts, counts_alone=True), **privacy)
    assert alone.guarantee == whole.guarantee
    exact, most = whole.contributions(), alone.contributions()
    for name in ("users", "max_per_user", "sentences"):
        assert (getattr(exact, name) <= getattr(most, name)).all()
    assert most.users.max() <= incidence.num_users
    limit = np.inf if bound == "unbounded" else bound
    assert most.sentences.tolist() == np.minimum(counts.entities, limit).tolist()
    assert (whole.weights <= alone.weights).all()
    record = alone.record()
    assert (record["kept"], record["most_mentions"]) == (None, whole.record()["most_mentions"])


# A mention graph


def test_by_the_graph_the_default_bounds_are_numbers_of_sentences() -> None:
    incidence = ownership([[0]] * 40, *([[0], [1]] for _ in range(30)))
    bounds = bounds_of(incidence, **GRAPH)
    assert sentences_with(incidence, bounds.weights, 0) == 10
    assert sentences_with(incidence, bounds.weights, 1) == 10
    assert of_users(incidence, bounds.weights).max() <= 32
    assert bounds.contributions().sentences.tolist() == [10, 10]
    assert bounds.kept.entity_contributions().sentences.tolist() == [10, 10]


@pytest.mark.parametrize("strategy", ["uedp", "user_level"])
@pytest.mark.parametrize(
    ("limits", "most"),
    [
        ({"entity_bound": 3, "user_sentences": "unbounded"}, (3, 99, 99)),
        ({"entity_bound": 7, "entity_users": 4, "user_sentences": 11}, (7, 4, 11)),
        ({"entity_bound": 22, "user_sentences": 2}, (22, 99, 2)),
    ],
)
def test_set_bounds_hold(strategy: str, limits: dict[str, Any], most: tuple[int, int, int]) -> None:
    bounds = bounds_of(village(), strategy=strategy, **GRAPH, **limits)
    contributions = bounds.contributions()
    assert contributions.sentences.max() <= most[0]
    assert contributions.users.max() <= most[1]
    assert of_users(village(), bounds.weights).max() <= most[2]
    assert bounds.enforces


def test_weights_sample_every_sentence_at_a_lower_rate() -> None:
    bounds = bounds_of(village(), entity_bound=11)
    assert bounds.guarantee.weighted
    assert (bounds.weights > 0).all()
    assert sorted(set(bounds.weights.round(6).tolist())) == [0.5, 1.0]
    contributions = bounds.contributions()
    assert (contributions.users[0], contributions.sentences[0]) == (20, 11)
    assert contributions.sentences[1:].max() <= 3


def test_what_was_kept_by_kind() -> None:
    labels = np.array([["PER"], *([["PER", "ORG"]] * 2), *([["LOC"]] * 18)], dtype=object)
    kept = bounds_of(village(), **GRAPH, entity_bound=2, user_sentences="unbounded").record(labels)["kept"]
    # Of entity 0 two of 22 mentions are kept, of entity 1 two of three, of each other entity its only one.
    assert kept["mentions_by_kind"] == pytest.approx({"LOC": 1.0, "ORG": 3 / 4, "PER": 5 / 26})
    assert kept["sentences"] == (88 - 20 - 1) / 88
    assert kept["mentions"] == 23 / 44
    unbounded = bounds_of(village(), entity_bound="unbounded", user_sentences="unbounded").record(labels)
    assert unbounded["kept"]["mentions_by_kind"] == {"LOC": 1.0, "ORG": 1.0, "PER": 1.0}
    assert unbounded["most_mentions"] == 22


# Nothing known


def test_where_nothing_is_known_a_bound_is_stated_and_everything_is_kept() -> None:
    bounds = bounds_of(village(), **NOTHING, entity_bound=3)
    assert (bounds.guarantee.entity_bound, bounds.guarantee.covers_any_entity, bounds.enforces) == (3, False, False)
    assert bounds_of(village(), **NOTHING).guarantee.user_sentences is None


# Names that are declared


def test_public_names_are_no_entities_and_need_no_room() -> None:
    names = Declared(public=(0,))
    bounds = bounds_of(village(), names, entity_bound=1, user_sentences="unbounded")
    contributions = bounds.contributions()
    assert contributions.users[0] == contributions.sentences[0] == 0
    assert sentences_with(village(), bounds.weights, 0) == 22  # all of them are kept
    assert contributions.sentences[1:].max() == 1
    assert bounds.record()["public_entities"] == 1
    assert (bounds.ownership.entity_ids != 0).all()
    assert len(bounds.ownership.entity_ids) == len(village().entity_ids) - 22


def test_percentiles_are_of_the_entities_that_are_not_public() -> None:
    bounds = bounds_of(village(), Declared(public=tuple(range(1, 21))), known="graph", entity_bound=5)
    assert bounds.entity_bounds["median"].sentences == 5  # 20 of 21 names are public, of one user each
    assert set(bounds.coverage.values()) == {1.0}
    for counts in (None, DeclaredCounts.of(village())):
        everybody = bounds_of(village(), Declared(public=tuple(range(21)), counts=counts), entity_bound=5)
        assert not everybody.has_entities
        assert everybody.guarantee.entity_bound is None


def test_public_weights_lower_the_rate_of_every_sentence_with_the_name() -> None:
    weights = np.ones(21)
    weights[[0, 1]] = [0.25, 0.5]
    bounds = bounds_of(village(), Declared(weights=weights), **NOTHING)
    assert sentences_with(village(), bounds.weights, 0) == 22 / 4
    assert sentences_with(village(), bounds.weights, 1) == 3 / 2
    assert bounds.contributions().sentences[:2].tolist() == [6, 2]  # 5.5 and 1.5, rounded up
    assert bounds.guarantee.weighted
    assert bounds.weights.max() == 1


# Refusals, before a corpus is opened


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"entity_bound": 0}, r"entity_bound is 0; allowed: an integer in \[1, 1000000\] or unbounded"),
        ({"entity_bound": "corpus"}, r"entity_bound is 'corpus'; allowed: an integer"),
        (
            {"strategy": "noiseless", "entity_bound": 3},
            "entity_bound is 3 and privacy.strategy is noiseless, which cannot keep it; allowed: no bound, or",
        ),
        (
            {"strategy": "published", "user_sentences": 3},
            "user_sentences is 3 and privacy.strategy is published, which cannot keep it; allowed: no bound, or",
        ),
        (
            NOTHING | {"user_sentences": 3},
            "user_sentences is 3 and privacy.known is nothing; allowed: no bound, because one that is enforced needs",
        ),
        (GRAPH | {"round_counts": True}, "round_counts is given and privacy.known is graph; allowed: known = counts"),
        (GRAPH | {"counts": "c.json"}, "counts is given and privacy.known is graph; allowed: known = counts"),
        ({"known": "nothing"}, "population is not given and privacy.known is nothing; allowed: N, the"),
        (
            {"user_sentences": "corpus"},
            "user_sentences is corpus, the largest user's sentences, which is private; allowed: a number, unbounded",
        ),
        (
            {"entity_users": 3},
            "entity_users is 3 and privacy.known is counts; allowed: privacy.known = graph, because counts do not",
        ),
        ({"strategy": "user_level", "missed_mentions": 3}, "missed_mentions is 3; allowed: with privacy.entity_bound"),
    ],
)
def test_bounds_that_cannot_be_kept_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^privacy\.{message}") as caught:
        RunConfig.from_mapping({"privacy": settings})
    assert "\n" not in str(caught.value)
