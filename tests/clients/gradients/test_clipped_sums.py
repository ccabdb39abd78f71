"""Test clipped per-sentence sums: the fast path against the definition, the bound c, and invariances."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn import functional

from fl_sim.clients.batches import Example
from fl_sim.clients.gradients import clipped_sums
from fl_sim.clients.gradients.clipped_sums import GradientSum, clipped_gradient_sum
from fl_sim.clients.gradients.ghost_pass import covered_layers
from fl_sim.clients.gradients.user_sums import user_sums
from fl_sim.clients.models.architectures.awd_lstm import AwdLstm, AwdLstmForNextWord, Masks
from fl_sim.clients.models.language_model import LanguageModel, ModelError
from tests.clients.models import models_to_try
from tests.clients.models.models_to_try import CLASSES, CONTEXT, COVERED, NOT_COVERED, examples

MASKS = 3  # the seed of the dropout masks, where a model has dropout
LENGTHS = (1, 2, 3, 2, 20, 33, 7, 21, 41, 15)
CLIP = 0.1


def true_gradients(model: LanguageModel, sentences: Sequence[Example]) -> list[NDArray[np.float64]]:
    """-∇ l(θ, s) of each sentence from the definition: alone, unpadded, in float64, by plain autograd."""
    module: Any = copy.deepcopy(model.module).double()
    parameters = dict(module.named_parameters())
    trainable = [parameters[name] for name, _ in model.parameters.shapes()]
    gradients = []
    for example in sentences:
        if model.task.size(example) == 0:
            gradients.append(np.zeros(model.num_parameters))
            continue
        loss = true_loss(model, module, example)
        per_parameter = torch.autograd.grad(loss, trainable, allow_unused=True)
        filled = [torch.zeros_like(w) if g is None else g for g, w in zip(per_parameter, trainable, strict=True)]
        gradients.append(-np.concatenate([g.flatten().numpy() for g in filled]))
    return gradients


def true_loss(model: LanguageModel, module: Any, example: Example) -> torch.Tensor:
    ids = torch.from_numpy(example.tokens.astype(np.int64))
    if model.task is not CLASSES:
        return functional.cross_entropy(true_states(model, module, example, ids[:-1], "logits"), ids[1:])
    states = true_states(model, module.body, example, ids, "last_hidden_state")
    if module.pooling == "pooler":
        pooled = torch.tanh(module.body.pooler.dense(states[0]))
    else:
        pooled = {"mean": states.mean(dim=0), "cls": states[0], "last": states[-1]}[module.pooling]
    if module.normalize:
        pooled = pooled / pooled.norm()
    return functional.cross_entropy(module.head(pooled), torch.tensor(example.target))


def true_states(model: LanguageModel, module: Any, example: Example, ids: torch.Tensor, attribute: str) -> torch.Tensor:
    """What the module says of one sentence (T, …)."""
    if isinstance(module, AwdLstm | AwdLstmForNextWord):
        alone = model.batch([example], MASKS)
        return module(alone if alone.masks is None else replace(alone, masks=in_double(alone.masks)))[0]
    return getattr(module(input_ids=ids[None]), attribute)[0]


def in_double(masks: Masks) -> Masks:
    weights = [None if w is None else w.double() for w in masks.weights]
    return Masks(masks.words.double(), [s.double() for s in masks.states], weights)


def clipped_total(true: list[NDArray[np.float64]], clip_norm: float) -> NDArray[np.float64]:
    norms = [max(float(np.linalg.norm(g)), 1e-300) for g in true]
    return sum((g * min(1.0, clip_norm / n) for g, n in zip(true, norms, strict=True)), np.zeros_like(true[0]))


def distance(computed: NDArray[np.float32], expected: NDArray[np.float64]) -> float:
    return float(np.linalg.norm(computed - expected) / np.linalg.norm(expected))


@pytest.mark.sample(4)
@pytest.mark.parametrize("build", [*COVERED.values(), *NOT_COVERED.values()], ids=[*COVERED, *NOT_COVERED])
def test_the_sum_is_the_definition(build: Callable[[], LanguageModel]) -> None:
    model = build()
    assert covered_layers(model) is not None or build not in COVERED.values()
    sentences = examples(*LENGTHS, task=model.task)
    true = true_gradients(model, sentences)
    norms = np.array([np.linalg.norm(g) for g in true])
    for clip_norm in (norms[norms > 0].min() / 3, float(np.median(norms)), norms.max() * 3, math.inf):
        computed = clipped_gradient_sum(model, sentences, clip_norm, mask_seed=MASKS)
        assert distance(computed.vector, clipped_total(true, clip_norm)) < 2e-5
        assert computed.clipped == int((norms > clip_norm).sum())
        assert computed.sentences == len(sentences)
        assert computed.nonfinite == 0
        check_users(model, sentences, true, clip_norm)


def check_users(
    model: LanguageModel, sentences: list[Example], true: list[NDArray[np.float64]], clip_norm: float
) -> None:
    """The sum of every user and its norm, those who share a pass and those who do not."""
    ends = [0, 4, 5, 5, 8, len(sentences)]
    total = torch.zeros(model.num_parameters)
    seen = []
    for group in user_sums(model, [sentences[i:j] for i, j in pairwise(ends)], clip_norm, MASKS):
        shares = [0.5 + user for user in group.users]
        before = total.clone()
        group.add(shares, total)
        expected = np.zeros(model.num_parameters)
        for user, share, length, tally in zip(group.users, shares, group.lengths, group.tallies, strict=True):
            own = true[ends[user] : ends[user + 1]]
            of_user = clipped_total(own, clip_norm) if own else np.zeros(model.num_parameters)
            assert length == pytest.approx(np.linalg.norm(of_user), rel=1e-4)
            assert (tally.sentences, tally.nonfinite) == (len(own), 0)
            assert tally.clipped == sum(np.linalg.norm(g) > clip_norm for g in own)
            expected += share * of_user
        seen += group.users
        assert np.linalg.norm((total - before).numpy() - expected) <= 2e-5 * np.linalg.norm(expected)
    assert sorted(seen) == [0, 1, 2, 3, 4]


def test_no_sentence_moves_the_sum_by_more_than_c(small: LanguageModel) -> None:
    for sentence in examples(*LENGTHS, 30, 30, 12):
        moved = clipped_gradient_sum(small, [sentence], CLIP).vector.astype(np.float64)
        assert np.linalg.norm(moved) <= CLIP * (1 + 1e-5)
        if len(sentence) > 1:  # and it is shortened to c, not to less
            assert np.linalg.norm(moved) >= CLIP * (1 - 1e-4)


@pytest.mark.parametrize("fast", [True, False])
def test_automatic_clipping_gives_every_sentence_a_norm_just_below_c(
    fast: bool, small: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the division most gradients, which are longer than c, would break the bound."""
    given = examples(2, 3, 20, 33, 7)
    lengths = [np.linalg.norm(g) for g in true_gradients(small, given)]
    if not fast:
        monkeypatch.setattr(clipped_sums, "covered_layers", lambda model: None)
    assert max(lengths) > 10 * CLIP
    for sentence, length in zip(given, lengths, strict=True):
        for stability in (1e-6, 0.01, 10.0):
            moved = clipped_gradient_sum(small, [sentence], CLIP, stability=stability).vector.astype(np.float64)
            assert np.linalg.norm(moved) <= CLIP * (1 + 1e-6)
            assert np.linalg.norm(moved) == pytest.approx(CLIP * length / (length + stability), rel=1e-4)


