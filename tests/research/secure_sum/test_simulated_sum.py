"""A simulated round: what leaves a node, what is opened after drop-outs, and what the server releases."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fl_sim.research.secure_sum import simulated_sum
from fl_sim.research.secure_sum.discrete_gaussian import Words, seeded_words
from fl_sim.research.secure_sum.lattice_rounding import centred
from fl_sim.research.secure_sum.noise_shares import DistributedNoise, ShareDesign
from fl_sim.research.secure_sum.simulated_sum import Node, SecureSum, release
from fl_sim.strategies.primitives.limits import PrivacyError
from tests.research.secure_sum import exact_sums

CLIP = 2.0


def design_of(size: int, bits: int = 20, std: int = 4, scale: float = 50.0) -> ShareDesign:
    """A design of ten nodes that opens sums of at least six, and tops their noise up to twelve shares."""
    settings = DistributedNoise(population=10, sampling_rate=1.0, dimension=size, bits=bits)
    return ShareDesign(settings, fewest_survivors=6, full_shares=12, share_std=std, scale=scale)


def opened_sum(design: ShareDesign, update: np.ndarray, survivors: range, server_round: int = 1) -> SecureSum:
    """The sum of one update from each survivor."""
    total = SecureSum(design)
    for identity in survivors:
        total.add(Node(design, CLIP, seed=0, identity=identity).reply(update, server_round))
    return total


@pytest.mark.sample(1)
@pytest.mark.parametrize("survivors", [6, 8, 10])
def test_the_sum_of_zeros_is_the_survivors_noise(survivors: int) -> None:
    """A share that is left out, or 5 % too small, fails here."""
    design = design_of(1 << 13)
    opened = opened_sum(design, np.zeros(1 << 13), range(survivors)).open()
    assert opened is not None
    variance = float(centred(opened, 20).astype(np.float64).var())
    assert abs(variance / (survivors * 16) - 1) < 4 * np.sqrt(2 / (1 << 13)) < 0.0975


def test_a_nodes_reply_to_nothing_is_one_share_of_exact_noise() -> None:
    reply = Node(design_of(1 << 16), CLIP, seed=0, identity=3).reply(np.zeros(1 << 16), server_round=2)
    draws = centred(reply, 20)
    values = np.arange(-14, 15)

    def fit(std: float) -> float:
        law = exact_sums.gaussian(std**2)[exact_sums.HALF - 14 : exact_sums.HALF + 15]
        observed = np.array([(draws == value).sum() for value in values])
        return float(
            stats.chisquare(
                np.append(observed, len(draws) - observed.sum()), np.append(law, 1 - law.sum()) * len(draws)
            ).pvalue
        )

    assert fit(4.0) > 1e-3 > 1e-6 > max(fit(3.8), fit(4.2))


@pytest.mark.sample(1)
@pytest.mark.parametrize("survivors", [6, 8, 10])
def test_released_noise_does_not_tell_how_many_survived(survivors: int) -> None:
    design = design_of(1 << 13)
    opened = opened_sum(design, np.zeros(1 << 13), range(survivors)).open()
    released = release(design, opened, survivors, CLIP, seed=0, server_round=1)
    assert released is not None
    std = np.sqrt(12) * 4 * CLIP / 50
    assert abs(float(released.std()) / std - 1) < 4 * np.sqrt(0.5 / (1 << 13))


def test_the_sum_is_that_of_the_survivors_clipped_updates() -> None:
    """With little noise on a fine lattice the released sum is the survivors' sum; a long update counts as clipped."""
    design = design_of(50, bits=40, std=2, scale=1e6)
    update = np.linspace(-1, 1, 50)
    opened = opened_sum(design, update, range(7)).open()
    released = release(design, opened, 7, CLIP, seed=0, server_round=1)
    assert released is not None
    assert np.allclose(released, 7 * update * CLIP / np.linalg.norm(update), atol=1e-3)


def test_too_few_survivors_open_nothing_and_nothing_is_released() -> None:
    design = design_of(16)
    total = opened_sum(design, np.ones(16), range(5))
    assert total.open() is None
    assert release(design, None, 5, CLIP, seed=0, server_round=1) is None


