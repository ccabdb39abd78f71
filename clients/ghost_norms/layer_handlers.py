"""Compute the gradients of a module's parameters from the record of one call, by a handler for each type of module.

A `Layer` covers the trainable parameters of one module, or of a tied pair of modules, and computes one `Contribution`
per parameter. :func:`handler_of` chooses it by the module's type or the nearest type that it inherits from. A subclass
may compute something else, which the comparison with autograd notices (`fl_sim.clients.gradients.ghost_pass`). An
architecture may add handlers for its own types of module (``Architecture.layer_handlers``).

>>> module, names = nn.Linear(3, 2), {"weight": "head.weight", "bias": "head.bias"}
>>> layer = handler_of(module, names, own={})(module, names)
>>> ones = torch.ones(1, 4, 3), torch.ones(1, 4, 2)
>>> record = Record(inputs=ones[0], grad=ones[1], output=ones[1], options={})
>>> [(c.name, c.squared.item()) for c in layer.contributions([record])]
[('head.weight', 96.0), ('head.bias', 32.0)]
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fl_sim.clients.ghost_norms.layer_gradients import (
    PER_SENTENCE_LIMIT,
    Contribution,
    Lookup,
    NotCovered,
    PerSentence,
    Product,
    Record,
    TiedTable,
    full,
)


class Layer(ABC):
    """Describe a module, or a tied pair of modules, whose per-sentence gradients can be computed.

    Attributes:
        modules: the modules to record.
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
        """Return one contribution per trainable parameter.

        Args:
            records: one per module of ``modules``, in their order.

        Raises:
            NotCovered: the inputs do not have one row per sentence.
        """

    def head_names(self) -> tuple[str | None, str | None]:
        """Return the names of weight and bias, if they train, of a layer that may be an output layer."""
        return None, None


LayerHandler = Callable[[nn.Module, Mapping[str, str]], Layer]
"""Build the layer of a module; the second argument maps the module's own trainable parameters to their full names."""


class LinearLayer(Layer):
    """Describe ``nn.Linear`` (weight (q, p)), or its ``transposed`` form (weight (p, q)), with or without bias."""

    reads_rounded: ClassVar[bool] = True

    def __init__(self, module: nn.Module, names: Mapping[str, str], *, transposed: bool = False) -> None:
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
            by_parameter.append(PerSentence(self._bias, full(record.grad).sum(dim=1)))
        return by_parameter

    def head_names(self) -> tuple[str | None, str | None]:
        return self._weight, self._bias

    def product(self, name: str, record: Record) -> Contribution:
        """Return the contribution of the weight, stored per sentence if that takes less work."""
        if _better_stored(record):
            return PerSentence(name, _stored(record, self.transposed))
        return Product(name, record.inputs, record.grad, self.transposed)


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
        """Return the contribution of the table.

        Raises:
            NotCovered: the ids do not have one row per sentence.
        """
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
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is functional.embedding:
            self.ids.append(args[0])
        return func(*args, **(kwargs or {}))


class ScaleLayer(Layer):
    """Describe a normalisation that is affine in a scale (and shift) per feature, such as an RMSNorm."""

    def __init__(self, module: nn.Module, names: Mapping[str, str]) -> None:
        self.modules = (module,)
        self.names = tuple(names.values())
        self._weight = names.get("weight")
        self._bias = names.get("bias")

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
        if _better_stored(head):
            gradients = _stored(head, transposed=False)
            lookup.add_to_rows(gradients)
            return [PerSentence(table, gradients), *biases]
        return [TiedTable(lookup, Product(table, head.inputs, head.grad, transposed=False)), *biases]


def _better_stored(record: Record) -> bool:
    """Tell whether computing a linear layer's gradient of every row takes no more work than Gram matrices, and fits."""
    (rows, tokens, p), q = record.inputs.shape, record.grad.shape[2]
    return p * q <= tokens * (p + q) and rows * p * q <= PER_SENTENCE_LIMIT


def _stored(record: Record, transposed: bool) -> torch.Tensor:
    """Return the gradient of a linear layer's weight for every row, float32 (B, q, p) or (B, p, q)."""
    left, right = (record.inputs, record.grad) if transposed else (record.grad, record.inputs)
    return torch.bmm(full(left).transpose(1, 2), full(right))


def _of_sentences(record: Record) -> Record:
    """Return the record if its inputs are (B, T, features), one row per sentence; else raise NotCovered."""
    if record.inputs.dim() != 3 or record.inputs.shape[:2] != record.grad.shape[:2]:
        raise NotCovered(f"a layer was given inputs of shape {tuple(record.inputs.shape)}; covered: (B, T, features)")
    return record


def _embedding(module: nn.Module, names: Mapping[str, str]) -> Layer:
    return (EmbeddingLayer if type(module) is nn.Embedding else DerivedEmbeddingLayer)(module, names)


def _layer_norm(module: nn.Module, names: Mapping[str, str]) -> Layer:
    return (LayerNormLayer if type(module) is nn.LayerNorm else ScaleLayer)(module, names)


_BY_TYPE: dict[type[nn.Module], LayerHandler] = {
    nn.Linear: LinearLayer,
    nn.Embedding: _embedding,
    nn.LayerNorm: _layer_norm,
}


def handler_of(
    module: nn.Module, names: Mapping[str, str], own: Mapping[type[nn.Module], LayerHandler]
) -> LayerHandler:
    """Return the layer handler of a module.

    Args:
        module: a module with trainable parameters of its own.
        names: the full name of each of these parameters.
        own: the architecture's handlers; they take precedence over the built-in ones.

    Raises:
        NotCovered: neither the module's type nor one that it inherits from has a handler.
    """
    for kind in type(module).__mro__:
        if (handler := own.get(kind) or _BY_TYPE.get(kind)) is not None:
            return handler
    if set(names) in ({"weight"}, {"weight", "bias"}):
        return ScaleLayer  # every architecture defines its own class of norm
    raise NotCovered(f"{', '.join(names.values())} belong to a {type(module).__name__}")
