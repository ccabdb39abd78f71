"""Client rules: the same after a message, and refused where they bound nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from fl_sim.clients.training import check_client_rule
from fl_sim.strategies.accounting.adjacency import PrivacyError
from fl_sim.strategies.client_rules import ClientRule, ClippedGradients, LocalSteps, WeightedGradients
from fl_sim.strategies.messages import rule_from_json, rule_to_json
from fl_sim.strategies.primitives.adaptive_clip import AdaptiveClip

VOTE = AdaptiveClip(quantile=0.3, learning_rate=0.2, count_noise=1.5).vote
RULES = [
    ClippedGradients(q_e=0.1, q_s=1 / 3, sentence_clip=0.1, user_clip=0.3, vote=VOTE),
    ClippedGradients(q_e=1.0, q_s=1.0, user_clip=4.0, sentence_clip=2.0, stability=0.01),
    LocalSteps(
        q_e=1.0, q_s=1.0, user_clip=1e-7, optimizer="adam", epochs=3, batch_size=2, learning_rate=0.3, vote=VOTE
    ),
    WeightedGradients(q_e=0.5, q_s=0.7, user_clip=0.1, extended=False, user_weight_cap=3.0, batch_size=4),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_a_rule_is_the_same_after_a_message(rule: ClientRule) -> None:
    received = rule_from_json(rule_to_json(rule))
    assert received == rule
    assert type(received) is type(rule)
    check_client_rule(rule)


@pytest.mark.parametrize(
    ("rule", "changes", "message"),
    [
        (RULES[0], {"q_e": 0.0}, r"q_e is 0\.0; allowed: in \[1e-15, 1\]"),
        (RULES[0], {"q_s": 1.01}, r"q_s is 1\.01; allowed: in \[1e-15, 1\]"),
        (RULES[0], {"q_s": math.nan}, r"q_s is nan; allowed: in \[1e-15, 1\]"),
        (RULES[0], {"user_clip": 0.0}, r"user_clip is 0\.0; allowed: above 0"),
        (RULES[0], {"sentence_clip": math.nan}, "sentence_clip is nan; allowed: above 0"),
        (RULES[1], {"stability": 0.0}, "stability is 0.0; allowed: at least 1e-06"),
        (RULES[1], {"stability": -0.01}, "stability is -0.01; allowed: at least 1e-06"),
        (RULES[1], {"stability": math.nan}, "stability is nan; allowed: at least 1e-06"),
        (RULES[1], {"stability": 0.1, "sentence_clip": math.inf}, "sentence_clip is inf; allowed: finite"),
        (RULES[0], {"stability": 0.1}, "vote is .*; allowed: nothing with a stability"),
        (RULES[2], {"optimizer": "lion"}, "optimizer is lion; allowed: sgd, adam"),
        (RULES[2], {"epochs": 0}, "epochs is 0"),
        (RULES[2], {"batch_size": 0}, "batch_size is 0"),
        (RULES[3], {"batch_size": 0}, "batch_size is 0; allowed: an integer of at least 1, or nothing"),
    ],
)
def test_a_rule_that_bounds_nothing_is_refused(rule: ClientRule, changes: dict, message: str) -> None:
    with pytest.raises(PrivacyError, match=message):
        replace(rule, **changes)


def test_votes_are_a_coordinate_of_the_vector_where_the_clip_adapts() -> None:
    adapts, fixed = RULES[0], replace(RULES[0], vote=None)
    votes = VOTE.vote_weight * 0.1 * 2.0
    assert adapts.joint_norm(3.0, 2.0) == pytest.approx(math.hypot(3.0 * VOTE.update_weight, votes))
    assert fixed.joint_norm(3.0, 2.0) == 3.0
