"""Keep only what enters the blocks of a transformer in the forward pass, and compute each again in the backward pass.

>>> block = nn.Linear(2, 2)
>>> with checkpointed([block]):
...     output = block(torch.ones(1, 2))
>>> output.sum().backward()
>>> block.bias.grad
tensor([1., 1.])
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop


@contextmanager
def checkpointed(blocks: Sequence[nn.Module]) -> Iterator[None]:
    """Let blocks that are called within the context keep nothing but their inputs, if gradients are computed.

    A block is computed to its end again, so that hooks on all its modules run, which record their inputs then.
    """
    if not torch.is_grad_enabled():
        yield
        return
    for block in blocks:
        run = functools.partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)
        vars(block)["forward"] = run
    try:
        with set_checkpoint_early_stop(False):
            yield
    finally:
        for block in blocks:
            del vars(block)["forward"]
