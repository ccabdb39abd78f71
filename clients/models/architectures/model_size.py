"""Count the parameters of a module before any memory is taken for it.

>>> from torch import nn
>>> check_size("tiny", lambda: nn.Linear(3, 2))
>>> check_size("huge", lambda: nn.Linear(10**7, 10**7))  # doctest: +ELLIPSIS
Traceback (most recent call last):
fl_sim.clients.errors.ModelError: model 'huge' has 100,000,010,000,000 parameters, 400,000.0 GB; allowed: at most ...
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from fl_sim.clients.models.architectures.declared_size import BYTES_PER_PARAMETER, check_count, check_free_memory


def check_size(name: str, build: Callable[[], nn.Module], bytes_each: int = BYTES_PER_PARAMETER) -> None:
    """Raise ModelError if the parameters of a module take more memory than this machine has, or than is free.

    Args:
        name: of the model, for the message.
        build: makes the module; it is called on torch's meta device, where tensors have shapes and no memory.
        bytes_each: of a parameter.
    """
    with torch.device("meta"), _NoDraws():
        count = sum(parameter.numel() for parameter in build().parameters())
    check_count(name, count, bytes_each)
    check_free_memory(name, count, bytes_each)


class _NoDraws(TorchFunctionMode):
    """Skip new weights: to draw normal ones without memory, torch loads its compiler, over a second."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if func is nn.init.normal_:
            return options["tensor"]
        return func(*args, **options)
