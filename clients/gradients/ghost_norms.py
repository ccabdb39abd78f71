"""Compute per-sentence gradient norms and weighted gradient sums from the inputs and output gradients of each layer.

For a linear layer, sentence s's weight gradient is ``G_sᵀ A_s``, with inputs ``A_s`` (T, p) and output
gradients ``G_s`` (T, q). Its squared norm is ``Σ_{t,t'} (A_s A_sᵀ)[t,t'] · (G_s G_sᵀ)[t,t']`` ("ghost norm":
Goodfellow 2015; Li et al. 2022, "Large language models can be strong differentially private learners",
section 4), and the clipped sum over sentences ``Σ_s f_s G_sᵀ A_s`` is one product of the stacked matrices
("book-keeping": Bu et al. 2023, "Differentially private optimization on large model at small cost"). No
per-sentence gradient is ever stored for a large layer, and one forward and one backward pass serve both.

A `Layer` names the parameters of a module that it covers; from the records of one pass on the `Tape` it computes one
`Contribution` per parameter. Norms are float64 sums of float32 products.

>>> inputs, grad = torch.ones(1, 2, 3), torch.ones(1, 2, 3)
>>> weight = Product("weight", inputs, grad, transposed=False)
>>> weight.squared  # ‖G_sᵀ A_s‖², a 3 × 3 matrix of twos
tensor([36.], dtype=torch.float64)
>>> total = torch.zeros(3, 3)
>>> weight.add(torch.tensor([0.5]), total)
>>> total.sum()
tensor(9.)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

# An entry of a Gram matrix has a rounding error of a few float32 units relative to the product of the two norms. If a
# sentence's tokens nearly cancel, this error is not small beside the norm of their sum. It is added, so that a norm
# computed here is never smaller than the true one.
GRAM_ROUNDING = 2.0**-24
_PER_SENTENCE_LIMIT = 1 << 22  # largest number of float32 entries of one layer's per-sentence gradients in memory
_MASKED_LIMIT = 1 << 18  # the same for a masked weight, whose entries then stay in the cache


class NotCovered(Exception):
    """Report why the fast path does not cover a model, or a pass through it; the slow path must be taken."""


@dataclass(frozen=True)
class Record:
    """Record one call of one module.

    Attributes:
        inputs: its positional argument, detached, (B, T, …).
        grad: the gradient of its output, (B, T, …).
        output: its output, detached, (B, T, …).
        options: its keyword arguments.
        joined: the number of sentences that each of the B rows holds one after another.
    """

    inputs: torch.Tensor
    grad: torch.Tensor
    output: torch.Tensor
    options: Mapping[str, Any]
    joined: int = 1

    def of_users(self, users: int, factors: torch.Tensor | None) -> Record:
        """Return the record with one row per user, of gradient Σ_s factors[s] · gradient_s over the user's sentences.

        Args:
            users: U; the B rows are sentences, those of a user adjacent, the same number for each user.
            factors: (B,); None for 1.
        """

        def rows(of_sentences: torch.Tensor) -> torch.Tensor:
            return of_sentences.unflatten(0, (users, -1)).flatten(1, 2)

        grad = self.grad if factors is None else self.grad * factors.view(-1, *[1] * (self.grad.dim() - 1))
        joined = len(self.grad) // users
        return Record(rows(self.inputs), rows(grad), rows(self.output), self.options, joined)


class Contribution(ABC):
    """Hold the per-sentence gradients of one parameter for a batch of B sentences.

    Attributes:
        name: the name of the parameter.
        squared: squared norms of the per-sentence gradients, float64 (B,).
        slack: a bound on the rounding error of ``squared``, float64 (B,).
    """

    name: str
    squared: torch.Tensor
    slack: torch.Tensor

    @abstractmethod
    def add(self, factors: torch.Tensor, total: torch.Tensor) -> None:
        """Add Σ_s factors[s] · gradient_s to ``total`` in place.

        Args:
            factors: float32 (B,).
            total: float32 in the parameter's shape.
        """


class PerSentence(Contribution):
    """Store the gradient of each sentence, if it is small: biases, scales of norms, low-rank adapters."""

    def __init__(self, name: str, gradients: torch.Tensor) -> None:
        self.name = name
        self._rows = gradients.flatten(1)
        self.squared = self._rows.square().sum(dim=1, dtype=torch.float64)
        self.slack = torch.zeros_like(self.squared)

    def add(self, factors: torch.Tensor, total: torch.Tensor) -> None:
        total.view(-1).addmv_(self._rows.t(), factors)


class Product(Contribution):
    """Represent the gradients ``G_sᵀ A_s`` of a linear layer's weight (q, p) by their factors.

    Args:
        name: the name of the parameter.
        inputs: A, (B, T, p).
        grad: G, (B, T, q).
        transposed: whether the weight is stored as (p, q).
    """

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
        at_once = max(1, _PER_SENTENCE_LIMIT // (self.inputs.shape[2] * self.grad.shape[2]))
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
    """Represent the gradients of an embedding table (V, h): sentence s adds ``grad[s, t]`` to row ``ids[s, t]``.

    Args:
        name: the name of the parameter.
        ids: int64 (B, T).
        grad: (B, T, h).
        padding_idx: the row without a gradient, if any.
    """

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
        """Add gradient_s to ``tables[s]`` in place; ``tables`` is (B, V, h)."""
        starts = torch.arange(len(tables), device=tables.device).unsqueeze(1) * tables.shape[1]
        tables.flatten(0, 1).index_add_(0, (self.ids + starts).flatten(), self.grad.flatten(0, 1))


class TiedTable(Contribution):
    """Represent the gradients of a (V, h) table that is both embedding and output layer.

    The two gradients add, so their inner product enters the norm:
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
        # The error of |cross| is at most the geometric mean of the errors of the two norms.
        self.slack = 2 * (lookup.slack + product.slack)

    def add(self, factors: torch.Tensor, total: torch.Tensor) -> None:
        self._lookup.add(factors, total)
        self._product.add(factors, total)


