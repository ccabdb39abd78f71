"""What one user's training leaves in a process, or how long it takes, changes no other user's."""

from __future__ import annotations

import contextlib
import random
import signal
import sys
import threading
import time

import numpy as np
import pytest
import torch

from fl_sim.flower.clipping_mod import own_generators, time_limit


def _stubborn(caught: type[BaseException]) -> None:
    with contextlib.suppress(caught):
        time.sleep(10)
    if caught is Exception:
        time.sleep(10)


def _drawn() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002


def test_generators_follow_from_the_seed_alone_and_are_set_back() -> None:
    with own_generators(b"\0before"):
        outside = _drawn(), _drawn()
    with own_generators(b"\0before"):
        first = _drawn()
        with own_generators(b"one"):
            one = _drawn()
            random.seed(7), np.random.seed(7), torch.manual_seed(7)  # noqa: NPY002
        with own_generators(b"two"):
            two = _drawn()
        with own_generators(b"one"):
            again = _drawn()
        assert (first, _drawn()) == outside
    assert again == one
    assert all(a != b for a, b in zip(one, two, strict=True))


def test_generators_are_set_back_after_an_error() -> None:
    before = random.getstate(), torch.random.get_rng_state()
    with pytest.raises(KeyError), own_generators(b"one"):
        raise KeyError
    assert random.getstate() == before[0]
    assert torch.equal(torch.random.get_rng_state(), before[1])


def test_a_process_without_torch_has_generators_of_its_own_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    with own_generators(b"one"):
        one = random.random()
    with own_generators(b"one"):
        assert random.random() == one


def test_what_takes_too_long_is_interrupted_whatever_it_catches() -> None:
    handler = signal.getsignal(signal.SIGALRM)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"took longer than 0.05 s"), time_limit(0.05):
        _stubborn(Exception)
    assert time.monotonic() - began < 10
    assert signal.getsignal(signal.SIGALRM) is handler


def test_a_thread_is_judged_at_its_end() -> None:
    found: list[BaseException] = []

    def run() -> None:
        try:
            with time_limit(0.01):
                time.sleep(0.05)
        except TimeoutError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert len(found) == 1
