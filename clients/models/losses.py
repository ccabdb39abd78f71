"""Compute the loss of each sentence and its plain gradient, and evaluate on held-out sentences.

>>> from fl_sim.clients.models.language_model import load_model
>>> from fl_sim.clients.models.model_spec import ModelSpec
>>> model = load_model(ModelSpec(hidden=8, layers=1, heads=2), seed=0)
>>> losses = sentence_losses(model, model.encode(["Ada left.", "It rained all day."]))
>>> bool(((losses - np.log(model.vocabulary_size)).abs() < 0.1).all())  # an untrained model is about uniform
True
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from fl_sim.clients.batches import NO_TARGET, Batch, Example, micro_batches
from fl_sim.clients.device import in_parts
from fl_sim.clients.models.frozen_head import blocked_layer, blocks_of, frozen_head, left_out, rows_of, scores_of
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.tasks import HeldOut

_Computed = TypeVar("_Computed")


def _by_blocks(
    model: LanguageModel, batch: Batch, compute: Callable[[torch.Tensor, Batch], _Computed]
) -> list[_Computed]:
    """Return what is computed from the scores and targets of each block of a batch; a small batch is one block.

    The scores of a block are computed again in the backward pass.
    """
    layer = blocked_layer(model, batch)
    if layer is None:
        return [compute(model.logits(batch), batch)]
    with left_out(layer):
        states = model.logits(batch)

    def of_block(states: torch.Tensor, rows: slice) -> _Computed:
        return compute(scores_of(model, layer, states), rows_of(batch, rows))

    blocks = blocks_of(model, batch)
    return [checkpoint(of_block, states[b], b, use_reentrant=False, preserve_rng_state=False) for b in blocks]


def batch_losses(model: LanguageModel, batch: Batch) -> torch.Tensor:
    """Return the mean cross-entropy over each sentence's targets in nats, float32 (B,)."""
    return torch.cat(_by_blocks(model, batch, lambda s, rows: _target_nats(s, rows).sum(dim=1) / rows.predictions))


def sentence_losses(model: LanguageModel, examples: Sequence[Example], mask_seed: int | None = None) -> torch.Tensor:
    """Return l(θ, s) of each sentence: the mean cross-entropy over its prediction targets, in nats, float32 (B,).

    For the next word the targets are all tokens of ``[bos] w1 … wn [eos]`` but the first; for classification, the
    class. A sentence without a target has loss zero. Losses are differentiable in the trainable parameters. The
    sentences share one padded batch, yet no loss depends on the others (up to float32 rounding of differently shaped
    matrix products). ``mask_seed`` draws dropout masks; ``None`` switches dropout off.

    Raises:
        ModelError: see `LanguageModel.validate`.
    """
    model.validate(examples)
    losses = torch.zeros(len(examples), device=model.device)
    with_targets = [i for i, example in enumerate(examples) if model.task.size(example)]
    if not with_targets:
        return losses
    batch = model.batch([examples[i] for i in with_targets], mask_seed)
    return losses.index_put((torch.tensor(with_targets, device=model.device),), batch_losses(model, batch))


def held_out(model: LanguageModel, examples: Sequence[Example]) -> HeldOut:
    """Return the model's losses and errors on held-out sentences, without dropout.

    Raises:
        ModelError: see `LanguageModel.validate`.
    """
    model.validate(examples)
    sizes = [model.task.size(example) for example in examples]
    predictions = np.array([model.task.predictions(example) for example in examples], dtype=np.int64)
    ends = np.cumsum(predictions)
    measured = HeldOut(
        losses=np.zeros(len(examples)),
        predictions=predictions,
        wrong=np.zeros(len(examples), dtype=np.int64),
        target_nats=(target_nats := np.zeros(predictions.sum(), dtype=np.float32)),
    )

    def measure(group: list[int]) -> None:
        batch = model.batch([examples[i] for i in group])
        nats, missed = _nats_and_errors(model, batch)
        measured.losses[group] = (nats.sum(dim=1) / batch.predictions).double().cpu().numpy()
        for index, row in zip(group, nats.cpu().numpy(), strict=True):
            target_nats[ends[index] - predictions[index] : ends[index]] = row[: predictions[index]]
        measured.wrong[group] = missed.sum(dim=1).cpu().numpy()

    with torch.no_grad(), model.exact():
        for group in micro_batches(sizes, model.batch_tokens):
            in_parts(model, group, measure, sizes.__getitem__)
    return measured


def _nats_and_errors(model: LanguageModel, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cross-entropy of every target, (B, P), 0 after a sentence's end, and which are wrong, bool (B, P)."""
    head = frozen_head(model)
    if head is not None:
        with left_out(head.layer):
            states = model.logits(batch)
        scored = head.score(states, batch, with_gradient=False)
        return scored.nats, scored.wrong

    def of_scores(scores: torch.Tensor, rows: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return _target_nats(scores, rows), (scores.argmax(dim=-1) != rows.targets) & (rows.targets != NO_TARGET)

    nats, missed = zip(*_by_blocks(model, batch, of_scores), strict=True)
    return torch.cat(nats), torch.cat(missed)


def loss_gradients(model: LanguageModel, batch: Batch) -> tuple[float, dict[str, torch.Tensor]]:
    """Return Σ_s l(θ, s) over the sentences of a batch and its gradient by parameter name, by plain autograd."""
    parameters = model.parameters.tensors
    loss = batch_losses(model, batch).sum()
    with model.backward_pass():
        of_parameters = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    gradients = {name: g for name, g in zip(parameters, of_parameters, strict=True) if g is not None}
    return float(loss.detach()), gradients


def _target_nats(scores: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Return the cross-entropy of every target, (B, P); 0 after a sentence's end."""
    nats = functional.cross_entropy(
        scores.float().flatten(0, 1), batch.targets.flatten(), ignore_index=NO_TARGET, reduction="none"
    )
    return nats.view(batch.targets.shape)
