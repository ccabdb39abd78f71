"""Train a user locally from θ, by steps of SGD or Adam over the user's sentences, and return the change θ_u − θ.

A step goes along the mean of its sentences' gradients, or along their weighted sum. A single step of SGD is a scaled
gradient: the model stays at θ, and several users' sentences are batched into one pass. The caller bounds the change by
β (docs/privacy.md, section 2, ``user_level``).

>>> is_one_step(np.array([3, 8, 9]), LocalSteps(q_e=1.0, q_s=1.0, user_clip=0.5, epochs=1, batch_size=8))
array([ True,  True, False])
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from fl_sim.clients.batches import Example
from fl_sim.clients.device import in_parts
from fl_sim.clients.gradients.clipped_sums import Tally
from fl_sim.clients.gradients.user_sums import Floats, UserSums, user_sums, with_targets
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.models.losses import sentence_losses
from fl_sim.strategies.client_rules import LocalSteps
from fl_sim.strategies.primitives import streams

_LOCAL_OPTIMIZERS: dict[str, type[torch.optim.SGD] | type[torch.optim.Adam]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
}


_AT_ONCE = 64  # sentences of a step; a batch may be all that a user has, and memory must not tell how many these are


def is_one_step(counts: npt.NDArray[np.int64], rule: LocalSteps) -> npt.NDArray[np.bool_]:
    """Return which users, of so many sentences (U,), take a single step of SGD, a scaled gradient at θ; bool (U,)."""
    one_pass = rule.optimizer == "sgd" and rule.epochs == 1
    return (counts <= rule.batch_size) & one_pass


class _Steps(UserSums):
    """Represent one step of SGD along the mean of each user's gradients: η/n times their sum."""

    def __init__(self, sums: UserSums, learning_rate: float) -> None:
        self._sums = sums
        self._rates = [learning_rate / max(tally.sentences, 1) for tally in sums.tallies]
        self.users = sums.users
        self.lengths = [
            math.nan if tally.nonfinite else rate * norm
            for rate, norm, tally in zip(self._rates, sums.lengths, sums.tallies, strict=True)
        ]
        self.tallies = [replace(tally, nonfinite=0) for tally in sums.tallies]  # `lengths` tells of it

    def add(self, shares: Sequence[float], total: torch.Tensor) -> None:
        self._sums.add([rate * share for rate, share in zip(self._rates, shares, strict=True)], total)


def single_steps(
    model: LanguageModel, users: Iterable[tuple[int, list[Example]]], rule: LocalSteps, round_seed: int
) -> Iterator[UserSums]:
    """Yield the changes of users, given as (id, sentences), who take a single step of SGD, many users per pass.

    The dropout masks equal those of :func:`local_steps`. They depend on the user, so with dropout each user has a pass.
    """
    with_examples = ((user, with_targets(model, sentences)) for user, sentences in users)
    if not model.has_dropout:
        for sums in user_sums(model, (sentences for _, sentences in with_examples), math.inf):
            yield _Steps(sums, rule.learning_rate)
        return
    for user, sentences in with_examples:
        rng = streams.generator(round_seed, "local", user)
        rng.permutation(len(sentences))
        for sums in user_sums(model, [sentences], math.inf, _mask_seed(rng)):
            yield _Steps(sums, rule.learning_rate)


class _Update(UserSums):
    """Hold θ_u − θ of one user after several local steps; ``place`` is the user's index in the caller's order."""

    def __init__(self, model: LanguageModel, change: list[torch.Tensor], tally: Tally, place: int) -> None:
        norms = (float(torch.linalg.vector_norm(tensor, dtype=torch.float64)) for tensor in change)
        self.users, self.lengths, self.tallies = [place], [math.hypot(*norms)], [tally]
        self._model = model
        self._change = change

    def add(self, shares: Sequence[float], total: torch.Tensor) -> None:
        if shares[0] != 0:
            torch._foreach_add_(list(self._model.parameters.views(total).values()), self._change, alpha=shares[0])


