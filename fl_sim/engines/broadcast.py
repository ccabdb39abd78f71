"""The model of a round in Ray's object store: put there once, fetched once by every machine, and read in place.

Flower pickles every message with its arrays. Here a message to a worker carries a handle instead, so a round of many
nodes costs the server one copy of the model, and a machine one transfer.

>>> from unittest.mock import patch
>>> import numpy as np
>>> from flwr.supercore.task_identity import TaskIdentity
>>> stored = []
>>> broadcast = Broadcast(put=stored.append)
>>> arrays = ArrayRecord([np.ones(10**6, np.float32)])
>>> with patch.multiple(TaskIdentity, _task_id=1, _run_id=1, _node_id=1):
...     messages = [Message(RecordDict({"arrays": arrays}), node, "train") for node in (2, 3)]
>>> [len(broadcast.lightened(message).content["arrays"]["0"].data) for message in messages], len(stored)
([0, 0], 1)
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy.typing as npt
import ray
from flwr.app import Array, ArrayRecord, Message, RecordDict

from fl_sim.strategies.messages import array_view

Put = Callable[[npt.NDArray[Any]], Any]

_SMALL_BYTES = 100_000  # Ray sends smaller arguments within the request


class SharedArray(Array):
    """An array of a message, of which the message carries a handle alone.

    Args:
        array: the array.
        handle: of its numbers in Ray's object store.
    """

    def __init__(self, array: Array, handle: Any) -> None:
        super().__init__(array.dtype, array.shape, array.stype, b"")
        self._handle = handle

    def numpy(self) -> npt.NDArray[Any]:
        """Return the numbers, read-only, in the memory that all workers of the machine share."""
        numbers: npt.NDArray[Any] = ray.get(self._handle)
        return numbers


class Broadcast:
    """Replace the arrays of messages by handles; an array that several messages share is put into the store once.

    The store keeps the arrays of the last message, which are those of its whole round.

    Args:
        put: returns the handle of an array; Ray's by default.
    """

    def __init__(self, put: Put = ray.put) -> None:
        self._put = put
        self._shared: dict[int, tuple[Array, SharedArray]] = {}

    def lightened(self, message: Message) -> Message:
        """Return the message with handles in place of large arrays; the message itself is not changed."""
        if not message.has_content():
            return message
        records = message.content.array_records
        arrays = {id(array): array for record in records.values() for array in record.values()}
        self._shared = {key: self._share(key, array) for key, array in arrays.items() if _is_large(array)}
        content = RecordDict({**message.content, **{name: self._lightened(record) for name, record in records.items()}})
        light = copy.copy(message)
        light.content = content
        return light

    def _share(self, key: int, array: Array) -> tuple[Array, SharedArray]:
        """Return an array, kept so that its id stays its own, with what messages carry instead."""
        return self._shared.get(key) or (array, SharedArray(array, self._put(array_view(array))))

    def _lightened(self, record: ArrayRecord) -> ArrayRecord:
        light = ArrayRecord()
        for name, array in record.items():
            light[name] = self._shared[id(array)][1] if id(array) in self._shared else array
        return light


def _is_large(array: Array) -> bool:
    return len(array.data) > _SMALL_BYTES
