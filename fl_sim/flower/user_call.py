"""Run the app's train function for one user: with random generators of the user's own, and within a time limit.

What one user's training leaves behind, or how long it takes, must not change what another user of the process sends.

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
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np


@contextlib.contextmanager
def own_generators(seed: bytes) -> Iterator[None]:
    """Seed the global generators of Python, numpy and torch, and set them back afterwards.

    Torch must have been imported before. Generators that an app keeps itself, and those of other libraries, are not
    reached.

    Args:
        seed: of the generators; equal seeds give equal numbers.
    """
    torch: Any = sys.modules.get("torch")
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 (these are what apps draw from)
    number = int.from_bytes(seed, "little")
    with contextlib.nullcontext() if torch is None else torch.random.fork_rng(_devices(torch)):
        try:
            random.seed(number)
            np.random.seed(np.random.SeedSequence(number).generate_state(4))  # noqa: NPY002
            if torch is not None:
                torch.manual_seed(number % 2**63)
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


def _devices(torch: Any) -> list[int]:
    """Return the GPUs whose generators exist: to ask for those of others would take memory on them."""
    return list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []


class _Late(BaseException):
    """End a call; an app that catches every Exception does not catch it."""


@contextlib.contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Raise TimeoutError if what runs under the limit takes longer.

    In a process's main thread it is interrupted, as soon as it is Python's turn: a single call into compiled code, such
    as one large product, runs to its end. In another thread, or on Windows, it is not interrupted, and raises at its
    end.

    Args:
        seconds: None for no limit.
    """
    if seconds is None:
        yield
        return
    began, ended = time.monotonic(), False
    try:
        with _alarm(seconds):
            yield
    except _Late:
        ended = True
    if ended or time.monotonic() - began >= seconds:
        raise TimeoutError(f"the training of a user took longer than {seconds:g} s")


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raise :class:`_Late` after a time, where a signal can."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        raise _Late

    handler = signal.signal(signal.SIGALRM, end)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)
