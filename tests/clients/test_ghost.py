"""Norms and weighted sums of single layers against explicit per-sentence gradients in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from clients.ghost import Contribution, Lookup, MaskedProduct, NotCovered, PerSentence, Product, ScaleLayer, TiedTable
from clients.ghost_pass import Tape


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def outer(inputs: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """(B, q, p) float64 per-sentence gradients of a linear layer's weight."""
    return torch.einsum("btq,btp->bqp", grad.double(), inputs.double())


def rows(ids: torch.Tensor, grad: torch.Tensor, size: int) -> torch.Tensor:
    """(B, V, h) float64 per-sentence gradients of a table."""
    chosen = torch.nn.functional.one_hot(ids, size).double()
    return torch.einsum("btv,bth->bvh", chosen, grad.double())


@pytest.mark.parametrize("tokens", [1, 2, 9, 60], ids=lambda t: f"{t} tokens")
@pytest.mark.parametrize("transposed", [False, True])
def test_a_product_by_gram_matrices_or_directly(tokens: int, transposed: bool) -> None:
    inputs, grad = normal(3, tokens, 40), normal(3, tokens, 24, seed=1)
    product = Product("w", inputs, grad, transposed)
    expected = outer(inputs, grad)
    torch.testing.assert_close(product.squared, expected.square().sum(dim=(1, 2)), rtol=1e-5, atol=0)
    factors = torch.tensor([0.5, 0.0, -2.0])
    total = torch.ones(40, 24) if transposed else torch.ones(24, 40)
    product.add(factors, total)
    weighted = torch.einsum("b,bqp->qp", factors.double(), expected)
    torch.testing.assert_close(total.double() - 1, weighted.t() if transposed else weighted, rtol=1e-4, atol=1e-4)


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


