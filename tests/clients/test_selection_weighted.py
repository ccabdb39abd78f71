"""The published algorithm on a node: who takes part, with which weight, and what one user or entity can move."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fl_sim.clients.batches import Examples
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.selection import WeightedSelection, select_for, sentences_per_entity, thin
from fl_sim.clients.training import bounded_sum
from fl_sim.strategies.client_rules import WeightedGradients, weights_of
from fl_sim.strategies.primitives import sampling, streams
from tests.clients.models.models_to_try import as_split, descent, random_split, shortened
from tests.clients.test_selection import EVERYBODY, ownership

RULE = WeightedGradients(q_e=0.5, q_s=0.7, user_clip=0.1)
EVERYTHING = replace(RULE, q_e=1.0, q_s=1.0)

# Users own 2, 1, 3 and 2 sentences; entity 0 is known to all but user 1, sentence 4 mentions three entities.
ENTITIES_OF = [[0], [], [1], [0, 1, 2], [], [2], [0], []]
USERS = [2, 1, 3, 2]
CORPUS = ownership(ENTITIES_OF, USERS, num_entities=3)
EXAMPLES = Examples(random_split(len(ENTITIES_OF), 3, 12))


def by_definition(rule: WeightedGradients, seed: int) -> dict[int, float]:
    """Every sentence that takes part, with m_s = Σ w_e over its sampled entities, or w_s."""
    up = sampling.sampled_entities(seed, np.arange(3), rule.q_e)
    cap = rule.entity_weight_cap or 1e-9
    w_e = [min(sum(e in mentioned for mentioned in ENTITIES_OF) / cap, 1) for e in range(3)]
    w_s = min(sum(not mentioned for mentioned in ENTITIES_OF) / (rule.extended_weight_cap or 1e-9), 1)
    chosen = {}
    for sentence, mentioned in enumerate(ENTITIES_OF):
        sampled = sum(w_e[e] for e in mentioned if up[e])
        if not mentioned and rule.extended and sampling.sampled_sentences(seed, np.array([sentence]), rule.q_s)[0]:
            sampled = w_s
        if sampled:
            chosen[sentence] = sampled
    return chosen


@pytest.mark.parametrize(
    "changes",
    [{}, {"extended": False}, {"entity_weight_cap": 2.0}, {"extended_weight_cap": 6.0}, {"user_weight_cap": 2.0}],
)
def test_the_selection_is_the_definition(changes: dict) -> None:
    rule = replace(RULE, **changes)
    seen = set()
    for number in range(30):
        seed = sampling.round_seed(0, number)
        chosen = select_for(rule, CORPUS, EVERYBODY, seed)
        assert isinstance(chosen, WeightedSelection)
        expected = by_definition(rule, seed)
        assert dict(zip(chosen.sentences.tolist(), chosen.weights.tolist(), strict=True)) == pytest.approx(expected)
        owners = np.repeat(chosen.users, chosen.counts)
        np.testing.assert_array_equal(owners, CORPUS.user_of_sentence[chosen.sentences])
        w_u = np.minimum(np.array(USERS) / 2, 1) if "user_weight_cap" in changes else 1.0
        np.testing.assert_allclose(chosen.user_weights, w_u)
        seen |= set(expected)
    assert seen == ({0, 2, 3, 5, 6} if changes.get("extended") is False else set(range(8)))


def test_a_sentence_that_is_thinned_out_leaves_every_other_its_weight() -> None:
    chosen = select_for(RULE, CORPUS, EVERYBODY, 3)
    assert isinstance(chosen, WeightedSelection)
    thinned = thin(chosen, np.where(np.arange(len(ENTITIES_OF)) == chosen.sentences[0], 1e-9, 1.0), 3)
    assert thinned.sentences.tolist() == chosen.sentences[1:].tolist()
    assert thinned.weights.tolist() == chosen.weights[1:].tolist()
    assert len(set(thinned.weights)) > 1


@pytest.mark.parametrize("beta", [0.1, 1e6])
@pytest.mark.parametrize("caps", [{}, {"user_weight_cap": 3.0, "entity_weight_cap": 4.0}])
def test_the_sum_is_the_definition(model: LanguageModel, beta: float, caps: dict) -> None:
    """Σ_u w_u·Π_β(Σ_e w_e Σ_{s∋e} −∇l + Σ_s w_s·(−∇l)), entity by entity as the paper writes it."""
    rule = replace(EVERYTHING, user_clip=beta, **caps)
    reply = bounded_sum(model, EXAMPLES, select_for(rule, CORPUS, EVERYBODY, 3), rule, 3)
    gradients = [descent(model, EXAMPLES.read([s])) for s in range(len(ENTITIES_OF))]
    w_u = weights_of(CORPUS.sentences_per_user, rule.user_weight_cap)
    w_e = weights_of(sentences_per_entity(CORPUS), rule.entity_weight_cap)
    expected = np.zeros(model.num_parameters)
    for user in range(4):
        own = range(CORPUS.user_offsets[user], CORPUS.user_offsets[user + 1])
        update = np.zeros(model.num_parameters)
        for entity in range(3):
            update += w_e[entity] * sum(gradients[s] for s in own if entity in ENTITIES_OF[s])
        update += sum(gradients[s] for s in own if not ENTITIES_OF[s])
        expected += w_u[user] * shortened(update, beta)
    assert np.linalg.norm(reply.vector - expected) <= 1e-4 * np.linalg.norm(expected)
    assert (reply.users, reply.sentences, reply.nonfinite) == (4, 8, 0)
    assert reply.clipped == (8 if beta == 0.1 else 0)


@pytest.mark.parametrize("beta", [0.02, 1e6])
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_local_batches_are_a_pass_of_weighted_sgd(model: LanguageModel, batch: int, beta: float) -> None:
    """Lines 21 to 29 of the paper's Algorithm 1, with θ ← θ − η·Δ: every batch goes on from the one before."""
    rule = replace(EVERYTHING, user_clip=beta, user_weight_cap=3.0, batch_size=batch, learning_rate=0.3)
    reply = bounded_sum(model, EXAMPLES, select_for(rule, CORPUS, EVERYBODY, 3), rule, 3)
    theta, expected = model.get_vector(), np.zeros(model.num_parameters)
    for user, w_u in enumerate(weights_of(CORPUS.sentences_per_user, 3.0)):
        own = np.arange(CORPUS.user_offsets[user], CORPUS.user_offsets[user + 1])
        order = streams.generator(3, "local", user).permutation(own) if len(own) > batch else own
        for start in range(0, len(order), batch):
            chosen = order[start : start + batch]
            gradients = sum(max(len(ENTITIES_OF[s]), 1) * descent(model, EXAMPLES.read([s])) for s in chosen)
            model.set_vector((model.get_vector() + 0.3 * gradients).astype(np.float32))
        expected += w_u * shortened(model.get_vector().astype(np.float64) - theta, beta)
        model.set_vector(theta)
    assert np.linalg.norm(reply.vector - expected) <= 1e-4 * np.linalg.norm(expected)
    assert reply.clipped == (8 if beta == 0.02 else 0)
    np.testing.assert_array_equal(model.get_vector(), theta)