def test_a_sum_is_opened_once_and_then_closed() -> None:
    design = design_of(16)
    total = opened_sum(design, np.ones(16), range(6))
    assert total.open() is not None
    with pytest.raises(PrivacyError, match="the sum is open; allowed: opening it once"):
        total.open()
    with pytest.raises(PrivacyError, match="the sum is open; allowed: replies before it is opened"):
        total.add(np.zeros(16, dtype=np.uint64))


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1e300])
def test_an_update_that_is_not_finite_moves_nothing(wrong: float) -> None:
    design = design_of(16)
    update = np.ones(16)
    update[3] = wrong
    node = Node(design, CLIP, seed=0, identity=0)
    reply, silent = node.reply(update, 1), node.reply(np.zeros(16), 1)
    moved = centred(reply, 20) - centred(silent, 20)
    assert int(moved @ moved) <= design.norm_bound_squared
    if not np.isfinite(wrong):
        assert not moved.any()


def test_no_update_moves_a_reply_by_more_than_the_bound() -> None:
    design = design_of(100, scale=3.0)
    node = Node(design, CLIP, seed=0, identity=0)
    silent = centred(node.reply(np.zeros(100), 1), 20)
    for index in range(50):
        update = np.random.default_rng(index).standard_normal(100) * 10.0 ** (index % 7 - 3)
        moved = centred(node.reply(update, 1), 20) - silent
        assert int(moved @ moved) <= design.norm_bound_squared


def test_noise_differs_between_nodes_rounds_and_seeds() -> None:
    design, zeros = design_of(2000), np.zeros(2000)
    replies = [
        centred(Node(design, CLIP, seed, identity).reply(zeros, server_round), 20)
        for seed, identity, server_round in ((0, 0, 1), (0, 1, 1), (0, 0, 2), (1, 0, 1))
    ]
    correlations = np.corrcoef(replies) - np.eye(4)
    assert np.abs(correlations).max() < 0.1
    again = Node(design, CLIP, 0, 0).reply(zeros, 1)
    assert np.array_equal(centred(again, 20), replies[0])
    secure = [Node(design, CLIP, 0, 0, secure=True).reply(zeros, 1) for _ in range(2)]
    assert not np.array_equal(*secure)


def test_no_two_draws_of_a_round_or_of_two_share_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding, noise of each node and the top-up, in every round; secure draws have no stream at all."""
    drawn: list[tuple[object, ...]] = []

    def noted(*stream: object) -> Words:
        drawn.append(stream)
        return seeded_words(*stream)

    monkeypatch.setattr(simulated_sum, "seeded_words", noted)
    design, opened = design_of(16), np.zeros(16, dtype=np.uint64)
    for server_round in (1, 2):
        for identity in (0, 1):
            Node(design, CLIP, seed=0, identity=identity).reply(np.ones(16), server_round)
        release(design, opened, 6, CLIP, seed=0, server_round=server_round)
    assert len(drawn) == len(set(drawn)) == 2 * (2 + 2 + 1)
    drawn.clear()
    Node(design, CLIP, seed=0, identity=0, secure=True).reply(np.ones(16), 1)
    first, second = (release(design, opened, 6, CLIP, seed=0, server_round=1, secure=True) for _ in range(2))
    assert drawn == []
    assert not np.array_equal(first, second)


def test_another_size_is_refused() -> None:
    with pytest.raises(PrivacyError, match=r"update is of shape \(3,\); allowed: \(16,\)"):
        Node(design_of(16), CLIP, seed=0, identity=0).reply(np.zeros(3), 1)


def test_the_order_of_replies_does_not_matter() -> None:
    design = design_of(64, bits=12)
    updates = [np.random.default_rng(index).standard_normal(64) for index in range(6)]
    replies = [Node(design, CLIP, 0, identity).reply(update, 1) for identity, update in enumerate(updates)]
    forwards, backwards = SecureSum(design), SecureSum(design)
    for reply, other in zip(replies, reversed(replies), strict=True):
        assert reply.dtype == np.uint64
        assert reply.max() < 1 << 12
        forwards.add(reply)
        backwards.add(other)
    first, second = forwards.open(), backwards.open()
    assert first is not None
    assert np.array_equal(first, second)
