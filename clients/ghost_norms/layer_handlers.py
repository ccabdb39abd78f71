"""Layer handlers: for each type of module, the gradients of its parameters from the record of one call.

A handler covers the trainable parameters of one module, or of a tied pair of modules, and yields one
`Contribution` per parameter. :func:`handler_of` picks it by the module's exact type, because a subclass may compute
something else. An architecture brings handlers for its own types of module (``Architecture.layer_handlers``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from fl_sim.clients.ghost_norms.layer_gradients import (
    PER_SENTENCE_LIMIT,
    Contribution,
    Lookup,
    NotCovered,
    PerSentence,
    Product,
    Record,
    TiedTable,
)


class Layer(ABC):
    """A module, or a tied pair of modules, whose trainable parameters (by name) have per-sentence gradients.

    Attributes:
        modules: the modules whose calls are recorded.
        names: of the trainable parameters, as in ``LanguageModel.parameters``.
    """

    modules: tuple[nn.Module, ...]
    names: tuple[str, ...]

    @abstractmethod
    def contributions(self, records: Sequence[Record]) -> list[Contribution]:
        """Return one contribution per trainable parameter.

        Args:
            records: one per module of ``modules``, in their order.

        Raises:
            NotCovered: the shapes do not tell the sentences apart.
        """


LayerHandler = Callable[[nn.Module, Mapping[str, str]], Layer]
"""Makes the layer of a module; its second argument maps the module's own trainable parameters to their full names."""


class LinearLayer(Layer):
    """``nn.Linear`` (weight (q, p)), or ``transposed`` with weight (p, q); with or without bias."""

    def __init__(self, module: nn.Module, names: Mapping[str, str], *, transposed: bool = False) -> None:
        self.modules = (module,)
        self.names = tuple(names.values())
        self._weight = names.get("weight")
        self._bias = names.get("bias")
        self.transposed = transposed

    def contributions(self, records: Sequence[Record]) -> list[Contribution]:
        record = _of_sentences(records[0])
        made: list[Contribution] = []
        if self._weight is not None:
            made.append(self.product(self._weight, record))
        if self._bias is not None:
            made.append(PerSentence(self._bias, record.grad.sum(dim=1)))
        return made

    def product(self, name: str, record: Record) -> Contribution:
        """Return the weight's contribution, stored per sentence where that takes less work."""
        if _better_stored(record):
            return PerSentence(name, _stored(record, self.transposed))
        return Product(name, record.inputs, record.grad, self.transposed)


class EmbeddingLayer(Layer):
    """``nn.Embedding``, called with one row of ids per sentence."""

    def __init__(self, module: Any, names: Mapping[str, str]) -> None:
        if module.max_norm is not None or module.scale_grad_by_freq or module.sparse:
            raise NotCovered(f"{names['weight']} is an embedding with max_norm, frequency scaling or sparse gradients")
        self.modules = (module,)
        self.names = (names["weight"],)
        self._padding_idx = module.padding_idx

    def contributions(self, records: Sequence[Record]) -> list[Contribution]:
        return [self.lookup(records[0])]

    def lookup(self, record: Record) -> Lookup:
        """Return the table's contribution."""
        if record.inputs.dim() != 2 or record.inputs.shape != record.grad.shape[:2]:
            raise NotCovered(f"{self.names[0]} was looked up with ids of shape {tuple(record.inputs.shape)}")
        return Lookup(self.names[0], record.inputs, record.grad, self._padding_idx)


