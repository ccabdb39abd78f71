"""Find by trial, before the first round, how large a micro-batch fits into a device's memory.

The first size tried is the one that is fast, and it is halved until a batch of the longest sentences fits; so the size,
and with it every bit of a sum, is the same on all machines that have enough memory.

>>> from fl_sim.clients.models.language_model import load_model
>>> from fl_sim.clients.models.model_spec import ModelSpec
>>> model = load_model(ModelSpec(hidden=8, layers=1, heads=2), seed=0)
>>> fit_batches(model)
>>> model.batch_tokens
1024
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch

from fl_sim.clients.batches import Example
from fl_sim.clients.device import attempt, does_not_fit, full_precision
from fl_sim.clients.ghost_norms import Layer
from fl_sim.clients.gradients.clipped_sums import Tally, add_clipped, add_one
from fl_sim.clients.models.language_model import LanguageModel

_CLIP = 1.0  # any: norms take the memory
_MASKS = 0  # the seed of the dropout masks


def is_tried(model: LanguageModel) -> bool:
    """Return whether a model's micro-batches are found by trial: as the configuration says, else on accelerators."""
    requested = model.spec.batch_tokens
    return requested == "auto" or (requested is None and model.device.type != "cpu")


def fit_batches(model: LanguageModel) -> None:
    """Halve the model's micro-batches until one fits, of sentences as long as the context.

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
        model.limit_batches(model.batch_tokens // 2)


def longest_sentences(model: LanguageModel, rows: int) -> list[Example]:
    """Return random sentences as long as the context."""
    tokens = np.random.default_rng(0).integers(
        0, model.vocabulary_size, size=(rows, model.task.longest(model.max_tokens))
    )
    return [Example(row, target=0, number=number) for number, row in enumerate(tokens)]


def clip_one_batch(model: LanguageModel, sentences: Sequence[Example], layers: Sequence[Layer] | None = None) -> bool:
    """Clip and sum sentences as training does, all at once; ``layers`` as in `add_clipped`."""
    views = model.parameters.views(torch.zeros(model.num_parameters, device=model.device))
    with full_precision():
        if not add_clipped(model, model.batch(sentences, _MASKS), _CLIP, dict(views), Tally(), layers=layers):
            add_one(model, model.batch(sentences[:1], _MASKS), _CLIP, views, Tally())
    return True
