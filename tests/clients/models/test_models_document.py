"""The tables of docs/models.md, cell by cell: what is there is what happens."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers

from fl_sim.clients.gradients.clipped_sums import clipped_gradient_sum
from fl_sim.clients.gradients.ghost_pass import covered_layers
from fl_sim.clients.models.architectures.transformer import PRETRAINED
from fl_sim.clients.models.language_model import LanguageModel, ModelError, load_model
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.clients.models.tokenizers import load_tokenizer
from fl_sim.clients.tasks import NextWord, Task
from tests.clients.models import models_to_try
from tests.clients.models.models_to_try import _BERT_LIKE, _LLAMA_LIKE, CLASSES, CONTEXT, VOCABULARY, examples

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "models.md"
_GPT2 = {"vocab_size": VOCABULARY, "n_positions": CONTEXT, "n_embd": 32, "n_layer": 2, "n_head": 4}
_WORDS, _MASKED = transformers.AutoModelForCausalLM, transformers.AutoModelForMaskedLM
FAMILIES: dict[str, Callable[[], Any]] = {
    "GPT-2": lambda: _WORDS.from_config(transformers.GPT2Config(**_GPT2)),
    "Llama": lambda: _WORDS.from_config(transformers.LlamaConfig(**_LLAMA_LIKE)),
    "Qwen3": lambda: _WORDS.from_config(transformers.Qwen3Config(**_LLAMA_LIKE, head_dim=8, tie_word_embeddings=True)),
    "OPT": lambda: _WORDS.from_config(models_to_try.OPT),
    "BERT": lambda: _MASKED.from_config(transformers.BertConfig(**_BERT_LIKE)),
    "RoBERTa": lambda: _MASKED.from_config(
        transformers.RobertaConfig(**(_BERT_LIKE | {"max_position_embeddings": CONTEXT + 2}))
    ),
    "DistilBERT": lambda: _MASKED.from_config(
        transformers.DistilBertConfig(
            vocab_size=VOCABULARY, max_position_embeddings=CONTEXT, dim=32, n_layers=2, n_heads=4, hidden_dim=48
        )
    ),
    "ALBERT": lambda: _MASKED.from_config(transformers.AlbertConfig(**_BERT_LIKE, embedding_size=16)),
}
TUNING: dict[str, dict[str, Any]] = {
    "full": {},
    "head": {"tune": "head"},
    "bias": {"tune": "bias"},
    "LoRA": {"lora_rank": 2},
}
TASKS: dict[str, Task] = {"next-word": NextWord(), "classification": CLASSES}


def table() -> dict[tuple[str, str, str], str]:
    """(family, task, tuning) to what the document says."""
    rows = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    columns = [(task, tuning) for task in TASKS for tuning in TUNING]
    found = {}
    for row in rows:
        family, *cells = (cell.strip() for cell in row.strip("|").split("|"))
        if len(cells) == len(columns) and all(re.fullmatch(r"fast|slow|– ?[¹²³⁴]?", cell) for cell in cells):
            found |= {(family, *column): cell for column, cell in zip(columns, cells, strict=True)}
    return found


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of each family's model."""
    return functools.cache(lambda family: models_to_try.publish(tmp_path_factory.mktemp(family), FAMILIES[family]))


def spec_of(family: str, folders: Callable[[str], Path], tuning: str) -> ModelSpec:
    if family.startswith("AWD-LSTM"):
        dropout = 1.0 if "dropout" in family else 0.0
        return models_to_try.AWD.model_copy(update=TUNING[tuning] | {"dropout": dropout})
    return ModelSpec(name=str(folders(family)), max_tokens=CONTEXT, **TUNING[tuning])


def test_the_table_is_whole() -> None:
    families = {family for family, _, _ in table()}
    assert families == {*FAMILIES, "AWD-LSTM", "AWD-LSTM, dropout"}


@pytest.mark.sample(1)
@pytest.mark.parametrize("family", [*FAMILIES, "AWD-LSTM", "AWD-LSTM, dropout"])
def test_what_the_table_says_happens(family: str, folders: Callable[[str], Path]) -> None:
    happened, said = {}, {}
    for (name, task, tuning), cell in table().items():
        if name == family:
            said[task, tuning] = cell[:1] if cell.startswith("–") else cell
            happened[task, tuning] = path_taken(spec_of(family, folders, tuning), TASKS[task])
    assert happened == said


def path_taken(spec: ModelSpec, task: Task) -> str:
    try:
        model = load_model(spec, 0, task)
    except ModelError:
        return "–"
    given = examples(9, 5, task=task)
    assert clipped_gradient_sum(models_to_try.shifted(model), given, 0.1, mask_seed=1).clipped == 2
    return "fast" if covered_layers(model) is not None else "slow"


# The second table: the path of each architecture, on tiny configurations

_HEAD = {"head_dim": 8}
_OWN_SIZES: dict[str, dict[str, Any]] = {  # of architectures that do not name their sizes as Llama does
    "biogpt": _BERT_LIKE,
    "bloom": {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "codegen": _GPT2 | {"rotary_dim": 8},
    "ctrl": _GPT2 | {"dff": 48},
    "falcon": {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
    "gpt2": _GPT2,
    "gpt_bigcode": _GPT2,
    "gpt_neo": _BERT_LIKE | {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]},
    "gpt_neox": _BERT_LIKE,
    "gptj": _GPT2 | {"rotary_dim": 8},
    "mamba": {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    "megatron-bert": _BERT_LIKE | {"is_decoder": True},
    "mpt": {"vocab_size": VOCABULARY, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": CONTEXT},
    "openai-gpt": _GPT2,
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


def architectures() -> dict[str, tuple[str, str]]:
    """The architecture to what the document says of full training and of LoRA."""
    rows = re.findall(r"^\| `([\w.-]+)` \| (fast|slow) \| (fast|slow|–) \|$", DOCUMENT.read_text("utf-8"), re.MULTILINE)
    return {name: (full, lora) for name, full, lora in rows}


def path_of(architecture: str, lora_rank: int) -> str:
    sizes = _OWN_SIZES.get(architecture) or _LLAMA_LIKE | _FURTHER.get(architecture, {})
    given = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2} | sizes
    config = transformers.AutoConfig.for_model(architecture, **given)
    spec = ModelSpec(name=architecture, tokenizer="bundled", max_tokens=CONTEXT, lora_rank=lora_rank)
    with models_to_try.seeded(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module: Any = transformers.AutoModelForCausalLM.from_config(config)
        try:
            module = PRETRAINED.with_adapters(module, spec, output_layer=True) if lora_rank else module
        except ModelError:
            return "–"
        model = LanguageModel(module, load_tokenizer("bundled"), spec, seed=1)
    return "fast" if covered_layers(model) is not None else "slow"


def test_the_table_has_the_architectures_that_people_use() -> None:
    assert len(architectures()) >= 45
    assert {"gpt2", "llama", "mistral", "gemma3_text", "qwen3", "opt", "falcon", "gpt_neox", "phi3"} <= set(
        architectures()
    )


@pytest.mark.sample(3)
@pytest.mark.parametrize("architecture", architectures())
def test_an_architecture_takes_the_stated_path(architecture: str) -> None:
    assert (path_of(architecture, 0), path_of(architecture, 2)) == architectures()[architecture]
