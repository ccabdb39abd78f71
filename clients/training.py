"""From (model, eligible sentences, rule) to the sum of bounded user vectors; no Flower here.

``gradients``: v_u = Π_β( Σ_s Π_c(−∇l(θ, s)) ). Where a user has at most ŵ = β/c eligible sentences the outer
projection cannot act, so the sentences of all such users share batches; only the others get a sum of their own.
``steps``: v_u = Π_β(θ_u − θ) after several local steps from θ.
``published``: v_u = w_u·Π_β( Σ_s m_s·(−∇l(θ, s)) ), the UeDP paper's weights.

All are the same for every task: what an example is, and its loss l, is the model's affair.

Where a clip adapts, every item with a vote (a sentence, or a user where sentences are not clipped) says whether the
clip left it as it was. The votes are one more coordinate of the user's vector and bounded with it (docs/privacy.md,
section 12).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from clients.examples import Example, Examples
from clients.gradients import ClippedSum, clipped_gradient_sum, user_sums
from clients.models import LanguageModel, sentence_losses
from clients.published import WeightedSelection
from clients.selection import Selection
from strategies import clipping, streams
from strategies.messages import LocalRule, TrainReply

_LOCAL_OPTIMIZERS: dict[str, type[torch.optim.SGD] | type[torch.optim.Adam]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
}
_COUNTS = ("sentences", "clipped", "nonfinite", "loss_sum")


def bounded_sum(
    model: LanguageModel, examples: Examples, selection: Selection, rule: LocalRule, round_seed: int
) -> TrainReply:
    """Σ_u v_u over the sampled users of ``selection``, each ‖v_u‖ ≤ ``rule.user_clip``.

    Args:
        model: the model, holding the round's θ; it holds θ again afterwards.
        examples: the sentences of the split.
        selection: the sampled users and their eligible sentences.
        rule: the local rule.
        round_seed: the seed of the round's local draws (dropout masks, the order of local batches).
    """
    mask_seed = streams.derived_seed(round_seed, "masks")
    if rule.update == "gradients":
        return _sum_of_gradients(model, examples, selection, rule, mask_seed)
    if isinstance(selection, WeightedSelection):
        return _published_sum(model, examples, selection, rule, mask_seed)
    return _sum_of_local_training(model, examples, selection, rule, round_seed)


def _sum_of_gradients(
    model: LanguageModel, examples: Examples, selection: Selection, rule: LocalRule, mask_seed: int
) -> TrainReply:
    users = [part for part in _by_user(selection) if len(part)]
    pooled = [part for part in users if _cannot_reach(len(part), rule)]
    shared = examples.read(np.concatenate(pooled)) if pooled else []
    total = clipped_gradient_sum(model, shared, rule.sentence_clip, mask_seed=mask_seed)
    counts = {name: getattr(total, name) for name in _COUNTS}
    votes = _sentence_votes(total, rule)
    apart = [examples.read(part) for part in users if not _cannot_reach(len(part), rule)]
    for own in user_sums(model, apart, rule.sentence_clip, mask_seed):
        clipped, own_votes = _bound_user(own, rule)
        total.vector[:] += own.vector
        votes += own_votes
        counts = {name: value + getattr(own, name) for name, value in counts.items()}
        counts["clipped"] += clipped
    return TrainReply(vector=total.vector, users=len(selection.users), votes=votes, **counts)


def _bound_user(own: ClippedSum, rule: LocalRule) -> tuple[int, float]:
    """Shorten one user's sum, its votes as a coordinate of it included, to β in place.

    Returns:
        How many sentences were clipped as part of their user, and the user's votes.
    """
    if math.isinf(rule.sentence_clip):
        length = clipping.project(own.vector, rule.user_clip)
        return own.sentences if length > rule.user_clip else 0, _user_vote(length, rule)
    votes = _sentence_votes(own, rule)
    joint = rule.joint_norm(clipping.norm(own.vector), votes)
    if not math.isfinite(joint):
        own.vector[:] = 0
        return 0, 0.0
    share = min(1.0, rule.user_clip / joint) if joint else 1.0
    if share < 1:
        own.vector[:] *= share
    return 0, share * votes


def _sentence_votes(total: ClippedSum, rule: LocalRule) -> float:
    """Σ(b − γ) over the sentences of a sum, b = 1 if the clip left the sentence's gradient as it was."""
    if rule.vote_weight == 0 or math.isinf(rule.sentence_clip):
        return 0.0
    counted = total.sentences - total.nonfinite
    return counted - total.clipped - rule.quantile * counted


def _user_vote(length: float, rule: LocalRule) -> float:
    """b − γ of a user whose update had the norm ``length`` before its clip; 0 if that is not finite."""
    if rule.vote_weight == 0 or not math.isfinite(length):
        return 0.0
    return float(length <= rule.user_clip) - rule.quantile


