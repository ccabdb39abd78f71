"""Apply an output layer to some sentences at a time, where the scores of a whole batch would take too much memory.

The scores of a batch, (B, T, V), are its largest tensor by far: 8,192 tokens and 128,256 words take 3.9 GiB in float32.
A loss needs those of one sentence. So a model is run without its output layer, and the layer on blocks of whole
sentences of at most 64 MiB of scores on a CPU, 512 MiB elsewhere. A smaller table is computed at once, and a sentence
whose scores are larger is a block of its own.

Not every model's scores are its output layer's (some are scaled or squashed afterwards), so both are compared once.

>>> row_blocks(rows=5, scores_of_row=8 << 20, device=torch.device("cpu"))
[slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from weakref import WeakKeyDictionary

import torch
from torch import nn

from fl_sim.clients.batches import Batch
from fl_sim.clients.models.finite_scores import fixed_sentence
from fl_sim.clients.models.language_model import LanguageModel

LARGEST = {"cpu": 64 << 20}  # bytes of a block's scores: smaller ones read the layer's weights too often
LARGEST_ELSEWHERE = 512 << 20
_TOLERANCE = 1e-4  # of the largest score
_BYTES = 4


@contextmanager
def left_out(layer: nn.Module) -> Iterator[None]:
    """Let a model return the input of its output layer, (B, T, h), instead of scores."""
    own = vars(layer).pop("forward", None)  # of a layer whose weight is stored in a lower precision
    vars(layer)["forward"] = lambda states: states
    try:
        yield
    finally:
        del vars(layer)["forward"]
        if own is not None:
            vars(layer)["forward"] = own


_LAYERS: WeakKeyDictionary[LanguageModel, nn.Linear | None] = WeakKeyDictionary()


def output_layer(model: LanguageModel) -> nn.Linear | None:
    """Return the model's output layer if it alone makes the scores of the next word; None else."""
    if model not in _LAYERS:
        with model.exact():
            _LAYERS[model] = _output_layer(model)
    return _LAYERS[model]


def _output_layer(model: LanguageModel) -> nn.Linear | None:
    layer = None if model.task.classes else model.architecture.output_layer(model.module)
    if not isinstance(layer, nn.Linear) or type(layer) is not nn.Linear:
        return None
    return layer if _makes_the_scores(model, layer) else None


def _makes_the_scores(model: LanguageModel, layer: nn.Linear) -> bool:
    batch = model.batch([fixed_sentence(model)])
    with torch.no_grad():
        expected = model.logits(batch)
        with left_out(layer):
            states = model.logits(batch)
        if states.shape[:2] != expected.shape[:2] or states.shape[-1] != layer.in_features:
            return False
        found = layer(states)
        return bool(((found - expected).abs() <= _TOLERANCE * expected.abs().max()).all())


def row_blocks(rows: int, scores_of_row: int, device: torch.device) -> list[slice]:
    """Return the rows of a batch in blocks.

    Args:
        rows: B.
        scores_of_row: T·V, the scores of a sentence.
        device: of the model.
    """
    largest = LARGEST.get(device.type, LARGEST_ELSEWHERE) // _BYTES
    at_once = max(1, largest // max(1, scores_of_row))
    return [slice(start, min(start + at_once, rows)) for start in range(0, rows, at_once)]


def blocks_of(model: LanguageModel, batch: Batch) -> list[slice]:
    """Return the sentences of a batch in blocks, of a size for the device that the model is meant for."""
    return row_blocks(*size_of(model, batch), torch.device(model.spec.device))


def blocked_layer(model: LanguageModel, batch: Batch) -> nn.Linear | None:
    """Return the output layer if it must be applied in blocks, because all scores of the batch take too much memory."""
    if model.task.classes or len(blocks_of(model, batch)) == 1:
        return None
    return output_layer(model)


def size_of(model: LanguageModel, batch: Batch) -> tuple[int, int]:
    """Return the number of sentences of a batch, and the scores of each."""
    rows, tokens = batch.targets.shape
    return rows, tokens * model.vocabulary_size


def rows_of(batch: Batch, rows: slice) -> Batch:
    """Return the targets of some sentences of a batch, and what else a loss needs."""
    return replace(batch, targets=batch.targets[rows], predictions=batch.predictions[rows])


def scores_of(model: LanguageModel, layer: nn.Linear, states: torch.Tensor) -> torch.Tensor:
    """Return the scores of states, (b, T, V) for (b, T, h), in the precision of training."""
    with model.autocast(), model.fast_products():
        return layer(states)
