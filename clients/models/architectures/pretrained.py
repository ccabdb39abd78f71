"""Load modules of transformers by name: language models with their output layer, and bodies without one.

>>> own_context(Gpt2Sizes(vocab_size=7, n_positions=16, n_embd=8, n_layer=1, n_head=2))
16
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fl_sim.clients.errors import ModelError
from fl_sim.clients.models.architectures.gpt2 import PUBLIC_FOLDER, Gpt2, Gpt2Body, Gpt2Sizes
from fl_sim.clients.models.architectures.model_size import check_layers, check_size
from fl_sim.clients.models.hub import describe_failure, locate, quiet_transformers
from fl_sim.clients.models.model_names import SMALL_GPT2_PUBLIC
from fl_sim.clients.models.tuning import base_of, is_adapter, merged

if TYPE_CHECKING:
    from fl_sim.clients.models.model_spec import ModelSpec
    from fl_sim.clients.models.tokenizers import Vocabulary


def place_of(name: str) -> str:
    """Return what transformers loads for a model's name, a folder or a hub name; errors as in `locate`."""
    return str(PUBLIC_FOLDER) if name == SMALL_GPT2_PUBLIC else locate(name)


@dataclass(frozen=True)
class Placement:
    """Say how weights are read: in which precision, and straight onto which device; None is main memory."""

    dtype: torch.dtype = torch.float32
    device: str | None = None

    @classmethod
    def of(cls, spec: ModelSpec) -> Placement:
        """Return the placement of a frozen model under adapters; any other is read as float32 into main memory."""
        if not spec.lora_rank:
            return cls()
        return cls(getattr(torch, spec.frozen_precision), None if spec.device == "cpu" else spec.device)


def load_causal(name: str, max_layers: int, placement: Placement = Placement()) -> nn.Module:
    """Load a language model with its output layer; ModelError if it is absent, too large, or reads both ways."""
    from transformers import AutoModelForCausalLM

    if is_adapter(name):
        return merged(load_causal(base_of(name), max_layers), name)
    config = _config_of(name, max_layers)
    if is_two_way(config):
        raise ModelError(
            f"model {name!r} ({config.model_type}) reads both ways, so that it sees the word it predicts; "
            "allowed for next-word: a causal language model"
        )
    return _load(name, AutoModelForCausalLM, config, placement)


def load_body(name: str, max_layers: int, placement: Placement = Placement(), *, pooler: bool = False) -> nn.Module:
    """Load a causal or two-way model without any output layer; a ``pooler`` stays if it comes with weights of one.

    Raises:
        ModelError: it cannot be loaded, is too large, or is an encoder with a decoder.
    """
    from transformers import AutoModel

    if is_adapter(name):
        return merged(load_body(base_of(name), max_layers, pooler=pooler), name)
    config = _config_of(name, max_layers)
    if config.is_encoder_decoder:
        raise ModelError(f"model {name!r} ({config.model_type}) is an encoder with a decoder; allowed: one of the two")
    body = _load(name, AutoModel, config, placement)
    return body if pooler else without_pooler(body)


def without_weights(
    name: str, max_layers: int, dtype: torch.dtype, *, output_layer: bool, pooler: bool = False
) -> nn.Module:
    """Build a model from its configuration file alone, with no weight of its own; ModelError if it cannot be built."""
    from transformers import AutoModel, AutoModelForCausalLM

    config = _config_of(base_of(name) if is_adapter(name) else name, max_layers)
    loader = AutoModelForCausalLM if output_layer else AutoModel
    try:
        module: nn.Module = loader.from_config(config, dtype=dtype)
    except Exception as error:  # transformers' and torch's errors have no common class
        raise _cannot_load(name, error) from error
    return module if output_layer or pooler else without_pooler(module)


def without_pooler(body: Any) -> nn.Module:
    """Return the body without the layer that some have on the first state, which nothing reads."""
    if getattr(body, "pooler", None) is not None:
        body.pooler = None
    return body


