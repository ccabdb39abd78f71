"""Who shares a pass with whom, and that nobody notices; the sums' definition is in test_clipped_sums.py."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fl_sim.clients.batches import Example, user_groups
from fl_sim.clients.ghost_norms import NotCovered
from fl_sim.clients.gradients import clipped_sums
from fl_sim.clients.gradients import user_sums as module
from fl_sim.clients.gradients.clipped_sums import clipped_gradient_sum
from fl_sim.clients.gradients.ghost_pass import covered_layers
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


@pytest.mark.parametrize("room", [1, 60, 1000])
def test_every_user_is_in_one_group_and_groups_are_bounded(room: int) -> None:
    draws = np.random.default_rng(0)
    shapes = [(int(n), int(t)) for n, t in zip(draws.integers(0, 12, 50), draws.integers(0, 30, 50), strict=True)]
    groups = list(user_groups(shapes, room))
    assert sorted(i for group in groups for i in group) == list(range(50))
    for group in groups:
        sentences, longest = (max(shapes[i][k] for i in group) for k in (0, 1))
        assert len(group) == 1 or len(group) * sentences * longest <= room
        assert 2 * min(shapes[i][0] for i in group) >= sentences


def test_users_share_passes_and_nobody_notices(small: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    users = users_of(COUNTS)
    together, sums = sums_of(small, users, 0.5)
    assert sorted(map(len, together)) == [1, 1, 5]  # nine sentences are too many beside three, and three beside one
    for user, found in zip(users, sums, strict=True):
        np.testing.assert_allclose(found, clipped_gradient_sum(small, user, 0.5).vector, rtol=0, atol=1e-5)
    for window, longest in ((1e-3, 1024), (32, 1)):
        monkeypatch.setattr(module, "_WINDOW", window)
        monkeypatch.setattr(module, "_LONGEST", longest)
        _, again = sums_of(small, users, 0.5)
        np.testing.assert_allclose(again, sums, rtol=0, atol=1e-5)


def test_the_clipped_sentences_of_users_are_counted_in_a_joint_pass(small: LanguageModel) -> None:
    """They vote on an adaptive clip."""
    users = users_of([2, 2, 2])
    for clip_norm, clipped in ((1e-3, 2), (1e6, 0)):
        (found,) = user_sums(small, users, clip_norm)
        assert [tally.clipped for tally in found.tallies] == [clipped] * 3


def test_a_norm_that_is_hardly_known_is_not_clipped_by() -> None:
    known, unknown = (SimpleNamespace(squared=torch.tensor([4.0]), slack=torch.tensor([s])) for s in (1e-3, 1.0))
    assert float(clipped_sums.sure_norms([known], 1.0)) >= 2.0
    with pytest.raises(NotCovered):
        clipped_sums.sure_norms([known, unknown], 1.0)
    clipped_sums.sure_norms([unknown], 10.0)  # below the clip it does not matter


@pytest.mark.parametrize("longest", [1024, 1])
def test_weights_multiply_what_was_clipped(small: LanguageModel, monkeypatch: pytest.MonkeyPatch, longest: int) -> None:
    monkeypatch.setattr(module, "_LONGEST", longest)
    users = users_of(COUNTS)
    users[0].insert(0, *examples(1))  # tells nothing, and has a weight nevertheless
    draws = np.random.default_rng(3)
    weights = [draws.choice([0.25, 1.0, 3.0], len(user)) for user in users]
    for found in user_sums(small, users, 0.5, weights=weights):
        assert len(found.users) == 1 or longest > 1
        for row, place in enumerate(found.users):
            total = torch.zeros(small.num_parameters)
            found.add([float(row == other) for other in range(len(found.users))], total)
            alone = [
                w * clipped_gradient_sum(small, [s], 0.5).vector
                for s, w in zip(users[place], weights[place], strict=True)
            ]
            np.testing.assert_allclose(total.numpy(), sum(alone), rtol=0, atol=2e-5)
            assert found.lengths[row] == pytest.approx(np.linalg.norm(sum(alone)), rel=1e-2)


def test_a_norm_is_never_short_where_a_users_sentences_nearly_cancel() -> None:
    """Two classes told of nearly the same features: float32 products of tokens lose what is left of the sum."""
    model = models_to_try.bert(tune="head")
    draws = np.random.default_rng(0)
    for size in (1e-2, 1e-4, 0.0):
        one = draws.standard_normal(32).astype(np.float32)
        other = one + np.float32(size) * draws.standard_normal(32).astype(np.float32)
        given = [
            Example(np.zeros(1, np.int32), target, number, features)
            for number, (features, target) in enumerate([(one, 0), (other, 1), (one, 2)])
        ]
        for found in user_sums(model, [given, given], 0.01):
            total = torch.zeros(model.num_parameters)
            found.add([1.0, *[0.0] * (len(found.users) - 1)], total)
            true = float(total.double().norm())
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
