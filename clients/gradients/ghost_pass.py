"""Compute every sentence's gradient norm and any weighted gradient sum in one forward and one backward pass.

A model may take this path if every trainable parameter belongs to exactly one layer that `fl_sim.clients.ghost_norms`
describes, and the result agrees with plain autograd, parameter by parameter and sentence by sentence, on a small random
batch. So an unforeseen architecture cannot silently get wrong norms.

>>> from fl_sim.clients.models.language_model import load_model
>>> from fl_sim.clients.models.model_spec import ModelSpec
>>> gradient_path(load_model(ModelSpec(hidden=8, layers=1, heads=2), seed=0)).name
'fast'
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Literal
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from fl_sim.clients.batches import NO_TARGET, Batch, Example
from fl_sim.clients.device import does_not_fit, is_out_of_memory
from fl_sim.clients.ghost_norms import (
    Contribution,
    EmbeddingLayer,
    Layer,
    LinearLayer,
    NotCovered,
    Record,
    TiedLayer,
    handler_of,
    squared_of_sum,
)
from fl_sim.clients.gradients.head_blocks import HeadRecord, Seen, blocked_head, loss_and_score_gradient
from fl_sim.clients.gradients.tape import Tape
from fl_sim.clients.models.frozen_head import frozen_head, left_out
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.models.losses import loss_gradients

log = logging.getLogger(__name__)

_CHECK_TOLERANCE = 1e-3  # allowed error relative to a parameter's squared norm
CHECK_MASKS = 0  # the seed of the dropout masks
_CHECK_PADDING = 0.1  # allowed change of a gradient by padding, relative to its norm
_PERIOD = 1048573  # a prime, so that no two rows of a matrix are shifted alike
_AT_ONCE = 1 << 24  # entries in float64
_CHECK_FLOOR = 1e-8  # allowed error relative to the whole gradient's squared norm: some true gradients are zero


def each_gradient(
    model: LanguageModel, layers: Sequence[Layer], batch: Batch, receive: Callable[[Contribution], None]
) -> torch.Tensor:
    """Run a batch of B sentences forward and backward through a model; return their mean losses, float32 (B,).

    ``receive`` is called with the per-sentence gradients of each parameter, as they come in the backward pass.

    Raises:
        NotCovered: if a loss is not finite, a module was not called exactly once, or a gradient has not one row per
            sentence.
    """
    return _Run(model, layers, batch)(receive)


class _Run:
    """Run one pass, and hand over the gradients of each layer in the backward pass."""

    def __init__(self, model: LanguageModel, layers: Sequence[Layer], batch: Batch) -> None:
        self._model = model
        self._layers = layers
        self._batch = batch
        self._frozen_head = frozen_head(model)
        self._blocked = None if self._frozen_head is not None else blocked_head(model, layers, batch)
        self._head: HeadRecord | None = None
        self._seen: Sequence[Seen] = ()  # what the norms of an output layer that is applied in blocks need

    def __call__(self, receive: Callable[[Contribution], None]) -> torch.Tensor:
        """Return the mean losses, float32 (B,)."""
        on_tape = {layer: layer.modules for layer in self._layers}
        without_head: AbstractContextManager[None] = nullcontext()
        if self._frozen_head is not None:
            without_head = left_out(self._frozen_head.layer)
        elif self._blocked is not None:
            owner, head = self._blocked
            on_tape[owner] = tuple(module for module in owner.modules if module is not head)
            without_head = left_out(head)
        owners = {module: layer for layer, modules in on_tape.items() for module in modules}
        records: dict[nn.Module, Record] = {}
        missing = dict(on_tape)

        def hand_over(layer: Layer) -> None:
            for contribution in self._contributions(layer, [records.pop(module) for module in missing.pop(layer)]):
                receive(contribution)

        def gather(module: nn.Module, record: Record) -> None:
            """Hand over the gradients of a layer when the last record of its modules comes."""
            records[module] = record
            if all(other in records for other in on_tape[owners[module]]):
                hand_over(owners[module])

        with_outputs = {module for layer in self._layers if layer.reads_outputs for module in layer.modules}
        recomputed = {module for block in self._model.recomputed for module in block.modules()}
        with (
            _frozen(self._model),
            torch.enable_grad(),
            Tape(list(owners), len(self._batch.targets), gather, with_outputs, recomputed) as tape,
        ):
            with without_head:
                scores = self._model.logits(self._batch)
            tape.check()
            with torch.no_grad():
                losses, of_scores = self._loss_and_gradient(scores.detach(), tape)
                if not bool(losses.isfinite().all()):
                    raise NotCovered("a loss is not finite")
                for layer in [layer for layer, modules in on_tape.items() if not modules]:
                    hand_over(layer)
            with self._model.backward_pass():
                tape.backward(scores, of_scores)
        if missing:
            raise NotCovered("a layer's output does not enter the scores")
        return losses

    def _loss_and_gradient(self, scores: torch.Tensor, tape: Tape) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the losses and their gradient in the scores, or in the input of a head that was left out."""
        if self._frozen_head is not None:
            scored = self._frozen_head.score(scores, self._batch, with_gradient=True, mixed=self._model.mixed)
            return scored.nats.sum(dim=1) / self._batch.predictions, scored.gradient
        if self._blocked is None:
            return loss_and_score_gradient(scores, self._batch)
        owner, head = self._blocked
        self._head = HeadRecord(owner, head, self._model, self._batch, scores)
        ids = [tape.inputs_of(module) for module in owner.modules if module is not head]
        losses, gradient, self._seen = self._head.losses(ids[0] if ids else None)
        return losses, gradient

    def _contributions(self, layer: Layer, records: Sequence[Record]) -> list[Contribution]:
        if self._head is not None and layer is self._head.owner:
            found = self._head.contributions(records, self._seen)
        else:
            found = layer.contributions(records if layer.reads_rounded else [record.full() for record in records])
        if any(contribution.rows != len(self._batch.targets) for contribution in found):
            raise NotCovered("a layer was not given one row per sentence")
        return found


