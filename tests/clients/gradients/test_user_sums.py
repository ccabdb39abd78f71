"""Who shares a pass with whom, and that nobody notices; the sums' definition is in test_clipped_sums.py."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fl_sim.clients.batches import Example
from fl_sim.clients.ghost_norms import Contribution, NotCovered, Product
from fl_sim.clients.gradients import clipped_sums
from fl_sim.clients.gradients import user_sums as module
from fl_sim.clients.gradients.clipped_sums import clipped_gradient_sum
from fl_sim.clients.gradients.ghost_pass import covered_layers, each_gradient
from fl_sim.clients.gradients.user_sums import user_sums
from fl_sim.clients.models.language_model import LanguageModel
from tests.clients.models import models_to_try
from tests.clients.models.models_to_try import examples

COUNTS = [2, 1, 2, 3, 2, 9, 2]


def users_of(counts: list[int]) -> list[list[Example]]:
    given = examples(*np.random.default_rng(1).integers(2, 20, sum(counts)))
    ends = np.cumsum([0, *counts])
    return [given[i : i + n] for i, n in zip(ends, counts, strict=False)]


def sums_of(model: LanguageModel, users: list[list[Example]], clip_norm: float) -> tuple[list[list[int]], np.ndarray]:
    """Who was handed out together, and everybody's sum, (users, d)."""
    together, sums = [], torch.zeros(len(users), model.num_parameters)
    for found in user_sums(model, users, clip_norm):
        together.append(list(found.users))
        for row, user in enumerate(found.users):
            found.add([float(row == other) for other in range(len(found.users))], sums[user])
    return together, sums.numpy()


