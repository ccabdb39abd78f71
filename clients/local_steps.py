"""A user's local training from θ: steps of SGD or Adam over its sentences, and the update that they make.

Where it is a single step of SGD, the update is a gradient: the model stays at θ, and several users' sentences are
batched into one forward and backward pass (`fl_sim.clients.gradients.user_sums`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from fl_sim.clients.examples import Example
from fl_sim.clients.gradients.clipped_sums import Tally
from fl_sim.clients.gradients.user_sums import UserSums, user_sums, with_targets
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.models.losses import sentence_losses
from fl_sim.strategies.client_rules import LocalSteps
from fl_sim.strategies.primitives import streams

_LOCAL_OPTIMIZERS: dict[str, type[torch.optim.SGD] | type[torch.optim.Adam]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
}


def is_one_step(counts: npt.NDArray[np.int64], rule: LocalSteps) -> npt.NDArray[np.bool_]:
    """Return whose local training is one step of SGD, bool (U,): the update is the gradient, the model stays at θ.

    Args:
        counts: how many sentences each user has, int64 (U,).
        rule: the client rule.
    """
    one_pass = rule.optimizer == "sgd" and rule.epochs == 1
    return (counts <= rule.batch_size) & one_pass


class _Steps(UserSums):
    """One step of SGD along the mean of each user's gradients: η/n times their sum."""

    def __init__(self, sums: UserSums, learning_rate: float) -> None:
        self._sums = sums
        self._rates = [learning_rate / max(tally.sentences, 1) for tally in sums.tallies]
        self.users = sums.users
        self.lengths = [
            math.nan if tally.nonfinite else rate * norm
            for rate, norm, tally in zip(self._rates, sums.lengths, sums.tallies, strict=True)
        ]
        self.tallies = [replace(tally, nonfinite=0) for tally in sums.tallies]  # the step as a whole is not finite

    def add(self, shares: Sequence[float], total: torch.Tensor) -> None:
        self._sums.add([rate * share for rate, share in zip(self._rates, shares, strict=True)], total)


def single_steps(
    model: LanguageModel, users: Iterable[tuple[int, list[Example]]], rule: LocalSteps, round_seed: int
) -> Iterator[UserSums]:
    """Yield the step of users who take one, many users in a pass.

    The dropout masks are those that :func:`local_steps` would draw, so that with dropout no two users share a pass.

    Args:
        model: the model, holding θ.
        users: the id and the sentences of each.
        rule: the client rule.
        round_seed: the seed of the round's local draws.
    """
    trained = ((user, with_targets(model, sentences)) for user, sentences in users)
    if not model.has_dropout:
        for sums in user_sums(model, (sentences for _, sentences in trained), math.inf):
            yield _Steps(sums, rule.learning_rate)
        return
    for user, sentences in trained:
        rng = streams.generator(round_seed, "local", user)
        rng.permutation(len(sentences))
        for sums in user_sums(model, [sentences], math.inf, _mask_seed(rng)):
            yield _Steps(sums, rule.learning_rate)


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
    model: LanguageModel, users: Iterable[tuple[int, list[Example]]], rule: LocalSteps, round_seed: int
) -> Iterator[UserSums]:
    """Yield θ_u − θ of each user; the model holds θ again whenever one is handed out.

    Args:
        model: the model, holding θ.
        users: the id and the sentences of each.
        rule: the client rule.
        round_seed: the seed of the round's local draws.
    """
    parameters: list[torch.Tensor] = list(model.parameters.tensors.values())
    theta = [parameter.detach().clone() for parameter in parameters]
    for user, given in users:
        sentences = with_targets(model, given)
        loss = local_steps(model, sentences, rule, streams.generator(round_seed, "local", user))
        with torch.no_grad():
            change = list(torch._foreach_sub(parameters, theta))
            torch._foreach_copy_(parameters, theta)
        yield _Update(model, change, Tally(sentences=len(sentences), loss_sum=loss))


def _norm(tensors: Sequence[torch.Tensor]) -> float:
    """Return the L2 norm over all coordinates, accumulated in float64 (NaN or inf when a coordinate is not finite)."""
    return math.hypot(*(float(torch.linalg.vector_norm(tensor, dtype=torch.float64)) for tensor in tensors))


def local_steps(model: LanguageModel, sentences: list[Example], rule: LocalSteps, rng: np.random.Generator) -> float:
    """Take a user's local steps by SGD or Adam from its beginning; dropout masks are fresh at every step.

    Args:
        model: the model, holding θ; it is changed in place.
        sentences: the user's, each with at least one prediction target.
        rule: the client rule.
        rng: the user's stream of the round.

    Returns:
        The sum over sentences of their mean loss, met in the first pass (NaN and inf become 0).
    """
    first_pass = 0.0
    parameters = list(model.parameters.tensors.values())
    optimizer = _LOCAL_OPTIMIZERS[rule.optimizer](parameters, lr=rule.learning_rate)
    for epoch in range(rule.epochs):
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
    """Return the sum of the sentences' losses (NaN and inf count 0), and the gradient of their mean by parameter."""
    parameters = list(model.parameters.tensors.values())
    losses = sentence_losses(model, batch, _mask_seed(rng) if model.has_dropout else None)
    of_mean = torch.autograd.grad(losses.mean(), parameters, allow_unused=True)
    gradients = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, of_mean, strict=True)]
    return float(torch.nan_to_num(losses.detach(), posinf=0.0, neginf=0.0).sum()), gradients


def _mask_seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**63))