@contextmanager
def _frozen(model: LanguageModel) -> Iterator[None]:
    """Freeze all parameters, so that the backward pass computes the gradients of activations alone."""
    parameters = list(model.parameters.tensors.values())
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


@dataclass(frozen=True)
class GradientPath:
    """Say how gradients are computed: ``fast``, many sentences in one pass, or ``slow``, one at a time, and why.

    ``layers`` are those of the fast path.
    """

    name: Literal["fast", "slow"]
    reason: str = ""
    layers: list[Layer] | None = None


_CHECKED: WeakKeyDictionary[LanguageModel, GradientPath] = WeakKeyDictionary()


def covered_layers(model: LanguageModel) -> list[Layer] | None:
    """Return the layers of a model for the fast path, checked once against autograd; None if it must not be used."""
    return gradient_path(model).layers


def gradient_path(model: LanguageModel) -> GradientPath:
    """Return which path a model takes, and why; decided once."""
    if model not in _CHECKED:
        if model.device.type != "cpu":
            _try_fixed_order(model)
        try:
            layers = cover(model)
            _self_check(model, layers)
            _CHECKED[model] = GradientPath("fast", layers=layers)
        except NotCovered as reason:
            log.warning("per-sentence gradients of %s go one sentence at a time: %s", model.spec.name, reason)
            _CHECKED[model] = GradientPath("slow", str(reason))
    return _CHECKED[model]


def _try_fixed_order(model: LanguageModel) -> None:
    """Let the model's backward passes add in a fixed order if torch has one for all of their operations."""
    batch = model.batch(check_examples(model, np.random.default_rng(0)), CHECK_MASKS)
    model.in_fixed_order = True
    try:
        loss_gradients(model, batch)
    except RuntimeError as error:
        model.in_fixed_order = False
        if is_out_of_memory(error):
            raise does_not_fit(model.device, len(batch.targets[0])) from error
        if "deterministic" in str(error):  # whatever else fails, fails again where it is reported
            reason = str(error).splitlines()[0]
            log.warning("sums on %s are in no fixed order (%s); a repeated round may count in ε", model.device, reason)


