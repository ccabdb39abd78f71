"""Compute per-sentence gradient norms and weighted gradient sums from one record of each layer's call.

For a linear layer, sentence s's weight gradient is ``G_sᵀ A_s``, with inputs ``A_s`` (T, p) and output
gradients ``G_s`` (T, q). Its squared norm is ``Σ_{t,t'} (A_s A_sᵀ)[t,t'] · (G_s G_sᵀ)[t,t']`` ("ghost norm":
Goodfellow 2015; Li et al. 2022, "Large language models can be strong differentially private learners",
section 4), and the clipped sum over sentences ``Σ_s f_s G_sᵀ A_s`` is one product of the stacked matrices
("book-keeping": Bu et al. 2023, "Differentially private optimization on large model at small cost"). No
per-sentence gradient is ever stored for a large layer, and one forward and one backward pass serve both.

A :class:`Contribution` holds the gradients of one parameter for a batch; a :class:`Layer` computes it from the
:class:`Record` of one call. Norms are float64 sums of float32 products. The clip of a sentence relies on them
(docs/privacy.md, section 2): ``squared + slack`` is never smaller than the true squared norm.

>>> weight = Product("weight", inputs=torch.ones(1, 2, 3), grad=torch.ones(1, 2, 3), transposed=False)
>>> weight.squared  # ‖G_sᵀ A_s‖², a 3 × 3 matrix of twos
tensor([36.], dtype=torch.float64)
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

# An entry of a Gram matrix has a rounding error of about a float32 unit relative to the product of the two norms. If a
# sentence's tokens nearly cancel, this error is not small beside the norm of their sum. It is added, so that a norm
# computed here is not smaller than the true one. The worst case is larger, a unit per column: rows of one constant,
# whose tokens cancel to a hundredth, were found 0.5 % longer at 768 columns and 12 % at 8,192 (docs/privacy.md).
GRAM_ROUNDING = 2.0**-24
PER_SENTENCE_LIMIT = 1 << 22  # largest number of float32 entries of one layer's per-sentence gradients in memory


class NotCovered(Exception):
    """Report why the fast path does not cover a model, or a pass through it; the slow path must be taken."""


@dataclass(frozen=True)
class Record:
    """Record one call of one module.

    Attributes:
        inputs: its first argument, detached, (B, T, …), in the precision of the module's product.
        grad: the gradient of its output, (B, T, …), in the precision of the output.
        output: its output, detached, (B, T, …), for layers that ask for it (``Layer.reads_outputs``); None else.
        options: its other arguments, by name.
    """

    inputs: torch.Tensor
    grad: torch.Tensor
    output: torch.Tensor | None
    options: Mapping[str, Any]

    def full(self) -> Record:
        """Return the record in float32, which is exact: norms and sums use the same numbers, and neither is rounded."""
        if self.inputs.dtype != torch.bfloat16 and self.grad.dtype != torch.bfloat16:
            return self
        output = None if self.output is None else full(self.output)
        return replace(self, inputs=full(self.inputs), grad=full(self.grad), output=output)


def full(tensor: torch.Tensor) -> torch.Tensor:
    """Return bfloat16 as float32, which is exact."""
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


class Contribution(ABC):
    """Hold the per-sentence gradients of one parameter for a batch of B sentences; norms are computed when asked for.

    Attributes:
        rows: B.
    """

    name: str
    rows: int

    @property
    def squared(self) -> torch.Tensor:
        """Return the squared norms of the per-sentence gradients, float64 (B,)."""
        return self.norms[0]

    @property
    def slack(self) -> torch.Tensor:
        """Return a bound on the rounding error of ``squared``, float64 (B,)."""
        return self.norms[1]

    @functools.cached_property
    @abstractmethod
    def norms(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ``squared`` and ``slack``."""

    @property
    def inner_slack(self) -> torch.Tensor:
        """Return r, float64 (B,): the rounding error of an inner product of sentences s and s' is at most √(r_s·r_s').

        For a sum of gradients, Σ_s f_s·g_s, that of the squared norm is then at most (Σ_s f_s·√r_s)².
        """
        return self.slack + GRAM_ROUNDING * self.squared

    @abstractmethod
    def only(self, rows: torch.Tensor | slice) -> Self:
        """Return the gradients of some sentences, in the order of ``rows``, int64 (b,)."""

    @abstractmethod
    def stored(self) -> PerSentence:
        """Return the gradients themselves, (B, …)."""

    @abstractmethod
    def inner(self, other: Contribution) -> torch.Tensor:
        """Return ⟨gradient_s, other gradient_s⟩, float64 (B,), for gradients of the same parameter from any pass."""

    @abstractmethod
    def add(self, factors: torch.Tensor, total: torch.Tensor) -> None:
        """Add Σ_s factors[s] · gradient_s to ``total`` in place; a lack of memory changes nothing of it.

        Args:
            factors: float32 (B,).
            total: float32 in the parameter's shape.
        """


