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

from clients.gradients import ClippedSum, clipped_gradient_sum
from clients.models import LanguageModel, sentence_losses
from clients.selection import Selection
from data_prep.encode import EncodedSplit
from strategies import clipping, streams
from strategies.messages import LocalRule, TrainReply

Vector = npt.NDArray[np.float32]


class _Tally:
    """The running sum of bounded vectors and the counts that go with it."""

    def __init__(self, size: int, users: int) -> None:
        self.vector: Vector = np.zeros(size, dtype=np.float32)
        self.users = users
        self.sentences = self.clipped = self.nonfinite = 0
        self.loss_sum = 0.0

    def count(self, part: ClippedSum) -> None:
        self.sentences += part.sentences
        self.clipped += part.clipped
        self.nonfinite += part.nonfinite
        self.loss_sum += part.loss_sum

    def reply(self) -> TrainReply:
        return TrainReply(
            vector=self.vector,
            users=self.users,
            sentences=self.sentences,
            clipped=self.clipped,
            nonfinite=self.nonfinite,
            loss_sum=self.loss_sum,
        )


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


def _sum_of_gradients(
    model: LanguageModel, encoded: EncodedSplit, selection: Selection, rule: LocalRule
) -> TrainReply:
    tally = _Tally(model.num_parameters, len(selection.users))
    owners = selection.counts > 0
    counts = selection.counts[owners]
    parts = np.split(selection.sentences, np.cumsum(counts)[:-1])
    within_cap = counts * rule.sentence_clip <= rule.user_clip
    pooled = [part for part, within in zip(parts, within_cap, strict=False) if within]
    if pooled:
        shared = clipped_gradient_sum(model, _tokens(encoded, np.concatenate(pooled)), rule.sentence_clip)
        tally.vector += shared.vector
        tally.count(shared)
    for part, within in zip(parts, within_cap, strict=False):
        if not within:
            own = clipped_gradient_sum(model, _tokens(encoded, part), rule.sentence_clip)
            clipping.project(own.vector, rule.user_clip)
            tally.vector += own.vector
            tally.count(own)
    return tally.reply()


def _sum_of_local_training(
    model: LanguageModel, encoded: EncodedSplit, selection: Selection, rule: LocalRule, round_seed: int
) -> TrainReply:
    theta = model.get_vector()
    tally = _Tally(model.num_parameters, len(selection.users))
    parts = np.split(selection.sentences, np.cumsum(selection.counts)[:-1])
    for user, part in zip(selection.users.tolist(), parts, strict=True):
        if len(part) == 0:
            continue
        model.set_vector(theta)
        rng = streams.generator(round_seed, "local", user)
        loss = local_steps(model, _tokens(encoded, part), rule, rng)
        update = model.get_vector() - theta
        length = clipping.project(update, rule.user_clip)
        tally.vector += update
        tally.sentences += len(part)
        tally.clipped += len(part) if length > rule.user_clip else 0
        tally.nonfinite += not math.isfinite(length)
        tally.loss_sum += loss
    model.set_vector(theta)
    return tally.reply()


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


def _tokens(encoded: EncodedSplit, sentences: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int32]]:
    return [encoded.sentence(s) for s in sentences.tolist()]
