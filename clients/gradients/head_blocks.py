"""Per-sentence gradients of an output layer that trains, without the scores of a whole batch.

The gradient in the scores, G (B, T, V), is as large as the scores. So losses, the gradient in the layer's input and the
norms of its weight are computed for blocks of whole sentences (`fl_sim.clients.models.frozen_head`), and for the sum
of clipped gradients each block's G is computed once more. If the table of word vectors is the weight, too, what the
inner product of both gradients needs of G is kept: G[t', x_t] for the words x of the sentence.

>>> from fl_sim.clients.models.language_model import load_model
>>> from fl_sim.clients.models.model_spec import ModelSpec
>>> model = load_model(ModelSpec(hidden=8, layers=1, heads=2), seed=0)
>>> blocked_head(model, [], model.batch(model.encode(["Ada left."]))) is None  # the scores are small
True
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from fl_sim.clients.batches import NO_TARGET, Batch
from fl_sim.clients.device import is_out_of_memory
from fl_sim.clients.errors import ModelError
from fl_sim.clients.ghost_norms import (
    Contribution,
    EmbeddingLayer,
    Layer,
    LinearLayer,
    Lookup,
    PerSentence,
    Product,
    Record,
    TiedLayer,
    TiedTable,
    cross_of,
    full,
    picked,
    scaled,
)
from fl_sim.clients.models.frozen_head import blocked_layer, blocks_of, rows_of, scores_of
from fl_sim.clients.models.language_model import LanguageModel


@dataclass(frozen=True)
class Seen:
    """Hold what is kept of a block of rows.

    Attributes:
        squared, slack, inner_slack: of the weight's gradients, float64 (r,).
        picked: G[t', x_t], float32 (r, t', t), if the table is tied.
        of_bias: the bias's gradients, float32 (r, V), if it trains.
    """

    squared: torch.Tensor
    slack: torch.Tensor
    inner_slack: torch.Tensor
    picked: torch.Tensor | None
    of_bias: torch.Tensor | None


@dataclass(frozen=True)
class HeadRecord:
    """Stand for the record of an output layer, and compute its gradient anew for some rows at a time.

    Attributes:
        owner: the layer that describes it.
        module: the output layer.
        batch: the targets of the sentences.
        states: the layer's input, (B, T, h), detached.
    """

    owner: Layer
    module: nn.Linear
    model: LanguageModel
    batch: Batch
    states: torch.Tensor

    def only(self, rows: torch.Tensor | slice) -> HeadRecord:
        """Return the record of some sentences, in the order of ``rows``."""
        return replace(self, batch=rows_of(self.batch, rows), states=self.states[rows])

    def losses(self, ids: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor, list[Seen]]:
        """Return losses, float32 (B,), their gradient in the states, (B, T, h), and what norms need.

        ``ids`` are the words of the sentences, int64 (B, T), if the table is tied.
        """
        weight = self.module.weight
        gradient, losses, seen = torch.empty_like(self.states), [], []
        for rows in self.row_blocks():
            inputs, grad, of_rows = self.block(rows)
            gradient[rows] = grad @ weight.to(grad.dtype)
            losses.append(of_rows)
            seen.append(self._see(inputs, grad, None if ids is None else ids[rows]))
        return torch.cat(losses), gradient, seen

    def contributions(self, records: Sequence[Record], seen: Sequence[Seen]) -> list[Contribution]:
        """Return the contributions of the owner's parameters.

        Given are the records of its other modules, and what :meth:`losses` returned.
        """
        weight, bias = self.owner.head_names()
        lookup = self.owner.embedding.lookup(records[0]) if isinstance(self.owner, TiedLayer) else None
        found: list[Contribution] = [] if weight is None else [BlockedTable(weight, self, lookup, seen)]
        if bias is not None:
            found.append(PerSentence(bias, torch.cat([s.of_bias for s in seen if s.of_bias is not None])))
        return found

    def matrices(self, factors: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield pairs of matrices; the sum of their products is Σ_s factors[s] · gradient_s of the weight."""
        for rows in self.row_blocks():
            inputs, grad, _ = self.block(rows)
            yield scaled(inputs, grad, factors[rows], transposed=False)

    def row_blocks(self) -> list[slice]:
        """Return the sentences in blocks."""
        return blocks_of(self.model, self.batch)

    def inputs(self, rows: slice) -> torch.Tensor:
        """Return the inputs of some sentences, (r, T, h), as the layer's product rounds them, for norms and sums."""
        states = self.states[rows]
        return states.bfloat16() if self.model.mixed else states

    @torch.no_grad()
    def block(self, rows: slice) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the inputs (r, T, h) of some sentences, the gradient of the scores (r, T, V), and the losses (r,)."""
        inputs = self.inputs(rows)
        losses, grad = loss_and_score_gradient(scores_of(self.model, self.module, inputs), rows_of(self.batch, rows))
        return inputs, grad, losses

    def _see(self, inputs: torch.Tensor, grad: torch.Tensor, ids: torch.Tensor | None) -> Seen:
        weight, bias = self.owner.head_names()
        of_words = None if ids is None else picked(grad, ids)
        of_bias = None if bias is None else full(grad).sum(dim=1)
        if weight is None:
            nothing = torch.zeros(len(grad), dtype=torch.float64, device=grad.device)
            return Seen(nothing, nothing, nothing, of_words, of_bias)
        product = Product(weight, inputs, grad, transposed=False)
        return Seen(product.squared, product.slack, product.inner_slack, of_words, of_bias)


class BlockedTable(Contribution):
    """Represent the gradients of an output layer's weight, and of the table of word vectors if that is the same one.

    ``lookup`` has the gradients of the table as an embedding, if it is tied; ``seen`` is what was kept of each block,
    nothing if nobody asks for norms.
    """

    def __init__(self, name: str, record: HeadRecord, lookup: Lookup | None, seen: Sequence[Seen] = ()) -> None:
        self.name = name
        self.rows = len(record.batch.targets)
        self._record = record
        self._lookup = lookup
        self._seen = seen

    @functools.cached_property
    def norms(self) -> tuple[torch.Tensor, torch.Tensor]:
        squared = torch.cat([of_block.squared for of_block in self._seen])
        slack = torch.cat([of_block.slack for of_block in self._seen])
        if self._lookup is None:
            return squared, slack
        mixed = [
            cross_of(of_block.picked, self._record.inputs(rows), self._lookup.only(rows))
            for rows, of_block in zip(self._record.row_blocks(), self._seen, strict=True)
            if of_block.picked is not None
        ]
        squared = self._lookup.squared + squared + 2 * torch.cat(mixed)
        # The error of an inner product of the two is at most the geometric mean of the errors of the two norms.
        return squared, 2 * (self._lookup.slack + slack)

    @property
    def inner_slack(self) -> torch.Tensor:
        slack = torch.cat([of_block.inner_slack for of_block in self._seen])
        return slack if self._lookup is None else 2 * (self._lookup.inner_slack + slack)

    def only(self, rows: torch.Tensor | slice) -> BlockedTable:
        return BlockedTable(
            self.name, self._record.only(rows), None if self._lookup is None else self._lookup.only(rows)
        )

    def stored(self) -> PerSentence:
        blocks = [self._table(rows).stored().gradients for rows in self._record.row_blocks()]
        return PerSentence(self.name, torch.cat(blocks))

    def inner(self, other: Contribution) -> torch.Tensor:
        blocks = self._record.row_blocks()
        if not isinstance(other, BlockedTable):
            return torch.cat([self._table(rows).inner(other.only(rows)) for rows in blocks])
        blocks = max(blocks, other._record.row_blocks(), key=len)
        return torch.cat([self._table(rows).inner(other._table(rows)) for rows in blocks])

    def _table(self, rows: slice) -> Product | TiedTable:
        """Return the gradients of some sentences, computed anew."""
        inputs, grad, _ = self._record.block(rows)
        product = Product(self.name, inputs, grad, transposed=False)
        return product if self._lookup is None else TiedTable(self._lookup.only(rows), product)

    def add(self, factors: torch.Tensor, total: torch.Tensor) -> None:
        added = 0
        try:
            for matrices in self._record.matrices(factors):
                if added == 0 and self._lookup is not None:
                    self._lookup.add(factors, total)
                    added += 1
                total.addmm_(*matrices)
                added += 1
        except RuntimeError as error:
            if added == 0 or not is_out_of_memory(error):
                raise
            raise ModelError(  # some of the sum is in the total, so that it cannot be repeated
                f"memory on {total.device} ended while the sum of {self.name} was added; allowed: a smaller "
                "model.batch_tokens"
            ) from error


def blocked_head(model: LanguageModel, layers: Sequence[Layer], batch: Batch) -> tuple[Layer, nn.Linear] | None:
    """Return an output layer that trains and must be applied in blocks, after its owner; None if there is none."""
    module = blocked_layer(model, batch)
    owners = [layer for layer in layers if module in layer.modules]
    if module is None or len(owners) != 1:
        return None
    owner = owners[0]
    if type(owner) is LinearLayer or (type(owner) is TiedLayer and type(owner.embedding) is EmbeddingLayer):
        return owner, module
    return None


def loss_and_score_gradient(logits: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean losses, (B,), and their gradients in the logits, (B, P, V): (softmax - onehot) / predictions."""
    gradient = torch.softmax(logits, dim=-1, dtype=torch.float32)
    ended = batch.targets == NO_TARGET
    index = batch.targets.masked_fill(ended, 0).unsqueeze(-1)
    # log p of the target is its score less the largest one, plus the logarithm of the largest probability, which is at
    # least 1/V: one exp per score, and no logarithm of a number that may be 0.
    behind = logits.amax(dim=-1).float() - logits.gather(-1, index).squeeze(-1).float()
    nats = behind - gradient.amax(dim=-1).log()
    losses = nats.masked_fill(ended, 0.0).sum(dim=1) / batch.predictions
    gradient.scatter_add_(-1, index, torch.full_like(index, -1.0, dtype=gradient.dtype))
    weights = ended.logical_not() / batch.predictions.unsqueeze(1)
    gradient.mul_(weights.unsqueeze(-1))
    return losses, gradient.to(logits.dtype)