def _published_sum(
    model: LanguageModel, examples: Examples, selection: WeightedSelection, rule: LocalRule, mask_seed: int
) -> TrainReply:
    """Σ_u w_u·Π_β(Σ_s m_s·(−∇l(θ, s))), m_s the weight of the sampled entities that the sentence mentions."""
    reply = TrainReply(np.zeros(model.num_parameters, np.float32), len(selection.users), 0, 0, 0, 0.0)
    counts = {name: getattr(reply, name) for name in _COUNTS}
    ends = np.cumsum(selection.counts)
    for end, count, user_weight in zip(ends, selection.counts, selection.user_weights, strict=True):
        part, weights = (array[end - count : end] for array in (selection.sentences, selection.weights))
        update = np.zeros(model.num_parameters, dtype=np.float32)
        for weight in np.unique(weights):
            alike = examples.read(part[weights == weight])
            same = clipped_gradient_sum(model, alike, math.inf, mask_seed=mask_seed)
            update += np.float32(weight) * same.vector
            counts = {name: value + getattr(same, name) for name, value in counts.items()}
        if clipping.project(update, rule.user_clip) > rule.user_clip:
            counts["clipped"] += int(count)
        reply.vector[:] += np.float32(user_weight) * update
    return replace(reply, **counts)


def _cannot_reach(sentences: int, rule: LocalRule) -> bool:
    """Whether the sum of that many clipped gradients lies within β whatever they are."""
    return sentences * rule.sentence_clip <= rule.user_clip


def _sum_of_local_training(
    model: LanguageModel, examples: Examples, selection: Selection, rule: LocalRule, round_seed: int
) -> TrainReply:
    total = torch.zeros(model.num_parameters, device=model.device)
    sums = list(model.parameters.views(total).values())
    parameters: list[torch.Tensor] = list(model.parameters.tensors.values())
    theta = [parameter.detach().clone() for parameter in parameters]
    clipped = nonfinite = 0
    loss_sum = votes = 0.0
    for user, part in zip(selection.users.tolist(), _by_user(selection), strict=True):
        if len(part) == 0:
            continue
        sentences, rng = examples.read(part), streams.generator(round_seed, "local", user)
        if _is_one_step(len(part), rule):
            loss, update = _step(model, _told(model, sentences), rng)
            rate = -rule.learning_rate
        else:
            loss = local_steps(model, sentences, rule, rng)
            with torch.no_grad():
                update, rate = list(torch._foreach_sub(parameters, theta)), 1.0
                torch._foreach_copy_(parameters, theta)
        length = abs(rate) * _norm(update)
        loss_sum += loss
        votes += _user_vote(length, rule)
        clipped += len(part) if length > rule.user_clip else 0
        nonfinite += not math.isfinite(length)
        if math.isfinite(length) and update:
            torch._foreach_add_(sums, update, alpha=rate * (min(1.0, rule.user_clip / length) if length else 1.0))
    return TrainReply(
        vector=total.cpu().numpy(),
        users=len(selection.users),
        sentences=len(selection.sentences),
        clipped=clipped,
        nonfinite=nonfinite,
        loss_sum=loss_sum,
        votes=votes,
    )


def _is_one_step(sentences: int, rule: LocalRule) -> bool:
    """Whether a user's local training is one step of SGD: its update is the gradient, and the model may stay at θ."""
    return rule.local_optimizer == "sgd" and rule.local_epochs == 1 and sentences <= rule.batch_size


def _norm(tensors: Sequence[torch.Tensor]) -> float:
    """The L2 norm over all coordinates, accumulated in float64 (NaN or inf when a coordinate is not finite)."""
    return math.hypot(*(float(torch.linalg.vector_norm(tensor, dtype=torch.float64)) for tensor in tensors))


def local_steps(model: LanguageModel, sentences: list[Example], rule: LocalRule, rng: np.random.Generator) -> float:
    """Local SGD or Adam, from its beginning, over one user's sentences, changing ``model`` in place. Dropout masks
    are fresh at every step.

    Returns:
        The sum over sentences of their mean loss, met in the first pass (NaN and inf become 0).
    """
    first_pass = 0.0
    sentences = _told(model, sentences)
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


def _step(model: LanguageModel, sentences: list[Example], rng: np.random.Generator) -> tuple[float, list[torch.Tensor]]:
    """One batch of all sentences, drawn as :func:`local_steps` draws it; nothing if there are none."""
    order = rng.permutation(len(sentences))
    return _batch_step(model, [sentences[i] for i in order], rng) if sentences else (0.0, [])


def _batch_step(
    model: LanguageModel, batch: list[Example], rng: np.random.Generator
) -> tuple[float, list[torch.Tensor]]:
    """The sum of the sentences' losses (NaN and inf count 0), and the gradient of their mean by parameter."""
    parameters = list(model.parameters.tensors.values())
    losses = sentence_losses(model, batch, int(rng.integers(2**63)) if model.has_dropout else None)
    found = torch.autograd.grad(losses.mean(), parameters, allow_unused=True)
    gradients = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]
    return float(torch.nan_to_num(losses.detach(), posinf=0.0, neginf=0.0).sum()), gradients


def _told(model: LanguageModel, sentences: list[Example]) -> list[Example]:
    """Those of which there is something to tell."""
    return [sentence for sentence in sentences if model.task.size(sentence)]


def _by_user(selection: Selection) -> list[npt.NDArray[np.int64]]:
    """The eligible sentences of each sampled user."""
    return np.split(selection.sentences, np.cumsum(selection.counts)[:-1]) if len(selection.users) else []
