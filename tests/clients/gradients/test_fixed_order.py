"""Backward passes on an accelerator add in a fixed order where torch can, and say so where it cannot."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fl_sim.clients.gradients import ghost_pass
from fl_sim.clients.models.language_model import LanguageModel, load_model
from fl_sim.clients.models.losses import loss_gradients
from fl_sim.clients.models.model_spec import ModelSpec

SMALL = ModelSpec(hidden=8, layers=1, heads=2, max_tokens=16)
UNORDERED = "foo_backward_cuda does not have a deterministic implementation, but you set 'torch.use_deterministic_...'"


@pytest.fixture
def model() -> Iterator[LanguageModel]:
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)  # as on a GPU
    yield load_model(SMALL, seed=0)
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def test_a_backward_pass_is_strict_and_nothing_else_is(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    of_torch = torch.autograd.grad

    def grad(*args: Any, **kwargs: Any) -> Any:
        seen.append(torch.is_deterministic_algorithms_warn_only_enabled())
        return of_torch(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "grad", grad)
    batch = model.batch(model.encode(["Ada left."]))
    loss_gradients(model, batch)
    ghost_pass._try_fixed_order(model)
    ghost_pass.each_gradient(model, ghost_pass.cover(model), batch, lambda contribution: None)
    assert seen == [True, False, False]
    assert model.in_fixed_order
    assert torch.is_deterministic_algorithms_warn_only_enabled()


def test_what_cannot_be_ordered_is_named_and_runs(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(model: LanguageModel, batch: Any) -> Any:
        assert model.in_fixed_order
        raise RuntimeError(UNORDERED)

    monkeypatch.setattr(ghost_pass, "loss_gradients", fails)
    with caplog.at_level(logging.WARNING):
        ghost_pass._try_fixed_order(model)
    assert not model.in_fixed_order
    assert "foo_backward_cuda" in caplog.text
    assert "a repeated round may count in ε" in caplog.text
