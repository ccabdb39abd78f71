"""Choose the precision of float32 matrix products on an accelerator.

Norms and sums are products in full float32, always. TF32 rounds what it multiplies to 11 bits, an error of a thousandth
in a norm, and tensor cores cut off digits where they add, also of factors that TF32 holds exactly, so that a norm could
fall short of the vector that it bounds. What the forward and the backward pass compute, on the other hand, may be
rounded in any way: a sentence's clipped vector is *defined* by the inputs and output gradients that they leave, and its
norm is that of this vector (docs/privacy.md, section 2). So ``model.tf32`` speeds up the two passes and nothing else.

>>> with tf32():
...     with full_precision():
...         torch.get_float32_matmul_precision()
'highest'
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def full_precision() -> Iterator[None]:
    """Compute matrix products in full float32."""
    with _precision("highest"):
        yield


@contextmanager
def tf32() -> Iterator[None]:
    """Compute matrix products of float32 in TF32 where the device has it, accumulated in float32."""
    with _precision("high"):
        yield


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
    round, and counts another sum as another release (docs/privacy.md, section 9). Attention is in order within
    :func:`in_fixed_order` alone.
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


def cannot_be_ordered(error: RuntimeError) -> bool:
    """Return whether torch has no ordered form of an operation (within :func:`in_fixed_order`)."""
    return "deterministic" in str(error)
