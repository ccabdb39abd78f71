"""Architectures of transformers: models with weights of their own by hub name or folder, GPT-2 built from sizes.

>>> SMALL_GPT2.tokenizer, sorted(SMALL_GPT2.settings)
('bundled', ['heads', 'hidden', 'layers'])
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fl_sim.clients.models.architectures.architecture import UNBOUNDED, Architecture
from fl_sim.clients.models.tokenizers import BUNDLED

if TYPE_CHECKING:
    import torch
    from torch import nn

    from fl_sim.clients.batches import Batch
    from fl_sim.clients.ghost_norms import LayerHandler
    from fl_sim.clients.models.architectures.lower_layers import LowerLayers
    from fl_sim.clients.models.model_spec import ModelSpec
    from fl_sim.clients.models.tokenizers import Vocabulary


class Transformer(Architecture):
    """Any causal language model or encoder of transformers, also with peft's adapters around it.

    Args:
        tokenizer: the tokenizer of a model whose spec names none; ``None`` stands for the model's own.
    """

    mixed_precision: ClassVar[bool] = True
    no_dropout_because: ClassVar[str | None] = (
        "because transformers draws one mask for a whole batch, and a sentence's gradient may depend on no other "
        "sentence"
    )

    def __init__(self, tokenizer: str | None = None) -> None:
        self.tokenizer = tokenizer

    def build(self, spec: ModelSpec, vocabulary: Vocabulary, *, output_layer: bool) -> nn.Module:
        from fl_sim.clients.models.architectures.pretrained import load_body, load_causal

        return load_causal(spec) if output_layer else load_body(spec)

    def without_weights(self, spec: ModelSpec, *, output_layer: bool) -> nn.Module:
        from fl_sim.clients.models.architectures.pretrained import without_weights

        return without_weights(spec, output_layer=output_layer)

    def scores(self, module: Any, batch: Batch) -> torch.Tensor:
        """Return the scores of the next word, (B, T, V).

        The model gets no attention mask: padding is on the right, and a token attends to nothing after it.
        """
        core = core_of(module)
        return module(input_ids=batch.inputs, **_options(core, core, batch.positions)).logits

    def continued_scores(self, module: Any, batch: Batch, cache: Any) -> tuple[torch.Tensor, Any]:
        """Return the scores of the next word and the model's own cache of keys and values, if it has one."""
        core = core_of(module)
        if "past_key_values" not in _parameters_of(type(core).forward):
            return self.scores(module, batch), None
        options = _options(core, core, batch.positions) | {"past_key_values": cache, "use_cache": True}
        output = module(input_ids=batch.inputs, **options)
        return output.logits, output.past_key_values

    def states(self, module: Any, batch: Batch) -> torch.Tensor:
        """Return the last states, (B, T, h); an attention mask goes to models that read both ways alone."""
        return self._read(module, batch).last_hidden_state

    def has_pooler(self, module: Any) -> bool:
        """Return whether the model has BERT's pooler; ALBERT's and others', of another form, do not count."""
        from torch import nn

        pooler = getattr(core_of(module), "pooler", None)
        parts = (getattr(pooler, "dense", None), getattr(pooler, "activation", None))
        return isinstance(parts[0], nn.Linear) and isinstance(parts[1], nn.Tanh)

    def pooler_states(self, module: Any, batch: Batch) -> torch.Tensor:
        return self._read(module, batch).pooler_output

    def _read(self, module: Any, batch: Batch) -> Any:
        """Return what transformers returns for a batch."""
        import torch

        core = core_of(module)
        options = _options(core, core, batch.positions)
        if self.reads_both_ways(module):
            options["attention_mask"] = batch.is_token.long()
            if "token_type_ids" in _parameters_of(type(core).forward):
                options["token_type_ids"] = torch.zeros_like(batch.inputs)
        return module(input_ids=batch.inputs, **options)

    def width(self, module: Any) -> int:
        return core_of(module).config.hidden_size

    def embedding(self, module: Any) -> Any:
        return core_of(module).get_input_embeddings()

    def output_layer(self, module: Any) -> nn.Module | None:
        return module.get_output_embeddings()

    def context(self, module: Any) -> int:
        """Return the longest input; if the table of positions has a padding row, positions begin after it."""
        config = core_of(module).config
        longest = getattr(config, "max_position_embeddings", None) or UNBOUNDED
        return longest - (config.pad_token_id + 1 if _counts_positions_itself(config) else 0)

    def reads_both_ways(self, module: Any) -> bool:
        return is_two_way(core_of(module).config)

    def layer_handlers(self) -> Mapping[type[nn.Module], LayerHandler]:
        from transformers.pytorch_utils import Conv1D

        from fl_sim.clients.ghost_norms import LinearLayer

        return {Conv1D: functools.partial(LinearLayer, transposed=True)}

    def lora_targets(self, module: Any, spec: ModelSpec) -> list[str] | str | None:
        """Return the layers to adapt: the spec's, else peft's choice (``None``), else all linear layers."""
        from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as KNOWN

        if spec.lora_targets:
            return list(spec.lora_targets)
        return None if module.config.model_type in KNOWN else "all-linear"

    def with_adapters(self, module: nn.Module, spec: ModelSpec, *, output_layer: bool) -> nn.Module:
        from fl_sim.clients.models import tuning

        tuning.check_peft(spec.lora_rank)
        return tuning.with_adapters(module, spec, self.lora_targets(module, spec), output_layer=output_layer)

    def blocks(self, module: Any) -> Sequence[nn.Module]:
        from fl_sim.clients.models import tuning

        return tuple(tuning.blocks_of(core_of(module))[1])

    def split_below(self, module: Any, trained: int) -> LowerLayers | None:
        import torch

        from fl_sim.clients.models import tuning
        from fl_sim.clients.models.architectures.lower_layers import LowerLayers

        core = core_of(module)
        blocks = tuning.blocks_of(core)[1]
        first = len(blocks) - trained

        def run_body(inputs: torch.Tensor) -> torch.Tensor:
            """Run the model without its output layer on sentences without padding."""
            positions = torch.arange(inputs.shape[1], device=inputs.device).expand_as(inputs)
            return core.base_model(input_ids=inputs, **_options(core, core.base_model, positions)).last_hidden_state

        return None if first == 0 else LowerLayers(blocks, first, run_body, core.config.vocab_size)

    def save(self, module: Any, folder: Path, spec: ModelSpec) -> None:
        """Write the module as transformers does; with LoRA the adapter alone."""
        # peft would look for the base model on the hub, to see whether its embeddings have grown; they never do here
        options = {"save_embedding_layers": False} if spec.lora_rank else {}
        module.save_pretrained(folder, **options)


