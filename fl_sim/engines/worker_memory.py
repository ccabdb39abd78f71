"""Count the memory of a worker before there is one: its model and its passes, run on tensors that have shapes alone.

A pass is the real code, on tensors without memory (torch's fake tensors); what is alive at a time is added up. So the
count follows every setting of the model, and needs neither its weights nor the device. Decisions that depend on values
are taken as they are for a model without faults: checks pass, every target counts.

First the bytes of all tensors that are alive, exactly and without noise: what a device's allocator would hold.

>>> with LiveBytes() as memory:
...     kept = torch.zeros(100)
...     gone = bool(torch.zeros(900).any())
>>> memory.live, memory.peak
(400, 4001)

>>> small, large = worker_memories(ModelSpec(hidden=64, layers=2, heads=2, max_tokens=32), batch_tokens=[256, 512])
>>> small.model == large.model, small.sum == small.trainable * 4, small.batch < large.batch
(True, True, True)
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from fl_sim.clients.batches import batch_tokens
from fl_sim.clients.ghost_norms import Layer, NotCovered
from fl_sim.clients.gradients.clipped_sums import clip_one_batch, longest_sentences
from fl_sim.clients.gradients.ghost_pass import CHECK_MASKS, check_examples, compare_with_autograd, cover
from fl_sim.clients.models.language_model import LanguageModel, model_without_weights
from fl_sim.clients.models.model_spec import ModelSpec

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
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, object] | None = None
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


_FLOAT = 4  # bytes
_TENSORS = torch.ops.aten
_INDEXED = (_TENSORS.index.Tensor, _TENSORS.index_put_.default)
_ANY = (_TENSORS.any.default, _TENSORS.any.dim)
_WIDENED = [(torch, "pow"), (torch, "exp"), (torch, "rsqrt"), *((torch.Tensor, name) for name in (
    "pow", "__pow__", "exp", "rsqrt"
))]  # fmt: skip
"""What CUDA's autocast computes in float32 and the CPU's in bfloat16, of what activation functions and norms use."""
_DECIDED = "_fl_sim_decided"  # what a truth value is taken for; True without it


@dataclass(frozen=True)
class WorkerMemory:
    """What a worker holds on its device while it computes its first round, in bytes.

    Attributes:
        trainable: d, the number of parameters that train.
        model: parameters and buffers.
        sum: the sum of clipped gradients.
        check: most that the comparison with autograd before the first round takes beside the model.
        batch: most that one micro-batch takes beside model and sum.
        batch_tokens: its padded size.
        together: whether the sentences of a batch are clipped together; else one after the other.
    """

    trainable: int
    model: int
    sum: int
    check: int
    batch: int
    batch_tokens: int
    together: bool

    @property
    def total(self) -> int:
        """Return the most that is held at a time."""
        return self.model + max(self.check, self.sum + self.batch)


def worker_memories(spec: ModelSpec, batch_tokens: Sequence[int]) -> Iterator[WorkerMemory]:
    """Yield the memory of a worker that trains on the next word, for each size of micro-batches.

    Args:
        spec: the model; ``spec.device`` is the kind of device that the count is for.
        batch_tokens: padded sizes of micro-batches; one sentence as long as the context if that is longer.

    Raises:
        ModelError: there is no such model, or it cannot be trained so.
    """
    shapes = FakeTensorMode()
    with shapes:
        model = model_without_weights(spec)
        layers = _layers_of(model)
        check = _most_bytes(model, functools.partial(_check, model, layers)) if layers else 0
    longest = model.task.longest(model.max_tokens)
    for tokens in batch_tokens:
        rows = max(1, tokens // longest) if layers else 1
        with shapes:
            batch = _most_bytes(model, functools.partial(_clip, model, layers, rows))
        sum_ = _FLOAT * model.num_parameters
        yield WorkerMemory(
            model.num_parameters, _bytes_of(model), sum_, check, batch - sum_, rows * longest, bool(layers)
        )


def _layers_of(model: LanguageModel) -> list[Layer]:
    """Return the layers whose sentences are clipped together; none if they are clipped one after the other."""
    try:
        return cover(model)
    except NotCovered:
        return []


def _bytes_of(model: LanguageModel) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in _tensors_of(model))


def _tensors_of(model: LanguageModel) -> list[torch.Tensor]:
    return [*model.module.parameters(), *model.module.buffers()]


def _check(model: LanguageModel, layers: Sequence[Layer]) -> None:
    """Do what the comparison of per-sentence gradients with autograd does before the first round."""
    with model.exact():
        compare_with_autograd(model, layers, model.batch(check_examples(model, np.random.default_rng(0)), CHECK_MASKS))


def _clip(model: LanguageModel, layers: Sequence[Layer], rows: int) -> None:
    """Clip and sum one batch of ``rows`` sentences of the greatest length, as training does."""
    clip_one_batch(model, longest_sentences(model, rows), layers or None)


def _most_bytes(model: LanguageModel, work: Callable[[], object]) -> int:
    """Return the most bytes that ``work`` holds at a time beside the model."""
    widened = _widened_as_on_cuda() if model.spec.device != "cpu" else nullcontext()
    with widened, _ShapesAlone(_tensors_of(model)) as memory:
        work()
    return memory.peak


@contextmanager
def _widened_as_on_cuda() -> Iterator[None]:
    """Widen what CUDA's autocast widens: tensors without a device follow the CPU's.

    Not by torch's function modes, which a backward pass suspends while it computes blocks again.
    """
    before = [(owner, name, vars(owner).get(name), getattr(owner, name)) for owner, name in _WIDENED]
    for owner, name, _, function in before:
        setattr(owner, name, _widened(function))
    try:
        yield
    finally:
        for owner, name, own, _ in before:
            delattr(owner, name) if own is None else setattr(owner, name, own)


def _widened(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def compute(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        mixed = torch.is_autocast_enabled("cpu") and tensor.dtype == torch.bfloat16
        return function(tensor.float() if mixed else tensor, *args, **kwargs)

    return compute


class _ShapesAlone(LiveBytes):
    """Count tensors, and take the decisions that values would have taken."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, object] | None = None
    ) -> Any:
        if func is _TENSORS._local_scalar_dense.default:
            return getattr(args[0], _DECIDED, args[0].dtype == torch.bool or 0.0)
        mask = args[1][0] if func in _INDEXED else None
        if mask is not None and mask.dtype == torch.bool:
            return self._all_of(args[0], mask) if func is _TENSORS.index.Tensor else args[0]
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if func in _ANY:
            setattr(result, _DECIDED, False)
        return result

    def _all_of(self, tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the entries where the mask is true, which is everywhere."""
        chosen = tensor.flatten(0, mask.dim() - 1).clone()
        self._add(chosen.untyped_storage())
        return chosen


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

    >>> small = ModelSpec(hidden=64, layers=2, heads=2, max_tokens=32, device="cuda")
    >>> [(b.setting, b.fits, b.memory.batch_tokens) for b in budgets(small, 2 * GIB, {"all parameters": {}})]
    [('all parameters', True, 8184)]
    >>> [b.fits for b in budgets(small, GIB // 2, {"all parameters": {}})]  # CUDA itself takes more
    [False]

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
