"""Compute every sentence's gradient norm and any weighted gradient sum in one forward and one backward pass.

`covered_layers` decides whether a model may take this path: every trainable parameter must belong to exactly one layer
that `fl_sim.clients.ghost_norms` describes, and the result must agree with plain autograd, parameter by
parameter and sentence by sentence, on a small random batch. So an unforeseen architecture cannot silently get wrong
norms.

>>> module = nn.Linear(3, 2)
>>> with Tape([module]) as tape:
...     output = module(torch.ones(1, 4, 3))
>>> record = tape.records([torch.ones(1, 4, 2)])[module]
>>> record.inputs.shape, record.grad.shape
(torch.Size([1, 4, 3]), torch.Size([1, 4, 2]))
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from fl_sim.clients.batches import NO_TARGET, Batch
from fl_sim.clients.examples import Example
from fl_sim.clients.ghost_norms.layer_gradients import Contribution, NotCovered, Record
from fl_sim.clients.ghost_norms.layer_handlers import EmbeddingLayer, Layer, LinearLayer, TiedLayer, handler_of
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.models.losses import loss_gradients

log = logging.getLogger(__name__)

_CHECK_TOLERANCE = 1e-3  # allowed error relative to a parameter's squared norm
_CHECK_MASKS = 0  # the seed of the dropout masks
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
        if len(args) != 1 or not isinstance(output, torch.Tensor):
            raise NotCovered(f"a {type(module).__name__} was called with {len(args)} positional arguments")
        if not output.requires_grad:
            output.requires_grad_()
        self._calls[module].append((args[0].detach(), output, options))

    def outputs(self) -> list[torch.Tensor]:
        """Return the output of each module, in the order given; raise NotCovered unless each was called once."""
        for module, calls in self._calls.items():
            if len(calls) != 1:
                raise NotCovered(f"a {type(module).__name__} was called {len(calls)} times in one pass; known: once")
        return [self._calls[m][0][1] for m in self._modules]

    def records(self, gradients: Sequence[torch.Tensor]) -> dict[nn.Module, Record]:
        """Return the record of each module, given the gradients of the outputs in the order of :meth:`outputs`."""
        calls = (self._calls[m][0] for m in self._modules)
        return {
            module: Record(_full(inputs), _full(gradient), _full(output.detach()), options)
            for module, (inputs, output, options), gradient in zip(self._modules, calls, gradients, strict=True)
        }


def _full(tensor: torch.Tensor) -> torch.Tensor:
    """Return bfloat16 as float32, which is exact: norms and sums use the same numbers, and neither is rounded."""
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


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
        NotCovered: if a loss is not finite, or a module was not called exactly once with one positional argument.
    """
    modules = [module for layer in layers for module in layer.modules]
    with _frozen(model), torch.enable_grad(), Tape(modules) as tape:
        logits = model.logits(batch)
        outputs = tape.outputs()
    losses, scores = loss_and_score_gradient(logits.detach(), batch)
    if not bool(losses.isfinite().all()):
        raise NotCovered("a loss is not finite")
    with torch.no_grad():
        gradients = torch.autograd.grad(logits, outputs, grad_outputs=scores)
    return Pass(losses, layers, tape.records(gradients))


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


_LAYERS: WeakKeyDictionary[LanguageModel, list[Layer] | None] = WeakKeyDictionary()


def covered_layers(model: LanguageModel) -> list[Layer] | None:
    """Return the layers of a model for the fast path, checked once against autograd; None if it must not be used."""
    if model not in _LAYERS:
        try:
            layers = cover(model)
            _self_check(model, layers)
            _LAYERS[model] = layers
        except NotCovered as reason:
            log.warning("per-sentence gradients of %s go one sentence at a time: %s", model.spec.name, reason)
            _LAYERS[model] = None
    return _LAYERS[model]


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
    """Compare the fast path with plain autograd on three short random sentences, on their own and as one user's.

    Dropout is on if the model has any, and the parameters are shifted at random, because the second factor of a fresh
    adapter is zero and would hide every error in the first.

    Raises:
        NotCovered: if a norm or a sum differs, or the pass cannot be run.
    """
    draws = np.random.default_rng(0)
    lengths = [min(n, model.task.longest(model.max_tokens)) for n in (2, 4, 7)]
    examples = [
        Example(draws.integers(0, model.vocabulary_size, size=n), target=i % 2, number=i) for i, n in enumerate(lengths)
    ]
    before = model.get_vector()
    try:
        model.set_vector(before + 0.02 * draws.standard_normal(before.size, dtype=np.float32))
        with model.exact():  # rounding would hide an error in the description of the layers
            _compare(model, layers, examples)
    except RuntimeError as error:
        raise NotCovered(f"the pass fails: {str(error).splitlines()[0]}") from error
    finally:
        model.set_vector(before)


def _compare(model: LanguageModel, layers: Sequence[Layer], examples: Sequence[Example]) -> None:
    """Raise NotCovered unless the fast path agrees with autograd.

    Compared for each parameter: the per-sentence norms, the weighted gradient sum, and the norm of that sum if one user
    has all sentences.
    """
    factors = torch.tensor([1.0, -0.5, 0.25], device=model.device)
    difference = {name: torch.zeros_like(p) for name, p in model.parameters.tensors.items()}
    expected = {name: torch.zeros(len(examples), dtype=torch.float64) for name in difference}
    for index, example in enumerate(examples):
        for name, gradient in loss_gradients(model, model.batch([example], _CHECK_MASKS))[1].items():
            expected[name][index] = gradient.double().square().sum()
            difference[name].sub_(gradient, alpha=float(factors[index]))
    traced = ghost_pass(model, layers, model.batch(examples, _CHECK_MASKS))
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
