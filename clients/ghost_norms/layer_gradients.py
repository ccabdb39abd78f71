"""Per-sentence gradient norms, and weighted gradient sums, from what each layer saw and what came back to it.

For a linear layer, sentence s's weight gradient is ``G_sᵀ A_s``, with inputs ``A_s`` (T, p) and output
gradients ``G_s`` (T, q). Its squared norm is ``Σ_{t,t'} (A_s A_sᵀ)[t,t'] · (G_s G_sᵀ)[t,t']`` ("ghost norm":
Goodfellow 2015; Li et al. 2022, "Large language models can be strong differentially private learners",
section 4), and the clipped sum over sentences ``Σ_s f_s G_sᵀ A_s`` is one product of the stacked matrices
("book-keeping": Bu et al. 2023, "Differentially private optimization on large model at small cost"). No
per-sentence gradient is stored for a large layer, and one forward and one backward pass serve both.

A :class:`Contribution` is what a batch adds to the gradient of one parameter. The handlers of
`fl_sim.clients.ghost_norms.layer_handlers` make them from the :class:`Record` of one call. Norms are float64 sums of
float32 products.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

# A Gram matrix entry carries a rounding error of a few float32 units relative to the product of the two
# norms. Where a sentence's tokens nearly cancel, that is no longer small beside the norm; it is added, so
# that a norm computed here never falls short of the true one.
GRAM_ROUNDING = 2.0**-24
PER_SENTENCE_LIMIT = 1 << 22  # float32 numbers of per-sentence gradients of one layer that may exist at once


class NotCovered(Exception):
    """The reason why the fast path does not cover a model, or one pass through it; the slow path has to be taken."""


@dataclass(frozen=True)
class Record:
    """One call of one module.

    Attributes:
        inputs: (B, T, …), its positional argument, detached.
        grad: (B, T, …), the gradient of its output.
        output: (B, T, …), its output, detached.
        options: its keyword arguments.
        joined: how many sentences, one after another, each of the B rows holds.
    """

    inputs: torch.Tensor
    grad: torch.Tensor
    output: torch.Tensor
    options: Mapping[str, Any]
    joined: int = 1

    def of_users(self, users: int, factors: torch.Tensor | None) -> Record:
        """Return the record with one row per user, whose gradient is Σ_s factors[s] · gradient_s over its sentences.

        Args:
            users: U; the record's B rows are sentences, each user's side by side, the same number for every user.
            factors: (B,); ``None`` for 1.
        """

        def rows(of_sentences: torch.Tensor) -> torch.Tensor:
            return of_sentences.unflatten(0, (users, -1)).flatten(1, 2)

        grad = self.grad if factors is None else self.grad * factors.view(-1, *[1] * (self.grad.dim() - 1))
        joined = len(self.grad) // users
        return Record(rows(self.inputs), rows(grad), rows(self.output), self.options, joined)


class Contribution(ABC):
    """What a batch of B sentences adds to the gradient of one parameter.

    Attributes:
        name: of the parameter.
        squared: (B,) float64, squared norms of the per-sentence gradients.
        slack: (B,) float64, a bound on the rounding error of ``squared``.
    """

    name: str
    squared: torch.Tensor
    slack: torch.Tensor

    @abstractmethod
    def add(self, factors: torch.Tensor, total: torch.Tensor) -> None:
        """``total += Σ_s factors[s] · gradient_s`` in place; factors (B,), total in the parameter's shape."""


class PerSentence(Contribution):
    """Gradients small enough to be stored for each sentence: biases, norms' scales, low-rank adapters."""

    def __init__(self, name: str, gradients: torch.Tensor) -> None:
        self.name = name
        self._rows = gradients.flatten(1)
        self.squared = self._rows.square().sum(dim=1, dtype=torch.float64)
        self.slack = torch.zeros_like(self.squared)

    def add(self, factors: torch.Tensor, total: torch.Tensor) -> None:
        total.view(-1).addmv_(self._rows.t(), factors)