class SmallGpt2(Transformer):
    """GPT-2 of the sizes of the spec, with random weights."""

    settings: ClassVar[frozenset[str]] = frozenset({"hidden", "layers", "heads"})

    def build(self, spec: ModelSpec, vocabulary: Vocabulary, *, output_layer: bool) -> nn.Module:
        from fl_sim.clients.models.architectures.pretrained import build_small_gpt2

        return build_small_gpt2(spec, vocabulary, output_layer=output_layer)

    def without_weights(self, spec: ModelSpec, *, output_layer: bool) -> nn.Module:
        return Architecture.without_weights(self, spec, output_layer=output_layer)


class PublicGpt2(Transformer):
    """The GPT-2 that ships; of transformers' own class if it gets adapters."""

    def build(self, spec: ModelSpec, vocabulary: Vocabulary, *, output_layer: bool) -> nn.Module:
        from fl_sim.clients.models.architectures.pretrained import read_public_gpt2

        if spec.lora_rank:
            return super().build(spec, vocabulary, output_layer=output_layer)
        return read_public_gpt2(spec.max_layers, output_layer=output_layer)


PRETRAINED = Transformer()
SMALL_GPT2_PUBLIC = PublicGpt2(tokenizer=BUNDLED)
SMALL_GPT2 = SmallGpt2(tokenizer=BUNDLED)


def core_of(module: Any) -> Any:
    """Return the transformers model itself, also where peft's adapters wrap it."""
    return module.get_base_model() if hasattr(module, "get_base_model") else module


def is_two_way(config: Any) -> bool:
    """Return whether states depend on the words after them: it learnt to predict masked words, and is no decoder."""
    if config.model_type == "gpt2":  # ours needs none of what the import below loads
        return False
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    return config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(config, "is_decoder", False)


def _counts_positions_itself(config: Any) -> bool:
    """Return whether the architecture numbers tokens from its padding id on (RoBERTa), and must not get positions."""
    return config.model_type in {
        "camembert", "data2vec-text", "esm", "ibert", "longformer", "luke", "mpnet", "roberta",
        "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod",
    }  # fmt: skip


def _options(core: Any, called: Any, positions: torch.Tensor) -> dict[str, bool | torch.Tensor]:
    """Return the arguments of a forward pass without cache: positions, unless the model counts them itself."""
    takes = _parameters_of(type(called).forward)
    options: dict[str, bool | torch.Tensor] = {"use_cache": False} if "use_cache" in takes else {}
    if "position_ids" in takes and not _counts_positions_itself(core.config):
        options["position_ids"] = positions
    return options


@functools.cache
def _parameters_of(forward: Callable[..., Any]) -> frozenset[str]:
    """Return the names of the parameters of a model class's ``forward``."""
    return frozenset(inspect.signature(forward).parameters)
