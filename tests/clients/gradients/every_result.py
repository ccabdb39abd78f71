"""Every kind of sum, norm and loss of a model, to compare two ways of computing them."""

from __future__ import annotations

import math

import numpy as np
import torch

from fl_sim.clients.batches import Example
from fl_sim.clients.ghost_norms import Contribution
from fl_sim.clients.gradients import ghost_pass
from fl_sim.clients.gradients.clipped_sums import clipped_gradient_sum
from fl_sim.clients.gradients.user_sums import user_sums
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.models.losses import held_out, loss_gradients
from tests.clients.models.models_to_try import examples


def gradients_of(model: LanguageModel, sentences: list[Example]) -> list[Contribution]:
    """The gradients of sentences by the fast path, in the order of the parameters' names."""
    found: list[Contribution] = []
    ghost_pass.each_gradient(model, ghost_pass.cover(model), model.batch(sentences), found.append)
    return sorted(found, key=lambda contribution: contribution.name)


def every_result(model: LanguageModel) -> dict[str, np.ndarray]:
    given = examples(5, 9, 30, 12, 1, 22, 3, task=model.task)
    found: dict[str, np.ndarray] = {}
    for clip_norm in (0.05, 3.0, math.inf):
        found[f"sentences, {clip_norm}"] = clipped_gradient_sum(model, given, clip_norm).vector
        total, lengths = torch.zeros(model.num_parameters), np.zeros(3)
        for group in user_sums(model, [given[:3], given[3:4], given[4:]], clip_norm):
            lengths[list(group.users)] = group.lengths
            group.add([0.5 + user for user in group.users], total)
        found |= {f"users, {clip_norm}": total.numpy(), f"norms of users, {clip_norm}": lengths}
    known = [sentence for sentence in given if model.task.size(sentence)][:4]
    found["norms"] = torch.stack([c.squared.sqrt() for c in gradients_of(model, known)]).flatten().numpy()
    for name, gradient in loss_gradients(model, model.batch(known))[1].items():
        found[f"gradient of {name}"] = gradient.numpy()
    measured = held_out(model, given)
    assert measured.target_nats is not None
    return found | {"losses": measured.losses, "nats": measured.target_nats, "wrong": measured.wrong.astype(float)}


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], tolerance: float) -> None:
    for name, values in expected.items():
        assert np.linalg.norm(found[name] - values) <= tolerance * np.linalg.norm(values), name
