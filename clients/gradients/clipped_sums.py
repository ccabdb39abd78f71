"""Sum per-sentence clipped gradients, exactly and in one pass: the core of a private client update.

For a sentence s with mean prediction loss l(θ, s), let ``g_s = -∇ l(θ, s)`` over the trainable parameters. This module
computes ``Σ_s Π_c(g_s)``, where ``Π_c(x) = x · min(1, c/‖x‖)`` (docs/privacy.md, section 2). Guarantee: each sentence
moves the sum by at most c in L2 norm (to 1e-5 relative in float32; docs/privacy.md has the exceptions), whatever else
is in the batch; a sentence whose loss or gradient is not finite contributes zero, and is counted. With a stability γ,
``c·g_s/(‖g_s‖ + γ)`` takes the place of ``Π_c(g_s)`` (automatic clipping), with the same guarantee. With dropout, the
masks of a sentence are a function of the seed and the sentence's number (those of weight-drop of the seed alone), so
that the guarantee holds for the masked loss.

The fast path uses ghost norms with book-keeping, once it agreed with plain autograd
(`fl_sim.clients.gradients.ghost_pass`). A model that it does not cover is processed one sentence at a time: same
result, slower.

>>> clip_factors(torch.tensor([0.5, 2.0, 4.0], dtype=torch.float64), clip_norm=1.0)
tensor([1.0000, 0.5000, 0.2500])
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fl_sim.clients.batches import Batch, Example, micro_batches
from fl_sim.clients.device import attempt, does_not_fit, full_precision, halves
from fl_sim.clients.errors import ModelError
from fl_sim.clients.ghost_norms import Contribution, Layer, NotCovered
from fl_sim.clients.gradients.ghost_pass import covered_layers, each_gradient
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.models.losses import loss_gradients
from fl_sim.strategies.primitives.clipping import SMALLEST_FACTOR

# A sentence whose rounding allowance exceeds this share of its squared norm is recomputed on its own: its clipped
# gradient would never exceed c, but would be scaled down more than necessary.
_TOLERATED_SLACK = 1e-2
_REPEATED = 1e-6  # allowed growth of a norm when the same pass is run again
_CLIP = 1.0  # of a trial, any: norms take the memory
_MASKS = 0  # of a trial, the seed of the dropout masks


@dataclass
class Tally:
    """Count the contributions to a sum.

    Attributes:
        sentences: the number of sentences, those without a prediction target included.
        clipped: the number of sentences whose gradient norm exceeded c.
        nonfinite: the number of sentences with a loss or gradient that is not finite, which contribute zero.
        loss_sum: Σ_s l(θ, s) over the finite ones, in nats per prediction.
    """

    sentences: int = 0
    clipped: int = 0
    nonfinite: int = 0
    loss_sum: float = 0.0

    def add(self, other: Tally) -> None:
        """Add the counts of another sum."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass(kw_only=True)
class ClippedSum(Tally):
    """Hold ``vector`` = Σ_s Π_c(-∇ l(θ, s)), float32 (d,), with its counts."""

    vector: NDArray[np.float32]


