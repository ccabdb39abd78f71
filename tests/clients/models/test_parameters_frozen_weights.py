"""Test frozen matrices that are stored in bfloat16 or float16: the model of the rounded weights, in less memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers

from fl_sim.clients.gradients.clipped_sums import clipped_gradient_sum
from fl_sim.clients.gradients.ghost_pass import gradient_path
from fl_sim.clients.models.architectures import pretrained
from fl_sim.clients.models.frozen_head import frozen_head, has_finite_scores
from fl_sim.clients.models.language_model import LanguageModel, load_model
from fl_sim.clients.models.losses import held_out, loss_gradients
from fl_sim.clients.models.model_spec import ModelSpec
from tests.clients.models.models_to_try import _LLAMA_LIKE, examples, publish, shifted

GIVEN = examples(5, 9, 30, 12, 22, 3)
LORA = {"lora_rank": 3}
SIZES = {"hidden": 32, "layers": 2, "heads": 4, "max_tokens": 40}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small Llama in a folder."""
    config = transformers.LlamaConfig(**_LLAMA_LIKE)
    return str(publish(tmp_path_factory.mktemp("llama"), lambda: transformers.LlamaForCausalLM(config)))


def adapted(**settings: Any) -> LanguageModel:
    return shifted(load_model(ModelSpec(**(SIZES | settings)), seed=0))


def rounded(model: LanguageModel, dtype: torch.dtype) -> LanguageModel:
    """Round the frozen matrices of a float32 model."""
    for parameter in model.module.parameters():
        if not parameter.requires_grad and parameter.dim() >= 2:
            parameter.data = parameter.data.to(dtype).float()
    return model


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["gpt2", "gpt2, biases", "llama"])
def test_it_is_the_model_of_the_rounded_weights(dtype: str, kind: str, folder: str) -> None:
    """In float32 outside of autocast: utility, and the gradients by which the fast path is checked."""
    named = {"name": folder, "tokenizer": "bundled"} if kind == "llama" else {}
    settings = named | ({"tune": "bias"} if kind == "gpt2, biases" else LORA)
    small = adapted(**settings, frozen_precision=dtype)
    expected = rounded(adapted(**settings), getattr(torch, dtype))
    expected.set_vector(small.get_vector())  # peft rounds the first values of adapters of such a layer, too
    assert gradient_path(small).name == gradient_path(expected).name == "fast"
    np.testing.assert_allclose(held_out(small, GIVEN).losses, held_out(expected, GIVEN).losses, rtol=1e-5)
    found, known = (clipped_gradient_sum(model, GIVEN, 0.05).vector for model in (small, expected))
    assert np.linalg.norm(found - known) <= 1e-4 * np.linalg.norm(known)
    gradients = [loss_gradients(model, model.batch(GIVEN))[1] for model in (small, expected)]
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-3, atol=1e-5)
    assert has_finite_scores(small)


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_matrices_take_half_and_what_trains_is_float32(dtype: str, folder: str) -> None:
    model = adapted(name=folder, tokenizer="bundled", **LORA, frozen_precision=dtype, precision="bfloat16")
    assert gradient_path(model).name == "fast"
    for parameter in model.module.parameters():
        narrow = not parameter.requires_grad and parameter.dim() >= 2
        assert parameter.dtype == (getattr(torch, dtype) if narrow else torch.float32)
    found = clipped_gradient_sum(model, GIVEN, 0.05).vector
    known = clipped_gradient_sum(adapted(name=folder, tokenizer="bundled", **LORA), GIVEN, 0.05).vector
    assert found @ known > 0.99 * np.linalg.norm(found) * np.linalg.norm(known)
    for sentence in GIVEN:
        alone = clipped_gradient_sum(model, [sentence], 0.05).vector.astype(np.float64)
        assert np.linalg.norm(alone) <= 0.05 * (1 + 1e-5)


def test_weights_are_read_in_their_precision_onto_their_device(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    load = transformers.LlamaForCausalLM.from_pretrained

    def noticed(*args: Any, dtype: torch.dtype, device_map: Any = None, **options: Any) -> Any:
        seen.append((dtype, device_map))
        return load(*args, dtype=dtype, **options)

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", noticed)
    spec = ModelSpec(name=folder, tokenizer="bundled", **LORA, frozen_precision="bfloat16")
    load_model(spec, 0)
    load_model(spec.model_copy(update={"frozen_precision": "float32"}), 0)
    pretrained.load_causal(spec.model_copy(update={"device": "cuda:1"}))
    everything_trains = spec.model_copy(update={"lora_rank": 0, "frozen_precision": "float32", "device": "cuda"})
    pretrained.load_causal(everything_trains)
    on_device = {"": "cuda:1"}
    half, full = torch.bfloat16, torch.float32
    assert seen == [(half, None), (full, None), (half, on_device), (full, None)]


def test_a_process_holds_the_frozen_weights_once(folder: str) -> None:
    spec = ModelSpec(name=folder, tokenizer="bundled", **LORA, frozen_precision="bfloat16")
    first, second, other = load_model(spec, 0), load_model(spec, 0), load_model(spec, 1)
    frozen = [
        {p.data_ptr() for p in model.module.parameters() if not p.requires_grad} for model in (first, second, other)
    ]
    assert frozen[0] == frozen[1]
    assert not frozen[0] & frozen[2]
    second.set_vector(second.get_vector() + 1)
    assert not np.array_equal(first.get_vector(), second.get_vector())


def test_a_tied_table_stays_tied_and_a_frozen_head_is_exact() -> None:
    model = adapted(**LORA, frozen_precision="bfloat16")
    core: Any = model.module
    table = core.get_base_model().transformer.wte.weight
    assert core.get_output_embeddings().weight is table
    assert table.dtype == torch.bfloat16
    assert frozen_head(model) is not None
    with torch.no_grad():
        first = model.logits(model.batch(GIVEN))
        again = model.logits(model.batch(GIVEN))  # the head has its own product again after it was left out
    assert first.dtype == torch.float32
    torch.testing.assert_close(first, again)


def test_it_is_refused_where_nothing_is_frozen() -> None:
    with pytest.raises(ValueError, match=r"model.frozen_precision is 'bfloat16', and matrices train; allowed: with"):
        ModelSpec(frozen_precision="bfloat16")
