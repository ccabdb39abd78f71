"""Our GPT-2 beside transformers' own: the same weights, gradients, continuations and files, bit for bit."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from fl_sim.clients.models.architectures.gpt2 import Gpt2, Gpt2Body, Gpt2Sizes

SIZES = Gpt2Sizes(vocab_size=50, n_positions=32, n_embd=16, n_layer=3, n_head=2)


def _pair(output_layer: bool, fused: bool) -> tuple[Any, Any]:
    options = {"activation_function": "gelu_pytorch_tanh", "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = transformers.GPT2Config(**dataclasses.asdict(SIZES), **options)
    torch.manual_seed(3)
    ours = (Gpt2 if output_layer else Gpt2Body)(SIZES, fused=fused)
    torch.manual_seed(3)
    theirs: Any = (transformers.GPT2LMHeadModel if output_layer else transformers.GPT2Model)(config)
    theirs.set_attn_implementation("sdpa" if fused else "eager")
    return ours.eval(), theirs.eval()


def _result(output: Any, output_layer: bool) -> torch.Tensor:
    return output.logits if output_layer else output.last_hidden_state


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("output_layer", [False, True])
def test_weights_gradients_continuations_and_files_are_those_of_transformers(
    output_layer: bool, fused: bool, tmp_path: Path
) -> None:
    pair = _pair(output_layer, fused)
    for (name, mine), (other, value) in zip(*(model.state_dict().items() for model in pair), strict=True):
        assert name == other
        assert torch.equal(mine, value), name

    tokens = torch.arange(22).view(2, 11)
    results = [_result(model(input_ids=tokens, use_cache=False), output_layer) for model in pair]
    gradients = [torch.autograd.grad(y.pow(3).sum(), list(m.parameters())) for y, m in zip(results, pair, strict=True)]
    assert torch.equal(*results)
    assert all(torch.equal(mine, other) for mine, other in zip(*gradients, strict=True))

    caches: list[Any] = [None, None]
    for start, stop in ((0, 11), (11, 12), (12, 13), (13, 17)):  # a text, two single tokens, four at once
        given = {"input_ids": torch.arange(start, stop)[None], "position_ids": torch.arange(start, stop)[None]}
        with torch.no_grad():
            outputs = [m(**given, past_key_values=c, use_cache=True) for m, c in zip(pair, caches, strict=True)]
        caches = [output.past_key_values for output in outputs]
        assert torch.equal(*(_result(output, output_layer) for output in outputs))

    for model, name in zip(pair, ("ours", "theirs"), strict=True):
        (tmp_path / name).mkdir()
        model.save_pretrained(tmp_path / name)
    for file in (tmp_path / "theirs").iterdir():
        assert (tmp_path / "ours" / file.name).read_bytes() == file.read_bytes(), file.name


def test_a_missing_weight_is_an_error(tmp_path: Path) -> None:
    Gpt2(dataclasses.replace(SIZES, n_layer=1)).save_pretrained(tmp_path)
    with pytest.raises(KeyError, match=r"transformer\.h\.1"):
        Gpt2(SIZES).read(tmp_path)