class ScaleLayer(Layer):
    """A normalisation that is affine in a scale (and shift) per feature."""

    def __init__(self, module: nn.Module, names: Mapping[str, str]) -> None:
        self.modules = (module,)
        self.names = tuple(names.values())
        self._weight = names.get("weight")
        self._bias = names.get("bias")

    def contributions(self, records: Sequence[Record]) -> list[Contribution]:
        inputs, grad = records[0].inputs, records[0].grad  # (B, …, features): some norms act on each head
        made: list[Contribution] = []
        if self._weight is not None:
            by_scale = grad * self.normalised(inputs)
            made.append(PerSentence(self._weight, by_scale.flatten(1, -2).sum(dim=1)))
        if self._bias is not None:
            made.append(PerSentence(self._bias, grad.flatten(1, -2).sum(dim=1)))
        return made

    def normalised(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return what the scale multiplies: the output at scale 1 less the output at scale 0."""
        module: Any = self.modules[0]
        at_one, at_zero = (
            torch.func.functional_call(module, {"weight": value}, (inputs,))
            for value in (torch.ones_like(module.weight), torch.zeros_like(module.weight))
        )
        return at_one - at_zero


class LayerNormLayer(ScaleLayer):
    """``nn.LayerNorm``."""

    def normalised(self, inputs: torch.Tensor) -> torch.Tensor:
        module: Any = self.modules[0]
        return functional.layer_norm(inputs, module.normalized_shape, eps=module.eps)


class TiedLayer(Layer):
    """The pair of an embedding and an output layer that share one table."""

    def __init__(self, embedding: EmbeddingLayer, linear: LinearLayer) -> None:
        self.modules = embedding.modules + linear.modules
        self.names = tuple(dict.fromkeys(embedding.names + linear.names))
        self._embedding = embedding
        self._linear = linear

    def contributions(self, records: Sequence[Record]) -> list[Contribution]:
        table = self._embedding.names[0]
        head = _of_sentences(records[1])
        lookup = self._embedding.lookup(records[0])
        rest = [PerSentence(name, head.grad.sum(dim=1)) for name in self.names if name != table]
        if _better_stored(head):
            gradients = _stored(head, transposed=False)
            lookup.add_to_rows(gradients)
            return [PerSentence(table, gradients), *rest]
        return [TiedTable(lookup, Product(table, head.inputs, head.grad, transposed=False)), *rest]


def _better_stored(record: Record) -> bool:
    """Return whether storing a linear layer's gradient of every row takes no more work than Gram matrices, and little
    memory."""
    (rows, tokens, p), q = record.inputs.shape, record.grad.shape[2]
    return p * q <= tokens * (p + q) and rows * p * q <= PER_SENTENCE_LIMIT


def _stored(record: Record, transposed: bool) -> torch.Tensor:
    """Return the gradient of a linear layer's weight for every row, (B, q, p) or (B, p, q)."""
    left, right = (record.inputs, record.grad) if transposed else (record.grad, record.inputs)
    return torch.bmm(left.transpose(1, 2), right)


def _of_sentences(record: Record) -> Record:
    """Return the record of a layer that saw (B, T, features); raise NotCovered for another shape, whose rows may not be
    sentences."""
    if record.inputs.dim() != 3 or record.inputs.shape[:2] != record.grad.shape[:2]:
        raise NotCovered(f"a layer was given inputs of shape {tuple(record.inputs.shape)}; covered: (B, T, features)")
    return record


_BY_TYPE: dict[type[nn.Module], LayerHandler] = {
    nn.Linear: LinearLayer,
    nn.Embedding: EmbeddingLayer,
    nn.LayerNorm: LayerNormLayer,
}


def handler_of(
    module: nn.Module, names: Mapping[str, str], own: Mapping[type[nn.Module], LayerHandler]
) -> LayerHandler:
    """Return the layer handler of a module.

    Args:
        module: a module with trainable parameters of its own.
        names: from those parameters to their full names.
        own: the handlers that the architecture brings, by exact type; they come before the built-in ones.

    Raises:
        NotCovered: no handler is known for the module's type.
    """
    kind = type(module)
    handler = own.get(kind) or _BY_TYPE.get(kind)
    if handler is None and kind.__name__.endswith("RMSNorm") and set(names) == {"weight"}:
        handler = ScaleLayer  # every architecture has an RMSNorm of its own
    if handler is None:
        raise NotCovered(f"{', '.join(names.values())} belong to a {kind.__name__}")
    return handler
