"""Bounds from the configuration: what is enforced on a split, what is only stated, and what was kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fl_sim.config import ConfigError, RunConfig
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.experiments.plan.guarantees import DeclaredNames, EnforcedBounds
from tests.fl_sim.ownerships import ownership, village

PRIVATE = {"known": "nothing", "population": 20}


def bounds_of(
    incidence: Ownership, *, seed: int = 0, names: DeclaredNames | None = None, **privacy: Any
) -> EnforcedBounds:
    config = RunConfig.from_mapping({"privacy": privacy})
    return EnforcedBounds.of(config.privacy, incidence, seed, names or DeclaredNames())


def sentences_with(incidence: Ownership, weights: np.ndarray, entity: int) -> float:
    """Return the sum of the weights of the sentences that mention an entity."""
    owners = np.repeat(np.arange(incidence.num_sentences), incidence.entities_per_sentence)
    return float(weights[owners[incidence.entity_ids == entity]].sum())


def of_users(incidence: Ownership, weights: np.ndarray) -> np.ndarray:
    """Return the number of kept sentences of each user."""
    return np.bincount(incidence.user_of_sentence[weights > 0], minlength=incidence.num_users)


# A public mention graph


def test_the_default_bounds_are_enforced_on_every_entity_and_every_user() -> None:
    incidence = ownership([[0]] * 40, *([[0], [1]] for _ in range(30)))
    bounds = bounds_of(incidence)
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
    bounds = bounds_of(village(), strategy=strategy, **limits)
    contributions = bounds.contributions()
    assert contributions.sentences.max() <= most[0]
    assert contributions.users.max() <= most[1]
    assert of_users(village(), bounds.weights).max() <= most[2]
    assert bounds.enforces


def test_weights_sample_every_sentence_at_a_lower_rate() -> None:
    bounds = bounds_of(village(), entity_bound=11, entity_bound_by="weights")
    assert bounds.guarantee.weighted
    assert (bounds.weights > 0).all()
    assert sorted(set(bounds.weights.round(6).tolist())) == [0.5, 1.0]
    contributions = bounds.contributions()
    assert (contributions.users[0], contributions.sentences[0]) == (20, 11)
    assert contributions.sentences[1:].max() <= 3


def test_the_order_under_a_public_graph_does_not_depend_on_the_seed_of_the_run() -> None:
    """Else two runs of different seeds would each release another selection, and the seed would not stay secret."""
    limits = {"entity_bound": 5, "user_sentences": 3}
    weights = [bounds_of(village(), seed=seed, **limits).weights for seed in range(4)]
    assert all((one == weights[0]).all() for one in weights)
    secure = bounds_of(village(), secure_noise=True, **limits).weights
    assert (secure == weights[0]).all()


def test_what_was_kept_by_kind() -> None:
    labels = np.array([["PER"], *([["PER", "ORG"]] * 2), *([["LOC"]] * 18)], dtype=object)
    kept = bounds_of(village(), entity_bound=2, user_sentences="unbounded").record(labels)["kept"]
    # Of entity 0 two of 22 mentions are kept, of entity 1 two of three, of each other entity its only one.
    assert kept["mentions_by_kind"] == pytest.approx({"LOC": 1.0, "ORG": 3 / 4, "PER": 5 / 26})
    assert kept["sentences"] == kept["weight"] == (88 - 20 - 1) / 88
    assert kept["mentions"] == 23 / 44
    unbounded = bounds_of(village(), entity_bound="unbounded", user_sentences="unbounded").record(labels)
    assert unbounded["kept"]["mentions_by_kind"] == {"LOC": 1.0, "ORG": 1.0, "PER": 1.0}
    assert unbounded["most_mentions"] == 22


# A private mention graph


def test_with_a_private_graph_only_the_users_limit_acts_and_the_entity_bound_is_stated() -> None:
    bounds = bounds_of(village(), **PRIVATE, entity_bound=3, user_sentences=5)
    assert (bounds.guarantee.bound_by, bounds.guarantee.covers_any_entity) == ("stated", False)
    assert bounds.guarantee.entity_bound == 3
    assert (bounds.weights == 0).sum() == 12 - 5
    assert of_users(village(), bounds.weights).tolist() == [5] + [4] * 19
    assert (bounds_of(village(), **PRIVATE, entity_bound=3).weights == 1).all()


def test_a_stated_bound_under_a_public_graph_keeps_everything() -> None:
    bounds = bounds_of(village(), entity_bound=1, entity_bound_by="stated", user_sentences="unbounded")
    assert not bounds.enforces
    assert not bounds.guarantee.covers_any_entity


def test_with_a_private_graph_the_order_is_secret() -> None:
    limits = PRIVATE | {"user_sentences": 5}
    first = bounds_of(village(), seed=0, **limits).weights
    assert (first == bounds_of(village(), seed=0, **limits).weights).all()
    assert any((first != bounds_of(village(), seed=seed, **limits).weights).any() for seed in range(1, 5))
    secure = [bounds_of(village(), secure_noise=True, **limits).weights for _ in range(8)]
    assert any((one != secure[0]).any() for one in secure)


# Names that are declared


def test_public_names_are_no_entities_and_need_no_room() -> None:
    names = DeclaredNames(public=(0,))
    bounds = bounds_of(village(), names=names, entity_bound=1, user_sentences="unbounded")
    contributions = bounds.contributions()
    assert contributions.users[0] == contributions.sentences[0] == 0
    assert sentences_with(village(), bounds.weights, 0) == 22  # all of them are kept
    assert contributions.sentences[1:].max() == 1
    assert bounds.record()["public_entities"] == 1
    assert (bounds.ownership.entity_ids != 0).all()
    assert len(bounds.ownership.entity_ids) == len(village().entity_ids) - 22


def test_public_weights_lower_the_rate_of_every_sentence_with_the_name() -> None:
    weights = np.ones(21)
    weights[[0, 1]] = [0.25, 0.5]
    bounds = bounds_of(village(), names=DeclaredNames(weights=weights), **PRIVATE, user_sentences="unbounded")
    assert sentences_with(village(), bounds.weights, 0) == 22 / 4
    assert sentences_with(village(), bounds.weights, 1) == 3 / 2
    assert bounds.contributions().sentences[:2].tolist() == [6, 2]  # 5.5 and 1.5, rounded up
    assert bounds.guarantee.weighted
    assert bounds.weights.max() == 1


# Refusals, before a corpus is opened


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"entity_bound": 0}, r"entity_bound is 0; allowed: an integer in \[1, 1000000000\] or unbounded"),
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
            PRIVATE | {"entity_bound": 3, "entity_bound_by": "greedy"},
            "entity_bound_by is greedy and privacy.mention_graph is private; allowed: stated, because a rule that",
        ),
        (
            PRIVATE | {"entity_bound": 3, "entity_bound_by": "weights"},
            "entity_bound_by is weights and privacy.mention_graph is private; allowed: stated",
        ),
        ({"known": "nothing"}, "population is not given and privacy.mention_graph is private; allowed: N, the"),
        (
            {"user_sentences": "corpus"},
            "user_sentences is corpus, the largest user's sentences, which is private; allowed: a number, unbounded",
        ),
        (
            {"entity_users": 3, "entity_bound_by": "weights"},
            "entity_users is 3 and privacy.entity_bound_by is weights; allowed: no entity_users, because every",
        ),
        ({"strategy": "user_level", "missed_mentions": 3}, "missed_mentions is 3; allowed: with privacy.entity_bound"),
    ],
)
def test_bounds_that_cannot_be_kept_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^privacy\.{message}") as caught:
        RunConfig.from_mapping({"privacy": settings})
    assert "\n" not in str(caught.value)
