"""Wrap a real model so that a canary sentence has a long gradient in a random direction, through the real code.

The wrapper adds one linear layer beside the real model and nothing to the value of the scores. A canary sentence is
[bos, marker, p, q, eos]; its number i = (p, q) is in its tokens. At its first position the score of the next word gets

    L · r_qᵀ (W a_p − stop_gradient(W a_p)) = 0

where W is the layer's weight, and a_p and r_q are columns of two random rotations. The value is 0, and the gradient of
the loss in W is −(1 − P[next word]) L / predictions times a_p r_qᵀ. The m ≤ P·Q directions a_p r_qᵀ are orthonormal, so
that canaries do not interfere, and a sentence without the marker has no gradient in W. The loss is a function of
parameters and sentence alone, as the proof requires, and the layer is an ``nn.Linear``: ghost norms, batching,
adapters, dropout and local steps treat it like every other layer. L makes the gradient far longer than any clip, and
than the gradient of the same sentence in the real model.

>>> from fl_sim.clients.models.model_spec import ModelSpec
>>> model = canary_model(ModelSpec(hidden=8, layers=1, heads=2), seed=0, side=4)
>>> direction(model, 6).shape == (model.num_parameters,), round(float(np.linalg.norm(direction(model, 6))), 6)
(True, 1.0)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fl_sim.clients.models.architectures.architecture import Architecture
from fl_sim.clients.models.architectures.model_source import ModelSource
from fl_sim.clients.models.language_model import LanguageModel, load_model
from fl_sim.strategies.primitives import streams

if TYPE_CHECKING:
    from fl_sim.clients.batches import Batch, Example
    from fl_sim.clients.ghost_norms import LayerHandler
    from fl_sim.clients.models.model_spec import ModelSpec
    from fl_sim.clients.models.tokenizers import Vocabulary

LENGTH = 1e5
"""L, the length of a canary's gradient before its clip, up to a factor between 0 and 1/4."""

_MARKERS_FROM_END = 1  # the marker is the last token of the vocabulary; p and q are the tokens 2, 3, …
_FIRST = 2


class CanaryModule(nn.Module):
    """Hold a real module and the canaries' layer.

    Args:
        real: the real module.
        side: P = Q, the width of the layer, which has P·Q weights.
        vocabulary: the number of tokens.
        seed: of the rotations.
    """

    inputs_of: torch.Tensor
    outputs_of: torch.Tensor

    def __init__(self, real: nn.Module, side: int, vocabulary: int, seed: int) -> None:
        super().__init__()
        self.real = real
        self.canaries = nn.Linear(side, side, bias=False)
        nn.init.zeros_(self.canaries.weight)
        self.side = side
        self.marker = vocabulary - _MARKERS_FROM_END
        rng = streams.generator(seed, "canary directions")
        for name in ("inputs_of", "outputs_of"):
            rotation, _ = np.linalg.qr(rng.standard_normal((side, side)))
            self.register_buffer(name, torch.from_numpy(rotation.astype(np.float32)))

    def pull(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return what the canaries add to the score of the word after the first, (B,): 0, with their gradient.

        Args:
            inputs: token ids, int64 (B, T).
        """
        rows, tokens = inputs.shape
        is_canary = (inputs[:, 1] == self.marker) if tokens >= 4 else inputs.new_zeros(rows, dtype=torch.bool)
        p, q = (inputs[:, k].sub(_FIRST).clamp(0, self.side - 1) if tokens >= 4 else inputs[:, 0] * 0 for k in (2, 3))
        given = self.canaries.weight.new_zeros(rows, tokens, self.side)
        given[:, 0] = self.inputs_of[p] * is_canary.unsqueeze(1)
        output = self.canaries(given)
        moved = (output - output.detach())[:, 0]
        return LENGTH * (moved * self.outputs_of[q] * is_canary.unsqueeze(1)).sum(dim=1)


class CanaryArchitecture(Architecture):
    """Run a `CanaryModule`: the real architecture with the canaries' layer beside it.

    Args:
        real: the real architecture.
    """

    def __init__(self, real: Architecture) -> None:
        self.real = real
        self.tokenizer = real.tokenizer

    def build(self, spec: ModelSpec, vocabulary: Vocabulary, *, output_layer: bool) -> nn.Module:
        raise NotImplementedError("canary_model wraps a model that is built")

    def scores(self, module: Any, batch: Batch) -> torch.Tensor:
        """Return the real scores, (B, T, V), with the canaries' gradients."""
        scores = self.real.scores(module.real, batch)
        next_word = batch.inputs[:, min(1, batch.inputs.shape[1] - 1)]
        first = torch.zeros_like(scores[:, 0]).scatter(
            1, next_word.unsqueeze(1), module.pull(batch.inputs).unsqueeze(1)
        )
        return torch.cat([(scores[:, 0] + first).unsqueeze(1), scores[:, 1:]], dim=1)

    def embedding(self, module: Any) -> Any:
        return self.real.embedding(module.real)

    def context(self, module: Any) -> int:
        return self.real.context(module.real)

    def has_dropout(self, module: Any) -> bool:
        return self.real.has_dropout(module.real)

    def draw_masks(self, module: Any, examples: Sequence[Example], batch: Batch, seed: int) -> Any:
        return self.real.draw_masks(module.real, examples, batch, seed)

    def layer_handlers(self) -> Mapping[type[nn.Module], LayerHandler]:
        return self.real.layer_handlers()


def canary_model(spec: ModelSpec, seed: int, side: int) -> LanguageModel:
    """Return the real model of ``spec`` with a layer for ``side``² canaries.

    Args:
        spec: the real model, with its adapters and dropout.
        seed: of the real model's initial weights, and of the canaries' directions.
        side: P = Q.
    """
    real = load_model(spec, seed)
    module = CanaryModule(real.module, side, real.vocabulary_size, seed)
    source = ModelSource(CanaryArchitecture(real.architecture), spec.name)
    return LanguageModel(module, real.tokenizer, spec, seed, source=source)


def canary_tokens(model: LanguageModel, number: int) -> NDArray[np.int32]:
    """Return the tokens of canary i = ``number``, int32 (5,)."""
    module: Any = model.module
    p, q = divmod(number, module.side)
    return np.array([model.bos_id, module.marker, _FIRST + p, _FIRST + q, model.eos_id], dtype=np.int32)


def direction(model: LanguageModel, number: int) -> NDArray[np.float64]:
    """Return the direction in which canary i moves the model, a unit vector, float64 (d,)."""
    vector = torch.zeros(model.num_parameters)
    module: Any = model.module
    p, q = divmod(number, module.side)
    model.parameters.views(vector)[_WEIGHT].copy_(torch.outer(module.outputs_of[q], module.inputs_of[p]))
    return vector.double().numpy()


def along_canaries(model: LanguageModel, vectors: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the inner products of vectors with the directions of all canaries.

    Args:
        model: the model, with P·Q canaries.
        vectors: (k, d).

    Returns:
        float64 (k, P·Q).
    """
    module: Any = model.module
    left, right = module.outputs_of.double().numpy(), module.inputs_of.double().numpy()
    parts = [model.parameters.views(torch.from_numpy(np.asarray(vector)))[_WEIGHT].numpy() for vector in vectors]
    return np.stack([(right @ part.T.astype(np.float64) @ left.T).ravel() for part in parts])


_WEIGHT = "canaries.weight"
