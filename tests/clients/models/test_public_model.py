"""The checkpoint that ships: what its card says, and better than nothing."""

import hashlib
import json
import math

from fl_sim.clients.models.architectures.pretrained import PUBLIC_FOLDER
from fl_sim.clients.models.language_model import load_model
from fl_sim.clients.models.losses import held_out
from fl_sim.clients.models.model_names import SMALL_GPT2, SMALL_GPT2_PUBLIC
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.clients.models.tokenizers import BUNDLED_FOLDER


def test_the_card_is_true() -> None:
    card = (PUBLIC_FOLDER / "README.md").read_text(encoding="utf-8")
    record = json.loads((PUBLIC_FOLDER / "pretraining.json").read_text(encoding="utf-8"))
    assert f"{record['model']['hidden']}" in card
    for file in (PUBLIC_FOLDER / "model.safetensors", BUNDLED_FOLDER / "tokenizer.json"):
        assert hashlib.sha256(file.read_bytes()).hexdigest() in card
    assert (PUBLIC_FOLDER / "model.safetensors").stat().st_size < 15_000_000


def test_it_is_the_default_and_sizes_alone_mean_random_weights() -> None:
    assert ModelSpec().name == SMALL_GPT2_PUBLIC
    assert ModelSpec(lora_rank=2).name == SMALL_GPT2_PUBLIC
    assert ModelSpec(hidden=16).name == SMALL_GPT2
    assert ModelSpec(name=SMALL_GPT2_PUBLIC, hidden=16).name == SMALL_GPT2_PUBLIC


def test_it_has_learnt_english() -> None:
    model = load_model(ModelSpec(), 0)
    assert model.num_parameters < 1_000_000
    sentences = model.encode(["The company said on Monday that it would not sell the business.", "I don't like it."])
    found = held_out(model, sentences)
    assert math.exp(found.nats.sum() / found.predictions.sum()) < 100  # a uniform guess has 4,096