def local_updates(
    model: LanguageModel,
    users: Iterable[tuple[int, list[Example]]],
    rule: LocalSteps,
    round_seed: int,
    weights: Sequence[Floats] | None = None,
) -> Iterator[UserSums]:
    """Yield θ_u − θ of each user, given as (id, sentences); the model's parameters are θ again at every yield.

    ``weights`` has each user's m_s, float64 (sentences,), for steps along Σ_s m_s·g_s; None for steps along the mean.
    """
    parameters: list[torch.Tensor] = list(model.parameters.tensors.values())
    theta = [parameter.detach().clone() for parameter in parameters]
    for place, (user, examples) in enumerate(users):
        sentences = with_targets(model, examples)
        own = None if weights is None else weights[place][[model.task.size(example) > 0 for example in examples]]
        loss = local_steps(model, sentences, rule, streams.generator(round_seed, "local", user), own)
        with torch.no_grad():
            change = list(torch._foreach_sub(parameters, theta))
            torch._foreach_copy_(parameters, theta)
        yield _Update(model, change, Tally(sentences=len(sentences), loss_sum=loss), place)


def local_steps(
    model: LanguageModel,
    sentences: list[Example],
    rule: LocalSteps,
    rng: np.random.Generator,
    weights: Floats | None = None,
) -> float:
    """Take a user's local steps by SGD or Adam, in place, with a fresh optimizer state and new masks at every step.

    ``sentences`` have a prediction target each; ``rng`` is the user's random stream of the round; ``weights``, float64
    (sentences,), replace the mean by a weighted sum. Returns the sum over sentences of their mean loss in the first
    pass (NaN and inf count as 0).
    """
    first_pass = 0.0
    parameters = list(model.parameters.tensors.values())
    optimizer = _LOCAL_OPTIMIZERS[rule.optimizer](parameters, lr=rule.learning_rate)
    for epoch in range(rule.epochs):
        order = rng.permutation(len(sentences))
        for start in range(0, len(order), rule.batch_size):
            chosen = order[start : start + rule.batch_size]
            masks = _mask_seed(rng) if model.has_dropout else None
            shares = np.full(len(chosen), 1 / len(chosen)) if weights is None else weights[chosen]
            loss, gradients = _gradients_of_step(model, [sentences[i] for i in chosen], shares, masks)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()
            optimizer.zero_grad()
            if epoch == 0:
                first_pass += loss
    return first_pass


def _gradients_of_step(
    model: LanguageModel, sentences: list[Example], shares: Floats, masks: int | None
) -> tuple[float, list[torch.Tensor]]:
    """Return Σ l of the finite losses of a step's sentences, if it is finite, and the gradient of Σ share·l.

    It is computed ``_AT_ONCE`` sentences at a time, and in parts if memory does not suffice.
    """
    parameters = list(model.parameters.tensors.values())
    loss_sum, total = 0.0, list[torch.Tensor]()

    def add(rows: list[int]) -> None:
        nonlocal loss_sum
        losses = sentence_losses(model, [sentences[i] for i in rows], masks)
        shared = losses @ torch.tensor(shares[rows], dtype=torch.float32, device=losses.device)
        with model.backward_pass():
            of_sum = torch.autograd.grad(shared, parameters, allow_unused=True)
        gradients = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, of_sum, strict=True)]
        if total:
            torch._foreach_add_(total, gradients)
        else:
            total.extend(gradients)
        of_part = float(torch.nan_to_num(losses.detach(), posinf=0.0, neginf=0.0).sum())
        loss_sum += of_part if math.isfinite(of_part) else 0.0  # else the server would refuse the sum of all users

    for start in range(0, len(sentences), _AT_ONCE):
        rows = range(len(sentences))[start : start + _AT_ONCE]
        in_parts(model, rows, add, lambda i: model.task.size(sentences[i]))
    return loss_sum, total


def _mask_seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**63))