@pytest.mark.parametrize("limit", [1, 100, 1 << 18])
def test_a_masked_weight(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clients.ghost._MASKED_LIMIT", limit)
    inputs, grad = normal(3, 7, 10), normal(3, 7, 24, seed=1)
    scale = (normal(24, 10, seed=2) > 0).float() * 2
    masked = MaskedProduct("w", inputs, grad, scale)
    expected = outer(inputs, grad) * scale.double()
    torch.testing.assert_close(masked.squared, expected.square().sum(dim=(1, 2)), rtol=1e-5, atol=0)
    total = torch.ones(24, 10)
    masked.add(torch.tensor([0.5, 0.0, -2.0]), total)
    torch.testing.assert_close(total.double() - 1, 0.5 * expected[0] - 2 * expected[2], rtol=1e-4, atol=1e-4)


def kinds() -> list[Contribution]:
    """One of each, three sentences of six tokens."""
    ids = torch.tensor([[3, 1, 3, 2, 0, 0], [0, 1, 2, 5, 5, 5], [4, 4, 4, 4, 4, 4]])
    inputs, grad, scores = normal(3, 6, 5), normal(3, 6, 4, seed=1), normal(3, 6, 6, seed=2)
    lookup = Lookup("e", ids, normal(3, 6, 5, seed=3), padding_idx=None)
    return [
        PerSentence("b", normal(3, 4, 2)),
        Product("w", inputs, grad, transposed=False),
        Product("t", inputs, grad, transposed=True),
        MaskedProduct("m", inputs, grad, (normal(4, 5) > 0).float()),
        lookup,
        TiedTable(lookup, Product("e", inputs, scores, transposed=False)),
    ]


@pytest.mark.parametrize("number", range(6))
def test_sums_by_owner_are_the_sums_of_each(number: int) -> None:
    contribution = kinds()[number]
    shape = [(4, 2), (4, 5), (5, 4), (4, 5), (6, 5), (6, 5)][number]
    factors, owners = torch.tensor([0.5, -1.0, 2.0]), torch.tensor([1, 0, 1])
    wide = torch.zeros(2, 3 + math.prod(shape))  # the parameter is a part of every row
    contribution.add_rows(factors, owners, wide[:, 3:].unflatten(1, shape))
    assert not wide[:, :3].any()
    for owner in range(2):
        expected = torch.zeros(shape)
        contribution.add(torch.where(owners == owner, factors, 0.0), expected)
        torch.testing.assert_close(wide[owner, 3:].view(shape), expected, rtol=1e-5, atol=1e-6)


def test_a_lookup_adds_what_meets_in_one_row() -> None:
    ids = torch.tensor([[3, 1, 3, 3], [0, 1, 2, 3]])
    grad = normal(2, 4, 5)
    lookup = Lookup("e", ids, grad, padding_idx=None)
    expected = rows(ids, grad, 6)
    torch.testing.assert_close(lookup.squared, expected.square().sum(dim=(1, 2)), rtol=1e-5, atol=0)
    total = torch.zeros(6, 5)
    lookup.add(torch.tensor([2.0, -1.0]), total)
    torch.testing.assert_close(total.double(), 2 * expected[0] - expected[1], rtol=1e-5, atol=1e-6)


def test_a_lookup_gives_the_padding_row_nothing() -> None:
    ids = torch.tensor([[3, 1, 3, 0]])
    lookup = Lookup("e", ids, normal(1, 4, 5), padding_idx=3)
    total = torch.zeros(6, 5)
    lookup.add(torch.ones(1), total)
    assert not total[3].any()
    torch.testing.assert_close(lookup.squared, total.double().square().sum().unsqueeze(0), rtol=1e-5, atol=0)


def test_a_tied_table_has_the_cross_term() -> None:
    ids = torch.tensor([[3, 1, 3, 2], [0, 1, 2, 5]])
    looked_up, inputs, scores = normal(2, 4, 5), normal(2, 4, 5, seed=1), normal(2, 4, 6, seed=2)
    product = Product("e", inputs, scores, transposed=False)
    tied = TiedTable(Lookup("e", ids, looked_up, padding_idx=None), product)
    expected = rows(ids, looked_up, 6) + outer(inputs, scores)
    torch.testing.assert_close(tied.squared, expected.square().sum(dim=(1, 2)), rtol=1e-5, atol=0)
    total = torch.zeros(6, 5)
    tied.add(torch.tensor([1.0, -3.0]), total)
    torch.testing.assert_close(total.double(), expected[0] - 3 * expected[1], rtol=1e-5, atol=1e-5)


def test_small_gradients_are_kept_per_sentence() -> None:
    gradients = normal(3, 4, 2)
    kept = PerSentence("b", gradients)
    total = torch.zeros(4, 2)
    kept.add(torch.tensor([1.0, 0.0, 2.0]), total)
    torch.testing.assert_close(total, gradients[0] + 2 * gradients[2])
    torch.testing.assert_close(kept.squared, gradients.double().square().sum(dim=(1, 2)))


class OffsetRMSNorm(nn.Module):
    """Scales by 1 + weight, as some architectures do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(normal(6, seed=3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x.pow(2).mean(-1, keepdim=True).add(1e-6).rsqrt() * (1 + self.weight)


@pytest.mark.parametrize("module", [nn.LayerNorm(6), nn.RMSNorm(6), OffsetRMSNorm()], ids=lambda m: type(m).__name__)
def test_a_scale_is_found_however_it_is_applied(module: nn.Module) -> None:
    inputs, grad = normal(2, 4, 6), normal(2, 4, 6, seed=1)
    layer = ScaleLayer(module, {name: name for name, _ in module.named_parameters()})
    with Tape([module]) as tape:
        output = module(inputs)
        tape.outputs()
    found = layer.contributions([tape.records([grad])[module]])
    for contribution in found:
        parameter = dict(module.named_parameters())[contribution.name]
        for sentence in range(2):
            weights = (grad * torch.eye(2)[sentence].view(2, 1, 1),)
            (expected,) = torch.autograd.grad(output, parameter, weights, retain_graph=True)
            assert float(contribution.squared[sentence]) == pytest.approx(float(expected.square().sum()), rel=1e-4)


def test_a_module_called_twice_in_a_pass_is_not_covered() -> None:
    module = nn.Linear(3, 3)
    with Tape([module]) as tape:
        module(module(normal(1, 2, 3)))
    with pytest.raises(NotCovered, match="2 times"):
        tape.outputs()
    assert not module._forward_hooks
