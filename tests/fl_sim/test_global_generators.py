"""Seeds of the global generators reach all of them, and leave nothing behind."""

from __future__ import annotations

import random
import sys

import numpy as np
import pytest
import torch

from fl_sim.global_generators import own_generators


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