@pytest.mark.parametrize(
    ("settings", "together"),
    [
        ({}, [1, 6]),  # nine sentences have too many pairs
        ({"_VECTOR": math.inf}, [7]),
        ({"_VECTOR": 0}, [1] * 7),
        ({"_HELD": 1}, [1, 6]),
        ({"_WINDOW": 1e-3}, [1] * 7),
    ],
    ids=str,
)
def test_users_share_passes_and_nobody_notices(
    small: LanguageModel, settings: dict[str, float], together: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in settings.items():
        monkeypatch.setattr(module, name, value)
    for clip_norm in (0.5, math.inf):
        users = users_of(COUNTS)
        found, sums = sums_of(small, users, clip_norm)
        assert sorted(map(len, found)) == together
        assert sorted(user for group in found for user in group) == list(range(len(users)))
        for user, of_user in zip(users, sums, strict=True):
            np.testing.assert_allclose(of_user, clipped_gradient_sum(small, user, clip_norm).vector, rtol=0, atol=1e-5)


def test_sentences_of_a_user_may_lie_in_several_passes(small: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "largest_batch", 40)
    users = [examples(18, 3, 17), examples(2, 19), examples(9, 10, 11)]
    for summed in user_sums(small, users, 0.5):
        assert len(summed.users) > 1
        for row, user in enumerate(summed.users):
            assert summed.lengths[row] == pytest.approx(
                np.linalg.norm(clipped_gradient_sum(small, users[user], 0.5).vector), rel=1e-5
            )


def test_the_clipped_sentences_of_users_are_counted_in_a_joint_pass(small: LanguageModel) -> None:
    """They vote on an adaptive clip."""
    users = users_of([2, 2, 2])
    for clip_norm, clipped in ((1e-3, 2), (1e6, 0)):
        (found,) = user_sums(small, users, clip_norm)
        assert [tally.clipped for tally in found.tallies] == [clipped] * 3


def test_a_norm_that_is_hardly_known_is_not_clipped_by() -> None:
    squared, known, unknown = torch.tensor([4.0]), torch.tensor([1e-3]), torch.tensor([1.0])
    assert float(clipped_sums.sure_norms(squared, known, 1.0)) >= 2.0
    with pytest.raises(NotCovered):
        clipped_sums.sure_norms(squared, unknown, 1.0)
    clipped_sums.sure_norms(squared, unknown, 10.0)  # below the clip it does not matter


@pytest.mark.parametrize("tokens", [math.inf, 0], ids=["by pairs", "in a buffer"])
def test_weights_multiply_what_was_clipped(
    small: LanguageModel, monkeypatch: pytest.MonkeyPatch, tokens: float
) -> None:
    monkeypatch.setattr(module, "_VECTOR", tokens)
    users = users_of(COUNTS)
    users[0].insert(0, *examples(1))  # tells nothing, and has a weight nevertheless
    draws = np.random.default_rng(3)
    weights = [draws.choice([0.25, 1.0, 3.0], len(user)) for user in users]
    for found in user_sums(small, users, 0.5, weights=weights):
        assert len(found.users) == (1 if tokens == 0 else len(users))
        for row, place in enumerate(found.users):
            total = torch.zeros(small.num_parameters)
            found.add([float(row == other) for other in range(len(found.users))], total)
            alone = [
                w * clipped_gradient_sum(small, [s], 0.5).vector
                for s, w in zip(users[place], weights[place], strict=True)
            ]
            np.testing.assert_allclose(total.numpy(), sum(alone), rtol=0, atol=2e-5)
            assert found.lengths[row] == pytest.approx(np.linalg.norm(sum(alone)), rel=1e-2)


@pytest.mark.parametrize("size", [1e-1, 1e-2, 1e-3, 1e-4, 0.0])
def test_a_norm_is_never_short_where_a_users_sentences_nearly_cancel(size: float) -> None:
    """Three classes told of nearly the same features, by weights whose sum is nearly zero: inner products lose it."""
    model = models_to_try.bert(tune="head")
    draws = np.random.default_rng(0)
    one = draws.standard_normal(32).astype(np.float32)
    other = one + np.float32(size) * draws.standard_normal(32).astype(np.float32)

    def example(features: np.ndarray, target: int) -> Example:
        return Example(np.zeros(1, np.int32), target, target, features)

    clipped = np.stack([clipped_gradient_sum(model, [example(one, k)], 0.01).vector for k in range(3)])
    weights = np.abs(np.linalg.svd(clipped.T.astype(np.float64))[2][-1])  # Σ w_k·g_k = 0
    user = [example(one, 0), example(other, 1), example(one, 2)]
    for found in user_sums(model, [user, user], 0.01, weights=[weights, weights]):
        total = torch.zeros(model.num_parameters)
        found.add([1.0, *[0.0] * (len(found.users) - 1)], total)
        true = float(total.double().norm())
        assert true < 0.01 * (10 * size + 1e-5)
        assert true * (1 - 1e-5) <= found.lengths[0] <= true * (1 + 1e-2) + 1e-12


@pytest.mark.sample(1)
@pytest.mark.parametrize("clip_norm", [0.5, math.inf])
def test_a_neighbour_that_is_not_finite_changes_nothing(clip_norm: float) -> None:
    model = models_to_try.untied_gpt2()
    covered_layers(model)  # checked while the parameters are sound
    token, *_ = users_of([1])[0][0].tokens
    users = [[replace(e, tokens=e.tokens[e.tokens != token]) for e in user] for user in users_of(COUNTS)]
    _, before = sums_of(model, users, clip_norm)
    spoiled = replace(users[2][0], tokens=np.full(5, token, np.int32))
    embedding: Any = model.module.get_input_embeddings()
    with torch.no_grad():
        embedding.weight[token] = math.nan
    users[2][0] = spoiled
    tallies = {u: t for f in user_sums(model, users, clip_norm) for u, t in zip(f.users, f.tallies, strict=True)}
    assert [tallies[u].nonfinite for u in range(len(users))] == [0, 0, 1, 0, 0, 0, 0]
    _, after = sums_of(model, users, clip_norm)
    rest = clipped_gradient_sum(model, users[2][1:], clip_norm).vector
    np.testing.assert_allclose(after[2], rest, rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.delete(after, 2, 0), np.delete(before, 2, 0), rtol=0, atol=1e-5)


def test_a_neighbour_whose_gradient_overflows_in_a_pass_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its loss is finite, so that only its norm tells; computed alone it is sound."""
    model, users = models_to_try.small_gpt2(), users_of(COUNTS)
    _, expected = sums_of(model, users, math.inf)

    def overflowing(model: LanguageModel, layers: Any, batch: Any, receive: Any) -> torch.Tensor:
        def receive_spoiled(gradients: Contribution) -> None:
            if isinstance(gradients, Product):
                gradients.grad[0] = math.inf
            receive(gradients)

        return each_gradient(model, layers, batch, receive_spoiled)

    monkeypatch.setattr(module, "each_gradient", overflowing)
    monkeypatch.setattr(module, "_VECTOR", math.inf)
    together, found = sums_of(model, users, math.inf)
    assert sorted(map(len, together)) == [1, 6]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
