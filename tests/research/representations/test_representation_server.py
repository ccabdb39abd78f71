"""What the server trains: gradient reversal, orthogonality, the adversaries' losses, schedules, null spaces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from fl_sim.research.representations.client.feed_forward import Draw
from fl_sim.research.representations.config import AdversaryStyle, ServerSection
from fl_sim.research.representations.server.heads import (
    NUM_DIVERSE,
    Server,
    orthogonality,
    reverse_gradient,
)
from fl_sim.research.representations.server.inlp import null_space_projection

B, K = 12, 5


def make(style: AdversaryStyle, attributes: int = 2, **section: Any) -> Server:
    return Server(K, 3, attributes, ServerSection(adversary=(7,), dropout=0.0, **section), style, seed=0)


def batch(attributes: int = 2) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    z = torch.randn(B, K, requires_grad=True)
    return z, torch.randint(0, 3, (B,)), torch.randint(0, 2, (B, attributes))


def gradient(value: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    (found,) = torch.autograd.grad(value, wanted, retain_graph=True)
    return found


@pytest.mark.parametrize("weight", [0.0, 0.5, 3.0])
def test_reversal_is_the_identity_forward_and_minus_lambda_backward(weight: float) -> None:
    x = torch.randn(4, 3, requires_grad=True)
    coefficient = torch.randn(4, 3)
    assert torch.equal(reverse_gradient(x, weight), x)
    assert torch.equal(gradient((coefficient * reverse_gradient(x, weight)).sum(), x), -weight * coefficient)


def test_the_encoder_follows_the_minimax_objective_and_adversaries_their_own() -> None:
    """Equation 4: θ_E along L_class − λ L_adv, θ_A along L_adv."""
    server = make("reversal")
    z, y, s = batch()
    total = server.loss(z, y, s, 1.5, Draw(0, B))
    task = functional.cross_entropy(server.classifier(z), y)
    adversaries = [functional.cross_entropy(server.adversaries[a](z), s[:, a]) for a in range(2)]
    expected = gradient(task, z) - 1.5 * sum(gradient(a, z) for a in adversaries)
    torch.testing.assert_close(gradient(total, z), expected)
    for number, own in enumerate(adversaries):
        weights = server.adversaries[number].linears[0].weight
        torch.testing.assert_close(gradient(total, weights), gradient(own, weights))


def test_lambda_on_the_loss_leaves_lambda_ort_as_it_is() -> None:
    """The published code: the encoder follows −λ·∂L_adv − λ_ort·∂L_ort, adversaries λ·∂L_adv + λ_ort·∂L_ort."""
    z, y, s = batch(1)
    for weighed, of_task, of_ort in (("gradient", 1.0, 0.3 * 2.0), ("loss", 0.3, 2.0)):
        server = make("multiple", attributes=1, weighed=weighed, orthogonal=2.0)
        total = server.loss(z, y, s, 0.3, Draw(0, B))
        own = sum(functional.cross_entropy(a(z), s[:, 0]) for a in server.adversaries)
        apart = orthogonality(*(a.hidden(z) for a in server.adversaries))
        task = functional.cross_entropy(server.classifier(z), y)
        expected = gradient(task, z) - 0.3 * gradient(own, z) - of_ort * gradient(apart, z)
        torch.testing.assert_close(gradient(total, z), expected)
        weights = server.adversaries[0].linears[0].weight
        torch.testing.assert_close(
            gradient(total, weights), of_task * gradient(own, weights) + 2.0 * gradient(apart, weights)
        )


def test_what_the_last_layer_reads() -> None:
    z, _, _ = batch()
    assert torch.equal(make("none").last_hidden(z), z)
    deep = make("none", attributes=0, classifier=(6, 4)).eval()
    hidden = deep.last_hidden(z)
    assert hidden.shape == (B, 4)
    assert not hidden.requires_grad
    torch.testing.assert_close(deep.classifier.linears[-1](hidden), deep.classifier(z))


def test_one_adversary_for_each_private_attribute() -> None:
    assert len(make("reversal").adversaries) == 2
    assert len(make("multiple").adversaries) == 2 * NUM_DIVERSE
    assert len(make("none").adversaries) == 0
    assert len(make("coavoux", attributes=5).adversaries) == 5


def test_orthogonality_loss_is_the_mean_squared_cosine_of_all_pairs() -> None:
    a, b = torch.randn(9, 4), torch.randn(6, 4)
    pairs = functional.cosine_similarity(a[:, None], b[None], dim=2).square().mean()
    torch.testing.assert_close(orthogonality(a, b), pairs, rtol=1e-4, atol=1e-6)


def test_coavoux_adversaries_learn_the_truth_and_encoders_the_opposite() -> None:
    server = make("coavoux", attributes=1)
    z, y, s = batch(1)
    total = server.loss(z, y, s, 2.0, Draw(0, B))
    adversary = server.adversaries[0]
    task = functional.cross_entropy(server.classifier(z), y)
    fooled = functional.cross_entropy(adversary(z), 1 - s[:, 0])
    torch.testing.assert_close(gradient(total, z), gradient(task, z) + 2 * gradient(fooled, z))
    truth = functional.cross_entropy(adversary(z), s[:, 0])
    weights = adversary.linears[0].weight
    torch.testing.assert_close(gradient(total, weights), gradient(truth, weights))


def correlated(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    private = rng.integers(0, 2, 600)
    vectors = rng.normal(size=(600, 6))
    vectors[:, 0] += 2.0 * private
    vectors[:, 1] -= 1.0 * private
    return vectors, private


@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_null_space_projection_has_its_rank_and_hides_what_linear_classifiers_read(rounds: int) -> None:
    from sklearn.linear_model import LogisticRegression

    vectors, private = correlated(np.random.default_rng(0))
    projection = null_space_projection(vectors, private, rounds, np.random.default_rng(1))
    np.testing.assert_allclose(projection, projection.T, atol=1e-10)
    np.testing.assert_allclose(projection @ projection, projection, atol=1e-10)
    assert np.linalg.matrix_rank(projection, tol=1e-8) == 6 - rounds
    left = vectors @ projection
    assert LogisticRegression().fit(left, private).score(left, private) < 0.62
    first = LogisticRegression(max_iter=200).fit(vectors, private).coef_
    assert np.abs(first @ projection).max() < 1e-2 * np.abs(first).max()