def cover(model: LanguageModel) -> list[Layer]:
    """Return layers that cover every trainable parameter exactly once; an embedding tied to the output layer is one.

    Raises:
        NotCovered: if a trainable parameter belongs to another kind of module, or is shared in another way.
    """
    names = {id(p): name for name, p in model.parameters.tensors.items()}
    owners: dict[str, list[Layer]] = {name: [] for name in names.values()}
    layers: list[Layer] = []
    handlers = model.architecture.layer_handlers()
    for module in model.module.modules():
        own = {key: names[id(p)] for key, p in module.named_parameters(recurse=False) if id(p) in names}
        if own:
            layers.append(handler_of(module, own, handlers)(module, own))
            for name in own.values():
                owners[name].append(layers[-1])
    for name, sharing in owners.items():
        if len(sharing) > 1:
            embeddings = [layer for layer in sharing if isinstance(layer, EmbeddingLayer)]
            linears = [layer for layer in sharing if isinstance(layer, LinearLayer) and not layer.transposed]
            if len(sharing) != 2 or len(embeddings) != 1 or len(linears) != 1:
                raise NotCovered(
                    f"{name} is shared by {len(sharing)} modules other than an embedding and an output layer"
                )
            tied = TiedLayer(embeddings[0], linears[0])
            layers = [layer for layer in layers if layer not in sharing] + [tied]
    return layers


def _self_check(model: LanguageModel, layers: Sequence[Layer]) -> None:
    """Compare the fast path with plain autograd on three short random sentences in one batch.

    Dropout is on if the model has any, and the parameters are shifted at random, because the second factor of a fresh
    adapter is zero and would hide every error in the first. Both ways see the same padded batch: its forward pass may
    differ from that of a sentence alone by more than the error of a norm.

    Raises:
        NotCovered: if a norm or a sum differs, a sentence's gradient depends on the other sentences of its batch, or
            the pass cannot be run.
    """
    draws = np.random.default_rng(0)
    examples, others = (check_examples(model, draws) for _ in range(2))
    before = model.get_vector()
    try:
        _shift(model, draws)
        with model.exact():  # rounding would hide an error in the description of the layers
            passed = compare_with_autograd(model, layers, model.batch(examples, CHECK_MASKS))
            for row, example in enumerate(examples):
                mixed = model.batch([example if i == row else other for i, other in enumerate(others)], CHECK_MASKS)
                _check_independence(model, layers, mixed, passed, row)
            alone = loss_gradients(model, model.batch(examples[:1], CHECK_MASKS))[1]
            if not _distance(_gradients_of(model, passed, 0), alone) <= _CHECK_PADDING**2 * _distance(alone):
                raise NotCovered("a sentence's gradient depends on its padding")
    except RuntimeError as error:
        if is_out_of_memory(error):  # says nothing of the layers
            raise does_not_fit(model.device, max(map(len, examples))) from error
        raise NotCovered(f"the pass fails: {str(error).splitlines()[0]}") from error
    finally:
        model.set_vector(before)


