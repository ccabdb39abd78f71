"""Votes on a clip that adapts: counted right, and bounded together with the vector whatever one party does."""

from __future__ import annotations

import numpy as np
import pytest

from fl_sim.clients.gradients.clipped_sums import Tally
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.selection import Selection
from fl_sim.clients.training import _sentence_votes, bounded_sum
from fl_sim.strategies.client_rules import ClientRule, ClippedGradients, LocalSteps
from fl_sim.strategies.messages import TrainReply
from fl_sim.strategies.primitives.adaptive_clip import AdaptiveClip
from tests.clients.models.models_to_try import descent
from tests.clients.paths_on_a_device import COUNTS, split

ADAPTIVE = AdaptiveClip(quantile=0.3, learning_rate=0.2, count_noise=1.5)
EXAMPLES = split()
EVERYTHING = list(range(sum(COUNTS)))


def by_sentence(c: float, cap: float) -> ClippedGradients:
    return ClippedGradients(q_e=1.0, q_s=1.0, sentence_clip=c, user_clip=cap * c, vote=ADAPTIVE.vote)


def by_user(beta: float, update: str = "gradients") -> ClientRule:
    if update == "gradients":
        return ClippedGradients(q_e=1.0, q_s=1.0, user_clip=beta, vote=ADAPTIVE.vote)
    return LocalSteps(q_e=1.0, q_s=1.0, user_clip=beta, epochs=1, batch_size=3, learning_rate=0.2, vote=ADAPTIVE.vote)


def sum_of(model: LanguageModel, rule: ClientRule, kept: list[int]) -> TrainReply:
    counts = np.bincount(np.repeat(np.arange(3), COUNTS)[kept], minlength=3)
    return bounded_sum(model, EXAMPLES, Selection(np.arange(3), np.array(kept, dtype=np.int64), counts), rule, 0)


def test_sentences_vote_on_their_clip(model: LanguageModel) -> None:
    lengths = np.sort([np.linalg.norm(descent(model, EXAMPLES.read([s]))) for s in EVERYTHING])
    within = 5
    c = float(lengths[within - 1 : within + 1].mean())
    reply = sum_of(model, by_sentence(c, 1000.0), EVERYTHING)
    assert reply.votes == pytest.approx(within - 0.3 * len(EVERYTHING))


@pytest.mark.parametrize("update", ["gradients", "steps"])
def test_users_vote_where_only_they_are_clipped(model: LanguageModel, update: str) -> None:
    for beta, within in ((1e-3, 0), (1e6, 3)):
        reply = sum_of(model, by_user(beta, update), EVERYTHING)
        assert reply.votes == pytest.approx(within - 0.3 * 3)
        assert reply.clipped == (len(EVERYTHING) if within == 0 else 0)


def joint(rule: ClientRule, one: TrainReply, other: TrainReply) -> float:
    """The distance of two sums, votes included, as the proof measures it: a·v and κ·c·votes side by side."""
    return rule.joint_norm(float(np.linalg.norm(one.vector - other.vector)), one.votes - other.votes)


@pytest.mark.sample(3)
@pytest.mark.parametrize("c", [0.2, 1.0, 5.0])
@pytest.mark.parametrize("cap", [1.0, 3.0, 1000.0])
def test_a_sentence_moves_vector_and_votes_by_c_together(model: LanguageModel, c: float, cap: float) -> None:
    rule = by_sentence(c, cap)
    whole = sum_of(model, rule, EVERYTHING)
    for sentence in (0, 4, 10):
        without = sum_of(model, rule, [s for s in EVERYTHING if s != sentence])
        assert joint(rule, whole, without) <= c * (1 + 1e-4)


@pytest.mark.parametrize("rule", [by_sentence(0.2, 1.0), by_sentence(5.0, 2.5), by_user(0.5), by_user(1e-3, "steps")])
def test_a_user_moves_vector_and_votes_by_beta_together(model: LanguageModel, rule: ClientRule) -> None:
    whole = sum_of(model, rule, EVERYTHING)
    for user, (first, stop) in enumerate([(0, 3), (3, 10), (10, 11)]):
        without = sum_of(model, rule, [s for s in EVERYTHING if not first <= s < stop])
        assert joint(rule, whole, without) <= rule.user_clip * (1 + 1e-4), user


def test_what_is_bounded_is_the_joint_vector(model: LanguageModel) -> None:
    """At a user cap of 1 seven unclipped votes of one user alone would be far beyond β."""
    rule = by_sentence(50.0, 1.0)
    lone = Selection(np.array([1]), np.arange(3, 10), np.array([7]))
    reply = bounded_sum(model, EXAMPLES, lone, rule, 0)
    assert rule.joint_norm(float(np.linalg.norm(reply.vector)), reply.votes) == pytest.approx(50.0, rel=1e-4)
    assert 0 < reply.votes < 7 * 0.7


def test_sentences_that_are_not_finite_do_not_vote() -> None:
    """They count as zero in the sum, so their votes would tell of them."""
    rule = by_sentence(1.0, 2.0)
    assert rule.vote is not None
    assert _sentence_votes(Tally(sentences=5, clipped=1, nonfinite=2), rule) == rule.vote.of_items(3, 1)
    assert _sentence_votes(Tally(sentences=2, nonfinite=2), rule) == 0.0
