"""A clip that follows a noisy quantile: bounded with its votes, noised as stated, free of what is not released."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from fl_sim.strategies.mechanism import PrivacyPlan
from fl_sim.strategies.messages import TrainReply, TrainRequest
from fl_sim.strategies.primitives.adaptive_clip import AdaptiveClip
from fl_sim.strategies.primitives.limits import SMALLEST_CLIP
from fl_sim.strategies.primitives.noise import gaussian_noise
from tests.strategies.federation import plan, run_rounds, zeros

ADAPTIVE = AdaptiveClip(quantile=0.5, learning_rate=0.2, count_noise=2.0)


KINDS = {
    "user_level": {"strategy": "user_level"},
    "sentences": {"user_cap": 4.0},
    "users": {"user_cap": 4.0, "clipping": "user"},
}


def adapting(kind: str = "user_level", **changes: object) -> PrivacyPlan:
    values = {"noise_multiplier": 1.0, "adaptive": ADAPTIVE, "clip_norm": 2.0} | KINDS[kind]
    return plan(**(values | changes))


def voting(votes_of: Callable[[np.ndarray], float]) -> Callable[[TrainRequest, np.ndarray], TrainReply]:
    """Nobody moves the model; all that a node's users say is their votes."""
    return lambda request, users: replace(zeros(request, users), votes=votes_of(users))


@pytest.mark.parametrize("kind", KINDS)
def test_noise_of_sum_and_count_are_those_of_the_rounds_clip_to_the_last_digit(kind: str) -> None:
    """No weight, rate or cohort is 1 here, and each round's clip is another one."""
    adaptive = AdaptiveClip(quantile=0.3, learning_rate=2.0, count_noise=3.0)
    privacy = adapting(kind, adaptive=adaptive, population=30, q_u=0.5, noise_multiplier=0.7, rounds=3)
    votes: list[float] = []

    def answer(request: TrainRequest, users: np.ndarray) -> TrainReply:
        votes.append(-0.3 * len(users))
        return replace(zeros(request, users), votes=votes[-1])

    models, strategy = run_rounds(
        privacy, size=8, users=20, nodes=1, rounds=3, answer=answer, observe=lambda s: s.clip_norm
    )
    mechanism, clip, model = privacy.mechanism, 2.0, np.zeros(8)
    for number, found in enumerate(models, start=1):
        std = 0.7 / np.sqrt(1 - 1 / 9) * mechanism.user_cap * clip
        np.testing.assert_allclose((found - model) * 15, gaussian_noise(0, number, 8, std), rtol=1e-4)
        count = gaussian_noise(0, number, 1, 3.0 * 0.7 * mechanism.items_per_user * 0.7, "count noise")[0]
        clip *= np.exp(-2.0 * (votes[number - 1] + count) / (15 * mechanism.items_per_user))
        assert strategy.observed[number - 1] == pytest.approx(clip, rel=1e-12)
        model = found
    assert len({2.0, *strategy.observed}) == 4


def test_the_clip_reaches_the_median_norm() -> None:
    """Users whose updates have norms from 0.1 to 10 say whether the clip left them as they are."""
    norms = np.geomspace(0.1, 10, 10)

    def answer(request: TrainRequest, users: np.ndarray) -> TrainReply:
        votes = float((norms[users] <= request.rule.user_clip).sum() - request.rule.vote.quantile * len(users))
        return replace(zeros(request, users), votes=votes)

    privacy = adapting(noise_multiplier=0.05, clip_norm=50.0, rounds=150)
    _, strategy = run_rounds(privacy, rounds=150, answer=answer)
    assert norms[3] < strategy.clip_norm < norms[6]


def test_the_rule_of_a_round_has_the_clip_of_that_round() -> None:
    seen: list[tuple[float, float]] = []

    def answer(request: TrainRequest, users: np.ndarray) -> TrainReply:
        seen.append((request.rule.sentence_clip, request.rule.user_clip))
        return zeros(request, users)

    _, strategy = run_rounds(
        adapting("sentences", rounds=3), rounds=3, nodes=1, answer=answer, observe=lambda s: s.clip_norm
    )
    clips = [2.0, *strategy.observed[:-1]]
    assert seen == [(clip, 4.0 * clip) for clip in clips]
    assert len(set(clips)) == 3


@pytest.mark.parametrize(("votes", "failed"), [(2.0, 0), (2.1, 1), (-2.1, 1), (np.nan, 1), (np.inf, 1)])
def test_more_votes_than_the_users_may_have_are_discarded(votes: float, failed: int) -> None:
    """One user at ŵ = 4 has at most four votes of a half, and then nothing else."""
    privacy = adapting("sentences", adaptive=replace(ADAPTIVE, count_noise=1.0 + 1e-9))
    _, strategy = run_rounds(privacy, users=1, nodes=1, answer=voting(lambda users: votes))
    assert strategy.tally.failed_nodes == failed


def test_a_full_vector_leaves_no_room_for_votes() -> None:
    def answer(request: TrainRequest, users: np.ndarray) -> TrainReply:
        vector = np.zeros_like(request.vector)
        vector[0] = 8.0 / np.sqrt(1 - 1 / 4)  # β = 8 in the coordinates that are shrunk by a
        return TrainReply(vector, len(users), 1, 0, 0, 0.0, votes=votes)

    for votes, failed in ((0.0, 0), (2.0, 1)):  # noqa: B007 (the answer reads it)
        _, strategy = run_rounds(adapting("sentences"), users=1, nodes=1, answer=answer)
        assert strategy.tally.failed_nodes == failed


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_strategy_goes_on_with_the_same_clip(kind: str) -> None:
    privacy = adapting(kind, rounds=6)
    models, whole = run_rounds(privacy, rounds=6)
    first, half = run_rounds(privacy, rounds=3)
    rest, resumed = run_rounds(privacy, rounds=6, resume=(3, first[-1], half.state()))
    np.testing.assert_array_equal(rest[-1], models[-1])
    assert resumed.clip_norm == whole.clip_norm != 2.0


def test_the_clip_is_a_metric_where_it_adapts_and_only_there() -> None:
    _, adapts = run_rounds(adapting())
    _, fixed = run_rounds(plan())
    assert adapts.tally.metrics()["clip_norm"] == 2.0
    assert "clip_norm" not in fixed.tally.metrics()


def test_no_noise_can_drive_the_clip_out_of_the_numbers() -> None:
    wild = adapting(noise_multiplier=1e4, adaptive=replace(ADAPTIVE, learning_rate=1e3), rounds=20)
    _, strategy = run_rounds(wild, rounds=20, answer=zeros)
    assert 2e-6 * (1 - 1e-9) <= strategy.clip_norm <= 2e6 * (1 + 1e-9)
    assert ADAPTIVE.next_clip(SMALLEST_CLIP, SMALLEST_CLIP, share=100.0) == SMALLEST_CLIP
