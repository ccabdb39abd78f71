"""Say which ways of training a model fit into the memory of a GPU, and with how large a micro-batch.

>>> from fl_sim.clients.models.model_spec import ModelSpec
>>> small = ModelSpec(hidden=64, layers=2, heads=2, max_tokens=32, device="cuda")
>>> [(b.setting, b.fits, b.memory.batch_tokens) for b in budgets(small, 2 * GIB, {"all parameters": {}})]
[('all parameters', True, 8184)]
>>> [b.fits for b in budgets(small, GIB // 2, {"all parameters": {}})]  # CUDA itself takes more
[False]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from fl_sim.clients.batches import batch_tokens
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.diagnosis.worker_memory import WorkerMemory, worker_memories

GIB = 1 << 30
CONTEXT = 7 * GIB // 10  # what CUDA and its libraries hold in a process: 0.5 to 0.7 GiB on an H100
USABLE = 0.9  # of the rest: the allocator held 2 to 17 % more than was alive
_SERVER = 8 * 4  # bytes of main memory per trainable parameter, at most (docs/performance.md)
_ADAPTERS: dict[str, object] = {"lora_rank": 16, "precision": "bfloat16", "frozen_precision": "bfloat16"}

WAYS: dict[str, dict[str, object]] = {
    "all parameters": {},
    "all, bfloat16": {"precision": "bfloat16"},
    "all, bfloat16, checkpointing": {"precision": "bfloat16", "checkpointing": True},
    "adapters (rank 16), bfloat16": _ADAPTERS,
    "adapters (rank 16), bfloat16, checkpointing": {**_ADAPTERS, "checkpointing": True},
}
"""Settings of ``[model]`` that trade memory for time or precision, by what a table calls them."""


@dataclass(frozen=True)
class Budget:
    """Whether one way of training fits.

    Attributes:
        setting: what it is called.
        memory: of a worker, with the largest micro-batch that fits; with one sentence if none does.
        fits: whether any does.
        needed: bytes of the GPU for a worker, with what CUDA holds and the allocator wastes.
        server: bytes of main memory that the server takes at most.
    """

    setting: str
    memory: WorkerMemory
    fits: bool
    needed: int
    server: int


def budgets(spec: ModelSpec, gpu_memory: int, ways: Mapping[str, Mapping[str, object]] = WAYS) -> Iterator[Budget]:
    """Yield whether a worker fits, for each way of training the model.

    Args:
        spec: the model; settings of a way replace its own.
        gpu_memory: bytes that a worker has on its GPU.
        ways: settings of ``spec`` by their name.

    Raises:
        ModelError: there is no such model, or it cannot be trained so.
        pydantic.ValidationError: settings do not go together.
    """
    for name, settings in ways.items():
        way = ModelSpec.model_validate({**spec.model_dump(), **settings})
        largest = batch_tokens(way.batch_tokens, torch.device(way.device))
        counted = worker_memories(way, [1, *(largest >> halvings for halvings in range(largest.bit_length()))])
        memory = one_sentence = next(counted)
        if _needed(one_sentence) <= gpu_memory:
            memory = next((found for found in counted if _needed(found) <= gpu_memory), one_sentence)
        needed = _needed(memory)
        yield Budget(name, memory, needed <= gpu_memory, needed, _SERVER * memory.trainable)


def _needed(memory: WorkerMemory) -> int:
    return CONTEXT + round(memory.total / USABLE)