class Layer(ABC):
    """Describe a module, or a tied pair of modules, whose per-sentence gradients can be computed.

    Attributes:
        modules: the modules to record.
        names: the names of their trainable parameters.
    """

    modules: tuple[nn.Module, ...]
    names: tuple[str, ...]

    @abstractmethod
    def contributions(self, records: Sequence[Record]) -> list[Contribution]:
        """Return one contribution per trainable parameter, from one record per module.

        Raises:
            NotCovered: if the inputs do not have one row per sentence.
        """


class LinearLayer(Layer):
    """Describe ``nn.Linear`` (weight (q, p)) or transformers' ``Conv1D`` (weight (p, q)), with or without bias."""

    def __init__(self, module: nn.Module, names: Mapping[str, str], transposed: bool) -> None:
        self.modules = (module,)
        self.names = tuple(names.values())
        self._weight = names.get("weight")
        self._bias = names.get("bias")
        self.transposed = transposed

    def contributions(self, records: Sequence[Record]) -> list[Contribution]:
        record = _of_sentences(records[0])
        by_parameter: list[Contribution] = []
        if self._weight is not None:
            by_parameter.append(self.product(self._weight, record))
        if self._bias is not None:
            by_parameter.append(PerSentence(self._bias, record.grad.sum(dim=1)))
        return by_parameter

    def product(self, name: str, record: Record) -> Contribution:
        """Return the contribution of the weight, stored per sentence if that takes less work."""
        if _better_stored(record):
            return PerSentence(name, _stored(record, self.transposed))
        return Product(name, record.inputs, record.grad, self.transposed)


class EmbeddingLayer(Layer):
    """Describe ``nn.Embedding``, called with one row of ids per sentence."""

    def __init__(self, module: nn.Embedding, names: Mapping[str, str]) -> None:
        if module.max_norm is not None or module.scale_grad_by_freq or module.sparse:
            raise NotCovered(f"{names['weight']} is an embedding with max_norm, frequency scaling or sparse gradients")
        self.modules = (module,)
        self.names = (names["weight"],)
        self._padding_idx = module.padding_idx

    def contributions(self, records: Sequence[Record]) -> list[Contribution]:
        return [self.lookup(records[0])]

    def lookup(self, record: Record) -> Lookup:
        """Return the contribution of the table."""
        if record.inputs.dim() != 2 or record.inputs.shape != record.grad.shape[:2]:
            raise NotCovered(f"{self.names[0]} was looked up with ids of shape {tuple(record.inputs.shape)}")
        return Lookup(self.names[0], record.inputs, record.grad, self._padding_idx)


