"""A user's local training from θ: steps of SGD or Adam over its sentences, and the update that they make.

Where it is a single step of SGD, the update is a gradient: nobody's model moves, and users share passes
(`fl_sim.clients.gradients.user_sums`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch

from fl_sim.clients.examples import Example
from fl_sim.clients.gradients.clipped_sums import Tally
from fl_sim.clients.gradients.user_sums import UserSums, user_sums
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.models.losses import sentence_losses
from fl_sim.strategies.messages import LocalRule
from fl_sim.strategies.primitives import streams

_LOCAL_OPTIMIZERS: dict[str, type[torch.optim.SGD] | type[torch.optim.Adam]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
}


def is_one_step(sentences: int, rule: LocalRule) -> bool:
    """Whether a user's local training is one step of SGD: its update is the gradient, and the model may stay at θ."""
    return rule.local_optimizer == "sgd" and rule.local_epochs == 1 and sentences <= rule.batch_size


def single_steps(
    model: LanguageModel, users: Iterable[tuple[int, list[Example]]], round_seed: int
) -> Iterator[UserSums]:
    """Σ_s −∇l(θ, s) of each user, along whose mean it takes its step.

    The dropout masks are those that :func:`local_steps` would draw, so that with dropout no two users share a pass.
    """
    if not model.has_dropout:
        yield from user_sums(model, (sentences for _, sentences in users), math.inf)
        return
    for user, sentences in users:
        rng = streams.generator(round_seed, "local", user)
        rng.permutation(len(sentences))
        yield from user_sums(model, [sentences], math.inf, _mask_seed(rng))


class _Update(UserSums):
    """What several local steps made of one user's model, less θ."""

    def __init__(self, model: LanguageModel, change: list[torch.Tensor], tally: Tally) -> None:
        self.users, self.lengths, self.tallies = [0], [_norm(change)], [tally]
        self._model = model
        self._change = change

    def add(self, shares: Sequence[float], total: torch.Tensor) -> None:
        if shares[0] != 0:
            torch._foreach_add_(list(self._model.parameters.views(total).values()), self._change, alpha=shares[0])


def local_updates(
    model: LanguageModel, users: Iterable[tuple[int, list[Example]]], rule: LocalRule, round_seed: int
) -> Iterator[UserSums]:
    """θ_u − θ of each user; the model holds θ again whenever one is handed out."""
    parameters: list[torch.Tensor] = list(model.parameters.tensors.values())
    theta = [parameter.detach().clone() for parameter in parameters]
    for user, sentences in users:
        loss = local_steps(model, sentences, rule, streams.generator(round_seed, "local", user))
        with torch.no_grad():
            change = list(torch._foreach_sub(parameters, theta))
            torch._foreach_copy_(parameters, theta)
        yield _Update(model, change, Tally(sentences=len(sentences), loss_sum=loss))


def _norm(tensors: Sequence[torch.Tensor]) -> float:
    """The L2 norm over all coordinates, accumulated in float64 (NaN or inf when a coordinate is not finite)."""
    return math.hypot(*(float(torch.linalg.vector_norm(tensor, dtype=torch.float64)) for tensor in tensors))


def local_steps(model: LanguageModel, sentences: list[Example], rule: LocalRule, rng: np.random.Generator) -> float:
    """Local SGD or Adam, from its beginning, over one user's sentences, of each of which there is something to tell,
    changing ``model`` in place. Dropout masks are fresh at every step.

    Returns:
        The sum over sentences of their mean loss, met in the first pass (NaN and inf become 0).
    """
    first_pass = 0.0
    parameters = list(model.parameters.tensors.values())
    optimizer = _LOCAL_OPTIMIZERS[rule.local_optimizer](parameters, lr=rule.learning_rate)
    for epoch in range(rule.local_epochs):
        order = rng.permutation(len(sentences))
        for start in range(0, len(order), rule.batch_size):
            batch = [sentences[i] for i in order[start : start + rule.batch_size]]
            loss, gradients = _batch_step(model, batch, rng)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()
            optimizer.zero_grad()
            if epoch == 0:
                first_pass += loss
    return first_pass


def _batch_step(
    model: LanguageModel, batch: list[Example], rng: np.random.Generator
) -> tuple[float, list[torch.Tensor]]:
    """The sum of the sentences' losses (NaN and inf count 0), and the gradient of their mean by parameter."""
    parameters = list(model.parameters.tensors.values())
    losses = sentence_losses(model, batch, _mask_seed(rng) if model.has_dropout else None)
    found = torch.autograd.grad(losses.mean(), parameters, allow_unused=True)
    gradients = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]
    return float(torch.nan_to_num(losses.detach(), posinf=0.0, neginf=0.0).sum()), gradients


def _mask_seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**63))
