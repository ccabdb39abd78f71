"""What is kept of frozen layers, states and features: a round from it is one from tokens, and it is its sentence's."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from fl_sim.clients import frozen_states
from fl_sim.clients.batches import Example, Examples
from fl_sim.clients.errors import ModelError
from fl_sim.clients.frozen_states import SentenceStates, ensure_features, feature_path, sentence_features, state_path
from fl_sim.clients.gradients.clipped_sums import clipped_gradient_sum
from fl_sim.clients.gradients.user_sums import user_sums
from fl_sim.clients.models.architectures.transformer import PRETRAINED
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.models.losses import held_out, loss_gradients
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.clients.models.tokenizers import load_tokenizer
from fl_sim.clients.tasks import Task
from fl_sim.data_prep.store.encode import EncodedSplit
from tests.clients.models import models_to_try
from tests.clients.models.models_to_try import _BERT_LIKE, _LLAMA_LIKE, CLASSES, CONTEXT, as_split, examples


def upper(config: transformers.PretrainedConfig, task: Task | None = None, **changes: Any) -> LanguageModel:
    """A model of random weights with adapters in its last layer."""
    options: dict[str, Any] = {"tokenizer": "bundled", "max_tokens": CONTEXT, "lora_rank": 2, "lora_layers": 1}
    spec = ModelSpec(name=config.model_type, **(options | changes))
    with models_to_try.seeded():
        module: Any = transformers.AutoModelForCausalLM.from_config(config)
        module = PRETRAINED.with_adapters(module, spec, output_layer=True)
    return models_to_try.shifted(LanguageModel(module, load_tokenizer("bundled"), spec, seed=1, task=task))


def llama(**changes: Any) -> LanguageModel:
    return upper(
        transformers.LlamaConfig(**_LLAMA_LIKE | {"num_hidden_layers": 3}, tie_word_embeddings=True), **changes
    )


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return llama()


@pytest.fixture(scope="module")
def split() -> EncodedSplit:
    return as_split(examples(5, 9, 30, 12, 7, 22, 3, 9, 1, 2, 9))


def both(model: LanguageModel, split: EncodedSplit, folder: Path) -> tuple[list[Example], list[Example]]:
    """Return the sentences as tokens, and with their states."""
    states = SentenceStates(model, split, state_path(model, split, folder))
    ids = range(len(split.offsets) - 1)
    return Examples(split).read(ids), Examples(split, states=states).read(ids)


def of_sentence(model: LanguageModel, example: Example) -> torch.Tensor:
    gradients = loss_gradients(model, model.batch([example]))[1]
    return torch.cat([gradients[name].flatten() for name in model.parameters.tensors])


def relative(found: Any, expected: Any) -> float:
    return float(np.linalg.norm(np.asarray(found) - np.asarray(expected)) / np.linalg.norm(np.asarray(expected)))


def test_a_round_from_states_is_a_round_from_tokens(model: LanguageModel, split: EncodedSplit, tmp_path: Path) -> None:
    read, kept = both(model, split, tmp_path)
    for tokens, states in zip(read, kept, strict=True):
        if len(tokens) > 1:
            assert relative(of_sentence(model, states), of_sentence(model, tokens)) < 2e-3  # float16 has 11 bits
    for clip_norm in (0.05, 1e3):
        expected = clipped_gradient_sum(model, read, clip_norm)
        found = clipped_gradient_sum(model, kept, clip_norm)
        assert relative(found.vector, expected.vector) < 2e-3
        assert (found.clipped, found.loss_sum) == (expected.clipped, pytest.approx(expected.loss_sum, rel=1e-4))
    total = torch.zeros(model.num_parameters)
    for sums in user_sums(model, [kept[:3], kept[3:]], 0.05):
        sums.add([1.0] * len(sums.users), total)
    assert relative(total, clipped_gradient_sum(model, read, 0.05).vector) < 2e-3
    np.testing.assert_allclose(held_out(model, kept).losses, held_out(model, read).losses, rtol=1e-3)


def test_a_sentences_states_are_its_own(model: LanguageModel, split: EncodedSplit, tmp_path: Path) -> None:
    """Bit for bit: whichever sentences are computed with it, in whatever order, from one file or another."""
    together = both(model, split, tmp_path / "a")[1]
    for number in (2, 1, 10, 7):
        alone = SentenceStates(model, split, state_path(model, split, tmp_path / f"b{number}"))
        np.testing.assert_array_equal(alone(np.array([number]))[0], together[number].states)


def test_without_equal_bits_sentences_are_computed_alone(
    model: LanguageModel, split: EncodedSplit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    plain = frozen_states._states

    def depends_on_rows(*args: Any) -> Any:
        sizes.append(len(args[2]))
        return plain(*args) * np.float16(1 if len(args[2]) == 1 else 1.01)

    monkeypatch.setattr(frozen_states, "_states", depends_on_rows)
    both(model, split, tmp_path)
    assert sizes[0] > 1  # tried once
    assert set(sizes[1:]) == {1}


def test_they_are_computed_once_and_shared(
    model: LanguageModel, split: EncodedSplit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = state_path(model, split, tmp_path / "new")
    first, second = SentenceStates(model, split, path), SentenceStates(model, split, path)
    seen: list[tuple[int, int]] = []
    rows = first(np.array([3, 5]), lambda *progress: seen.append(progress))
    assert seen[-1] == (2, 2)
    monkeypatch.setattr(frozen_states, "_states", None)
    for number, expected in zip((3, 5), rows, strict=True):
        np.testing.assert_array_equal(second(np.array([number]))[0], expected)
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_damaged_rows_are_computed_again(model: LanguageModel, split: EncodedSplit, tmp_path: Path) -> None:
    path = state_path(model, split, tmp_path)
    expected = SentenceStates(model, split, path)(np.array([2]))[0].copy()
    content = bytearray(path.read_bytes())
    start = 4 * (len(split.offsets) - 1) + int(split.offsets[2]) * 64
    content[start + 6] ^= 0xFF
    path.write_bytes(bytes(content))
    np.testing.assert_array_equal(SentenceStates(model, split, path)(np.array([2]))[0], expected)


def test_the_name_says_all_that_went_in(model: LanguageModel, split: EncodedSplit, tmp_path: Path) -> None:
    path = state_path(model, split, tmp_path)
    tokens = split.tokens.copy()
    tokens[3] += 1
    moved = llama()
    next(iter(moved.module.parameters())).data[0, 0] += 1e-3
    others = [state_path(other, split, tmp_path) for other in (moved, llama(lora_layers=2))]
    others.append(state_path(model, EncodedSplit(tokens, split.offsets), tmp_path))
    assert len({path, *others}) == 4
    trained = llama()
    trained.set_vector(trained.get_vector() + 1)
    assert state_path(trained, split, tmp_path) == path  # what trains does not go in


def test_what_is_no_file_of_states_is_refused(model: LanguageModel, split: EncodedSplit, tmp_path: Path) -> None:
    path = state_path(model, split, tmp_path)
    path.write_bytes(b"nonsense")
    with pytest.raises(ModelError, match=r"not a file of states: 8 bytes; allowed: .*, or remove it"):
        SentenceStates(model, split, path)
    path.unlink()
    path.mkdir()
    with pytest.raises(ModelError, match="not a file of states: Is a directory"):
        SentenceStates(model, split, path)


def test_a_disk_that_may_not_suffice_is_noticed_before(
    model: LanguageModel, split: EncodedSplit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(9, 9, 0))
    with pytest.raises(ModelError, match=r"0\.00 GB are free; allowed: at least .* 11 sentences, another folder"):
        SentenceStates(model, split, state_path(model, split, tmp_path))


def test_a_full_disk_costs_time_alone(
    model: LanguageModel, split: EncodedSplit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> int:
        raise OSError(28, "No space left on device")

    expected = both(model, split, tmp_path / "a")[1][2].states
    monkeypatch.setattr(frozen_states.os, "pwrite", full)
    states = SentenceStates(model, split, state_path(model, split, tmp_path / "b"))
    for _ in range(2):
        np.testing.assert_array_equal(states(np.array([2]))[0], expected)


def test_classifiers_start_from_states_too(split: EncodedSplit, tmp_path: Path) -> None:
    changes = {"name": "small-gpt2", "layers": 3, "lora_rank": 2, "lora_layers": 2}
    model = models_to_try.small_gpt2(CLASSES, **changes)
    targets = np.arange(len(split.offsets) - 1, dtype=np.int32) % 3
    states = SentenceStates(model, split, state_path(model, split, tmp_path))
    ids = range(len(targets))
    read, kept = Examples(split, targets).read(ids), Examples(split, targets, states=states).read(ids)
    expected = clipped_gradient_sum(model, read, 0.5).vector
    assert relative(clipped_gradient_sum(model, kept, 0.5).vector, expected) < 2e-3


def test_states_may_be_wider_than_word_vectors(split: EncodedSplit, tmp_path: Path) -> None:
    model = upper(transformers.OPTConfig(**_BERT_LIKE, word_embed_proj_dim=16, ffn_dim=48))
    read, kept = both(model, split, tmp_path)
    assert relative(of_sentence(model, kept[1]), of_sentence(model, read[1])) < 2e-3


def test_adapters_are_in_the_upper_layers_alone() -> None:
    names = [name for name, _ in llama(lora_layers=2, lora_targets=("q_proj",)).parameters.shapes()]
    assert sorted({name.split(".")[4] for name in names}) == ["1", "2"]
    assert len(names) == 4
    assert llama(lora_layers=3).lower is None  # in all layers: nothing below is frozen


def test_combinations_that_cannot_work_are_refused() -> None:
    with pytest.raises(ModelError, match=r"model.lora_layers is 4; allowed for 'llama': 1 to 3"):
        llama(lora_layers=4)
    with pytest.raises(ModelError, match="no such layer"):
        llama(lora_targets=("nothing",))
    with pytest.raises(ValueError, match=r"model.lora_layers is 1 and model.lora_rank is 0; allowed: with a rank"):
        ModelSpec(lora_layers=1)
    with pytest.raises(ModelError, match=r"no frozen lower layers; allowed: with model.lora_layers"):
        state_path(models_to_try.with_adapters(), EncodedSplit(np.zeros(0, np.int32), np.zeros(1, np.int64)), Path())


# Features of a frozen encoder


@pytest.fixture(scope="module")
def encoder() -> LanguageModel:
    return models_to_try.bert(tune="head")


@pytest.fixture(scope="module")
def labelled() -> Examples:
    given = examples(5, 9, 30, 12, 7, 22, 3, task=CLASSES)
    return Examples(as_split(given), np.array([e.target for e in given], dtype=np.int32))


def test_a_round_from_features_is_a_round_from_sentences(
    encoder: LanguageModel, labelled: Examples, tmp_path: Path
) -> None:
    features = ensure_features(encoder, labelled.encoded, feature_path(encoder, labelled.encoded, tmp_path))
    read = labelled.read(range(7))
    kept = Examples(labelled.encoded, labelled.targets, features).read(range(7))
    for clip_norm in (0.5, 1e3):
        expected = clipped_gradient_sum(encoder, read, clip_norm)
        found = clipped_gradient_sum(encoder, kept, clip_norm)
        np.testing.assert_allclose(found.vector, expected.vector, rtol=1e-4, atol=1e-5)
        assert (found.sentences, found.clipped) == (7, expected.clipped)
    by_user = next(user_sums(encoder, [kept[:3], kept[3:]], 0.5))
    total = torch.zeros(encoder.num_parameters)
    by_user.add([2.0 - user for user in by_user.users], total)
    first, second = (clipped_gradient_sum(encoder, part, 0.5).vector for part in (read[:3], read[3:]))
    np.testing.assert_allclose(total, 2 * first + second, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(held_out(encoder, kept).losses, held_out(encoder, read).losses, rtol=1e-5)


def test_a_sentences_features_do_not_depend_on_the_others(encoder: LanguageModel) -> None:
    given = examples(5, 30, 12, task=CLASSES)
    together = sentence_features(encoder, given)
    alone = np.concatenate([sentence_features(encoder, [e]) for e in given])
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-5)


def test_features_are_computed_once(encoder: LanguageModel, labelled: Examples, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    path = feature_path(encoder, labelled.encoded, tmp_path / "new")
    first = ensure_features(encoder, labelled.encoded, path, lambda *progress: seen.append(progress))
    assert seen[-1] == (7, 7)
    seen.clear()
    again = ensure_features(encoder, labelled.encoded, path, lambda *progress: seen.append(progress))
    assert seen == []
    np.testing.assert_array_equal(first, again)
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # nothing half written


def test_the_name_of_features_says_all_that_went_in(encoder: LanguageModel, labelled: Examples, tmp_path: Path) -> None:
    path = feature_path(encoder, labelled.encoded, tmp_path)
    moved = models_to_try.bert(tune="head")
    next(iter(moved.module.parameters())).data[0, 0] += 1e-3
    others = [
        feature_path(models_to_try.bert(tune="head", pooling="cls"), labelled.encoded, tmp_path),
        feature_path(models_to_try.bert(tune="head", normalize=True), labelled.encoded, tmp_path),
        feature_path(moved, labelled.encoded, tmp_path),
    ]
    assert len({path, *others}) == 4
    head_moved = models_to_try.bert(tune="head")
    head_moved.set_vector(head_moved.get_vector() + 1)
    assert feature_path(head_moved, labelled.encoded, tmp_path) == path  # what trains does not go in


def test_what_is_no_file_of_features_is_refused(encoder: LanguageModel, labelled: Examples, tmp_path: Path) -> None:
    path = feature_path(encoder, labelled.encoded, tmp_path)
    path.write_bytes(b"nonsense")
    with pytest.raises(ModelError, match="not a file of features"):
        ensure_features(encoder, labelled.encoded, path)
    np.save(path, np.zeros(3))
    with pytest.raises(ModelError, match="float64 of 1 dimensions"):
        ensure_features(encoder, labelled.encoded, path)


def test_a_body_that_trains_has_no_features() -> None:
    with pytest.raises(ModelError, match="no frozen body"):
        sentence_features(models_to_try.bert(), [Example(np.array([1, 2]))])