@pytest.mark.parametrize(
    ("coordinate", "expected"),
    [(0.0, 0.0), (1e-30, 0.0), (1e-3, CLIP / 11), (1e30, CLIP)],
    ids=["zero", "underflow", "short", "long"],
)
def test_no_length_breaks_the_bound_of_automatic_clipping(
    coordinate: float, expected: float, small: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    gradients = {"weight": torch.tensor([0.0, coordinate])}
    monkeypatch.setattr(clipped_sums, "loss_gradients", lambda model, batch: (1.0, gradients))
    views, total = {"weight": torch.zeros(2)}, GradientSum(small, stability=0.01)
    total.add_one(*examples(5), CLIP, views)
    assert -float(views["weight"][1]) == pytest.approx(expected, rel=1e-5, abs=1e-12)
    assert total.tally.nonfinite == 0


@pytest.mark.parametrize("stability", [None, 0.01])
def test_no_length_is_scaled_by_a_factor_that_rounding_doubles(stability: float | None) -> None:
    norms = torch.tensor([1e24, 4.6e32, 1.4e33], dtype=torch.float64)
    factors = clipped_sums.clip_factors(norms, 1e-12, stability)
    assert bool((factors.double() * norms <= 1e-12 * (1 + 1e-6)).all())


@pytest.mark.parametrize("tokens", [1, 25, 64])
def test_a_contribution_does_not_depend_on_the_batch(
    small: LanguageModel, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentences = examples(*LENGTHS)
    sum_of_singles = sum(clipped_gradient_sum(small, [s], 3.0).vector.astype(np.float64) for s in sentences)
    monkeypatch.setattr(small, "largest_batch", tokens)
    for order in (sentences, sentences[::-1]):
        together = clipped_gradient_sum(small, order, 3.0)
        assert distance(together.vector, sum_of_singles) < 1e-5


@pytest.mark.sample(2)
@pytest.mark.parametrize("clip_norm", [0.5, math.inf])
@pytest.mark.parametrize("wrong", [math.inf, math.nan, 3e38])
def test_a_sentence_that_is_not_finite_counts_as_zero(clip_norm: float, wrong: float) -> None:
    model = models_to_try.untied_gpt2()
    covered_layers(model)  # checked while the parameters are sound
    bad, *good = examples(12, 20, 9, 30)
    token = int(bad.tokens[3])
    good = [replace(s, tokens=s.tokens[s.tokens != token]) for s in good]
    embedding: Any = model.module.get_input_embeddings()
    with torch.no_grad():
        embedding.weight[token] = wrong
    computed = clipped_gradient_sum(model, [bad, *good], clip_norm)
    assert computed.nonfinite == 1
    assert computed.sentences == 4
    expected = clipped_gradient_sum(model, good, clip_norm)
    assert expected.nonfinite == 0
    assert distance(computed.vector, expected.vector.astype(np.float64)) < 1e-6
    assert computed.loss_sum == pytest.approx(expected.loss_sum, rel=1e-6)


@pytest.mark.parametrize(("loss", "coordinate"), [(1.0, math.inf), (1.0, math.nan), (math.nan, 1.0), (math.inf, 1.0)])
def test_a_loss_or_a_gradient_alone_that_is_not_finite_counts_as_zero(
    loss: float, coordinate: float, small: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    gradients = {"weight": torch.tensor([0.5, coordinate])}
    monkeypatch.setattr(clipped_sums, "loss_gradients", lambda model, batch: (loss, gradients))
    views, total = {"weight": torch.zeros(2)}, GradientSum(small)
    total.add_one(*examples(5), 1.0, views)
    assert (total.tally.nonfinite, total.tally.loss_sum) == (1, 0.0)
    assert not total.add_unclipped(small.batch(examples(5)), views)  # its sentences are tried one by one
    assert not views["weight"].any()


def test_the_norm_by_which_a_sentence_is_clipped_includes_its_rounding() -> None:
    squared, slack = torch.tensor([9.0, 4.0]), torch.tensor([3e-3, 0.0])
    assert clipped_sums.sure_norms(squared, slack, 1.0) == pytest.approx([math.sqrt(9.003), 2.0])
    factors = clipped_sums.clip_factors(clipped_sums.sure_norms(squared, slack, 2.5), 2.5)
    assert factors == pytest.approx([2.5 / math.sqrt(9.003), 1.0])


@pytest.mark.parametrize(
    ("leak", "reason"),
    [
        (lambda x, mlp: torch.matmul(x, mlp.c_fc.weight)[..., : x.shape[-1]], "c_fc.weight"),
        (lambda x, _: 0.5 * x.mean(dim=0, keepdim=True).detach(), "depends on the other sentences"),
        (lambda x, _: 0.5 * x.shape[1] * x.roll(1, dims=-1), "depends on its padding"),
    ],
    ids=["second use of a weight", "batch", "padding"],
)
def test_what_no_description_of_layers_shows_is_noticed(
    leak: Callable[[torch.Tensor, Any], torch.Tensor], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a batch, ghost norms and autograd agree; a clip would still not bound what one sentence contributes."""
    model = models_to_try.small_gpt2()
    mlp: Any = model.module.transformer.h[0].mlp  # type: ignore[union-attr]
    plain = mlp.forward
    mlp.forward = lambda x: plain(x) + leak(x, mlp)
    with caplog.at_level(logging.WARNING):
        assert covered_layers(model) is None
    assert reason in caplog.text


def test_a_layer_called_twice_goes_the_slow_way() -> None:
    model = models_to_try.small_gpt2()
    blocks: Any = model.module.transformer.h  # type: ignore[union-attr]
    blocks[1].mlp = blocks[0].mlp
    model = LanguageModel(model.module, model.tokenizer, model.spec, seed=0)
    assert covered_layers(model) is None
    sentences = examples(9, 14)
    computed = clipped_gradient_sum(model, sentences, 1.0)
    assert distance(computed.vector, clipped_total(true_gradients(model, sentences), 1.0)) < 2e-5


def test_a_pass_leaves_the_model_as_it_was(small: LanguageModel) -> None:
    before, state = small.get_vector(), torch.random.get_rng_state()
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        clipped_gradient_sum(small, examples(*LENGTHS), 1.0)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(precision)
    np.testing.assert_array_equal(small.get_vector(), before)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(p.requires_grad and p.grad is None for p in small.parameters.tensors.values())
    assert not any(m._forward_hooks for m in small.module.modules())


@pytest.mark.parametrize("clip_norm", [0.0, -1.0, math.nan])
def test_a_clip_norm_that_bounds_nothing_is_refused(small: LanguageModel, clip_norm: float) -> None:
    with pytest.raises(ModelError, match="clip_norm"):
        clipped_gradient_sum(small, examples(5), clip_norm)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (np.array([], dtype=np.int32), "0 tokens"),
        (np.zeros(CONTEXT + 2, dtype=np.int32), "42 tokens; allowed: 1 to 41"),
        (np.array([1, 4096], dtype=np.int32), "token id 4096"),
        (np.array([-1, 3], dtype=np.int32), "token id -1"),
        (np.array([1.0, 2.0]), "float64"),
        (np.zeros((2, 2), dtype=np.int32), "2-d"),
    ],
)
def test_a_sentence_that_the_model_cannot_read_is_refused(
    small: LanguageModel, tokens: NDArray[Any], message: str
) -> None:
    total = GradientSum(small)
    with pytest.raises(ModelError, match=message):
        total.add([*examples(5), Example(tokens)], 1.0)
    assert total.tally.sentences == 0