def squared_of_sum(contribution: Contribution, factors: torch.Tensor) -> torch.Tensor:
    """Return ‖Σ_s factors[s] · gradient_s‖², a float64 number, by inner products of all pairs of sentences."""
    f = factors.double()
    first, second = torch.triu_indices(len(f), len(f), offset=1).to(f.device)
    pairs = contribution.only(first).inner(contribution.only(second))
    return (f.square() * contribution.squared).sum() + 2 * (f[first] * f[second] * pairs).sum()


class PerSentence(Contribution):
    """Store the gradient of each sentence, float32 (B, …), if it is small: biases, scales of norms, adapters."""

    def __init__(self, name: str, gradients: torch.Tensor) -> None:
        self.name = name
        self.rows = len(gradients)
        self.gradients = gradients.flatten(1)

    @functools.cached_property
    def norms(self) -> tuple[torch.Tensor, torch.Tensor]:
        squared = self.inner(self)
        return squared, torch.zeros_like(squared)

    def only(self, rows: torch.Tensor | slice) -> PerSentence:
        return PerSentence(self.name, self.gradients[rows])

    def stored(self) -> PerSentence:
        return self

    def inner(self, other: Contribution) -> torch.Tensor:
        return (self.gradients * other.stored().gradients).sum(dim=1, dtype=torch.float64)

    def add(self, factors: torch.Tensor, total: torch.Tensor) -> None:
        total.view(-1).addmv_(self.gradients.t(), factors)


