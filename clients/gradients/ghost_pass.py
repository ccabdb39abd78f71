"""Compute every sentence's gradient norm and any weighted gradient sum in one forward and one backward pass.

`covered_layers` decides whether a model may take this path: every trainable parameter must belong to exactly one layer
that `fl_sim.clients.ghost_norms` describes, and the result must agree with plain autograd, parameter by
parameter and sentence by sentence, on a small random batch. So an unforeseen architecture cannot silently get wrong
norms.

>>> module = nn.Linear(3, 2)
>>> with Tape([module]) as tape:
...     output = module(torch.ones(1, 4, 3))
>>> record = tape.records([torch.ones(1, 4, 2)], sentences=1)[module]
>>> record.inputs.shape, record.grad.shape
(torch.Size([1, 4, 3]), torch.Size([1, 4, 2]))
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Literal, Self
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from fl_sim.clients.batches import NO_TARGET, Batch
from fl_sim.clients.examples import Example
from fl_sim.clients.ghost_norms.layer_gradients import Contribution, NotCovered, Record
from fl_sim.clients.ghost_norms.layer_handlers import EmbeddingLayer, Layer, LinearLayer, TiedLayer, handler_of
from fl_sim.clients.models.frozen_head import frozen_head
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.models.losses import loss_gradients
from fl_sim.clients.out_of_memory import does_not_fit, is_out_of_memory

log = logging.getLogger(__name__)

_CHECK_TOLERANCE = 1e-3  # allowed error relative to a parameter's squared norm
_CHECK_MASKS = 0  # the seed of the dropout masks
_CHECK_PADDING = 0.1  # allowed change of a gradient by padding, relative to its norm
_CHECK_FLOOR = 1e-8  # allowed error relative to the whole gradient's squared norm: some true gradients are zero


class Tape:
    """Record the input and output of modules while open, and make every output differentiable.

    The parameters of the modules need no gradient: an output that is not differentiable otherwise is made so.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._modules = modules
        self._calls: dict[nn.Module, list[tuple[torch.Tensor, torch.Tensor, dict[str, Any]]]] = {m: [] for m in modules}
        self._handles: list[torch.utils.hooks.RemovableHandle] = []

    def __enter__(self) -> Self:
        self._handles = [m.register_forward_hook(self._keep, with_kwargs=True) for m in self._modules]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()

    def _keep(self, module: nn.Module, args: tuple[Any, ...], options: dict[str, Any], output: torch.Tensor) -> None:
        if not args or not isinstance(args[0], torch.Tensor) or not isinstance(output, torch.Tensor):
            raise NotCovered(f"a {type(module).__name__} does not turn one tensor into another")
        if len(args) > 1:
            further = list(inspect.signature(module.forward).parameters)[1 : len(args)]
            options = options | dict(zip(further, args[1:], strict=True))
        if not output.requires_grad:
            output.requires_grad_()
        self._calls[module].append((args[0].detach(), output, options))

    def outputs(self) -> list[torch.Tensor]:
        """Return the output of each module, in the order given; raise NotCovered unless each was called once."""
        for module, calls in self._calls.items():
            if len(calls) != 1:
                raise NotCovered(f"a {type(module).__name__} was called {len(calls)} times in one pass; known: once")
        return [self._calls[m][0][1] for m in self._modules]

    def records(self, gradients: Sequence[torch.Tensor], sentences: int) -> dict[nn.Module, Record]:
        """Return the record of each module.

        Args:
            gradients: the gradients of the outputs, in the order of :meth:`outputs`.
            sentences: B; a module that was given the tokens of all sentences as (B·T, features) has them in this order.
        """
        calls = (self._calls[m][0] for m in self._modules)
        return {
            module: _record((inputs, gradient, output.detach()), options, sentences)
            for module, (inputs, output, options), gradient in zip(self._modules, calls, gradients, strict=True)
        }


def _full(tensor: torch.Tensor) -> torch.Tensor:
    """Return bfloat16 as float32, which is exact: norms and sums use the same numbers, and neither is rounded."""
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


def _record(call: tuple[torch.Tensor, ...], options: Mapping[str, Any], sentences: int) -> Record:
    """Return the record of a call's inputs, gradient and output; (B·T, features) becomes (B, T, features)."""
    inputs, gradient, output = map(_full, call)
    if output.dim() == inputs.dim() == 2 and len(output) % sentences == 0:
        inputs, gradient, output = (t.unflatten(0, (sentences, -1)) for t in (inputs, gradient, output))
    return Record(inputs, gradient, output, options)


