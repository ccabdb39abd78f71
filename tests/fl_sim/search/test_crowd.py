"""What is expected of a corpus's users: against simulated rounds, and by counts alone against simulated graphs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from fl_sim.config import RunConfig
from fl_sim.data_prep.store.contribution_limits import ContributionLimits, DeclaredCounts, count_weights
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.search.bounds import Users
from fl_sim.search.crowd import CountedCrowd, Crowd, KnownCrowd
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.accounting.guarantee import Guarantee

SIZES = np.tile([1, 2, 5, 12, 40, 40], 5)
MENTIONS = np.tile([30, 9, 9, 4, 1, 1], 6)


def people(users: int = 60, entities: int = 30, seed: int = 0) -> Ownership:
    """Users with 1 to 40 sentences, each with one entity of 30 or with none."""
    draw = np.random.default_rng(seed)
    sizes = draw.geometric(0.1, users).clip(max=40)
    mentioned = draw.random(sizes.sum()) < 0.6
    return Ownership(
        user_offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        entity_offsets=np.concatenate([[0], np.cumsum(mentioned)]).astype(np.int64),
        entity_ids=draw.integers(0, entities, mentioned.sum()).astype(np.int32),
        num_entities=entities,
    )


def crowd_of(ownership: Ownership, by_counts: bool = False, **privacy: object) -> Crowd:
    config = RunConfig.from_mapping({"privacy": {"entity_bound": 7, "user_sentences": 20} | privacy})
    return Users(ownership, ownership.num_users, by_counts).candidate(config.privacy).crowd


def weights_of(ownership: Ownership, k: int, m: int) -> np.ndarray:
    return count_weights(ownership, ContributionLimits(k, None, m), DeclaredCounts.of(ownership))


@pytest.mark.system
@pytest.mark.parametrize("bound", ["unbounded", 7])
def test_signal_and_budget_are_what_rounds_draw(bound: int | str) -> None:
    ownership, draw = people(), np.random.default_rng(1)
    weights = weights_of(ownership, 7 if bound == 7 else 1000, 20)
    crowd = crowd_of(ownership, entity_bound=bound)
    event = RoundEvent("uedp", 1.0, q_u=0.5, q_e=0.7, q_s=0.4, user_cap=2)
    counted, computed, rounds = 0.0, 0, 3000
    owners = ownership.user_of_sentence
    entity = np.full(ownership.num_sentences, ownership.num_entities)
    entity[ownership.entities_per_sentence == 1] = ownership.entity_ids
    for _ in range(rounds):
        active = np.append(draw.random(ownership.num_entities) < event.q_e, True)[entity]
        users = draw.random(ownership.num_users) < event.q_u
        taken = active & (draw.random(len(owners)) < event.q_s * weights) & users[owners]
        counted += np.minimum(np.bincount(owners[taken], minlength=ownership.num_users), event.user_cap).sum()
        computed += int(taken.sum())
    assert crowd.signal(event) == pytest.approx(counted / rounds, rel=0.03)
    assert crowd.sentences(event) == pytest.approx(computed / rounds, rel=0.03)


def test_a_sentence_is_different_once() -> None:
    """Without a cap, 3 users of 2, 4 and 6 sentences with weight 1 draw each sentence with probability q_u·q_s."""
    ownership = Ownership(np.array([0, 2, 6, 12]), np.zeros(13, np.int64), np.empty(0, np.int32), num_entities=0)
    crowd = KnownCrowd(ownership, np.ones(12))
    event = RoundEvent("uedp", 1.0, q_u=0.5, q_s=0.4, user_cap=6)
    assert crowd.different(event, 1) == pytest.approx(crowd.signal(event)) == pytest.approx(12 * 0.2)
    assert crowd.different(event, 7) == pytest.approx(12 * (1 - 0.8**7))


def test_kept_shares_are_mean_weights() -> None:
    ownership = people()
    crowd, weights = crowd_of(ownership), weights_of(ownership, 7, 20)
    assert crowd.kept_sentences == pytest.approx(weights.mean())
    assert crowd.kept_mentions == pytest.approx(weights[ownership.entities_per_sentence == 1].mean())


# By counts


def random_graph(draw: np.random.Generator) -> Ownership:
    """Let every mention fall on a sentence at random, an entity on a sentence once at most."""
    total = int(SIZES.sum())
    pairs = [
        (int(one), entity) for entity, count in enumerate(MENTIONS) for one in draw.choice(total, count, replace=False)
    ]
    pairs.sort()
    per_sentence = np.bincount([one for one, _ in pairs], minlength=total)
    return Ownership(
        user_offsets=np.append(0, np.cumsum(SIZES)),
        entity_offsets=np.append(0, np.cumsum(per_sentence)),
        entity_ids=np.array([entity for _, entity in pairs], dtype=np.int32),
        num_entities=len(MENTIONS),
    )


def figures(crowd: Crowd) -> Mapping[str, float]:
    event = RoundEvent("uedp", 1.0, q_e=0.5, q_s=0.3, user_cap=2)
    return {
        "sentences": crowd.kept_sentences,
        "mentions": crowd.kept_mentions,
        "active": crowd.sampled_sentences(0.5),
        "signal": crowd.signal(event),
        "different": crowd.different(event, 5),
    }


def test_by_counts_figures_are_those_of_random_graphs() -> None:
    draw = np.random.default_rng(2)
    graphs = [figures(crowd_of(random_graph(draw), entity_bound=3, user_sentences=10)) for _ in range(100)]
    expected = figures(crowd_of(random_graph(draw), by_counts=True, entity_bound=3, user_sentences=10))
    for name, value in expected.items():
        assert value == pytest.approx(np.mean([graph[name] for graph in graphs]), rel=0.03), name


def test_by_counts_figures_are_the_same_on_all_graphs() -> None:
    draw = np.random.default_rng(3)
    first, second = random_graph(draw), random_graph(draw)
    assert not np.array_equal(first.entity_offsets, second.entity_offsets)
    assert figures(crowd_of(first)) != figures(crowd_of(second))
    assert figures(crowd_of(first, by_counts=True)) == figures(crowd_of(second, by_counts=True))


@pytest.mark.parametrize(("k", "m"), [(None, None), (3, None), (None, 10)])
def test_by_counts_no_bound_is_weight_one(k: int | None, m: int | None) -> None:
    counts = DeclaredCounts.exactly(SIZES, MENTIONS)
    crowd = CountedCrowd(counts, Guarantee(known="counts", entity_bound=k, user_sentences=m))
    if k is None:
        assert crowd.kept_sentences == pytest.approx(np.minimum(SIZES, m or 1000).sum() / SIZES.sum())
        assert crowd.kept_mentions == pytest.approx(crowd.kept_sentences)
    else:
        assert crowd.most_mentions == pytest.approx(np.minimum(MENTIONS, k).sum() / MENTIONS.sum())
        assert crowd.kept_mentions < crowd.most_mentions < 1
    unnamed = DeclaredCounts.exactly(SIZES, np.zeros(2, np.int64))
    nobody = CountedCrowd(unnamed, Guarantee(known="counts", entity_bound=1))
    assert (nobody.kept_mentions, nobody.kept_sentences) == (1.0, 1.0)
