"""Use a device: the precision of float32 products, the order of sums, and what to do when memory does not suffice.

Norms and sums are products in full float32, always. TF32 rounds what it multiplies to 11 bits and tensor cores cut off
digits where they add, so that a norm could fall short of the vector that it bounds. What the forward and the backward
pass compute may be rounded in any way: a sentence's clipped vector is *defined* by the inputs and output gradients that
they leave, and its norm is that of this vector (docs/privacy.md, section 2). So ``model.tf32`` speeds up the two passes
and nothing else.

A sentence that was left out for lack of memory would change the sum without a trace, so none is: its group is computed
again in halves, and a sentence that does not fit alone is an error.

>>> with tf32():
...     with full_precision():
...         torch.get_float32_matmul_precision()
'highest'
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, TypeVar

import torch

from fl_sim.clients.errors import ModelError

if TYPE_CHECKING:
    from fl_sim.clients.models.language_model import LanguageModel

log = logging.getLogger(__name__)

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_SIGNS = ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed")


def full_precision() -> AbstractContextManager[None]:
    """Compute matrix products in full float32 within the block."""
    return _precision("highest")


def tf32() -> AbstractContextManager[None]:
    """Compute matrix products of float32 in TF32 where the device has it, accumulated in float32."""
    return _precision("high")


@contextmanager
def _precision(name: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def make_repeatable() -> None:
    """Let an accelerator add in a fixed order wherever torch can, so that a repeated round has the same sum.

    On CUDA that concerns ``index_add_``, ``scatter_add_`` and the backward pass of attention, which are atomic
    otherwise. What torch has no such form of is warned of and still runs: the ledger compares the sums of a repeated
    round, and counts another sum as another release (docs/privacy-accounting.md, section 9). Attention is in order
    within :func:`in_fixed_order` alone.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts; else it may split sums
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # no result reads it


@contextmanager
def in_fixed_order() -> Iterator[None]:
    """Add in a fixed order within the block, attention included, or raise RuntimeError for what torch cannot.

    Fused attention on CUDA orders its backward pass only where torch may not let anything unordered through.
    """
    before = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(True, warn_only=before)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of torch or Python means that memory does not suffice; the CPU's is a RuntimeError."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in _SIGNS)


def attempt(work: Callable[[], _Result], device: torch.device) -> _Result | None:
    """Return what ``work`` returns; None, with all its memory freed, if memory does not suffice on ``device``."""
    try:
        return work()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    # The error is gone here, and with its traceback the tensors of the frames that it passed.
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
    return None


def halves(model: LanguageModel, group: Sequence[_Item], tokens: int) -> tuple[list[_Item], list[_Item]]:
    """Return a group of ``tokens`` that did not fit in two parts; micro-batches are no larger from now on."""
    if max(1, tokens // 2) < model.batch_tokens:
        model.largest_batch = max(1, tokens // 2)
        log.warning("memory on %s is too small for %d tokens at a time; now %d", model.device, tokens, tokens // 2)
    middle = (len(group) + 1) // 2
    return list(group[:middle]), list(group[middle:])


def in_parts(
    model: LanguageModel, group: Sequence[_Item], compute: Callable[[list[_Item]], None], size: Callable[[_Item], int]
) -> None:
    """Compute a group of sentences, or its parts where memory does not suffice.

    ``compute`` takes some of them, whole or not at all; ``size`` is the number of inputs of one.

    Raises:
        ModelError: a sentence does not fit alone.
    """
    parts = [list(group)]
    while parts:
        part = parts.pop()
        if attempt(lambda: compute(part) or True, model.device):  # type: ignore[func-returns-value]  # noqa: B023
            continue
        longest = max(map(size, part))
        if len(part) == 1:
            raise does_not_fit(model.device, longest)
        parts += reversed(halves(model, part, len(part) * longest))


def does_not_fit(device: torch.device, tokens: int) -> ModelError:
    """Return the error of a sentence of ``tokens`` tokens that does not even fit alone."""
    return ModelError(
        f"a sentence of {tokens} tokens does not fit into the memory that is free on {device}; allowed: a smaller "
        "model.max_tokens, model.checkpointing = true, model.frozen_precision = 'bfloat16', or fewer processes on it"
    )
