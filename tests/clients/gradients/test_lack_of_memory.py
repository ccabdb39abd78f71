"""Test that a lack of memory splits a batch and drops no sentence: allocators with little memory are planted."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fl_sim.clients import ghost_norms
from fl_sim.clients.batches import Batch
from fl_sim.clients.device import is_out_of_memory
from fl_sim.clients.errors import ModelError
from fl_sim.clients.frozen_states import SentenceStates, state_path
from fl_sim.clients.ghost_norms import Contribution, TiedTable
from fl_sim.clients.gradients.clipped_sums import clipped_gradient_sum, fit_batches, is_tried
from fl_sim.clients.gradients.ghost_pass import gradient_path
from fl_sim.clients.gradients.user_sums import user_sums
from fl_sim.clients.models.language_model import LanguageModel, load_model
from fl_sim.clients.models.losses import held_out
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.clients.training import bounded_sum
from fl_sim.strategies.client_rules import ClientRule, ClippedGradients, LocalSteps, WeightedGradients
from fl_sim.strategies.messages import TrainReply
from tests.clients import test_frozen_states
from tests.clients.gradients.every_result import gradients_of
from tests.clients.models.models_to_try import examples
from tests.clients.paths_on_a_device import selection, split, weighted

SMALL = ModelSpec(hidden=16, layers=1, heads=2, max_tokens=24)
RATES = {"q_e": 1.0, "q_s": 1.0}
ERRORS = {
    "cuda": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has 1.00 GiB free."),
    "cpu": RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 3221225472 bytes."),
}


@pytest.fixture(scope="module")
def checked() -> LanguageModel:
    model = load_model(SMALL, 0)
    gradient_path(model)
    return model


@pytest.fixture
def model(checked: LanguageModel) -> Iterator[LanguageModel]:
    """A model with the memory of a process that has just begun."""
    yield checked
    checked.largest_batch = None


@contextmanager
def memory_for(tokens: int, error: Exception = ERRORS["cuda"]) -> Iterator[list[int]]:
    """Let a pass of more than so many padded tokens fail within the block; yield the sizes that were tried."""
    tried: list[int] = []
    run = LanguageModel.logits

    def limited(self: LanguageModel, batch: Batch) -> torch.Tensor:
        tried.append(batch.inputs.numel() or len(batch.targets))
        if tried[-1] > tokens:
            raise error
        return run(self, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LanguageModel, "logits", limited)
        yield tried


RULES: dict[str, ClientRule] = {
    "sentences clipped": ClippedGradients(**RATES, sentence_clip=0.1, user_clip=100.0),
    "sentences normalised": ClippedGradients(**RATES, sentence_clip=0.1, user_clip=100.0, stability=0.05),
    "users of clipped sentences": ClippedGradients(**RATES, sentence_clip=0.1, user_clip=0.15),
    "users": ClippedGradients(**RATES, user_clip=0.3),
    "nothing clipped": ClippedGradients(**RATES, user_clip=math.inf),
    "one local step": LocalSteps(**RATES, user_clip=0.3),
    "local steps": LocalSteps(**RATES, user_clip=0.3, epochs=2, batch_size=3),
    "weights": WeightedGradients(**RATES, user_clip=0.3),
}


def round_of(model: LanguageModel, rule: ClientRule, done: Callable[[int], None] = lambda n: None) -> TrainReply:
    chosen = weighted() if isinstance(rule, WeightedGradients) else selection()
    return bounded_sum(model, split(), chosen, rule, 3, done)


def assert_same(found: TrainReply, expected: TrainReply) -> None:
    assert np.linalg.norm(found.vector - expected.vector) <= 3e-6 * np.linalg.norm(expected.vector)
    assert replace(found, vector=expected.vector, loss_sum=0.0) == replace(expected, loss_sum=0.0)
    assert found.loss_sum == pytest.approx(expected.loss_sum, rel=1e-5)


@pytest.mark.sample(5)
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("rule", RULES)
def test_a_batch_that_does_not_fit_is_computed_in_halves(model: LanguageModel, rule: str, error: str) -> None:
    expected = round_of(model, RULES[rule])
    done: list[int] = []
    with memory_for(20, ERRORS[error]) as tried:
        found = round_of(model, RULES[rule], done.append)
        assert max(tried) > 20
        assert sum(done) == 11
    assert_same(found, expected)


def test_users_who_do_not_fit_together_are_computed_in_halves(model: LanguageModel) -> None:
    users = [examples(9, 8), examples(7, 9), examples(8, 8), examples(5, 9), examples(9, 9)]

    def norms() -> dict[int, float]:
        sums = user_sums(model, users, 0.1)
        return {user: norm for group in sums for user, norm in zip(group.users, group.lengths, strict=True)}

    expected = norms()
    with memory_for(40) as tried:
        found = norms()
    assert max(tried) == 80  # all five in one pass
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("rule", RULES)
def test_a_sentence_that_does_not_fit_alone_is_an_error_of_one_line(model: LanguageModel, rule: str) -> None:
    with (
        memory_for(10),
        pytest.raises(ModelError, match=r"^a sentence of \d\d tokens does not fit into the memory .*; allowed: .*$"),
    ):
        round_of(model, RULES[rule])


def test_another_error_is_no_lack_of_memory(model: LanguageModel) -> None:
    with memory_for(20, RuntimeError("device-side assert triggered")), pytest.raises(RuntimeError, match="assert"):
        clipped_gradient_sum(model, examples(22), math.inf)
    assert not is_out_of_memory(ValueError("out of memory"))


@pytest.mark.sample(6)
@pytest.mark.parametrize("rule", ["sentences clipped", "users", "users of clipped sentences", "nothing clipped"])
@pytest.mark.parametrize("after", range(0, 16, 3))
def test_memory_that_ends_amid_an_addition_adds_nothing_twice(
    model: LanguageModel, rule: str, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass has the sums of some parameters added when memory ends; they stay, and the others follow in halves."""
    expected = round_of(model, RULES[rule])
    left = [after]
    for kind in Contribution.__subclasses__():
        monkeypatch.setattr(kind, "add", functools.partialmethod(_with_memory_for, left, kind.add))
    found = round_of(model, RULES[rule])
    assert_same(found, expected)
    assert left[0] < 0 or rule == "nothing clipped"


