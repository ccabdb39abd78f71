"""The parameters of a module: those that train as one ordered vector, frozen matrices in half precision.

Matrices of linear layers and tables of word vectors that are frozen may be stored in bfloat16 or float16; scales,
biases and whatever trains stay float32. Within autocast a product takes them as they are (`model.precision`).
Elsewhere each is widened to float32 for its product, forward and backward, and is not kept: evaluation and the check of
per-sentence gradients are computed in float32 from the weights that are stored.

>>> parameters = TrainableParameters(nn.Linear(2, 1))
>>> parameters.write(np.array([1.0, 2.0, 3.0]))
>>> parameters.read()
array([1., 2., 3.], dtype=float32)
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from fl_sim.clients.errors import ModelError

if TYPE_CHECKING:
    from fl_sim.clients.models.model_spec import ModelSpec


class TrainableParameters:
    """An ordered flat view, in the order of ``module.named_parameters()``; tied parameters appear once.

    Attributes:
        tensors: name to parameter, trainable ones only.
        size: d, the total number of trainable numbers.
    """

    def __init__(self, module: nn.Module) -> None:
        self.tensors = {name: p for name, p in module.named_parameters() if p.requires_grad}
        if not self.tensors:
            raise ModelError("the model has no trainable parameter; allowed: at least one")
        ends = np.cumsum([0, *(p.numel() for p in self.tensors.values())]).tolist()
        self._ranges = dict(zip(self.tensors, pairwise(ends), strict=True))
        self.size: int = ends[-1]

    def shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Return (name, shape) of each parameter, in the vector's order."""
        return [(name, tuple(p.shape)) for name, p in self.tensors.items()]

    def read(self) -> NDArray[np.float32]:
        """Return a copy of the values, float32 (d,)."""
        vector = np.empty(self.size, dtype=np.float32)
        for name, parameter in self.tensors.items():
            start, stop = self._ranges[name]
            vector[start:stop] = parameter.detach().reshape(-1).float().cpu().numpy()
        return vector

    def write(self, vector: NDArray[np.floating]) -> None:
        """Set the values in place from a vector (d,); ModelError for another shape."""
        if vector.shape != (self.size,):
            raise ModelError(f"parameter vector has shape {vector.shape}; allowed: ({self.size},)")
        with torch.no_grad():
            for name, parameter in self.tensors.items():
                values = np.array(vector[slice(*self._ranges[name])], dtype=np.float32)  # torch wants to own them
                parameter.copy_(torch.from_numpy(values).view(parameter.shape))

    def views(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return views of ``flat`` (d,) by parameter name, each in the parameter's own shape."""
        return {name: flat[slice(*self._ranges[name])].view(p.shape) for name, p in self.tensors.items()}


def store(module: nn.Module, precision: str) -> None:
    """Store the frozen matrices of ``module`` in a precision of torch, in place; everything else becomes float32."""
    dtype: torch.dtype = getattr(torch, precision)
    owners: dict[int, list[nn.Module]] = {}
    for part in module.modules():
        for parameter in part.parameters(recurse=False):
            owners.setdefault(id(parameter), []).append(part)
    for parameter in module.parameters():
        if parameter.is_floating_point():
            frozen_matrix = parameter.dim() >= 2 and not parameter.requires_grad
            narrow = frozen_matrix and all(map(_is_known, owners[id(parameter)]))
            parameter.data = parameter.data.to(dtype if narrow else torch.float32)
    for part in module.modules():
        if _is_known(part) and part.weight.dtype == dtype != torch.float32:
            vars(part)["forward"] = functools.partial(_forward, part)


def _is_known(module: nn.Module) -> bool:
    """Return whether a module's product is known; its subclasses may compute something else."""
    return type(module) in (nn.Linear, nn.Embedding) or _is_transposed(module)


def _is_transposed(module: nn.Module) -> bool:
    kind = type(module)
    return kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils"


def _forward(module: Any, inputs: torch.Tensor) -> torch.Tensor:
    """Compute a linear layer or look up word vectors, with a weight that is stored in a lower precision."""
    if isinstance(module, nn.Embedding):
        return functional.embedding(inputs, module.weight, module.padding_idx).float()
    weight = module.weight.t() if _is_transposed(module) else module.weight
    if torch.is_autocast_enabled(inputs.device.type):
        return functional.linear(inputs, weight, module.bias)
    product: torch.Tensor = _WideProduct.apply(inputs, weight)
    return product if module.bias is None else product + module.bias


class _WideProduct(torch.autograd.Function):
    """Multiply by a frozen weight (q, p) in float32, and keep it as it is stored for the backward pass."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(weight)
        return inputs.float() @ weight.float().t()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (weight,) = ctx.saved_tensors
        return gradients[0] @ weight.float(), None


@contextmanager
def replaced_forwards(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Let modules compute something else within the block; hooks on them still run.

    >>> layer = nn.Linear(2, 3)
    >>> with replaced_forwards({layer: lambda states: states}):
    ...     layer(torch.ones(2))
    tensor([1., 1.])
    """
    own = {module: vars(module).pop("forward", None) for module in forwards}  # such as that of a narrow weight
    for module, forward in forwards.items():
        vars(module)["forward"] = forward
    try:
        yield
    finally:
        for module, before in own.items():
            del vars(module)["forward"]
            if before is not None:
                vars(module)["forward"] = before


_LOADED: WeakValueDictionary[str, nn.Module] = WeakValueDictionary()


def share(module: nn.Module, spec: ModelSpec, seed: int, task: str) -> None:
    """Let a module use the frozen parameters of an equal one that this process has loaded before."""
    key = json.dumps([spec.model_dump(mode="json"), seed, task], sort_keys=True)
    earlier = _LOADED.setdefault(key, module)
    if earlier is module:
        return
    for (name, own), (other, shared) in zip(_frozen(module), _frozen(earlier), strict=True):
        if name == other and own.shape == shared.shape and own.device == shared.device:
            own.data = shared.data


def _frozen(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, parameter) for name, parameter in module.named_parameters() if not parameter.requires_grad)
