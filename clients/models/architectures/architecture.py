"""The interface of a model architecture: what training needs of a model, and what differs between families.

A model of your own subclasses :class:`Architecture` and overrides what differs (docs/extending.md). This module loads
neither torch nor transformers, so that a configuration can be checked without them.

>>> Architecture.settings, Architecture.mixed_precision
(frozenset(), False)
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fl_sim.clients.errors import ModelError
from fl_sim.formats import shortened

if TYPE_CHECKING:
    import torch
    from torch import nn

    from fl_sim.clients.batches import Batch, Example
    from fl_sim.clients.ghost_norms import LayerHandler
    from fl_sim.clients.models.architectures.lower_layers import LowerLayers
    from fl_sim.clients.models.model_spec import ModelSpec
    from fl_sim.clients.models.tokenizers import Vocabulary

UNBOUNDED = 2**31
"""The context of an architecture that reads sentences of any length."""

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
ARCHITECTURE_KEY, SETTINGS_KEY = "fl_sim_architecture", "settings"
"""Keys of ``config.json`` in a folder that :meth:`Architecture.save` wrote."""


class Architecture(ABC):
    """A family of models: how to build, run, tune, save and load them.

    A *module* is what :meth:`build` or :meth:`load` returned: with its output layer for the next word, without it for
    classification, where `fl_sim.clients.models.classifier.Classifier` adds the head. The defaults expect a module of
    your own whose word vectors are ``module.embedding`` (or ``module.body.embedding``).

    An architecture must keep each sentence's loss a function of the parameters and that sentence alone: no batch
    statistics, no dropout of its own, nothing read from the padding. The privacy proof needs this (docs/privacy.md).

    Attributes:
        settings: which of ``hidden``, ``layers``, ``heads`` and ``embedding`` of a ``ModelSpec`` it reads.
        tokenizer: the tokenizer of a model whose spec names none; ``None`` stands for the model's own.
        mixed_precision: whether ``model.precision = "bfloat16"`` is allowed.
        no_dropout_because: why ``model.dropout`` must be 0; ``None`` if it may be above.
    """

    settings: ClassVar[frozenset[str]] = frozenset()
    tokenizer: str | None = "bundled"
    mixed_precision: ClassVar[bool] = False
    no_dropout_because: ClassVar[str | None] = "because it draws no dropout masks of its own"

    @abstractmethod
    def build(self, spec: ModelSpec, vocabulary: Vocabulary, *, output_layer: bool) -> nn.Module:
        """Build a module; new weights are drawn from torch's global generator, which is seeded for the call.

        Args:
            spec: sizes and name of the model.
            vocabulary: its tokens; ``vocabulary.size`` is the number of word vectors.
            output_layer: whether the module predicts the next word; else it returns states for a classifier.

        Raises:
            ModelError: the model cannot be built, or not for this task.
        """

    def without_weights(self, spec: ModelSpec, *, output_layer: bool) -> nn.Module:
        """Build a module of the same shapes, whatever its weights; called where tensors take no memory."""
        from fl_sim.clients.models.tokenizers import Vocabulary

        vocabulary = Vocabulary(spec.tokenizer or self.tokenizer or spec.name, spec.begin_token, spec.end_token)
        return self.build(spec, vocabulary, output_layer=output_layer)

    def scores(self, module: nn.Module, batch: Batch) -> torch.Tensor:
        """Return the scores of the next word, (B, T, V), of a module with its output layer."""
        return module(batch)

    def continued_scores(self, module: nn.Module, batch: Batch, cache: Any) -> tuple[torch.Tensor, Any]:
        """Return the scores of the next word, (B, T, V), and what the module keeps of the texts so far.

        Generating text calls this once per token, with B texts without padding, or with what follows the texts of
        ``cache``, as the last call returned it. By default nothing is kept, and every batch has the whole texts.
        """
        return self.scores(module, batch), None

    def states(self, module: nn.Module, batch: Batch) -> torch.Tensor:
        """Return the last states, (B, T, h), of a module without output layer."""
        return module(batch)

    def has_pooler(self, module: Any) -> bool:
        """Return whether the module has a pooler, tanh(W · first state + b), with weights of its own."""
        return False

    def pooler_states(self, module: Any, batch: Batch) -> torch.Tensor:
        """Return the pooler's state of each sentence, (B, h); called where :meth:`has_pooler` is true."""
        raise NotImplementedError

    def width(self, module: Any) -> int:
        """Return h, the size of a state."""
        return self.embedding(module).weight.shape[1]

    def embedding(self, module: Any) -> Any:
        """Return the layer that holds the word vectors, ``weight`` (V, h)."""
        return getattr(module, "body", module).embedding

    def output_layer(self, module: Any) -> nn.Module | None:
        """Return the output layer, which ``model.tune = "head"`` trains; ``None`` if there is none to train."""
        return getattr(module, "output", None)

    def context(self, module: Any) -> int:
        """Return the longest input in tokens."""
        return UNBOUNDED

    def reads_both_ways(self, module: Any) -> bool:
        """Return whether a state depends on the words after it; a classifier then reads the mean of the states."""
        return False

    def has_dropout(self, module: Any) -> bool:
        """Return whether :meth:`draw_masks` makes a difference."""
        return False

    def draw_masks(self, module: Any, examples: Sequence[Example], batch: Batch, seed: int) -> Any:
        """Return the dropout masks of a batch, each a function of ``seed`` and the sentence's number alone."""
        return None

    def layer_handlers(self) -> Mapping[type[nn.Module], LayerHandler]:
        """Return handlers for per-sentence gradients of modules that `fl_sim.clients.ghost_norms` does not know."""
        return {}

    def with_adapters(self, module: nn.Module, spec: ModelSpec, *, output_layer: bool) -> nn.Module:
        """Freeze the module and add low-rank adapters; raise ModelError if the architecture takes none."""
        raise ModelError(f"model.lora_rank is {spec.lora_rank}; allowed for {spec.name!r}: 0, it is no transformer")

    def blocks(self, module: nn.Module) -> Sequence[nn.Module]:
        """Return the blocks that ``model.checkpointing`` computes again in the backward pass; empty if it may not."""
        return ()

    def split_below(self, module: nn.Module, trained: int) -> LowerLayers | None:
        """Return the layers below the ``trained`` uppermost ones, 1 to all of :meth:`blocks`; None if there are none.

        Raises:
            ModelError: the module cannot be split.
        """
        raise ModelError("the model has no list of layers; allowed: a transformer")

    def save(self, module: nn.Module, folder: Path, spec: ModelSpec) -> None:
        """Write the module's sizes and weights (safetensors) into a folder that exists."""
        from safetensors.torch import save_model

        settings = {name: getattr(spec, name) for name in sorted(self.settings)}
        content = {ARCHITECTURE_KEY: spec.name, SETTINGS_KEY: settings}
        (folder / CONFIG_FILE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        save_model(module, str(folder / WEIGHTS_FILE))

    def load(self, folder: Path, spec: ModelSpec, vocabulary: Vocabulary, *, output_layer: bool) -> nn.Module:
        """Return the module that :meth:`save` wrote; ModelError if the files are damaged, or are another task's."""
        from safetensors import SafetensorError
        from safetensors.torch import load_model

        try:
            module = self.build(spec, vocabulary, output_layer=output_layer)
            load_model(module, folder / WEIGHTS_FILE)
        except (OSError, RuntimeError, SafetensorError) as error:
            raise ModelError(f"cannot load model {str(folder)!r}: {shortened(error)}") from error
        return module


def check_dropout(architecture: Architecture, spec: ModelSpec) -> None:
    """Raise ModelError for a rate above 0 where the architecture has no dropout."""
    if spec.dropout > 0 and architecture.no_dropout_because is not None:
        raise ModelError(
            f"model.dropout is {spec.dropout:g}; allowed for {spec.name!r}: 0, {architecture.no_dropout_because}"
        )