def _with_memory_for(self: Contribution, left: list[int], add: Callable[..., None], *args: torch.Tensor) -> None:
    left[0] -= 1
    if left[0] == -1:
        raise ERRORS["cuda"]
    add(self, *args)


def test_memory_that_ends_within_a_tied_table_changes_nothing_of_it(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tied,) = (c for c in gradients_of(model, examples(5, 9)) if isinstance(c, TiedTable))
    total = torch.zeros(model.vocabulary_size, 16)
    monkeypatch.setattr(ghost_norms, "scaled", lambda *_, **__: (_ for _ in ()).throw(ERRORS["cuda"]))
    with pytest.raises(torch.OutOfMemoryError):
        tied.add(torch.ones(2), total)
    assert not total.any()


def test_the_self_check_does_not_choose_the_slow_path_for_lack_of_memory() -> None:
    model = load_model(SMALL, 0)
    with memory_for(2), pytest.raises(ModelError, match="does not fit into the memory"):
        gradient_path(model)
    assert gradient_path(model).name == "fast"


def test_evaluation_is_done_in_halves(model: LanguageModel) -> None:
    sentences = examples(5, 9, 17, 22)
    expected = held_out(model, sentences)
    with memory_for(24) as tried:
        found = held_out(model, sentences)
        assert max(tried) > 24
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-6)
    assert np.array_equal(found.wrong, expected.wrong)


def test_states_of_lower_layers_are_computed_in_halves(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapted, encoded = test_frozen_states.llama(), split().encoded
    ids = np.arange(11)
    expected = SentenceStates(adapted, encoded, state_path(adapted, encoded, tmp_path / "all"))(ids)
    kept = SentenceStates(adapted, encoded, state_path(adapted, encoded, tmp_path / "halves"))
    kept._together = True
    run = type(adapted.lower).states

    def limited(self: object, inputs: torch.Tensor) -> torch.Tensor:
        if len(inputs) > 1:
            raise ERRORS["cuda"]
        return run(self, inputs)

    monkeypatch.setattr(type(adapted.lower), "states", limited)
    for found, rows in zip(kept(ids), expected, strict=True):
        np.testing.assert_allclose(found, rows, rtol=2e-3, atol=2e-3)


def test_micro_batches_are_found_by_trial() -> None:
    model = load_model(SMALL.model_copy(update={"batch_tokens": "auto"}), 0)
    assert is_tried(model)
    gradient_path(model)
    with memory_for(300) as tried:
        fit_batches(model)
    assert model.batch_tokens == 256
    assert tried == [40 * 24, 20 * 24, 10 * 24]
    with memory_for(3), pytest.raises(ModelError, match="does not fit"):
        fit_batches(model)


def test_micro_batches_are_a_setting() -> None:
    model = load_model(SMALL.model_copy(update={"batch_tokens": 40}), 0)
    assert not is_tried(model)
    with memory_for(1024) as tried:
        round_of(model, RULES["sentences clipped"])
    assert 19 < max(tried) <= 40
    assert is_tried(SimpleNamespace(spec=SMALL, device=torch.device("cuda")))  # type: ignore[arg-type]
