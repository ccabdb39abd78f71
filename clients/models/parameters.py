"""The trainable parameters of a module as one ordered vector, which is what travels between server and clients.

>>> parameters = TrainableParameters(nn.Linear(2, 1))
>>> parameters.shapes()
[('weight', (1, 2)), ('bias', (1,))]
>>> parameters.write(np.array([1.0, 2.0, 3.0]))
>>> parameters.read()
array([1., 2., 3.], dtype=float32)
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fl_sim.clients.errors import ModelError


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
        """Set the values in place from a vector (d,).

        Raises:
            ModelError: the vector has another shape.
        """
        if vector.shape != (self.size,):
            raise ModelError(f"parameter vector has shape {vector.shape}; allowed: ({self.size},)")
        with torch.no_grad():
            for name, parameter in self.tensors.items():
                values = np.array(vector[slice(*self._ranges[name])], dtype=np.float32)  # torch wants to own them
                parameter.copy_(torch.from_numpy(values).view(parameter.shape))

    def views(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return views of ``flat`` (d,) by parameter name, each in the parameter's own shape."""
        return {name: flat[slice(*self._ranges[name])].view(p.shape) for name, p in self.tensors.items()}
