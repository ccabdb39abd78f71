"""Small language models of several architectures, as the tests' subjects."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import transformers

from clients.models import LanguageModel, ModelSpec, load_model
from clients.tokenizers import load_tokenizer

VOCABULARY = 4096
CONTEXT = 40
SMALL = ModelSpec(hidden=32, layers=2, heads=4, max_tokens=CONTEXT)
_LLAMA_LIKE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": CONTEXT,
}


def small_gpt2() -> LanguageModel:
    return load_model(SMALL, seed=0)


def with_adapters() -> LanguageModel:
    """Adapters moved off their start, where one factor is zero and the other's gradient therefore too."""
    model = load_model(SMALL.model_copy(update={"lora_rank": 3}), seed=0)
    shift = np.random.default_rng(5).standard_normal(model.num_parameters) * 0.1
    model.set_vector(model.get_vector() + shift)
    return model


def from_config(config: transformers.PretrainedConfig) -> LanguageModel:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        module = transformers.AutoModelForCausalLM.from_config(config)
    spec = ModelSpec(name=config.model_type, tokenizer="bundled", max_tokens=CONTEXT)
    return LanguageModel(module, load_tokenizer("bundled"), spec, seed=1)


def untied_gpt2() -> LanguageModel:
    return from_config(
        transformers.GPT2Config(
            vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=4, tie_word_embeddings=False
        )
    )


def llama() -> LanguageModel:
    return from_config(transformers.LlamaConfig(**_LLAMA_LIKE))


def qwen3() -> LanguageModel:
    """With a norm of its own for every attention head."""
    return from_config(transformers.Qwen3Config(**_LLAMA_LIKE, head_dim=8, tie_word_embeddings=True))


def opt() -> LanguageModel:
    """Its position table is a kind of embedding that the fast path does not describe."""
    return from_config(
        transformers.OPTConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            word_embed_proj_dim=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            ffn_dim=48,
            max_position_embeddings=CONTEXT,
        )
    )


COVERED: dict[str, Callable[[], LanguageModel]] = {
    "small-gpt2": small_gpt2,
    "untied-gpt2": untied_gpt2,
    "gpt2-lora": with_adapters,
    "llama": llama,
    "qwen3": qwen3,
}
NOT_COVERED: dict[str, Callable[[], LanguageModel]] = {"opt": opt}


def sentences(*lengths: int, seed: int = 7) -> list[np.ndarray]:
    """Random sentences of these lengths in tokens, with some tokens that come back within a sentence."""
    draws = np.random.default_rng(seed)
    made = [draws.integers(0, VOCABULARY, size=n).astype(np.int32) for n in lengths]
    for sentence in made:
        if len(sentence) > 5:
            sentence[4] = sentence[1]
    return made
