"""The bounds that a search tries, and the share of mentions that it is to keep."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fl_sim.config import ConfigError, RunConfig
from fl_sim.data_prep.store.contribution_limits import DeclaredCounts
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.experiments.plan.guarantees import Declared
from fl_sim.search.bounds import Candidate, Users, bounds_to_try, keeping

ONE_NAME = Ownership(np.array([0, 6, 8]), np.arange(9), np.zeros(8, np.int32), num_entities=1)
"""Two users with six and two sentences, which all mention the same entity."""


def pairs(**privacy: object) -> list[tuple[object, object]]:
    config = RunConfig.from_mapping({"privacy": privacy})
    return [(one.entity_bound, one.user_sentences) for one in bounds_to_try(config.privacy, ONE_NAME)]


@pytest.mark.parametrize(
    ("privacy", "expected"),
    [
        ({}, [(1, 2), (1, 3), (1, 4), (2, 4), (2, 6), (3, 6), (5, 10), (8, 16)]),
        ({"known": "graph", "entity_bound": 3}, [(3, 6)]),
        ({"user_sentences": 5}, [(1, 5), (2, 5), (3, 5), (5, 5), (8, 5)]),
        ({"entity_bound": 2, "user_sentences": "unbounded"}, [(2, "unbounded")]),
        ({"entity_bound": "unbounded"}, [("unbounded", None)]),
        ({"known": "nothing", "population": 9, "entity_bound": 4}, [(4, None)]),
        ({"strategy": "user_level"}, [(None, None)]),
    ],
)
def test_bounds_are_searched_unless_they_are_given(
    privacy: dict[str, object], expected: list[tuple[object, object]]
) -> None:
    assert pairs(**privacy) == expected


def candidates(*bounds: int) -> list[Candidate]:
    privacy = (RunConfig.from_mapping({"privacy": {"entity_bound": k, "user_sentences": 100}}).privacy for k in bounds)
    return [Users(ONE_NAME, 2).candidate(one) for one in privacy]


def test_bounds_that_keep_too_few_mentions_are_left_out() -> None:
    kept = [one.guarantee.entity_bound for one in keeping(candidates(1, 2, 4, 8), 0.25)]
    assert kept == [4, 8]  # k/8 of eight mentions, rounded down in the last bit, so that 2 keeps just below a quarter
    assert len(list(keeping(candidates(1, 2), None))) == 2


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.6, "keep_mentions is 0.6; allowed: at most 0.499, the share of mentions that entity_bound 4 and "
         "user_sentences 100 keep"),
        (0.0, "keep_mentions is 0; allowed: above 0, at most 1"),
        (1.5, "keep_mentions is 1.5; allowed: above 0, at most 1"),
    ],
)  # fmt: skip
def test_a_share_that_no_bounds_keep_is_refused(share: float, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        list(keeping(candidates(2, 4, 1), share))
    assert str(refused.value) == words


SLIGHTLY_MORE = Ownership(np.array([0, 7, 9]), np.append(np.arange(8), [8, 8]), np.zeros(8, np.int32), num_entities=1)
"""One sentence more, without a name: other exact counts that are rounded up to the same."""


@pytest.mark.parametrize("by_file", [False, True])
def test_a_search_reads_the_counts_that_a_run_declares(by_file: bool) -> None:
    """Rounded counts, or a file's: what is tried and what is expected of it tell nothing of the exact ones."""
    privacy = RunConfig.from_mapping({"privacy.round_counts": not by_file}).privacy
    larger = DeclaredCounts.exactly(np.array([8, 8, 40]), np.array([3, 30]))  # a user and a name are absent
    found = []
    for ownership in (ONE_NAME, SLIGHTLY_MORE):
        own = DeclaredCounts.of(ownership)
        file = replace(larger, users=np.array([8, 8]), entities=np.array([30]))
        assert (own.users <= file.users).all()
        declared = Declared(counts=file) if by_file else Declared()
        choices = bounds_to_try(privacy, ownership, declared)
        users = Users(ownership, 3, by_counts=True, declared=declared)
        crowds = [users.candidate(one).crowd for one in choices]
        pairs = [(one.entity_bound, one.user_sentences) for one in choices]
        found.append([pairs, [(crowd.kept_mentions, crowd.sampled_sentences(0.5)) for crowd in crowds]])
    assert found[0] == found[1]
    assert found[0][0][-1] == ((32, 64) if by_file else (8, 16))
