"""Count the bytes of all tensors that are alive, exactly and without noise: what a device's allocator would hold.

>>> with LiveBytes() as memory:
...     kept = torch.zeros(100)
...     gone = bool(torch.zeros(900).any())
>>> memory.live, memory.peak
(400, 4001)
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten


class LiveBytes(TorchDispatchMode):
    """Count tensors that operations make within the block.

    Args:
        held: tensors that were there before and are not counted, when an operation returns a view of one.

    Attributes:
        live: bytes alive now.
        peak: the most that were alive at a time.
        largest: bytes of the largest tensor.
    """

    def __init__(self, held: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self.live = self.peak = self.largest = 0
        self._known = {tensor.untyped_storage()._cdata for tensor in held}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_flatten(result)[0]:
            if isinstance(value, torch.Tensor):
                self._add(value.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata in self._known:
            return
        size = storage.nbytes()
        self._known.add(storage._cdata)
        self.live += size
        self.peak, self.largest = max(self.peak, self.live), max(self.largest, size)
        weakref.finalize(storage, self._drop, storage._cdata, size)

    def _drop(self, storage: int, size: int) -> None:
        self._known.discard(storage)
        self.live -= size
