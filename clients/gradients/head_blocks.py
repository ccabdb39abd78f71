"""Per-sentence gradients of an output layer that trains, without the scores of a whole batch.

The gradient in the scores, G (B, T, V), is as large as the scores. So losses, the gradient in the layer's input and the
norms of its weight are computed for blocks of whole sentences (`fl_sim.clients.models.frozen_head`), and for the sum
of clipped gradients each block's G is computed once more. If the table of word vectors is the weight, too, what the
inner product of both gradients needs of G is kept: G[t', x_t] for the words x of the sentence.

>>> from fl_sim.clients.models.language_model import load_model
>>> from fl_sim.clients.models.model_spec import ModelSpec
>>> model = load_model(ModelSpec(hidden=8, layers=1, heads=2), seed=0)
>>> head_record(model, [], model.batch(model.encode(["Ada left."]))) is None  # the scores are small
True
"""

from __future__ import annotations

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
    full,
    scaled,
)
from fl_sim.clients.models.frozen_head import blocked_layer, row_blocks, rows_of, scores_of, size_of
from fl_sim.clients.models.language_model import LanguageModel


@dataclass(frozen=True)
class Seen:
    """Hold what is kept of a block of rows.

    Attributes:
        squared, slack: of the weight's gradients, float64 (r,).
        picked: G[t', x_t], float32 (r, t', t), if the table is tied.
        of_bias: the bias's gradients, float32 (r, V), if it trains.
    """

    squared: torch.Tensor
    slack: torch.Tensor
    picked: torch.Tensor | None
    of_bias: torch.Tensor | None


