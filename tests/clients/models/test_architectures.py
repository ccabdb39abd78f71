"""The second table of docs/models.md: the path that each architecture takes, on tiny configurations."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from fl_sim.clients.gradients.ghost_pass import covered_layers
from fl_sim.clients.models.architectures.transformer import PRETRAINED
from fl_sim.clients.models.language_model import LanguageModel, ModelError
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.clients.models.tokenizers import load_tokenizer
from tests.clients.models.models_to_try import _BERT_LIKE, _LLAMA_LIKE, CONTEXT, VOCABULARY

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "models.md"
_GPT_LIKE = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4}
_HEAD = {"head_dim": 8}
_OWN_SIZES: dict[str, dict[str, Any]] = {  # of architectures that do not name their sizes as Llama does
    "biogpt": _BERT_LIKE,
    "bloom": {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "codegen": _GPT_LIKE | {"rotary_dim": 8, "n_positions": CONTEXT},
    "ctrl": _GPT_LIKE | {"dff": 48, "n_positions": CONTEXT},
    "falcon": {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
    "gpt2": _GPT_LIKE | {"n_positions": CONTEXT},
    "gpt_bigcode": _GPT_LIKE | {"n_positions": CONTEXT},
    "gpt_neo": _BERT_LIKE | {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]},
    "gpt_neox": _BERT_LIKE,
    "gptj": _GPT_LIKE | {"rotary_dim": 8, "n_positions": CONTEXT},
    "mamba": {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    "megatron-bert": _BERT_LIKE | {"is_decoder": True},
    "mpt": {"vocab_size": VOCABULARY, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": CONTEXT},
    "openai-gpt": _GPT_LIKE | {"n_positions": CONTEXT},
    "opt": _BERT_LIKE | {"word_embed_proj_dim": 32, "ffn_dim": 48},
    "persimmon": _BERT_LIKE,
    "rwkv": {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32},
    "xglm": _BERT_LIKE | {"d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 48},
}
_FURTHER: dict[str, dict[str, Any]] = {
    "gpt_oss": _HEAD | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "mixtral": {"num_local_experts": 4},
    "qwen3_moe": _HEAD | {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2},
}
_FURTHER |= dict.fromkeys(("ernie4_5", "gemma", "gemma2", "gemma3_text", "glm", "glm4", "helium", "qwen3"), _HEAD)
_FURTHER |= dict.fromkeys(("hunyuan_v1_dense", "ministral", "nemotron", "seed_oss"), _HEAD)


def table() -> dict[str, tuple[str, str]]:
    """The architecture to what the document says of full training and of LoRA."""
    rows = re.findall(r"^\| `([\w.-]+)` \| (fast|slow) \| (fast|slow|–) \|$", DOCUMENT.read_text("utf-8"), re.MULTILINE)
    return {name: (full, lora) for name, full, lora in rows}


def path_taken(architecture: str, lora_rank: int) -> str:
    sizes = _OWN_SIZES.get(architecture) or _LLAMA_LIKE | _FURTHER.get(architecture, {})
    given = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2} | sizes
    config = transformers.AutoConfig.for_model(architecture, **given)
    spec = ModelSpec(name=architecture, tokenizer="bundled", max_tokens=CONTEXT, lora_rank=lora_rank)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.default_generator.manual_seed(1)
        module: Any = transformers.AutoModelForCausalLM.from_config(config)
        try:
            module = PRETRAINED.with_adapters(module, spec, output_layer=True) if lora_rank else module
        except ModelError:
            return "–"
        model = LanguageModel(module, load_tokenizer("bundled"), spec, seed=1)
    return "fast" if covered_layers(model) is not None else "slow"


def test_the_table_has_the_architectures_that_people_use() -> None:
    assert len(table()) >= 45
    assert {"gpt2", "llama", "mistral", "gemma3_text", "qwen3", "opt", "falcon", "gpt_neox", "phi3"} <= set(table())


@pytest.mark.sample(3)
@pytest.mark.parametrize("architecture", table())
def test_an_architecture_takes_the_stated_path(architecture: str) -> None:
    assert (path_taken(architecture, 0), path_taken(architecture, 2)) == table()[architecture]