class Product(Contribution):
    """Represent the gradients ``G_sᵀ A_s`` of a linear layer's weight (q, p) by their factors.

    The factors A (B, T, p) and G (B, T, q) stay as they were recorded, float32 or bfloat16. Products of them are
    float32: bfloat16 is widened, exactly, for each. A ``transposed`` weight is stored as (p, q).
    """

    def __init__(self, name: str, inputs: torch.Tensor, grad: torch.Tensor, transposed: bool) -> None:
        self.name = name
        self.rows = len(grad)
        self.inputs = inputs
        self.grad = grad
        self._transposed = transposed

    @property
    def _is_small(self) -> bool:
        """Return whether one sentence's gradient takes less work than its Gram matrices."""
        tokens, p, q = self.inputs.shape[1], self.inputs.shape[2], self.grad.shape[2]
        return p * q <= tokens * (p + q)

    @functools.cached_property
    def norms(self) -> tuple[torch.Tensor, torch.Tensor]:
        if self._is_small:
            at_once = max(1, PER_SENTENCE_LIMIT // (self.inputs.shape[2] * self.grad.shape[2]))
            parts = [
                torch.bmm(full(g).transpose(1, 2), full(a)).flatten(1).square().sum(dim=1, dtype=torch.float64)
                for a, g in zip(self.inputs.split(at_once), self.grad.split(at_once), strict=True)
            ]
            squared = torch.cat(parts)
            return squared, torch.zeros_like(squared)
        of_inputs, of_grad = _gram(self.inputs), _gram(self.grad)
        squared = (of_inputs * of_grad).sum(dim=(1, 2), dtype=torch.float64)
        diagonals = of_inputs.diagonal(dim1=1, dim2=2) * of_grad.diagonal(dim1=1, dim2=2)
        sizes = diagonals.clamp_min(0).sqrt().sum(dim=1, dtype=torch.float64)  # Σ_t ‖a_t‖‖g_t‖
        return squared, GRAM_ROUNDING * sizes.square()

    @property
    def inner_slack(self) -> torch.Tensor:
        return gram_slack(self.inputs, self.grad) if self._is_small else self.slack

    def only(self, rows: torch.Tensor | slice) -> Product:
        return Product(self.name, self.inputs[rows], self.grad[rows], self._transposed)

    def stored(self) -> PerSentence:
        left, right = (self.inputs, self.grad) if self._transposed else (self.grad, self.inputs)
        return PerSentence(self.name, torch.bmm(full(left).transpose(1, 2), full(right)))

    @property
    def better_stored(self) -> bool:
        """Return whether the gradients themselves take no more work than Gram matrices, and fit."""
        return self._is_small and self.rows * self.inputs.shape[2] * self.grad.shape[2] <= PER_SENTENCE_LIMIT

    def inner(self, other: Contribution) -> torch.Tensor:
        if not isinstance(other, Product):
            return other.inner(self)
        products = _gram(self.inputs, other.inputs).mul_(_gram(self.grad, other.grad))
        return products.sum(dim=(1, 2), dtype=torch.float64)

    def add(self, factors: torch.Tensor, total: torch.Tensor) -> None:
        total.addmm_(*scaled(self.inputs, self.grad, factors, transposed=self._transposed))


def scaled(
    inputs: torch.Tensor, grad: torch.Tensor, factors: torch.Tensor, *, transposed: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two float32 matrices whose product is Σ_s factors[s] · G_sᵀ A_s, (q, p), or its transpose, (p, q).

    A is float32 or bfloat16 (B, T, p), G is (B, T, q), the factors float32 (B,).
    """
    scale = factors.view(-1, 1, 1)
    small = inputs.shape[2] <= grad.shape[2]  # scale the smaller of the two
    a, g = (inputs * scale, grad) if small else (inputs, grad * scale)
    a, g = full(a).flatten(0, 1), full(g).flatten(0, 1)
    return (a.t(), g) if transposed else (g.t(), a)


def gram_slack(inputs: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """Return the bound on rounding of a product of Gram matrices, 2⁻²⁴·(Σ_t ‖a_t‖‖g_t‖)², float64 (B,)."""
    lengths = [torch.linalg.vector_norm(full(rows), dim=2).double() for rows in (inputs, grad)]
    return GRAM_ROUNDING * (lengths[0] * lengths[1]).sum(dim=1).square()


def _gram(rows: torch.Tensor, others: torch.Tensor | None = None) -> torch.Tensor:
    """Return the products of all pairs of rows, float32 (B, T, T'), of (B, T, n) and (B, T', n), by default itself."""
    wide = full(rows)
    return torch.bmm(wide, (wide if others is None else full(others)).transpose(1, 2))


class Lookup(Contribution):
    """Represent the gradients of an embedding table (V, h): sentence s adds ``grad[s, t]`` to row ``ids[s, t]``.

    ``ids`` is int64 (B, T), ``grad`` float32 or bfloat16 (B, T, h); the row ``padding_idx``, if any, has no gradient.
    """

    def __init__(self, name: str, ids: torch.Tensor, grad: torch.Tensor, padding_idx: int | None) -> None:
        self.name = name
        self.rows = len(grad)
        self.ids = ids
        self.grad = grad if padding_idx is None else grad.masked_fill((ids == padding_idx).unsqueeze(-1), 0.0)

    @functools.cached_property
    def norms(self) -> tuple[torch.Tensor, torch.Tensor]:
        products = _gram(self.grad)
        same_row = self.ids.unsqueeze(2) == self.ids.unsqueeze(1)
        squared = (products * same_row).sum(dim=(1, 2), dtype=torch.float64)
        sizes = products.diagonal(dim1=1, dim2=2).clamp_min(0).sqrt().sum(dim=1, dtype=torch.float64)
        return squared, GRAM_ROUNDING * sizes.square()

    def only(self, rows: torch.Tensor | slice) -> Lookup:
        return Lookup(self.name, self.ids[rows], self.grad[rows], padding_idx=None)

    def stored(self) -> PerSentence:
        raise TypeError("gradients of a lookup meet those of lookups alone")

    def inner(self, other: Contribution) -> torch.Tensor:
        if not isinstance(other, Lookup):
            return other.inner(self)
        same_row = self.ids.unsqueeze(2) == other.ids.unsqueeze(1)
        return (_gram(self.grad, other.grad) * same_row).sum(dim=(1, 2), dtype=torch.float64)

    def add(self, factors: torch.Tensor, total: torch.Tensor) -> None:
        total.index_add_(0, self.ids.flatten(), (full(self.grad) * factors.view(-1, 1, 1)).flatten(0, 1))

    def add_to_rows(self, tables: torch.Tensor) -> None:
        """Add gradient_s to ``tables[s]`` in place; ``tables`` is float32 (B, V, h)."""
        starts = torch.arange(len(tables), device=tables.device).unsqueeze(1) * tables.shape[1]
        tables.flatten(0, 1).index_add_(0, (self.ids + starts).flatten(), full(self.grad).flatten(0, 1))


class TiedTable(Contribution):
    """Represent the gradients of a (V, h) table that is both embedding and output layer.

    The two gradients add, so their inner product enters the norm: see :func:`cross`.
    """

    def __init__(self, lookup: Lookup, product: Product) -> None:
        self.name = lookup.name
        self.rows = lookup.rows
        self.lookup = lookup
        self.product = product

    @functools.cached_property
    def norms(self) -> tuple[torch.Tensor, torch.Tensor]:
        squared = self.lookup.squared + self.product.squared + 2 * cross(self.product, self.lookup)
        # The error of an inner product of the two is at most the geometric mean of the errors of the two norms.
        return squared, 2 * (self.lookup.slack + self.product.slack)

    @property
    def inner_slack(self) -> torch.Tensor:
        return 2 * (self.lookup.inner_slack + self.product.inner_slack)

    def only(self, rows: torch.Tensor | slice) -> TiedTable:
        return TiedTable(self.lookup.only(rows), self.product.only(rows))

    def stored(self) -> PerSentence:
        tables = self.product.stored().gradients.unflatten(1, (-1, self.lookup.grad.shape[2]))
        self.lookup.add_to_rows(tables)
        return PerSentence(self.name, tables)

    def inner(self, other: Contribution) -> torch.Tensor:
        if not isinstance(other, TiedTable):
            return other.inner(self)
        mixed = cross(self.product, other.lookup) + cross(other.product, self.lookup)
        return self.lookup.inner(other.lookup) + self.product.inner(other.product) + mixed

    def add(self, factors: torch.Tensor, total: torch.Tensor) -> None:
        product = self.product
        # Takes its memory before anything is added.
        matrices = scaled(product.inputs, product.grad, factors, transposed=False)
        self.lookup.add(factors, total)
        total.addmm_(*matrices)


def cross(product: Product, lookup: Lookup) -> torch.Tensor:
    """Return ⟨Lookup_s, G_sᵀ A_s⟩ = Σ_{t,t'} G_s[t', x_t] · (A_s[t'] · grad_s[t]), float64 (B,)."""
    return cross_of(picked(product.grad, lookup.ids), product.inputs, lookup)


def picked(grad: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return G_s[t', x_t], float32 (B, T', T), for G (B, T', V) and ids x (B, T)."""
    return full(grad.gather(2, ids.unsqueeze(1).expand(-1, grad.shape[1], -1)))


def cross_of(picked: torch.Tensor, inputs: torch.Tensor, lookup: Lookup) -> torch.Tensor:
    """Return :func:`cross` given what is picked of G."""
    return (picked * _gram(inputs, lookup.grad)).sum(dim=(1, 2), dtype=torch.float64)


class Layer(ABC):
    """Describe a module, or a tied pair of modules, whose per-sentence gradients can be computed.

    Attributes:
        names: the names of their trainable parameters, as in ``LanguageModel.parameters``.
        reads_outputs: whether the records must have the modules' outputs, which take memory.
        reads_rounded: whether the records may be of bfloat16; else they are widened to float32.
    """

    modules: tuple[nn.Module, ...]
    names: tuple[str, ...]
    reads_outputs: ClassVar[bool] = False
    reads_rounded: ClassVar[bool] = False

    @abstractmethod
    def contributions(self, records: Sequence[Record]) -> list[Contribution]:
        """Return one contribution per trainable parameter, from one record per module of ``modules``, in their order.

        Raises:
            NotCovered: the inputs do not have one row per sentence.
        """

    def head_names(self) -> tuple[str | None, str | None]:
        """Return the names of weight and bias, if they train, of a layer that may be an output layer."""
        return None, None


LayerHandler = Callable[[nn.Module, Mapping[str, str]], Layer]
"""Build the layer of a module; the second argument maps the module's own trainable parameters to their full names."""


class _AffineLayer(Layer):
    """Describe a module with a weight or a bias, or both."""

    def __init__(self, module: nn.Module, names: Mapping[str, str]) -> None:
        self.modules = (module,)
        self.names = tuple(names.values())
        self._weight = names.get("weight")
        self._bias = names.get("bias")


class LinearLayer(_AffineLayer):
    """Describe ``nn.Linear`` (weight (q, p)), or its ``transposed`` form (weight (p, q)), with or without bias."""

    reads_rounded: ClassVar[bool] = True

    def __init__(self, module: nn.Module, names: Mapping[str, str], *, transposed: bool = False) -> None:
        super().__init__(module, names)
        self.transposed = transposed

    def contributions(self, records: Sequence[Record]) -> list[Contribution]:
        record = _of_sentences(records[0])
        by_parameter: list[Contribution] = []
        if self._weight is not None:
            product = Product(self._weight, record.inputs, record.grad, self.transposed)
            by_parameter.append(product.stored() if product.better_stored else product)
        if self._bias is not None:
            by_parameter.append(PerSentence(self._bias, full(record.grad).sum(dim=1)))
        return by_parameter

    def head_names(self) -> tuple[str | None, str | None]:
        return self._weight, self._bias


class EmbeddingLayer(Layer):
    """Describe ``nn.Embedding``, called with one row of ids per sentence."""

    reads_rounded: ClassVar[bool] = True

    def __init__(self, module: Any, names: Mapping[str, str]) -> None:
        if module.max_norm is not None or module.scale_grad_by_freq or module.sparse:
            raise NotCovered(f"{names['weight']} is an embedding with max_norm, frequency scaling or sparse gradients")
        self.modules = (module,)
        self.names = (names["weight"],)
        self._padding_idx = module.padding_idx

    def contributions(self, records: Sequence[Record]) -> list[Contribution]:
        return [self.lookup(records[0])]

    def lookup(self, record: Record) -> Lookup:
        """Return the contribution of the table; raise NotCovered if the ids do not have one row per sentence."""
        if record.inputs.dim() != 2 or record.inputs.shape != record.grad.shape[:2]:
            raise NotCovered(f"{self.names[0]} was looked up with ids of shape {tuple(record.inputs.shape)}")
        return Lookup(self.names[0], record.inputs, record.grad, self._padding_idx)


class DerivedEmbeddingLayer(EmbeddingLayer):
    """Describe a subclass of ``nn.Embedding`` that looks up other ids than it was called with, or scales the rows."""

    def lookup(self, record: Record) -> Lookup:
        module: Any = self.modules[0]
        ones = torch.ones(1, 1, device=record.grad.device).expand(module.weight.shape)
        with _Lookups() as lookups:
            scale = torch.func.functional_call(module, {"weight": ones}, (record.inputs,), dict(record.options))
        if len(lookups.ids) != 1 or scale.shape != record.grad.shape:
            raise NotCovered(f"{self.names[0]} belongs to a {type(module).__name__} of {len(lookups.ids)} lookups")
        ids = lookups.ids[0].expand(record.grad.shape[:2])
        return super().lookup(replace(record, inputs=ids, grad=full(record.grad) * scale))


class _Lookups(TorchFunctionMode):
    """Record the ids of every lookup in a table while open."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[torch.Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, object] | None = None
    ) -> Any:
        if func is functional.embedding:
            self.ids.append(args[0])
        return func(*args, **(kwargs or {}))


class ScaleLayer(_AffineLayer):
    """Describe a normalisation that is affine in a scale (and shift) per feature, such as an RMSNorm."""

    def contributions(self, records: Sequence[Record]) -> list[Contribution]:
        inputs, grad = records[0].inputs, records[0].grad  # (B, …, features): some norms act on each head
        by_parameter: list[Contribution] = []
        if self._weight is not None:
            by_scale = grad * self.normalised(inputs)
            by_parameter.append(PerSentence(self._weight, by_scale.flatten(1, -2).sum(dim=1)))
        if self._bias is not None:
            by_parameter.append(PerSentence(self._bias, grad.flatten(1, -2).sum(dim=1)))
        return by_parameter

    def normalised(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the factor of the scale, shaped as ``inputs``: the output at scale 1 less the output at scale 0."""
        module: Any = self.modules[0]
        at_one, at_zero = (
            torch.func.functional_call(module, {"weight": value}, (inputs,))
            for value in (torch.ones_like(module.weight), torch.zeros_like(module.weight))
        )
        return at_one - at_zero


class LayerNormLayer(ScaleLayer):
    """Describe ``nn.LayerNorm``."""

    def normalised(self, inputs: torch.Tensor) -> torch.Tensor:
        module: Any = self.modules[0]
        return functional.layer_norm(inputs, module.normalized_shape, eps=module.eps)


class TiedLayer(Layer):
    """Describe an embedding and an output layer that share one table."""

    reads_rounded: ClassVar[bool] = True

    def __init__(self, embedding: EmbeddingLayer, linear: LinearLayer) -> None:
        self.modules = embedding.modules + linear.modules
        self.names = tuple(dict.fromkeys(embedding.names + linear.names))
        self.embedding = embedding

    def head_names(self) -> tuple[str | None, str | None]:
        table = self.embedding.names[0]
        return table, next((name for name in self.names if name != table), None)

    def contributions(self, records: Sequence[Record]) -> list[Contribution]:
        table = self.embedding.names[0]
        head = _of_sentences(records[1])
        lookup = self.embedding.lookup(records[0])
        biases = [PerSentence(name, full(head.grad).sum(dim=1)) for name in self.names if name != table]
        tied = TiedTable(lookup, Product(table, head.inputs, head.grad, transposed=False))
        return [tied.stored() if tied.product.better_stored else tied, *biases]


def _of_sentences(record: Record) -> Record:
    """Return the record if its inputs are (B, T, features), one row per sentence; else raise NotCovered."""
    if record.inputs.dim() != 3 or record.inputs.shape[:2] != record.grad.shape[:2]:
        raise NotCovered(f"a layer was given inputs of shape {tuple(record.inputs.shape)}; covered: (B, T, features)")
    return record


_BY_TYPE: dict[type[nn.Module], tuple[LayerHandler, LayerHandler]] = {
    nn.Linear: (LinearLayer, LinearLayer),
    nn.Embedding: (EmbeddingLayer, DerivedEmbeddingLayer),
    nn.LayerNorm: (LayerNormLayer, ScaleLayer),
}
"""The handlers of a type and of those that inherit from it."""


def handler_of(
    module: nn.Module, names: Mapping[str, str], own: Mapping[type[nn.Module], LayerHandler]
) -> LayerHandler:
    """Return the layer handler of a module with trainable parameters of its own; ``names`` maps to their full names.

    The architecture's ``own`` handlers take precedence over the built-in ones.

    Raises:
        NotCovered: neither the module's type nor one that it inherits from has a handler.
    """
    for kind in type(module).__mro__:
        if kind in own:
            return own[kind]
        if kind in _BY_TYPE:
            return _BY_TYPE[kind][type(module) is not kind]
    if set(names) in ({"weight"}, {"weight", "bias"}):
        return ScaleLayer  # every architecture defines its own class of norm
    raise NotCovered(f"{', '.join(names.values())} belong to a {type(module).__name__}")