class GradientSum:
    """Keep a running Σ_s Π_c(g_s) in one buffer; the memory needed is that of the model, the buffer and a micro-batch.

    ``mask_seed`` draws dropout masks (None switches dropout off), ``stability`` is γ of automatic clipping (None for
    Π_c), ``when_done`` is called with the number of sentences that were just added.

    Attributes:
        flat: the sum so far, float32 (d,).
        views: views of ``flat`` in the shape of each parameter, by parameter name.
        tally: the counts of the sum.
    """

    def __init__(
        self,
        model: LanguageModel,
        mask_seed: int | None = None,
        stability: float | None = None,
        when_done: Callable[[int], None] = lambda sentences: None,
    ) -> None:
        self._model = model
        self._mask_seed = mask_seed
        self._stability = stability
        self._when_done = when_done
        self.flat = torch.zeros(model.num_parameters, device=model.device)
        self.views = model.parameters.views(self.flat)
        self.tally = Tally()

    def add(self, examples: Sequence[Example], clip_norm: float) -> None:
        """Add Σ_s Π_c(g_s) of sentences, c = ``clip_norm``; ``math.inf`` for no clipping.

        Raises:
            ModelError: for a clip norm that is not positive, or a sentence that is empty, too long, or has an id
                outside the vocabulary. Nothing has been added in that case.
        """
        check_clip_norm(clip_norm)
        model = self._model
        model.validate(examples)
        sizes = [model.task.size(example) for example in examples]
        groups = list(micro_batches(sizes, model.batch_tokens))
        self.tally.sentences += len(examples)
        with full_precision():
            for group in groups:
                self._add_group([examples[i] for i in group], clip_norm, self.views)

    def _add_group(self, examples: Sequence[Example], clip_norm: float, views: Mapping[str, torch.Tensor]) -> None:
        """Add sentences to the parameters of ``views``, in halves if memory does not suffice for all at once."""
        model, pending = self._model, dict(views)

        def add_together() -> bool:
            batch = model.batch(examples, self._mask_seed)
            if math.isinf(clip_norm):
                return self.add_unclipped(batch, pending)
            return self.add_clipped(batch, clip_norm, pending)

        added = attempt(add_together, model.device)
        if added:
            self._when_done(len(examples))
        elif added is None and len(examples) > 1:
            longest = max(model.task.size(example) for example in examples)
            for part in halves(model, examples, len(examples) * longest):
                self._add_group(part, clip_norm, pending)  # what memory sufficed for has its sum already
        else:
            for example in examples:
                alone = functools.partial(self.add_one, example, clip_norm, pending)
                if attempt(alone, model.device) is None:
                    raise does_not_fit(model.device, model.task.size(example))
                self._when_done(1)

    def add_one(self, example: Example, clip_norm: float, views: Mapping[str, torch.Tensor]) -> bool:
        """Add Π_c(g_s) of one sentence by definition: plain autograd, norm in float64, scale, add; return True.

        The gradients of parameters that ``views`` of the sum lack are not added.
        """
        loss, gradients = loss_gradients(self._model, self._model.batch([example], self._mask_seed))
        norm = math.sqrt(sum(float(g.double().square().sum()) for g in gradients.values()))
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self.tally.nonfinite += 1
            return True
        self.tally.loss_sum += loss
        self.tally.clipped += norm > clip_norm
        (factor,) = clip_factors(torch.tensor([norm], dtype=torch.float64), clip_norm, self._stability).tolist()
        for name in views.keys() & gradients.keys():
            views[name].add_(gradients[name], alpha=-factor)
        return True

    def add_unclipped(self, batch: Batch, pending: dict[str, torch.Tensor]) -> bool:
        """Add Σ_s g_s by one ordinary backward pass; a parameter leaves ``pending`` with its addition.

        Returns:
            False, with nothing added, if the loss or a gradient is not finite.
        """
        loss, gradients = loss_gradients(self._model, batch)
        if not math.isfinite(loss) or not all(bool(g.isfinite().all()) for g in gradients.values()):
            return False
        for name in pending.keys() & gradients.keys():
            pending[name].sub_(gradients[name])
            del pending[name]
        self.tally.loss_sum += loss
        return True

    def add_clipped(
        self,
        batch: Batch,
        clip_norm: float,
        pending: dict[str, torch.Tensor],
        layers: Sequence[Layer] | None = None,
    ) -> bool:
        """Add Σ_s Π_c(g_s) by ghost norms.

        A parameter leaves ``pending`` with its addition, so that a lack of memory halfway adds nothing twice.
        ``layers`` are the model's, if the caller answers for them; by default those that were checked against autograd.

        Returns:
            False, with nothing added, if a sentence must be processed on its own.
        """
        model, stability = self._model, self._stability
        layers = covered_layers(model) if layers is None else layers
        if layers is None:
            return False
        try:
            least = clip_norm if stability is None else stability
            losses, norms, contributions = sentence_gradients(model, layers, batch, least)
        except NotCovered:
            return False
        factors = clip_factors(norms, clip_norm, stability)

        def add(contribution: Contribution) -> None:
            if contribution.name in pending:
                contribution.add(-factors, pending[contribution.name])
                del pending[contribution.name]

        if model.recomputed:
            _add_in_another_pass(model, layers, batch, norms, add)
        else:
            for contribution in contributions:
                add(contribution)
        self.tally.loss_sum += float(losses.sum(dtype=torch.float64))
        self.tally.clipped += int((norms > clip_norm).sum())
        return True

    def reset(self) -> None:
        """Start again from zero, in the same buffer."""
        self.flat.zero_()
        self.tally = Tally()


