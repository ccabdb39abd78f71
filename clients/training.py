"""From (model, eligible sentences, rule) to the sum of bounded user vectors; no Flower here.

``gradients``: v_u = Π_β( Σ_s Π_c(−∇l(θ, s)) ). Where a user has at most ŵ = β/c eligible sentences the outer
projection cannot act, so the sentences of all such users share batches; only the others get a sum of their own.
``steps``: v_u = Π_β(θ_u − θ) after several local SGD steps from θ.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from clients.gradients import clipped_gradient_sum
from clients.models import LanguageModel, sentence_losses
from clients.selection import Selection
from data_prep.encode import EncodedSplit
from strategies import clipping, streams
from strategies.messages import LocalRule, TrainReply

_COUNTS = ("sentences", "clipped", "nonfinite", "loss_sum")


def bounded_sum(
    model: LanguageModel, encoded: EncodedSplit, selection: Selection, rule: LocalRule, round_seed: int
) -> TrainReply:
    """Σ_u v_u over the sampled users of ``selection``, each ‖v_u‖ ≤ ``rule.user_clip``.

    Args:
        model: the model, holding the round's θ; it holds θ again afterwards.
        encoded: the tokens of every sentence of the split.
        selection: the sampled users and their eligible sentences.
        rule: the local rule.
        round_seed: the seed of the round's local draws (the order of local batches).
    """
    if rule.update == "gradients":
        return _sum_of_gradients(model, encoded, selection, rule)
    return _sum_of_local_training(model, encoded, selection, rule, round_seed)


def _sum_of_gradients(model: LanguageModel, encoded: EncodedSplit, selection: Selection, rule: LocalRule) -> TrainReply:
    users = [part for part in _by_user(selection) if len(part)]
    pooled = [part for part in users if _cannot_reach(len(part), rule)]
    shared = np.concatenate(pooled) if pooled else np.empty(0, dtype=np.int64)
    total = clipped_gradient_sum(model, _tokens(encoded, shared), rule.sentence_clip)
    counts = {name: getattr(total, name) for name in _COUNTS}
    for part in users:
        if not _cannot_reach(len(part), rule):
            own = clipped_gradient_sum(model, _tokens(encoded, part), rule.sentence_clip)
            clipping.project(own.vector, rule.user_clip)
            total.vector[:] += own.vector
            counts = {name: value + getattr(own, name) for name, value in counts.items()}
    return TrainReply(vector=total.vector, users=len(selection.users), **counts)


def _cannot_reach(sentences: int, rule: LocalRule) -> bool:
    """Whether the sum of that many clipped gradients lies within β whatever they are."""
    return sentences * rule.sentence_clip <= rule.user_clip


def _sum_of_local_training(
    model: LanguageModel, encoded: EncodedSplit, selection: Selection, rule: LocalRule, round_seed: int
) -> TrainReply:
    theta = model.get_vector()
    total = np.zeros_like(theta)
    clipped = nonfinite = 0
    loss_sum = 0.0
    for user, part in zip(selection.users.tolist(), _by_user(selection), strict=True):
        if len(part) == 0:
            continue
        model.set_vector(theta)
        rng = streams.generator(round_seed, "local", user)
        loss_sum += local_steps(model, _tokens(encoded, part), rule, rng)
        update = model.get_vector() - theta
        length = clipping.project(update, rule.user_clip)
        total += update
        clipped += len(part) if length > rule.user_clip else 0
        nonfinite += not math.isfinite(length)
    model.set_vector(theta)
    return TrainReply(
        vector=total,
        users=len(selection.users),
        sentences=len(selection.sentences),
        clipped=clipped,
        nonfinite=nonfinite,
        loss_sum=loss_sum,
    )


def local_steps(
    model: LanguageModel, sentences: list[npt.NDArray[np.int32]], rule: LocalRule, rng: np.random.Generator
) -> float:
    """Local SGD over one user's sentences, changing ``model`` in place.

    Returns:
        The sum over sentences of their mean token loss, met in the first pass (NaN and inf become 0).
    """
    first_pass = 0.0
    parameters = list(model.parameters.tensors.values())
    for epoch in range(rule.local_epochs):
        order = rng.permutation(len(sentences))
        for start in range(0, len(order), rule.batch_size):
            batch = [sentences[i] for i in order[start : start + rule.batch_size]]
            losses = sentence_losses(model, batch)
            gradients = torch.autograd.grad(losses.mean(), parameters)
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.sub_(gradient, alpha=rule.learning_rate)
            if epoch == 0:
                first_pass += float(torch.nan_to_num(losses.detach(), posinf=0.0).sum())
    return first_pass


def _by_user(selection: Selection) -> list[npt.NDArray[np.int64]]:
    """The eligible sentences of each sampled user."""
    return np.split(selection.sentences, np.cumsum(selection.counts)[:-1]) if len(selection.users) else []


def _tokens(encoded: EncodedSplit, sentences: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int32]]:
    return [encoded.sentence(s) for s in sentences.tolist()]
