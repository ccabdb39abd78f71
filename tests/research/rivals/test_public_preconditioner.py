"""Gradients are scaled by public moments before they are clipped; the model itself is the public one."""

from __future__ import annotations

import pytest
import torch

from fl_sim.clients.gradients.clipped_sums import clipped_gradient_sum
from fl_sim.clients.models.language_model import load_model
from fl_sim.clients.models.losses import loss_gradients
from fl_sim.clients.models.model_names import SMALL_GPT2_PUBLIC
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.research.rivals import public_preconditioner

CLIP = 0.5
TEXTS = ["The meeting is at noon.", "Ada left.", "Please send me the draft before Friday, and thank you."]


def test_scaled_gradients_of_the_public_model_are_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = load_model(ModelSpec(name=SMALL_GPT2_PUBLIC), seed=0)
    generator = torch.Generator().manual_seed(0)
    moments = {name: torch.rand(own.shape, generator=generator) for name, own in plain.module.named_parameters()}
    monkeypatch.setattr(public_preconditioner, "public_moments", lambda: moments)
    scaled = load_model(ModelSpec(name=f"{public_preconditioner.__name__}:MEDIUM"), seed=0)
    examples = plain.encode(TEXTS)
    assert [list(one.tokens) for one in scaled.encode(TEXTS)] == [list(one.tokens) for one in examples]

    typical = torch.cat([moment.flatten() for moment in moments.values()]).mean().sqrt()
    expected = torch.zeros(plain.num_parameters)
    for example in examples:
        gradients = loss_gradients(plain, plain.batch([example]))[1]
        flat = torch.cat([
            (gradients[name] / (moments[name].sqrt() / typical + 0.1)).flatten()
            for name, _ in plain.module.named_parameters()
        ])  # fmt: skip
        assert flat.norm() > CLIP
        expected -= flat * CLIP / flat.norm()
    total = clipped_gradient_sum(scaled, examples, CLIP)
    assert torch.allclose(torch.from_numpy(total.vector), expected, rtol=1e-3, atol=1e-5)
    plainly = clipped_gradient_sum(plain, examples, CLIP)
    assert not torch.allclose(torch.from_numpy(plainly.vector), expected, rtol=0.1, atol=1e-3)
