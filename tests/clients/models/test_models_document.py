"""The table of docs/models.md, cell by cell: what is there is what happens."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from fl_sim.clients.gradients.clipped_sums import clipped_gradient_sum
from fl_sim.clients.gradients.ghost_pass import covered_layers
from fl_sim.clients.models.language_model import ModelError, load_model
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
    """Models of random weights, as they would be published."""
    made: dict[str, Path] = {}

    def folder_of(family: str) -> Path:
        if family not in made:
            made[family] = tmp_path_factory.mktemp(family)
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(1)
                FAMILIES[family]().save_pretrained(made[family])
            load_tokenizer("bundled").save_pretrained(made[family])
        return made[family]

    return folder_of


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