@dataclass(frozen=True)
class HeadRecord:
    """Stand for the record of an output layer, and compute its gradient anew for some rows at a time.

    Attributes:
        owner: the layer that describes it.
        module: the output layer.
        model, batch: of the pass.
        states: the layer's input, (B, T, h), detached; None before the forward pass.
        rows: the number of rows, sentences or users; a user's sentences are adjacent.
        factors: of the sentences of users, float32 (B,); None for 1.
    """

    owner: Layer
    module: nn.Linear
    model: LanguageModel
    batch: Batch
    rows: int
    states: torch.Tensor | None = None
    factors: torch.Tensor | None = None

    @property
    def on_tape(self) -> tuple[nn.Module, ...]:
        """Return the modules of the owner that have ordinary records."""
        return tuple(module for module in self.owner.modules if module is not self.module)

    def of_users(self, users: int, factors: torch.Tensor | None) -> HeadRecord:
        """Return the record with one row per user; see `Record.of_users`."""
        return replace(self, rows=users, factors=factors)

    def losses(self, ids: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor, list[Seen]]:
        """Return losses, float32 (B,), their gradient in the states, (B, T, h), and what norms need.

        ``ids`` are the words of the sentences, int64 (B, T), if the table is tied.
        """
        states, weight = self._states(), self.module.weight
        gradient, losses, seen = torch.empty_like(states), [], []
        for rows, inputs, grad, of_rows in self._blocks():
            gradient[rows] = grad @ weight.to(grad.dtype)
            losses.append(of_rows)
            seen.append(self._see(inputs, grad, None if ids is None else ids[rows]))
        return torch.cat(losses), gradient, seen

    def contributions(self, records: Sequence[Record], seen: Sequence[Seen] | None = None) -> list[Contribution]:
        """Return the contributions of the owner's parameters, given the records of the modules :attr:`on_tape`.

        ``seen`` is what :meth:`losses` returned, if the rows are sentences; else it is computed here.
        """
        weight, bias = self.owner.head_names()
        lookup = self.owner.embedding.lookup(records[0]) if isinstance(self.owner, TiedLayer) else None
        if seen is None:
            ids = None if lookup is None else lookup.ids
            seen = [self._see(i, g, None if ids is None else ids[rows]) for rows, i, g, _ in self._blocks()]
        found: list[Contribution] = [] if weight is None else [BlockedTable(weight, self, seen, lookup)]
        if bias is not None:
            found.append(PerSentence(bias, torch.cat([s.of_bias for s in seen if s.of_bias is not None])))
        return found

    def matrices(self, factors: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield pairs of matrices; the sum of their products is Σ_s factors[s] · gradient_s of the weight."""
        for rows, inputs, grad, _ in self._blocks():
            yield scaled(inputs, grad, factors[rows], transposed=False)

    def row_blocks(self) -> list[slice]:
        """Return the rows in blocks."""
        sentences, scores = size_of(self.model, self.batch)
        return row_blocks(self.rows, scores * (sentences // self.rows), torch.device(self.model.spec.device))

    def _states(self) -> torch.Tensor:
        if self.states is None:
            raise RuntimeError("the forward pass has not been run")
        return self.states

    def _blocks(self) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Yield rows, their inputs (r, n·T, h), the gradient of the scores (r, n·T, V) and the losses of sentences."""
        for rows in self.row_blocks():
            yield rows, *self._block(rows)

    @torch.no_grad()
    def _block(self, rows: slice) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        each = len(self.batch.targets) // self.rows  # sentences of a row
        sentences = slice(rows.start * each, rows.stop * each)
        inputs = self._states()[sentences]
        scores = scores_of(self.model, self.module, inputs)
        inputs = inputs.to(scores.dtype)
        losses, grad = loss_and_score_gradient(scores, rows_of(self.batch, sentences))
        if self.factors is not None:
            grad = grad * self.factors[sentences].view(-1, 1, 1)
        inputs, grad = (t.unflatten(0, (-1, each)).flatten(1, 2) for t in (inputs, grad))
        return inputs, grad, losses

    def _see(self, inputs: torch.Tensor, grad: torch.Tensor, ids: torch.Tensor | None) -> Seen:
        weight, bias = self.owner.head_names()
        picked = None if ids is None else full(grad.gather(2, ids.unsqueeze(1).expand(-1, grad.shape[1], -1)))
        of_bias = None if bias is None else full(grad).sum(dim=1)
        if weight is None:
            nothing = torch.zeros(len(grad), dtype=torch.float64, device=grad.device)
            return Seen(nothing, nothing, picked, of_bias)
        product = Product(weight, inputs, grad, transposed=False)
        return Seen(product.squared, product.slack, picked, of_bias)


class BlockedTable(Contribution):
    """Represent the gradients of an output layer's weight, and of the table of word vectors if that is the same one.

    ``seen`` is what was kept of each block, ``lookup`` the gradients of the table as an embedding, if it is tied.
    """

    def __init__(self, name: str, record: HeadRecord, seen: Sequence[Seen], lookup: Lookup | None) -> None:
        self.name = name
        self._record = record
        self._lookup = lookup
        self.squared = torch.cat([of_block.squared for of_block in seen])
        self.slack = torch.cat([of_block.slack for of_block in seen])
        if lookup is None:
            return
        cross = [
            self._cross(rows, of_block.picked, lookup)
            for rows, of_block in zip(record.row_blocks(), seen, strict=True)
            if of_block.picked is not None
        ]
        self.squared = lookup.squared + self.squared + 2 * torch.cat(cross)
        # The error of |cross| is at most the geometric mean of the errors of the two norms.
        self.slack = 2 * (lookup.slack + self.slack)

    def _cross(self, rows: slice, picked: torch.Tensor, lookup: Lookup) -> torch.Tensor:
        """Return the inner products of both gradients of some rows, float64 (r,); see `TiedTable`."""
        each = len(self._record.batch.targets) // self._record.rows
        states = self._record._states()[rows.start * each : rows.stop * each]
        inputs = full(states.unflatten(0, (-1, each)).flatten(1, 2))
        inner = torch.bmm(inputs, full(lookup.grad[rows]).transpose(1, 2))
        return (picked * inner).sum(dim=(1, 2), dtype=torch.float64)

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


def head_record(model: LanguageModel, layers: Sequence[Layer], batch: Batch) -> HeadRecord | None:
    """Return the record of an output layer that trains and must be applied in blocks; None if there is none."""
    module = blocked_layer(model, batch)
    owners = [layer for layer in layers if module in layer.modules]
    if module is None or len(owners) != 1:
        return None
    owner = owners[0]
    if type(owner) is LinearLayer or (type(owner) is TiedLayer and type(owner.embedding) is EmbeddingLayer):
        return HeadRecord(owner, module, model, batch, rows=len(batch.targets))
    return None


def loss_and_score_gradient(logits: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean losses, (B,), and their gradients in the logits, (B, P, V): (softmax - onehot) / predictions."""
    log_probabilities = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
    ended = batch.targets == NO_TARGET
    index = batch.targets.masked_fill(ended, 0).unsqueeze(-1)
    chosen = log_probabilities.gather(-1, index).squeeze(-1).masked_fill(ended, 0.0)
    losses = -chosen.sum(dim=1) / batch.predictions
    gradient = log_probabilities.exp_()
    gradient.scatter_add_(-1, index, torch.full_like(index, -1.0, dtype=gradient.dtype))
    weights = ended.logical_not() / batch.predictions.unsqueeze(1)
    gradient.mul_(weights.unsqueeze(-1))
    return losses, gradient.to(logits.dtype)