def clipped_gradient_sum(
    model: LanguageModel,
    examples: Sequence[Example],
    clip_norm: float,
    *,
    mask_seed: int | None = None,
    stability: float | None = None,
) -> ClippedSum:
    """Return Σ_s Π_c(-∇ l(θ, s)) over sentences, float32 (d,), with counts.

    Arguments and errors are those of `GradientSum` and `GradientSum.add`; a sentence without a prediction target has
    zero loss and zero gradient.
    """
    total = GradientSum(model, mask_seed, stability)
    total.add(examples, clip_norm)
    return ClippedSum(vector=total.flat.cpu().numpy(), **vars(total.tally))


def check_clip_norm(clip_norm: float) -> None:
    """Raise ModelError for a clip norm that is not positive."""
    if not clip_norm > 0:
        raise ModelError(f"clip_norm is {clip_norm}; allowed: a number above 0, or inf")


def sentence_gradients(
    model: LanguageModel, layers: Sequence[Layer], batch: Batch, least: float
) -> tuple[torch.Tensor, torch.Tensor, list[Contribution]]:
    """Return mean losses, float32 (B,), upper bounds on the gradient norms, float64 (B,), and the gradients.

    The gradients of a checkpointed model are not kept. ``least`` is that of :func:`sure_norms`.

    Raises:
        NotCovered: a value is not finite, a norm not known well enough, or a module not called exactly once.
    """
    squared, slack = torch.zeros(2, len(batch.targets), dtype=torch.float64, device=model.device)
    kept: list[Contribution] = []

    def measure(contribution: Contribution) -> None:
        squared.add_(contribution.squared)
        slack.add_(contribution.slack)
        if not model.recomputed:
            kept.append(contribution)

    losses = each_gradient(model, layers, batch, measure)
    return losses, sure_norms(squared, slack, least), kept


def _add_in_another_pass(
    model: LanguageModel,
    layers: Sequence[Layer],
    batch: Batch,
    norms: torch.Tensor,
    add: Callable[[Contribution], None],
) -> None:
    """Compute the gradients of a batch again and add each as it comes, so that no two layers' are held.

    Raises:
        ModelError: a gradient is longer than ``norms`` (B,), by which it was clipped, says: the device computes the
            same pass otherwise each time.
    """
    squared = torch.zeros_like(norms)

    def check_and_add(contribution: Contribution) -> None:
        squared.add_(contribution.squared)
        add(contribution)

    each_gradient(model, layers, batch, check_and_add)
    if bool((squared.sqrt() > norms * (1 + _REPEATED)).any()):
        raise ModelError(
            f"a gradient on {model.device} is not the same when it is computed again; allowed: model.checkpointing = "
            "false"
        )