def build_small_gpt2(spec: ModelSpec, vocabulary: Vocabulary, *, output_layer: bool) -> nn.Module:
    """Build GPT-2 of the sizes of ``spec``, with random weights; of transformers' own class if it gets adapters."""
    (bos, eos), hidden = vocabulary.boundaries, 128 if spec.hidden is None else spec.hidden
    if hidden % spec.heads:
        raise ModelError(f"hidden is {hidden}; allowed with heads = {spec.heads}: a multiple of it")
    layers = 2 if spec.layers is None else spec.layers
    sizes = Gpt2Sizes(vocabulary.size, spec.max_tokens, hidden, layers, spec.heads, bos, eos)
    if spec.lora_rank:
        return _gpt2_for_adapters(spec, sizes, output_layer=output_layer)
    fused = spec.device != "cpu"  # plain attention is faster at 20 tokens
    return Gpt2(sizes, fused=fused) if output_layer else Gpt2Body(sizes, fused=fused)


def read_public_gpt2(max_layers: int, *, output_layer: bool) -> nn.Module:
    """Read the GPT-2 that ships; raise ModelError if it is damaged or too large."""
    try:
        sizes = Gpt2Sizes.read(PUBLIC_FOLDER)
        check_layers(SMALL_GPT2_PUBLIC, sizes.n_layer, max_layers)
        module = Gpt2(sizes, fused=True) if output_layer else Gpt2Body(sizes, fused=True)
        module.read(PUBLIC_FOLDER)
    except Exception as error:  # safetensors', too
        raise _cannot_load(SMALL_GPT2_PUBLIC, error) from error
    return module


def _gpt2_for_adapters(spec: ModelSpec, sizes: Gpt2Sizes, *, output_layer: bool) -> nn.Module:
    """Build the same model of transformers' class, which peft needs."""
    from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model

    config = GPT2Config(
        **dataclasses.asdict(sizes),
        activation_function="gelu_pytorch_tanh",  # GPT-2's own function, as one fused kernel
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    module = GPT2LMHeadModel(config) if output_layer else GPT2Model(config)
    if spec.device == "cpu":
        module.set_attn_implementation("eager")  # faster than torch's fused attention at 20 tokens
    return module


def own_context(config: Any) -> int:
    """Return the longest input that the architecture takes; recurrent ones state none.

    If the table of positions has a padding row (RoBERTa and its kin), positions begin after it.
    """
    longest = getattr(config, "max_position_embeddings", None) or 2**31
    return longest - (config.pad_token_id + 1 if counts_positions_itself(config) else 0)


def counts_positions_itself(config: Any) -> bool:
    """Return whether the architecture numbers tokens from its padding id on, so that it must not be given positions."""
    return config.model_type in {
        "camembert", "data2vec-text", "esm", "ibert", "longformer", "luke", "mpnet", "roberta",
        "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod",
    }  # fmt: skip


def is_two_way(config: Any) -> bool:
    """Return whether states depend on the words after them: it learnt to predict masked words, and is no decoder."""
    if isinstance(config, Gpt2Sizes):
        return False
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    return config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(config, "is_decoder", False)


def _config_of(name: str, max_layers: int) -> Any:
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(place_of(name), trust_remote_code=False)
    except Exception as error:  # transformers', huggingface_hub's and the system's errors have no common class
        raise _cannot_load(name, error) from error
    check_layers(name, getattr(config.get_text_config(), "num_hidden_layers", None), max_layers)
    return config


def _load(name: str, loader: Any, config: Any, placement: Placement) -> nn.Module:
    options = {} if placement.device is None else {"device_map": {"": placement.device}}
    try:
        with quiet_transformers():  # it reports missing and unneeded weights; missing ones are an error below
            if name != SMALL_GPT2_PUBLIC and placement.device is None:
                check_size(name, lambda: loader.from_config(config), placement.dtype.itemsize)
            module, report = loader.from_pretrained(
                place_of(name),
                use_safetensors=True,
                trust_remote_code=False,
                dtype=placement.dtype,
                **options,
                output_loading_info=True,
            )
    except Exception as error:  # torch's and safetensors', too
        raise _cannot_load(name, error) from error
    missing = sorted(key for key in report["missing_keys"] if not key.startswith("pooler."))
    if missing:
        raise ModelError(f"model {name!r} lacks {len(missing)} weights, the first is {missing[0]!r}")
    return without_pooler(module) if report["missing_keys"] else module  # a pooler of random weights is none


def _cannot_load(name: str, error: Exception) -> ModelError:
    if isinstance(error, ModelError):
        return error
    return ModelError(f"cannot load model {name!r}: {describe_failure(name, error)}")