@dataclass(frozen=True)
class Pass:
    """Hold the results of one forward and one backward pass of a batch of B sentences.

    Attributes:
        losses: the mean loss of each sentence, float32 (B,).
        layers: the layers of the model.
        records: the record of each module of the layers.
    """

    losses: torch.Tensor
    layers: Sequence[Layer]
    records: Mapping[nn.Module, Record]

    def of_sentences(self) -> list[Contribution]:
        """Return the per-sentence gradients of each parameter."""
        return self._contributions(self.records, len(self.losses))

    def of_users(self, users: int, factors: torch.Tensor | None = None) -> list[Contribution]:
        """Return the per-user gradients Σ_s factors[s] · gradient_s of each parameter; see `Record.of_users`."""
        joined = {module: record.of_users(users, factors) for module, record in self.records.items()}
        return self._contributions(joined, users)

    def _contributions(self, records: Mapping[nn.Module, Record], rows: int) -> list[Contribution]:
        with torch.no_grad():
            per_layer = [layer.contributions([records[m] for m in layer.modules]) for layer in self.layers]
        contributions = [contribution for of_layer in per_layer for contribution in of_layer]
        if any(contribution.squared.shape != (rows,) for contribution in contributions):
            raise NotCovered("a layer was not given one row per sentence")
        return contributions


def ghost_pass(model: LanguageModel, layers: Sequence[Layer], batch: Batch) -> Pass:
    """Run a batch forward and backward through a model.

    Args:
        model: the model; its parameters get no gradient.
        layers: its layers, from :func:`covered_layers`.
        batch: B sentences.

    Raises:
        NotCovered: if a loss is not finite, or a module was not called exactly once.
    """
    modules = [module for layer in layers for module in layer.modules]
    head = frozen_head(model)
    left_out = nullcontext() if head is None else head.left_out()
    with _frozen(model), torch.enable_grad(), Tape(modules) as tape, left_out:
        scores = model.logits(batch)
        outputs = tape.outputs()
    if head is None:
        losses, of_scores = loss_and_score_gradient(scores.detach(), batch)
    else:
        scored = head.score(scores.detach(), batch, with_gradient=True, mixed=model.mixed)
        losses, of_scores = scored.nats.sum(dim=1) / batch.predictions, scored.gradient
    if not bool(losses.isfinite().all()):
        raise NotCovered("a loss is not finite")
    with torch.no_grad():
        gradients = torch.autograd.grad(scores, outputs, grad_outputs=of_scores)
    return Pass(losses, layers, tape.records(gradients, len(losses)))


