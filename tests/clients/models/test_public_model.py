"""The checkpoints that ship: what their cards say, and better than nothing."""

import hashlib
import json
import math
from pathlib import Path

import pytest

from fl_sim.clients.models.architectures.awd_lstm import PUBLIC_LSTM_FOLDER
from fl_sim.clients.models.architectures.gpt2 import PUBLIC_FOLDER
from fl_sim.clients.models.language_model import load_model
from fl_sim.clients.models.losses import held_out
from fl_sim.clients.models.model_names import SMALL_AWD_LSTM_PUBLIC, SMALL_GPT2, SMALL_GPT2_PUBLIC
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.clients.models.tokenizers import BUNDLED_FOLDER


@pytest.mark.parametrize("folder", [PUBLIC_FOLDER, PUBLIC_LSTM_FOLDER], ids=lambda folder: folder.name)
def test_the_card_is_true(folder: Path) -> None:
    card = (folder / "README.md").read_text(encoding="utf-8")
    record = json.loads((folder / "pretraining.json").read_text(encoding="utf-8"))
    assert f"{record['model']['hidden']}" in card
    for file in (folder / "model.safetensors", BUNDLED_FOLDER / "tokenizer.json"):
        assert hashlib.sha256(file.read_bytes()).hexdigest() in card
    assert (folder / "model.safetensors").stat().st_size < 3_000_000


def test_it_is_the_default_and_sizes_alone_mean_random_weights() -> None:
    assert ModelSpec().name == SMALL_GPT2_PUBLIC
    assert ModelSpec(lora_rank=2).name == SMALL_GPT2_PUBLIC
    assert ModelSpec(hidden=16).name == SMALL_GPT2
    assert ModelSpec(name=SMALL_GPT2_PUBLIC, hidden=16).name == SMALL_GPT2_PUBLIC


@pytest.mark.parametrize("name", [SMALL_GPT2_PUBLIC, SMALL_AWD_LSTM_PUBLIC])
def test_it_has_learnt_english(name: str) -> None:
    model = load_model(ModelSpec(name=name), 0)
    assert model.num_parameters < 1_000_000
    sentences = model.encode(["The company said on Monday that it would not sell the business.", "I don't like it."])
    found = held_out(model, sentences)
    assert math.exp(found.nats.sum() / found.predictions.sum()) < 100  # a uniform guess has 4,096