def sure_norms(squared: torch.Tensor, slack: torch.Tensor, least: float) -> torch.Tensor:
    """Return upper bounds on gradient norms, float64 (B,), accurate enough to clip by.

    Args:
        squared: the squared norms over all parameters, float64 (B,).
        slack: a bound on their rounding errors, float64 (B,).
        least: a norm up to which the error may be large: c, or γ of automatic clipping, below which the factor
            c/(‖g‖ + γ) depends little on the norm.

    Raises:
        NotCovered: if a norm is not finite, or exceeds ``least`` and its rounding error is too large.
    """
    norms = norm_bounds(squared, slack)
    unsure = (norms > least) & is_unsure(squared, slack)
    if bool((unsure | ~norms.isfinite()).any()):
        raise NotCovered("a norm is not finite, or not known well enough")
    return norms


def norm_bounds(squared: torch.Tensor, slack: torch.Tensor) -> torch.Tensor:
    """Return what no norm exceeds, float64 (B,), for squared norms and their rounding errors."""
    return (squared + slack).sqrt()


def is_unsure(squared: torch.Tensor, slack: torch.Tensor) -> torch.Tensor:
    """Return whether the bound of a squared norm would be far above it, bool (B,)."""
    return slack > _TOLERATED_SLACK * squared


def clip_factors(norms: torch.Tensor, clip_norm: float, stability: float | None = None) -> torch.Tensor:
    """Return min(1, c/‖g‖), or c/(‖g‖ + γ) with a ``stability`` γ, float32 (B,), for norms (B,).

    A factor that is no normal float32 is 0: rounded up it could leave more than c.
    """
    if stability is not None:
        factors = clip_norm / (norms + stability)
    else:
        factors = torch.where(norms > clip_norm, clip_norm / norms, 1.0)
    return torch.where(factors < SMALLEST_FACTOR, 0.0, factors).float()


def is_tried(model: LanguageModel) -> bool:
    """Return whether a model's micro-batches are found by trial: as the configuration says, else on accelerators."""
    requested = model.spec.batch_tokens
    return requested == "auto" or (requested is None and model.device.type != "cpu")


def fit_batches(model: LanguageModel) -> None:
    """Halve the model's micro-batches until one fits, of sentences as long as the context.

    The first size is the one that is fast; so the size, and with it every bit of a sum, is the same on all machines
    that have enough memory.

    >>> from fl_sim.clients.models.language_model import load_model
    >>> from fl_sim.clients.models.model_spec import ModelSpec
    >>> model = load_model(ModelSpec(hidden=8, layers=1, heads=2), seed=0)
    >>> fit_batches(model)
    >>> model.batch_tokens
    1024

    Raises:
        ModelError: a sentence as long as the context does not fit. Whether a node fails must depend on nothing private
            (docs/privacy.md, section 2), so it fails here, before it has seen a sentence.
    """
    if model.reads_features:
        return  # one state a sentence
    longest = model.task.longest(model.max_tokens)
    while True:
        rows = max(1, model.batch_tokens // longest)
        if attempt(functools.partial(clip_one_batch, model, longest_sentences(model, rows)), model.device):
            return
        if rows == 1:
            raise does_not_fit(model.device, longest)
        model.largest_batch = model.batch_tokens // 2


def longest_sentences(model: LanguageModel, rows: int) -> list[Example]:
    """Return random sentences as long as the context."""
    tokens = np.random.default_rng(0).integers(
        0, model.vocabulary_size, size=(rows, model.task.longest(model.max_tokens))
    )
    return [Example(row, target=0, number=number) for number, row in enumerate(tokens)]


def clip_one_batch(model: LanguageModel, sentences: Sequence[Example], layers: Sequence[Layer] | None = None) -> bool:
    """Clip and sum sentences as training does, all at once; ``layers`` as in `GradientSum.add_clipped`."""
    total = GradientSum(model, _MASKS)
    with full_precision():
        if not total.add_clipped(model.batch(sentences, _MASKS), _CLIP, dict(total.views), layers):
            total.add_one(sentences[0], _CLIP, total.views)
    return True