def loss_and_score_gradient(logits: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean losses, float32 (B,), and their gradients in the logits (B, P, V): (softmax - onehot) / predictions.

    Args:
        logits: (B, P, V), for P positions and V classes.
        batch: the targets, and the number of predictions of each sentence.
    """
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
    """Say how the gradients of a model's sentences are computed.

    Attributes:
        name: ``fast``, many sentences in one pass, or ``slow``, one sentence at a time.
        reason: why it is slow; empty if it is fast.
    """

    name: Literal["fast", "slow"]
    reason: str = ""


_CHECKED: WeakKeyDictionary[LanguageModel, tuple[list[Layer] | None, GradientPath]] = WeakKeyDictionary()


def covered_layers(model: LanguageModel) -> list[Layer] | None:
    """Return the layers of a model for the fast path, checked once against autograd; None if it must not be used."""
    return _checked(model)[0]


def gradient_path(model: LanguageModel) -> GradientPath:
    """Return which path a model takes, and why; decided once, as :func:`covered_layers` is."""
    return _checked(model)[1]


def _checked(model: LanguageModel) -> tuple[list[Layer] | None, GradientPath]:
    if model not in _CHECKED:
        try:
            layers = cover(model)
            _self_check(model, layers)
            _CHECKED[model] = layers, GradientPath("fast")
        except NotCovered as reason:
            log.warning("per-sentence gradients of %s go one sentence at a time: %s", model.spec.name, reason)
            _CHECKED[model] = None, GradientPath("slow", str(reason))
    return _CHECKED[model]


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
            layers = [layer for layer in layers if layer not in sharing] + [_tie(name, sharing)]
    return layers


def _tie(name: str, sharing: Sequence[Layer]) -> TiedLayer:
    """Return the tied layer of a shared parameter, which must be the table of an embedding and an output layer."""
    embeddings = [layer for layer in sharing if isinstance(layer, EmbeddingLayer)]
    linears = [layer for layer in sharing if isinstance(layer, LinearLayer) and not layer.transposed]
    if len(sharing) != 2 or len(embeddings) != 1 or len(linears) != 1:
        raise NotCovered(f"{name} is shared by {len(sharing)} modules other than an embedding and an output layer")
    return TiedLayer(embeddings[0], linears[0])


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
    examples, others = (_check_examples(model, draws) for _ in range(2))
    before = model.get_vector()
    try:
        model.set_vector(before + 0.02 * draws.standard_normal(before.size, dtype=np.float32))
        with model.exact():  # rounding would hide an error in the description of the layers
            passed = _compare(model, layers, model.batch(examples, _CHECK_MASKS))
            for row, example in enumerate(examples):
                mixed = [example if index == row else other for index, other in enumerate(others)]
                _check_independence(model, ghost_pass(model, layers, model.batch(mixed, _CHECK_MASKS)), passed, row)
            _check_padding(model, examples[0], passed)
    except RuntimeError as error:
        if is_out_of_memory(error):  # says nothing of the layers
            raise does_not_fit(model.device, max(map(len, examples))) from error
        raise NotCovered(f"the pass fails: {str(error).splitlines()[0]}") from error
    finally:
        model.set_vector(before)


def _check_examples(model: LanguageModel, draws: np.random.Generator) -> list[Example]:
    """Return three random sentences of 2, 4 and 7 tokens, or as long as the model allows."""
    lengths = [min(n, model.task.longest(model.max_tokens)) for n in (2, 4, 7)]
    return [
        Example(draws.integers(0, model.vocabulary_size, size=n), target=i % 2, number=i) for i, n in enumerate(lengths)
    ]


def _compare(model: LanguageModel, layers: Sequence[Layer], batch: Batch) -> Pass:
    """Return the fast path's pass of a batch of three, if it agrees with autograd; else raise NotCovered.

    Compared for each parameter: the per-sentence norms, the weighted gradient sum, and the norm of that sum if one user
    has all sentences.
    """
    factors = torch.tensor([1.0, -0.5, 0.25], device=model.device)
    difference = {name: torch.zeros_like(p) for name, p in model.parameters.tensors.items()}
    expected = {name: torch.zeros(len(factors), dtype=torch.float64) for name in difference}
    for row in range(len(factors)):
        for name, gradient in loss_gradients(model, _row_alone(batch, row))[1].items():
            expected[name][row] = gradient.double().square().sum()
            difference[name].sub_(gradient, alpha=float(factors[row]))
    traced = ghost_pass(model, layers, batch)
    of_sentences, of_users = traced.of_sentences(), traced.of_users(1, factors)
    squared_norms = torch.stack(list(expected.values())).sum(dim=0)
    for contribution, of_user in zip(of_sentences, of_users, strict=True):
        name = contribution.name
        allowed = _CHECK_TOLERANCE * expected[name] + _CHECK_FLOOR * squared_norms
        errors = (contribution.squared.cpu() - expected[name]).abs()
        user_error = abs(float(of_user.squared) - float(difference[name].double().square().sum()))
        contribution.add(factors, difference[name])
        residue = float(difference[name].double().square().sum())
        agree = bool((errors <= allowed).all()) and user_error <= float(allowed.sum())
        if not agree or not residue <= float(allowed.sum()) * _CHECK_TOLERANCE:
            raise NotCovered(f"the gradient of {name} differs from plain autograd's")
    if {c.name for c in of_sentences} != set(difference):
        raise NotCovered("not every trainable parameter was accounted for")
    return traced


def _row_alone(batch: Batch, row: int) -> Batch:
    """Return the batch in which only one row has targets: the same forward pass, the loss of one sentence."""
    others = torch.arange(len(batch.targets), device=batch.targets.device) != row
    return replace(batch, targets=batch.targets.masked_fill(others.unsqueeze(1), NO_TARGET))


def _check_independence(model: LanguageModel, mixed: Pass, passed: Pass, row: int) -> None:
    """Raise NotCovered unless a row's gradient is the same beside other sentences of the same lengths.

    A clip bounds what a sentence contributes only if no other sentence of the batch enters its gradient.
    """
    here, there = _gradients_of(model, passed, row), _gradients_of(model, mixed, row)
    if not _distance(here, there) <= _CHECK_TOLERANCE**2 * _distance(here):
        raise NotCovered("a sentence's gradient depends on the other sentences of its batch")


def _check_padding(model: LanguageModel, shortest: Example, passed: Pass) -> None:
    """Raise NotCovered unless the gradient of the shortest sentence is about what it is without padding."""
    alone = loss_gradients(model, model.batch([shortest], _CHECK_MASKS))[1]
    if not _distance(_gradients_of(model, passed, 0), alone) <= _CHECK_PADDING**2 * _distance(alone):
        raise NotCovered("a sentence's gradient depends on its padding")


def _gradients_of(model: LanguageModel, passed: Pass, row: int) -> dict[str, torch.Tensor]:
    """Return the gradient of one sentence of a pass, by parameter name."""
    chosen = torch.zeros(len(passed.losses), device=model.device)
    chosen[row] = 1.0
    gradients = {name: torch.zeros_like(parameter) for name, parameter in model.parameters.tensors.items()}
    for contribution in passed.of_sentences():
        contribution.add(chosen, gradients[contribution.name])
    return gradients


def _distance(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor] | None = None) -> float:
    """Return the squared distance of two gradients, or the squared norm of one."""
    total = 0.0
    for name, gradient in first.items():
        other = None if second is None else second.get(name)
        total += float((gradient if other is None else gradient - other).double().square().sum())
    return total