class Product(Contribution):
    """The weight (q, p) of a linear layer: gradient ``G_sᵀ A_s``; ``transposed`` for one stored as (p, q)."""

    def __init__(self, name: str, inputs: torch.Tensor, grad: torch.Tensor, transposed: bool) -> None:
        self.name = name
        self.inputs = inputs
        self.grad = grad
        self._transposed = transposed
        tokens, p, q = inputs.shape[1], inputs.shape[2], grad.shape[2]
        if p * q <= tokens * (p + q):
            self.squared = self._direct_norms()
            self.slack = torch.zeros_like(self.squared)
        else:
            self.squared, self.slack = self._gram_norms()

    def _gram_norms(self) -> tuple[torch.Tensor, torch.Tensor]:
        of_inputs = torch.bmm(self.inputs, self.inputs.transpose(1, 2))
        of_grad = torch.bmm(self.grad, self.grad.transpose(1, 2))
        squared = (of_inputs * of_grad).sum(dim=(1, 2), dtype=torch.float64)
        diagonals = of_inputs.diagonal(dim1=1, dim2=2) * of_grad.diagonal(dim1=1, dim2=2)
        sizes = diagonals.clamp_min(0).sqrt().sum(dim=1, dtype=torch.float64)  # Σ_t ‖a_t‖‖g_t‖
        return squared, GRAM_ROUNDING * sizes.square()

    def _direct_norms(self) -> torch.Tensor:
        at_once = max(1, PER_SENTENCE_LIMIT // (self.inputs.shape[2] * self.grad.shape[2]))
        parts = [
            torch.bmm(g.transpose(1, 2), a).flatten(1).square().sum(dim=1, dtype=torch.float64)
            for a, g in zip(self.inputs.split(at_once), self.grad.split(at_once), strict=True)
        ]
        return torch.cat(parts)

    def add(self, factors: torch.Tensor, total: torch.Tensor) -> None:
        a, g = self.inputs, self.grad
        scale = factors.view(-1, 1, 1)
        a, g = (a * scale, g) if a.shape[2] <= g.shape[2] else (a, g * scale)  # scale the smaller of the two
        a, g = a.flatten(0, 1), g.flatten(0, 1)
        if self._transposed:
            total.addmm_(a.t(), g)
        else:
            total.addmm_(g.t(), a)


class Lookup(Contribution):
    """The table (V, h) of an embedding: sentence s adds ``grad[s, t]`` to row ``ids[s, t]``."""

    def __init__(self, name: str, ids: torch.Tensor, grad: torch.Tensor, padding_idx: int | None) -> None:
        self.name = name
        self.ids = ids
        self.grad = grad if padding_idx is None else grad.masked_fill((ids == padding_idx).unsqueeze(-1), 0.0)
        products = torch.bmm(self.grad, self.grad.transpose(1, 2))
        same_row = ids.unsqueeze(2) == ids.unsqueeze(1)
        self.squared = (products * same_row).sum(dim=(1, 2), dtype=torch.float64)
        sizes = products.diagonal(dim1=1, dim2=2).clamp_min(0).sqrt().sum(dim=1, dtype=torch.float64)
        self.slack = GRAM_ROUNDING * sizes.square()

    def add(self, factors: torch.Tensor, total: torch.Tensor) -> None:
        total.index_add_(0, self.ids.flatten(), (self.grad * factors.view(-1, 1, 1)).flatten(0, 1))

    def add_to_rows(self, tables: torch.Tensor) -> None:
        """``tables[s] += gradient_s`` in place, (B, V, h)."""
        starts = torch.arange(len(tables), device=tables.device).unsqueeze(1) * tables.shape[1]
        tables.flatten(0, 1).index_add_(0, (self.ids + starts).flatten(), self.grad.flatten(0, 1))


class TiedTable(Contribution):
    """One (V, h) table used as embedding and as output layer: the gradients add, so their product enters the
    norm.

    ``⟨Lookup_s, G_sᵀ A_s⟩ = Σ_{t,t'} G_s[t', x_t] · (A_s[t'] · grad_s[t])``.
    """

    def __init__(self, lookup: Lookup, product: Product) -> None:
        self.name = lookup.name
        self._lookup = lookup
        self._product = product
        columns = lookup.ids.unsqueeze(1).expand(-1, product.grad.shape[1], -1)
        picked = product.grad.gather(2, columns)  # (B, t', t)
        inner = torch.bmm(product.inputs, lookup.grad.transpose(1, 2))  # (B, t', t)
        cross = (picked * inner).sum(dim=(1, 2), dtype=torch.float64)
        self.squared = lookup.squared + product.squared + 2 * cross
        # |cross| errs by no more than the geometric mean of what the two norms may err by
        self.slack = 2 * (lookup.slack + product.slack)

    def add(self, factors: torch.Tensor, total: torch.Tensor) -> None:
        self._lookup.add(factors, total)
        self._product.add(factors, total)
