"""A node's sum of bounded user vectors, against one user and one sentence at a time by plain autograd."""

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fl_sim.clients.batches import Examples
from fl_sim.clients.gradients.clipped_sums import Tally, covered_layers
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.models.losses import sentence_losses
from fl_sim.clients.selection import Selection
from fl_sim.clients.training import BoundedSum, Cohort, bounded_sum
from fl_sim.strategies.client_rules import ClientRule, ClippedGradients, LocalSteps
from fl_sim.strategies.primitives import streams
from tests.clients.models import models_to_try
from tests.clients.models.models_to_try import descent, random_split, shortened

COUNTS = [3, 0, 7, 1, 5]  # eligible sentences of five users
EXAMPLES = Examples(random_split(sum(COUNTS)))
EVERYBODY = Selection(np.arange(len(COUNTS)), np.arange(sum(COUNTS)), np.array(COUNTS))


def gradient_rule(c: float, cap: float) -> ClippedGradients:
    return ClippedGradients(q_e=1.0, q_s=1.0, sentence_clip=c, user_clip=cap * c)


def normalised_rule(c: float, cap: float) -> ClippedGradients:
    return replace(gradient_rule(c, cap), stability=0.3)


def step_rule(beta: float) -> LocalSteps:
    return LocalSteps(q_e=1.0, q_s=1.0, user_clip=beta, epochs=2, batch_size=3, learning_rate=0.2)


def by_definition(model: LanguageModel, rule: ClientRule) -> np.ndarray:
    """Σ_u Π_β(Σ_s Π_c(−∇l(θ, s))), float64."""
    total = np.zeros(model.num_parameters)
    sentence = 0
    for count in COUNTS:
        of_user = np.zeros(model.num_parameters)
        for s in range(sentence, sentence + count):
            flat = descent(model, EXAMPLES.read([s]))
            if rule.stability is None:
                of_user += shortened(flat, rule.sentence_clip)
            else:
                of_user += flat * rule.sentence_clip / (np.linalg.norm(flat) + rule.stability)
        total += shortened(of_user, rule.user_clip)
        sentence += count
    return total


@pytest.mark.sample(4)
@pytest.mark.parametrize("rule_of", [gradient_rule, normalised_rule])
@pytest.mark.parametrize(("c", "cap"), [(1.0, 2.0), (0.01, 1.0), (0.5, 5.0), (100.0, 3.0), (2.0, 1000.0)])
def test_gradients_are_the_definition(model, c: float, cap: float, rule_of: Callable) -> None:
    rule = rule_of(c, cap)
    reply = bounded_sum(model, EXAMPLES, EVERYBODY, rule, 0)
    expected = by_definition(model, rule)
    assert np.linalg.norm(reply.vector - expected) <= 1e-4 * np.linalg.norm(expected)
    assert (reply.users, reply.sentences, reply.nonfinite) == (5, 16, 0)


