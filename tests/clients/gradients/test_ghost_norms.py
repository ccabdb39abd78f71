"""Test norms and weighted sums of single layers against explicit per-sentence gradients in float64."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fl_sim.clients.ghost_norms import (
    Contribution,
    EmbeddingLayer,
    LinearLayer,
    Lookup,
    NotCovered,
    PerSentence,
    Product,
    Record,
    TiedLayer,
    squared_of_sum,
)
from fl_sim.clients.gradients.tape import Tape
from fl_sim.clients.models.architectures.awd_lstm import MaskedProduct


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def outer(inputs: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """(B, q, p) float64 per-sentence gradients of a linear layer's weight."""
    return torch.einsum("btq,btp->bqp", grad.double(), inputs.double())


def rows(ids: torch.Tensor, grad: torch.Tensor, size: int) -> torch.Tensor:
    """(B, V, h) float64 per-sentence gradients of a table."""
    chosen = torch.nn.functional.one_hot(ids, size).double()
    return torch.einsum("btv,bth->bvh", chosen, grad.double())


def check(contribution: Contribution, expected: torch.Tensor) -> None:
    """Its norms, and the weighted sum that it adds to what is there; ``expected`` are float64 gradients (B, …)."""
    torch.testing.assert_close(contribution.squared, expected.square().sum(dim=(1, 2)), rtol=1e-5, atol=0)
    factors = torch.tensor([0.5, -2.0, 0.0])[: len(expected)]
    total = torch.ones(expected.shape[1:])
    contribution.add(factors, total)
    weighted = torch.einsum("b,bqp->qp", factors.double(), expected)
    torch.testing.assert_close(total.double() - 1, weighted, rtol=1e-4, atol=1e-4)


def check_pairs(first: Contribution, second: Contribution, expected: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Inner products of two passes' gradients, within what is said of their rounding, and the norm of a sum."""
    left, right = (gradients.flatten(1) for gradients in expected)
    chosen, others = torch.tensor([2, 0, 2]), torch.tensor([1, 0, 0])
    exact = (left[chosen] * right[others]).sum(dim=1)
    allowed = (first.inner_slack[chosen] * second.inner_slack[others]).sqrt()
    for found in (first.only(chosen).inner(second.only(others)), second.only(others).inner(first.only(chosen))):
        assert bool(((found - exact).abs() <= allowed).all())
    factors = torch.tensor([0.5, -1.0, 2.0])
    total = torch.einsum("b,bd->d", factors.double(), left)
    torch.testing.assert_close(squared_of_sum(first, factors), total.square().sum(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("seed", range(20))
def test_a_norm_never_falls_short_where_tokens_cancel(seed: int) -> None:
    """Near-equal inputs, output gradients that sum to zero: Gram sums lose digits, the slack must cover them."""
    base = normal(4, 1, 64, seed=seed)
    inputs = base + 1e-3 * normal(4, 16, 64, seed=seed + 100)
    grad = normal(4, 16, 512, seed=seed + 200)
    grad = grad - grad.mean(dim=1, keepdim=True)
    product = Product("w", inputs, grad, transposed=False)
    exact = outer(inputs, grad).square().sum(dim=(1, 2))
    assert bool((product.squared + product.slack >= exact * (1 - 1e-6)).all())
    assert bool((product.slack > 0).all())


@pytest.mark.parametrize("other", [1, 2, 30], ids=lambda t: f"{t} tokens")
@pytest.mark.parametrize("tokens", [1, 30], ids=["by Gram matrices", "stored"])
def test_inner_products_of_a_tied_table(tokens: int, other: int) -> None:
    """The sentences of one pass are stored, of another they are not; cross terms and all."""
    embedding, linear = nn.Embedding(9, 5), nn.Linear(5, 9, bias=False)
    names = {"weight": "table"}
    layer = TiedLayer(EmbeddingLayer(embedding, names), LinearLayer(linear, names, transposed=False))
    contributions, expected = [], []
    for seed, length in ((10, tokens), (20, other)):
        ids = torch.randint(0, 9, (3, length), generator=torch.Generator().manual_seed(seed))
        looked_up, inputs = normal(3, length, 5, seed=seed), normal(3, length, 5, seed=seed + 1)
        scores = normal(3, length, 9, seed=seed + 2)
        contributions += layer.contributions([Record(ids, looked_up, None, {}), Record(inputs, scores, None, {})])
        expected.append(rows(ids, looked_up, 9) + outer(inputs, scores))
        assert isinstance(contributions[-1], PerSentence) == (length == 30)
        check(contributions[-1], expected[-1])
    check_pairs(*contributions, (expected[0], expected[1]))


@pytest.mark.parametrize(("tokens", "other"), [(1, 2), (2, 9), (9, 2), (9, 60), (60, 1)])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_product_by_gram_matrices_or_directly(tokens: int, other: int, transposed: bool) -> None:
    passes = [
        (normal(3, length, 40, seed=length), normal(3, length, 24, seed=length + 1)) for length in (tokens, other)
    ]
    first, second = (Product("w", inputs, grad, transposed) for inputs, grad in passes)
    expected = tuple(outer(*one).transpose(1, 2) if transposed else outer(*one) for one in passes)
    check(first, expected[0])
    for one in (first, first.stored()):
        check_pairs(one, second, expected)


@pytest.mark.parametrize("limit", [1, 100, 1 << 18])
def test_a_masked_weight(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fl_sim.clients.models.architectures.awd_lstm._MASKED_LIMIT", limit)
    scale = (normal(24, 10, seed=2) > 0).float() * 2
    passes = [(normal(3, tokens, 10, seed=tokens), normal(3, tokens, 24, seed=tokens + 1)) for tokens in (7, 3)]
    first, second = (MaskedProduct("w", *one, scale) for one in passes)
    expected = tuple(outer(*one) * scale.double() for one in passes)
    check(first, expected[0])
    check_pairs(first, second, expected)


def test_a_lookup_adds_what_meets_in_one_row() -> None:
    ids = torch.tensor([[3, 1, 3, 3], [0, 1, 2, 3]])
    grad = normal(2, 4, 5)
    check(Lookup("e", ids, grad, padding_idx=None), rows(ids, grad, 6))


def test_a_module_called_twice_in_a_pass_is_not_covered() -> None:
    module = nn.Linear(3, 3)
    with Tape([module], 1, lambda module, record: None) as tape, pytest.raises(NotCovered, match="2 times"):
        tape.backward(module(module(normal(1, 2, 3))), normal(1, 2, 3))
    assert not module._forward_hooks
