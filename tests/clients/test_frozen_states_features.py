"""Features of a frozen encoder: the same as reading the sentence, computed once, never taken for another's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fl_sim.clients.batches import Example, Examples
from fl_sim.clients.errors import ModelError
from fl_sim.clients.frozen_states import ensure_features, feature_path, sentence_features
from fl_sim.clients.gradients.clipped_sums import clipped_gradient_sum
from fl_sim.clients.gradients.user_sums import user_sums
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.models.losses import held_out
from fl_sim.data_prep.store.encode import EncodedSplit
from tests.clients.models import models_to_try
from tests.clients.models.models_to_try import CLASSES, examples


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return models_to_try.bert(tune="head")


@pytest.fixture(scope="module")
def split() -> Examples:
    given = examples(5, 9, 30, 12, 7, 22, 3, task=CLASSES)
    offsets = np.cumsum([0, *(len(e) for e in given)]).astype(np.int64)
    encoded = EncodedSplit(np.concatenate([e.tokens for e in given]), offsets)
    return Examples(encoded, np.array([e.target for e in given], dtype=np.int32))


def test_a_round_from_features_is_a_round_from_sentences(model: LanguageModel, split: Examples, tmp_path: Path) -> None:
    features = ensure_features(model, split.encoded, feature_path(model, split.encoded, tmp_path))
    read = split.read(range(7))
    kept = Examples(split.encoded, split.targets, features).read(range(7))
    for clip_norm in (0.5, 1e3):
        expected = clipped_gradient_sum(model, read, clip_norm)
        found = clipped_gradient_sum(model, kept, clip_norm)
        np.testing.assert_allclose(found.vector, expected.vector, rtol=1e-4, atol=1e-5)
        assert (found.sentences, found.clipped, found.predictions) == (7, expected.clipped, 6)
    by_user = next(user_sums(model, [kept[:3], kept[3:]], 0.5))
    total = torch.zeros(model.num_parameters)
    by_user.add([2.0 - user for user in by_user.users], total)
    first, second = (clipped_gradient_sum(model, part, 0.5).vector for part in (read[:3], read[3:]))
    np.testing.assert_allclose(total, 2 * first + second, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(held_out(model, kept).losses, held_out(model, read).losses, rtol=1e-5)


def test_a_sentences_features_do_not_depend_on_the_others(model: LanguageModel) -> None:
    given = examples(5, 30, 12, task=CLASSES)
    together = sentence_features(model, given)
    alone = np.concatenate([sentence_features(model, [e]) for e in given])
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-5)


def test_they_are_computed_once(model: LanguageModel, split: Examples, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    path = feature_path(model, split.encoded, tmp_path / "new")
    first = ensure_features(model, split.encoded, path, lambda *progress: seen.append(progress))
    assert seen[-1] == (7, 7)
    seen.clear()
    again = ensure_features(model, split.encoded, path, lambda *progress: seen.append(progress))
    assert seen == []
    np.testing.assert_array_equal(first, again)
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # nothing half written


def test_the_name_says_all_that_went_in(model: LanguageModel, split: Examples, tmp_path: Path) -> None:
    path = feature_path(model, split.encoded, tmp_path)
    moved = models_to_try.bert(tune="head")
    next(iter(moved.module.parameters())).data[0, 0] += 1e-3
    others = [
        feature_path(models_to_try.bert(tune="head", pooling="cls"), split.encoded, tmp_path),
        feature_path(models_to_try.bert(tune="head", normalize=True), split.encoded, tmp_path),
        feature_path(moved, split.encoded, tmp_path),
    ]
    assert len({path, *others}) == 4
    head_moved = models_to_try.bert(tune="head")
    head_moved.set_vector(head_moved.get_vector() + 1)
    assert feature_path(head_moved, split.encoded, tmp_path) == path  # what trains does not go in


def test_what_is_no_file_of_features_is_refused(model: LanguageModel, split: Examples, tmp_path: Path) -> None:
    path = feature_path(model, split.encoded, tmp_path)
    path.write_bytes(b"nonsense")
    with pytest.raises(ModelError, match="not a file of features"):
        ensure_features(model, split.encoded, path)
    np.save(path, np.zeros(3))
    with pytest.raises(ModelError, match="float64 of 1 dimensions"):
        ensure_features(model, split.encoded, path)


def test_a_body_that_trains_has_no_features() -> None:
    with pytest.raises(ModelError, match="no frozen body"):
        sentence_features(models_to_try.bert(), [Example(np.array([1, 2]))])
