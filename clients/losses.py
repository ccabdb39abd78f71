"""The loss of one sentence, its plain gradient, and held-out evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch.nn import functional

from clients.batches import NO_TARGET, Batch, Sentence, batch_tokens, collate, micro_batches, validate

if TYPE_CHECKING:
    from clients.models import LanguageModel


def batch_losses(model: LanguageModel, batch: Batch) -> torch.Tensor:
    """(B,) mean token cross-entropy of each sentence of a padded batch, in nats, float32."""
    scores = model.logits(batch).float()
    nats = functional.cross_entropy(
        scores.flatten(0, 1), batch.targets.flatten(), ignore_index=NO_TARGET, reduction="none"
    )
    return nats.view(batch.targets.shape).sum(dim=1) / batch.predictions


def sentence_losses(model: LanguageModel, sentences: Sequence[Sentence]) -> torch.Tensor:
    """l(θ, s) of each sentence on its own: the mean next-token cross-entropy over ``[bos] w1 … wn [eos]``, in
    nats.

    Differentiable with respect to the trainable parameters. The sentences go through in one padded batch, yet
    no value depends on the others (up to float32 rounding of differently shaped matrix products).

    Args:
        sentences: B token arrays, boundary tokens included; one of a single token has loss zero.

    Returns:
        (B,) float32.

    Raises:
        ModelError: for a sentence that is empty, too long, or has an id outside the vocabulary.
    """
    validate(sentences, model.max_tokens, model.vocabulary_size)
    losses = torch.zeros(len(sentences), device=model.device)
    told = [i for i, s in enumerate(sentences) if len(s) > 1]
    if not told:
        return losses
    batch = collate([sentences[i] for i in told], model.device)
    return losses.index_put((torch.tensor(told, device=model.device),), batch_losses(model, batch))


class EncodedSentences(Protocol):
    """Whatever gives a sentence's tokens by its id."""

    def __getitem__(self, index: int, /) -> Sentence: ...


def perplexity(
    model: LanguageModel, encoded: EncodedSentences, ids: Iterable[int], max_batch_tokens: int | None = None
) -> tuple[float, int]:
    """Held-out evaluation: (total nats, total predicted tokens); perplexity is exp(nats / tokens).

    Args:
        encoded: token arrays by sentence id, boundary tokens included.
        ids: the sentences to evaluate.
        max_batch_tokens: padded size of a micro-batch, which bounds the memory; ``None`` takes what is
            fast on the model's device.

    Raises:
        ModelError: for a sentence that is empty, too long, or has an id outside the vocabulary.
    """
    sentences = [encoded[int(i)] for i in ids]
    validate(sentences, model.max_tokens, model.vocabulary_size)
    lengths = [len(s) for s in sentences]
    nats, tokens = 0.0, 0
    with torch.no_grad():
        for group in micro_batches(lengths, batch_tokens(max_batch_tokens, model.device)):
            batch = collate([sentences[i] for i in group], model.device)
            nats += float((batch_losses(model, batch).double() * batch.predictions).sum())
            tokens += int(batch.predictions.sum())
    return nats, tokens


def loss_gradients(model: LanguageModel, sentences: Sequence[Sentence]) -> tuple[float, dict[str, torch.Tensor]]:
    """Σ_s l(θ, s) over sentences of at least two tokens, and ∇ of it by parameter name, by plain autograd."""
    parameters = model.parameters.tensors
    loss = batch_losses(model, collate(sentences, model.device)).sum()
    found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    gradients = {name: g for name, g in zip(parameters, found, strict=True) if g is not None}
    return float(loss.detach()), gradients
