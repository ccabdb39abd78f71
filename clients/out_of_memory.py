"""Notice that memory does not suffice, free what a failed attempt held, and split its sentences.

A sentence that was left out for lack of memory would change the sum without a trace, so none is: its group is computed
again in halves, and a sentence that does not fit alone is an error.

>>> attempt(lambda: 3, torch.device("cpu"))
3
>>> def greedy() -> int:
...     raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB.")
>>> attempt(greedy, torch.device("cpu")) is None
True
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import torch

from fl_sim.clients.errors import ModelError

log = logging.getLogger(__name__)

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_SIGNS = ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed")


class Batching(Protocol):
    """A model whose micro-batches can be made smaller (`fl_sim.clients.models.language_model.LanguageModel`)."""

    @property
    def device(self) -> torch.device: ...

    @property
    def batch_tokens(self) -> int: ...

    def limit_batches(self, tokens: int) -> None: ...


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


def halves(model: Batching, group: Sequence[_Item], tokens: int) -> tuple[list[_Item], list[_Item]]:
    """Return a group that did not fit in two parts, and let the model's micro-batches be no larger from now on.

    Args:
        model: the model.
        group: at least two sentences or users.
        tokens: their padded size.
    """
    if max(1, tokens // 2) < model.batch_tokens:
        model.limit_batches(max(1, tokens // 2))
        log.warning("memory on %s is too small for %d tokens at a time; now %d", model.device, tokens, tokens // 2)
    middle = (len(group) + 1) // 2
    return list(group[:middle]), list(group[middle:])


def in_parts(
    model: Batching, group: Sequence[_Item], compute: Callable[[list[_Item]], None], size: Callable[[_Item], int]
) -> None:
    """Compute a group, or its parts where memory does not suffice.

    Args:
        model: the model.
        group: the sentences, in any form.
        compute: computes some of them, whole or not at all.
        size: the number of inputs of one.

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
