"""Seed the global generators of Python, numpy and torch, from which apps of others draw.

>>> with own_generators(b"a user, a round"):
...     one = random.random()
>>> with own_generators(b"another one"):
...     another = random.random()
>>> with own_generators(b"a user, a round"):
...     one == random.random() != another
True
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np


@contextlib.contextmanager
def own_generators(seed: bytes) -> Iterator[None]:
    """Seed the global generators, and set them back afterwards.

    Torch must have been imported before. Generators that an app keeps itself, and those of other libraries, are not
    reached.

    Args:
        seed: of the generators; equal seeds give equal numbers.
    """
    torch: Any = sys.modules.get("torch")
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 (these are what apps draw from)
    gpus = 0  # those whose generators exist: to ask for those of others would take memory on them
    if torch is not None and torch.cuda.is_initialized():
        gpus = torch.cuda.device_count()
    with contextlib.nullcontext() if torch is None else torch.random.fork_rng(range(gpus)):
        try:
            seed_all(int.from_bytes(seed, "little"))
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


def seed_all(number: int) -> None:
    """Seed the global generators, torch's only if it has been imported."""
    random.seed(number)
    np.random.seed(np.random.SeedSequence(number).generate_state(4))  # noqa: NPY002
    if torch := sys.modules.get("torch"):
        torch.manual_seed(number % 2**63)
