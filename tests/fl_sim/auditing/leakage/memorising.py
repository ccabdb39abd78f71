"""Models small enough to learn a few sentences by heart."""

from __future__ import annotations

import torch

from fl_sim.clients.models.language_model import LanguageModel, load_model
from fl_sim.clients.models.losses import loss_gradients
from fl_sim.clients.models.model_spec import ModelSpec

SPEC = ModelSpec(hidden=16, layers=1, heads=2, max_tokens=40)


def memorised(texts: list[str], steps: int, spec: ModelSpec = SPEC, learning_rate: float = 1e-2) -> LanguageModel:
    """Return a model after ``steps`` Adam steps on all texts (torch's own imports a compiler, for seconds)."""
    model = load_model(spec, seed=0)
    parameters = model.parameters.tensors
    first, second = ({name: torch.zeros_like(value) for name, value in parameters.items()} for _ in range(2))
    batch = model.batch(model.encode(texts))
    for step in range(1, steps + 1):
        for name, gradient in loss_gradients(model, batch)[1].items():
            first[name].lerp_(gradient, 0.1)
            second[name].lerp_(gradient.square(), 0.001)
            change = first[name] / (1 - 0.9**step) / ((second[name] / (1 - 0.999**step)).sqrt() + 1e-8)
            parameters[name].data.sub_(change, alpha=learning_rate)
    return model