def contributions(model: LanguageModel, rule: WeightedGradients, kept: list[int]) -> list[np.ndarray]:
    """What each user sends where only the sentences ``kept`` are in the corpus."""
    owners = CORPUS.user_of_sentence
    corpus = ownership([ENTITIES_OF[s] for s in kept], np.bincount(owners[kept], minlength=4).tolist(), 3)
    those = Examples(as_split(EXAMPLES.read(kept)))
    return [
        bounded_sum(model, those, select_for(rule, corpus, np.array([[user, user + 1]]), 3), rule, 3).vector
        for user in range(4)
    ]


def moved(model: LanguageModel, rule: WeightedGradients, removed: set[int]) -> np.ndarray:
    """How far each user's contribution moves when sentences go, in user clips."""
    everything = list(range(len(ENTITIES_OF)))
    before = contributions(model, rule, everything)
    after = contributions(model, rule, [s for s in everything if s not in removed])
    return np.array([np.linalg.norm(a - b) for a, b in zip(before, after, strict=True)]) / rule.user_clip


def test_with_weights_of_one_a_user_and_an_entity_move_nobody_else(model: LanguageModel) -> None:
    """Adjacency by brute force: without user 2, and without entity 0 (users 0, 2 and 3 know it)."""
    without_user = moved(model, EVERYTHING, {3, 4, 5})
    assert without_user[[0, 1, 3]].max() == 0
    assert 0 < without_user[2] <= 1 + 1e-5
    without_entity = moved(model, EVERYTHING, {0, 3, 6})
    assert without_entity[1] == 0
    assert (without_entity[[0, 2, 3]] > 0).all()
    assert without_entity.max() <= 2 + 1e-5


@pytest.mark.parametrize("cap", ["entity_weight_cap", "extended_weight_cap"])
def test_weights_from_data_let_one_user_move_others(model: LanguageModel, cap: str) -> None:
    """Why such weights are accounted for at full reach only; each still moves by two clips at most."""
    without_user = moved(model, replace(EVERYTHING, user_clip=1e3, **{cap: 3.0}), {3, 4, 5})
    assert without_user[[0, 1, 3]].max() > 0
    assert moved(model, replace(EVERYTHING, **{cap: 3.0}), {3, 4, 5}).max() <= 2