def _shift(model: LanguageModel, draws: np.random.Generator) -> None:
    """Add small numbers to all trainable parameters, where they are; the numbers repeat, with a prime period."""
    numbers = torch.from_numpy(0.02 * draws.standard_normal(_PERIOD, dtype=np.float32)).to(model.device)
    with torch.no_grad():
        for parameter in model.parameters.tensors.values():
            size = parameter.numel()
            parameter.add_(numbers.repeat(-(-size // _PERIOD))[:size].view(parameter.shape))


def check_examples(model: LanguageModel, draws: np.random.Generator) -> list[Example]:
    """Return three random sentences of 2, 4 and 7 tokens, or as long as the model allows."""
    lengths = [min(n, model.task.longest(model.max_tokens)) for n in (2, 4, 7)]
    return [
        Example(draws.integers(0, model.vocabulary_size, size=n), target=i % 2, number=i) for i, n in enumerate(lengths)
    ]


def compare_with_autograd(model: LanguageModel, layers: Sequence[Layer], batch: Batch) -> list[Contribution]:
    """Return the fast path's gradients of a batch of three, if they agree with autograd's; else raise NotCovered.

    Compared for each parameter: the per-sentence norms, the weighted gradient sum, and the norm of that sum if one user
    has all sentences.
    """
    factors = torch.tensor([1.0, -0.5, 0.25], device=model.device)
    difference = {name: torch.zeros_like(p) for name, p in model.parameters.tensors.items()}
    expected = {name: torch.zeros(len(factors), dtype=torch.float64) for name in difference}
    for row in range(len(factors)):
        for name, gradient in loss_gradients(model, _row_alone(batch, row))[1].items():
            expected[name][row] = _squared(gradient)
            difference[name].sub_(gradient, alpha=float(factors[row]))
    of_sentences: list[Contribution] = []
    each_gradient(model, layers, batch, of_sentences.append)
    squared_norms = torch.stack(list(expected.values())).sum(dim=0)
    for contribution in of_sentences:
        name = contribution.name
        allowed = _CHECK_TOLERANCE * expected[name] + _CHECK_FLOOR * squared_norms
        errors = (contribution.squared.cpu() - expected[name]).abs()
        user_error = abs(float(squared_of_sum(contribution, factors)) - float(_squared(difference[name])))
        contribution.add(factors, difference[name])
        residue = float(_squared(difference[name]))
        agree = bool((errors <= allowed).all()) and user_error <= float(allowed.sum())
        if not agree or not residue <= float(allowed.sum()) * _CHECK_TOLERANCE:
            raise NotCovered(f"the gradient of {name} differs from plain autograd's")
    if {c.name for c in of_sentences} != set(difference):
        raise NotCovered("not every trainable parameter was accounted for")
    return of_sentences


def _squared(tensor: torch.Tensor) -> torch.Tensor:
    """Return the squared norm in float64, without a whole copy of the tensor in float64."""
    parts = [part.double().square().sum() for part in tensor.reshape(-1).split(_AT_ONCE)]
    return torch.stack(parts).sum()


def _row_alone(batch: Batch, row: int) -> Batch:
    """Return the batch in which only one row has targets: the same forward pass, the loss of one sentence."""
    others = torch.arange(len(batch.targets), device=batch.targets.device) != row
    return replace(batch, targets=batch.targets.masked_fill(others.unsqueeze(1), NO_TARGET))


def _check_independence(
    model: LanguageModel, layers: Sequence[Layer], mixed: Batch, passed: Sequence[Contribution], row: int
) -> None:
    """Raise NotCovered unless a row's gradient is the same beside other sentences of the same lengths.

    A clip bounds what a sentence contributes only if no other sentence of the batch enters its gradient. A function of
    its own, so that these gradients are freed before the next pass.
    """
    beside_others: list[Contribution] = []
    each_gradient(model, layers, mixed, beside_others.append)
    here, there = _gradients_of(model, passed, row), _gradients_of(model, beside_others, row)
    if not _distance(here, there) <= _CHECK_TOLERANCE**2 * _distance(here):
        raise NotCovered("a sentence's gradient depends on the other sentences of its batch")


def _gradients_of(model: LanguageModel, of_sentences: Sequence[Contribution], row: int) -> dict[str, torch.Tensor]:
    """Return the gradient of one sentence of a pass, by parameter name."""
    chosen = torch.zeros(of_sentences[0].rows, device=model.device)
    chosen[row] = 1.0
    gradients = {name: torch.zeros_like(parameter) for name, parameter in model.parameters.tensors.items()}
    for contribution in of_sentences:
        contribution.add(chosen, gradients[contribution.name])
    return gradients


def _distance(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor] | None = None) -> float:
    """Return the squared distance of two gradients, or the squared norm of one."""
    total = 0.0
    for name, gradient in first.items():
        other = None if second is None else second.get(name)
        total += float((gradient if other is None else gradient - other).double().square().sum())
    return total
