"""Load modules of transformers by name: language models with their output layer, and bodies without one.

>>> from fl_sim.clients.models.model_spec import ModelSpec
>>> _placement(ModelSpec(lora_rank=2, frozen_precision="bfloat16", device="cuda:1"))
(torch.bfloat16, 'cuda:1')
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fl_sim.clients.errors import ModelError
from fl_sim.clients.models.architectures.gpt2 import PUBLIC_FOLDER, Gpt2, Gpt2Body, Gpt2Sizes
from fl_sim.clients.models.architectures.model_size import check_layers, check_size
from fl_sim.clients.models.architectures.transformer import is_two_way
from fl_sim.clients.models.hub import describe_failure, locate, quiet_transformers
from fl_sim.clients.models.model_names import POOLER, SMALL_GPT2_PUBLIC
from fl_sim.clients.models.tuning import base_of, is_adapter, merged

if TYPE_CHECKING:
    from fl_sim.clients.models.model_spec import ModelSpec
    from fl_sim.clients.models.tokenizers import Vocabulary


def place_of(name: str) -> str:
    """Return what transformers loads for a model's name, a folder or a hub name; errors as in `locate`."""
    return str(PUBLIC_FOLDER) if name == SMALL_GPT2_PUBLIC else locate(name)


def _placement(spec: ModelSpec) -> tuple[torch.dtype, str | None]:
    """Return in which precision weights are read, and straight onto which device; None is main memory.

    Those of a frozen model under adapters are read in its precision; any other's as float32 into main memory.
    """
    if not spec.lora_rank:
        return torch.float32, None
    return getattr(torch, spec.frozen_precision), None if spec.device == "cpu" else spec.device


def _below(spec: ModelSpec) -> ModelSpec:
    """Return the spec of the model below the adapters in a folder, which are merged into it."""
    return spec.model_copy(update={"name": base_of(spec.name), "lora_rank": 0})


def load_causal(spec: ModelSpec) -> nn.Module:
    """Load a language model with its output layer; ModelError if it is absent, too large, or reads both ways."""
    from transformers import AutoModelForCausalLM

    if is_adapter(spec.name):
        return merged(load_causal(_below(spec)), spec.name)
    config = _config_of(spec)
    if is_two_way(config):
        raise ModelError(
            f"model {spec.name!r} ({config.model_type}) reads both ways, so that it sees the word it predicts; "
            "allowed for next-word: a causal language model"
        )
    return _load(spec, AutoModelForCausalLM, config)


def load_body(spec: ModelSpec) -> nn.Module:
    """Load a causal or two-way model without any output layer; a pooler that the spec asks for stays if it has weights.

    Raises:
        ModelError: it cannot be loaded, is too large, or is an encoder with a decoder.
    """
    from transformers import AutoModel

    if is_adapter(spec.name):
        return merged(load_body(_below(spec)), spec.name)
    config = _config_of(spec)
    if config.is_encoder_decoder:
        kind = f"model {spec.name!r} ({config.model_type})"
        raise ModelError(f"{kind} is an encoder with a decoder; allowed: one of the two")
    body = _load(spec, AutoModel, config)
    return body if spec.pooling == POOLER else without_pooler(body)


def without_weights(spec: ModelSpec, *, output_layer: bool) -> nn.Module:
    """Build a model from its configuration file alone, with no weight of its own; ModelError if it cannot be built."""
    from transformers import AutoModel, AutoModelForCausalLM

    config = _config_of(_below(spec) if is_adapter(spec.name) else spec)
    loader = AutoModelForCausalLM if output_layer else AutoModel
    try:
        module: nn.Module = loader.from_config(config, dtype=_placement(spec)[0])
    except Exception as error:  # transformers' and torch's errors have no common class
        raise _cannot_load(spec.name, error) from error
    return module if output_layer or spec.pooling == POOLER else without_pooler(module)


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


def _config_of(spec: ModelSpec) -> Any:
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(place_of(spec.name), trust_remote_code=False)
    except Exception as error:  # transformers', huggingface_hub's and the system's errors have no common class
        raise _cannot_load(spec.name, error) from error
    check_layers(spec.name, getattr(config.get_text_config(), "num_hidden_layers", None), spec.max_layers)
    return config


def _load(spec: ModelSpec, loader: Any, config: Any) -> nn.Module:
    name, (dtype, device) = spec.name, _placement(spec)
    options = {} if device is None else {"device_map": {"": device}}
    try:
        with quiet_transformers():  # it reports missing and unneeded weights; missing ones are an error below
            if name != SMALL_GPT2_PUBLIC and device is None:
                check_size(name, lambda: loader.from_config(config), dtype.itemsize)
            module, report = loader.from_pretrained(
                place_of(name),
                use_safetensors=True,
                trust_remote_code=False,
                dtype=dtype,
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
