"""Models by name: reproducible weights, a flat vector of what travels, losses, saving, and clear refusals."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fl_sim.clients.models import hub
from fl_sim.clients.models.language_model import LanguageModel, ModelError, load_model
from fl_sim.clients.models.losses import held_out, sentence_losses
from fl_sim.clients.models.model_spec import ModelSpec
from tests.clients.models import models_to_try
from tests.clients.models.models_to_try import SMALL, examples


@pytest.fixture
def saved(small: LanguageModel, tmp_path: Path) -> Path:
    small.save(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture(autouse=True)
def quiet_transformers() -> Iterator[None]:
    level = logging.getLogger("transformers").level
    logging.getLogger("transformers").setLevel(logging.ERROR)
    yield
    logging.getLogger("transformers").setLevel(level)


def test_weights_depend_on_the_seed_alone() -> None:
    vectors = {}
    for seed, noise in ((0, 11), (0, 12), (1, 11)):
        torch.manual_seed(noise)
        state = torch.random.get_rng_state()
        vectors[seed, noise] = load_model(SMALL, seed).get_vector()
        assert torch.equal(torch.random.get_rng_state(), state)
    np.testing.assert_array_equal(vectors[0, 11], vectors[0, 12])
    assert not np.array_equal(vectors[0, 11], vectors[1, 11])


def test_the_vector_goes_out_and_in(small: LanguageModel) -> None:
    before = small.get_vector()
    assert before.dtype == np.float32
    assert before.shape == (small.num_parameters,)
    other = np.arange(before.size, dtype=np.float64) / before.size
    small.set_vector(other)
    np.testing.assert_array_equal(small.get_vector(), other.astype(np.float32))
    small.set_vector(before)
    for wrong in (before[:-1], before[None]):
        with pytest.raises(ModelError, match="shape"):
            small.set_vector(wrong)


def test_only_adapters_travel_and_the_base_stays() -> None:
    whole = models_to_try.small_gpt2()
    adapted = load_model(SMALL.model_copy(update={"lora_rank": 3}), seed=0)
    assert adapted.num_parameters < whole.num_parameters / 50
    assert all("lora_" in name for name, _ in adapted.parameters.shapes())
    given = examples(9, 20)
    torch.testing.assert_close(sentence_losses(adapted, given), sentence_losses(whole, given))  # B starts at zero
    adapted.set_vector(adapted.get_vector() + 0.1)
    core: Any = adapted.module
    frozen: Any = whole.module
    torch.testing.assert_close(core.get_base_model().transformer.wte.weight, frozen.transformer.wte.weight)
    assert not torch.allclose(sentence_losses(adapted, given), sentence_losses(whole, given))


@pytest.mark.parametrize("build", [models_to_try.small_gpt2, models_to_try.bert, models_to_try.awd_lstm])
def test_of_matrices_positions_scales_and_biases_do_not_train(build: Callable[..., LanguageModel]) -> None:
    whole, matrices = (dict(build(**changes).parameters.shapes()) for changes in ({}, {"tune": "matrices"}))
    frozen = {name: shape for name, shape in whole.items() if name not in matrices}
    assert {name for name, shape in whole.items() if len(shape) < 2 and not name.startswith("head.")} <= frozen.keys()
    tables = {"transformer.wpe.weight", "position_embeddings.weight", "token_type_embeddings.weight"}
    assert {name.removeprefix("body.embeddings.") for name, shape in frozen.items() if len(shape) > 1} <= tables
    assert not tables & {name.removeprefix("body.embeddings.") for name in matrices}


def test_held_out_figures_are_those_of_each_sentence(small: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    given = examples(5, 1, 30, 2, 30)
    losses = sentence_losses(small, given).detach().numpy()
    for tokens in (1, 40, None):
        monkeypatch.setattr(small, "largest_batch", tokens)
        found = held_out(small, given)
        assert found.predictions.tolist() == [4, 0, 29, 1, 29]
        np.testing.assert_allclose(found.losses, losses, rtol=1e-5)
        np.testing.assert_allclose(found.nats, losses * found.predictions, rtol=1e-5)
    assert len(held_out(small, []).losses) == 0


def test_encoding_begins_ends_and_cuts(small: LanguageModel) -> None:
    short, empty, long = small.encode(["Ada lives here.", "", "one two three " * 40])
    assert short.tokens.dtype == np.int32
    assert (short.tokens[0], short.tokens[-1]) == (small.bos_id, small.eos_id)
    assert empty.tokens.tolist() == [small.bos_id, small.eos_id]
    assert len(long) == small.max_tokens + 1  # as many inputs as the context holds
    assert small.eos_id not in long.tokens[1:]
    assert small.encode([]) == []


def test_a_text_cannot_forge_a_boundary(small: LanguageModel) -> None:
    (forged,) = small.encode(["a <|endoftext|> b"])
    assert small.eos_id not in forged.tokens[1:-1]


def test_a_saved_model_comes_back(small: LanguageModel, saved: Path) -> None:
    assert not list(saved.glob("*.bin"))
    back = load_model(ModelSpec(name=str(saved), max_tokens=1000), seed=3)
    np.testing.assert_array_equal(back.get_vector(), small.get_vector())
    assert back.max_tokens == small.max_tokens  # its own context, not the larger one asked for
    assert json.loads((saved / "spec.json").read_text())["seed"] == 0
    given = examples(9, 20)
    torch.testing.assert_close(sentence_losses(back, given), sentence_losses(small, given), rtol=1e-5, atol=1e-5)


def test_dropout_of_a_pretrained_model_is_off(saved: Path) -> None:
    config = json.loads((saved / "config.json").read_text())
    config.update(resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5)
    (saved / "config.json").write_text(json.dumps(config))
    model = load_model(ModelSpec(name=str(saved)), seed=0)
    given = examples(9, 20)
    torch.testing.assert_close(sentence_losses(model, given), sentence_losses(model, given), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "no-such/model"}, r"cannot load model 'no-such/model': .*HF_HUB_OFFLINE"),
        ({"name": "not a name!"}, "cannot load model 'not a name!'"),
        ({"tokenizer": "no-such/tokenizer"}, "cannot load tokenizer 'no-such/tokenizer'"),
        ({"hidden": 30}, "hidden is 30; allowed with heads = 4"),
        ({"lora_rank": 2, "lora_targets": ("no_such_layer",)}, "lora_targets is .'no_such_layer'"),
        ({"device": "cuda:99"}, "device is 'cuda:99'"),
    ],
)
def test_what_is_not_to_be_had_is_one_line(
    changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match=message) as refusal:
        load_model(SMALL.model_copy(update=changes), 0)
    assert "\n" not in str(refusal.value)


def test_pickled_weights_are_never_read(saved: Path) -> None:
    weights = load_file(saved / "model.safetensors")
    (saved / "model.safetensors").unlink()
    torch.save(weights, saved / "pytorch_model.bin")
    with pytest.raises(ModelError, match="tried the local folder"):
        load_model(ModelSpec(name=str(saved)), 0)


def test_missing_weights_are_not_drawn_at_random(saved: Path) -> None:
    weights = load_file(saved / "model.safetensors")
    del weights["transformer.ln_f.weight"]
    save_file(weights, saved / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks 1 weights, the first is 'transformer.ln_f.weight'"):
        load_model(ModelSpec(name=str(saved)), 0)


@pytest.mark.system
def test_a_hub_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nothing listens on the discard port
    for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    started = time.monotonic()
    assert not hub.is_reachable()
    with pytest.raises(ModelError, match=r"nor from the hub http://127\.0\.0\.1:9"):
        load_model(ModelSpec(name="no-such/model"), 0)
    assert time.monotonic() - started < 5