class MaskedProduct(Contribution):
    """Represent the gradients of a weight (q, p) whose entries are multiplied by ``scale``, the same for all sentences.

    The gradient is ``scale ∘ G_sᵀ A_s``. Gram matrices do not give its norm, so it is computed for a few rows of the
    weight at a time.

    Args:
        name: the name of the parameter.
        inputs: A, (B, T, p).
        grad: G, (B, T, q).
        scale: (q, p).
    """

    def __init__(self, name: str, inputs: torch.Tensor, grad: torch.Tensor, scale: torch.Tensor) -> None:
        self.name = name
        self._inputs = inputs
        self._grad = grad
        self._scale = scale
        rows = max(1, _MASKED_LIMIT // (inputs.shape[0] * inputs.shape[2]))
        parts = [
            (torch.bmm(g.transpose(1, 2), inputs) * part).square().sum(dim=2).sum(dim=1, dtype=torch.float64)
            for g, part in zip(grad.split(rows, dim=2), scale.split(rows), strict=True)
        ]
        self.squared = torch.stack(parts).sum(dim=0)
        self.slack = torch.zeros_like(self.squared)

    def add(self, factors: torch.Tensor, total: torch.Tensor) -> None:
        grad = (self._grad * factors.view(-1, 1, 1)).flatten(0, 1)
        total.addcmul_(grad.t() @ self._inputs.flatten(0, 1), self._scale)


class RecurrentLayer(Layer):
    """Describe the hidden-to-hidden weight of `fl_sim.clients.models.awd_lstm.Recurrence`.

    At every step its input is the state of the previous step and its output gradient is that of the gates.
    """

    def __init__(self, module: nn.Module, names: Mapping[str, str]) -> None:
        recurrence: Any = module
        self.modules = (recurrence.gates, module)
        self.names = (names["weight"],)

    def contributions(self, records: Sequence[Record]) -> list[Contribution]:
        gates, recurrence = records
        by_sentence = recurrence.output.unflatten(1, (recurrence.joined, -1))  # each sentence starts with a zero state
        previous_states = functional.pad(by_sentence[:, :, :-1], (0, 0, 1, 0)).flatten(1, 2)
        scale = recurrence.options.get("scale")
        if scale is None:
            return [Product(self.names[0], previous_states, gates.grad, transposed=False)]
        return [MaskedProduct(self.names[0], previous_states, gates.grad, scale)]


class ScaleLayer(Layer):
    """Describe ``nn.LayerNorm`` or the RMSNorm of any architecture: affine in a scale (and shift) per feature."""

    def __init__(self, module: nn.Module, names: Mapping[str, str]) -> None:
        self.modules = (module,)
        self.names = tuple(names.values())
        self._weight = names.get("weight")
        self._bias = names.get("bias")

    def contributions(self, records: Sequence[Record]) -> list[Contribution]:
        inputs, grad = records[0].inputs, records[0].grad  # (B, …, features): some norms act on each head
        by_parameter: list[Contribution] = []
        if self._weight is not None:
            by_scale = grad * self._normalised(inputs)
            by_parameter.append(PerSentence(self._weight, by_scale.flatten(1, -2).sum(dim=1)))
        if self._bias is not None:
            by_parameter.append(PerSentence(self._bias, grad.flatten(1, -2).sum(dim=1)))
        return by_parameter

    def _normalised(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the factor of the scale: the output at scale 1 less the output at scale 0."""
        module: Any = self.modules[0]
        if isinstance(module, nn.LayerNorm):
            return functional.layer_norm(inputs, module.normalized_shape, eps=module.eps)
        scale = module.weight
        at_one, at_zero = (
            torch.func.functional_call(module, {"weight": value}, (inputs,))
            for value in (torch.ones_like(scale), torch.zeros_like(scale))
        )
        return at_one - at_zero


class TiedLayer(Layer):
    """Describe an embedding and an output layer that share one table."""

    def __init__(self, embedding: EmbeddingLayer, linear: LinearLayer) -> None:
        self.modules = embedding.modules + linear.modules
        self.names = tuple(dict.fromkeys(embedding.names + linear.names))
        self._embedding = embedding
        self._linear = linear

    def contributions(self, records: Sequence[Record]) -> list[Contribution]:
        table = self._embedding.names[0]
        head = _of_sentences(records[1])
        lookup = self._embedding.lookup(records[0])
        biases = [PerSentence(name, head.grad.sum(dim=1)) for name in self.names if name != table]
        if _better_stored(head):
            gradients = _stored(head, transposed=False)
            lookup.add_to_rows(gradients)
            return [PerSentence(table, gradients), *biases]
        return [TiedTable(lookup, Product(table, head.inputs, head.grad, transposed=False)), *biases]


def _better_stored(record: Record) -> bool:
    """Tell whether computing a linear layer's gradient of every row takes no more work than Gram matrices, and fits."""
    (rows, tokens, p), q = record.inputs.shape, record.grad.shape[2]
    return p * q <= tokens * (p + q) and rows * p * q <= _PER_SENTENCE_LIMIT


def _stored(record: Record, transposed: bool) -> torch.Tensor:
    """Return the gradient of a linear layer's weight for every row, (B, q, p) or (B, p, q)."""
    left, right = (record.inputs, record.grad) if transposed else (record.grad, record.inputs)
    return torch.bmm(left.transpose(1, 2), right)


def _of_sentences(record: Record) -> Record:
    """Return the record if its inputs are (B, T, features), one row per sentence; else raise NotCovered."""
    if record.inputs.dim() != 3 or record.inputs.shape[:2] != record.grad.shape[:2]:
        raise NotCovered(f"a layer was given inputs of shape {tuple(record.inputs.shape)}; known: (B, T, features)")
    return record