@pytest.mark.parametrize("rule", [gradient_rule(1.0, 2.0), gradient_rule(1.0, 100.0), step_rule(0.3)])
@pytest.mark.parametrize("fast", [True, False])
def test_every_sentence_is_counted_once_as_it_is_done(
    model, rule: ClientRule, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not fast:
        monkeypatch.setattr("fl_sim.clients.gradients.clipped_sums.covered_layers", lambda model: None)
    done: list[int] = []
    bounded_sum(model, EXAMPLES, EVERYBODY, rule, 0, done.append)
    assert sum(done) == 16
    assert fast or max(done) < 16


def test_every_user_of_a_group_is_scaled_by_the_factor_of_its_own_sum(model) -> None:
    shares: list[float] = []
    group: Any = SimpleNamespace(
        lengths=[4.0, 1.0], tallies=[Tally(sentences=3), Tally(sentences=1)], users=(0, 1),
        add=lambda factors, total: shares.extend(factors),
    )  # fmt: skip
    BoundedSum(model, gradient_rule(1.0, 2.0), None).add_users([group])
    BoundedSum(model, gradient_rule(1.0, 2.0), None).add_users([group], np.array([3.0, -3.0]))
    assert shares == [0.5, 1.0, 0.5, -1.0]


def test_a_user_counts_beside_however_many_others(model) -> None:
    """2²⁴ + 1 is no float32: beside 2²⁴ each of these users would add nothing."""
    lengths = [2.0**24, *[1.0] * 1000]
    groups: list[Any] = [
        SimpleNamespace(
            lengths=[length], tallies=[Tally(sentences=1 << 17 if place == 0 else 1)], users=(place,),
            add=lambda shares, total, length=length: total[:1].add_(shares[0] * length),
        )
        for place, length in enumerate(lengths)
    ]  # fmt: skip
    total = BoundedSum(model, gradient_rule(2.0**24, 1.0), None)
    total.add_users(groups)
    assert total.reply(EVERYBODY).vector[0] == 2**24 + 1000


def test_a_sum_that_is_kept_in_float64_is_the_same(model, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = by_definition(model, gradient_rule(0.5, 2.0))
    monkeypatch.setattr("fl_sim.clients.training._FLOAT32", 2)
    reply = bounded_sum(model, EXAMPLES, EVERYBODY, gradient_rule(0.5, 2.0), 0)
    assert np.linalg.norm(reply.vector - expected) <= 1e-4 * np.linalg.norm(expected)


@pytest.mark.parametrize("cap", [1.0, 1.5, 1.99, 3.0])
def test_a_user_of_one_sentence_more_than_the_cap_is_clipped(model, cap: float) -> None:
    """Equal sentences have equal gradients, so that the sum of the clipped ones is as long as it can be."""
    count = math.floor(cap) + 1
    equal = Selection(np.array([0]), np.zeros(count, dtype=np.int64), np.array([count]))
    reply = bounded_sum(model, EXAMPLES, equal, gradient_rule(0.01, cap), 0)
    assert np.linalg.norm(reply.vector) == pytest.approx(0.01 * cap, rel=1e-4)


def test_local_training_is_bounded_and_leaves_the_model_as_it_was(model) -> None:
    theta = model.get_vector()
    free = bounded_sum(model, EXAMPLES, EVERYBODY, step_rule(math.inf), 7)
    np.testing.assert_array_equal(model.get_vector(), theta)
    bound = bounded_sum(model, EXAMPLES, EVERYBODY, step_rule(0.01), 7)
    assert np.linalg.norm(bound.vector) <= 4 * 0.01 * (1 + 1e-5)  # four users have sentences
    assert np.linalg.norm(free.vector) > 4 * 0.01
    assert bound.clipped == 16
    assert free.clipped == 0


@pytest.mark.parametrize(("optimizer", "of_torch"), [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam)])
def test_local_training_is_torchs_and_begins_anew_for_every_user(model, optimizer: str, of_torch: type) -> None:
    rule = replace(step_rule(math.inf), optimizer=optimizer, learning_rate=0.01)
    reply = bounded_sum(model, EXAMPLES, EVERYBODY, rule, 11)
    theta = model.get_vector()
    parameters = list(model.parameters.tensors.values())
    expected = np.zeros_like(theta)
    for user, (first, count) in enumerate(zip(np.cumsum([0, *COUNTS]), COUNTS, strict=False)):
        steps, rng = of_torch(parameters, lr=rule.learning_rate), streams.generator(11, "local", user)
        for _ in range(rule.epochs if count else 0):
            order = first + rng.permutation(count)
            for start in range(0, count, 3):
                steps.zero_grad()
                sentence_losses(model, EXAMPLES.read(order[start : start + 3])).mean().backward()
                steps.step()
        steps.zero_grad()
        expected += model.get_vector() - theta
        model.set_vector(theta)
    np.testing.assert_allclose(reply.vector, expected, rtol=1e-3, atol=1e-6)
    np.testing.assert_array_equal(model.get_vector(), theta)


def test_a_local_step_of_all_that_a_user_has_takes_no_more_memory_than_one_of_64(
    model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a user with enough sentences ends the node's process, and takes the updates of its other users along."""
    sizes = []

    def losses(model: LanguageModel, examples: list[Any], masks: int | None) -> torch.Tensor:
        sizes.append(len(examples))
        return sentence_losses(model, examples, masks)

    monkeypatch.setattr("fl_sim.clients.local_steps.sentence_losses", losses)
    many = Examples(random_split(150))
    rule = LocalSteps(q_e=1.0, q_s=1.0, user_clip=math.inf, optimizer="adam", batch_size=10**6, learning_rate=0.01)
    reply = bounded_sum(model, many, Selection(np.array([0]), np.arange(150), np.array([150])), rule, 0)
    assert sizes == [64, 64, 22]
    first_step = 0.01 * np.sign(descent(model, many.read(range(150))))
    moved = np.abs(first_step) > 0
    assert np.mean(np.abs(reply.vector - first_step)[moved] < 1e-3) > 0.99


@pytest.mark.parametrize("beta", [0.01, 0.3, math.inf])
def test_a_single_step_of_each_user_is_plain_sgd(model, beta: float) -> None:
    """Users of whom each takes one step share passes; each step is clipped on its own."""
    rule = LocalSteps(q_e=1.0, q_s=1.0, user_clip=beta, epochs=1, batch_size=7, learning_rate=0.2)
    reply = bounded_sum(model, EXAMPLES, EVERYBODY, rule, 5)
    expected = np.zeros(model.num_parameters)
    clipped, losses = 0, 0.0
    for first, count in zip(np.cumsum([0, *COUNTS]), COUNTS, strict=False):
        if count:
            given = EXAMPLES.read(range(first, first + count))
            step = 0.2 * descent(model, given)
            expected += shortened(step, beta)
            clipped += count if np.linalg.norm(step) > beta else 0
            losses += float(sentence_losses(model, given).sum().detach())
    assert np.linalg.norm(reply.vector - expected) <= 1e-4 * np.linalg.norm(expected)
    assert (reply.clipped, reply.nonfinite, reply.sentences) == (clipped, 0, 16)
    assert reply.loss_sum == pytest.approx(losses, rel=1e-5)


def test_losses_beyond_float32_do_not_take_the_sums_of_other_users_along(
    model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each loss is finite, and the sum of two is not: a server refuses a reply with such a sum."""
    monkeypatch.setattr(
        "fl_sim.clients.local_steps.sentence_losses",
        lambda model, examples, masks: sentence_losses(model, examples) * 0 + 2e38,
    )
    assert math.isfinite(bounded_sum(model, EXAMPLES, EVERYBODY, step_rule(0.3), 0).loss_sum)


def test_diverging_local_training_counts_as_zero(model) -> None:
    rule = LocalSteps(q_e=1.0, q_s=1.0, user_clip=1.0, epochs=6, batch_size=1, learning_rate=1e30)
    one = Selection(np.array([0]), np.arange(6), np.array([6]))
    reply = bounded_sum(model, EXAMPLES, one, rule, 0)
    assert reply.nonfinite == 1
    np.testing.assert_array_equal(reply.vector, 0)


def test_a_single_step_that_is_not_finite_counts_as_zero() -> None:
    """One sentence of the first user has no finite gradient; the second user's step is as it is alone."""
    model = models_to_try.untied_gpt2()
    covered_layers(model)  # checked while the parameters are sound
    inputs = [set(example.tokens[:-1].tolist()) for example in EXAMPLES.read(range(6))]
    words = {token for sentence in (0, 2, 3, 4, 5) for token in EXAMPLES.read([sentence])[0].tokens.tolist()}
    with torch.no_grad():
        model.module.get_input_embeddings().weight[min(inputs[1] - words)] = math.nan
    rule = LocalSteps(q_e=1.0, q_s=1.0, user_clip=1.0, epochs=1, batch_size=3, learning_rate=0.2)
    both = Selection(np.array([0, 1]), np.arange(6), np.array([3, 3]))
    alone = Selection(np.array([1]), np.arange(3, 6), np.array([3]))
    reply, expected = (bounded_sum(model, EXAMPLES, users, rule, 0) for users in (both, alone))
    assert (reply.nonfinite, expected.nonfinite) == (1, 0)
    assert np.linalg.norm(expected.vector) > 0
    np.testing.assert_allclose(reply.vector, expected.vector, rtol=1e-5, atol=1e-8)


def test_dropout_masks_are_drawn_afresh_in_every_round(model) -> None:
    seeds = {Cohort(model, EXAMPLES, EVERYBODY, round_seed).mask_seed for round_seed in range(5)}
    assert len(seeds) == 5


def test_nobody_to_train_on(model) -> None:
    nobody = Selection(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64))
    for rule in (gradient_rule(1.0, 1.0), step_rule(1.0)):
        reply = bounded_sum(model, EXAMPLES, nobody, rule, 0)
        np.testing.assert_array_equal(reply.vector, 0)
        assert reply.users == reply.sentences == 0
