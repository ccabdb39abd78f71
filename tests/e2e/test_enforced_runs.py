"""Runs under bounds: what nodes train on never exceeds them, on any number of nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fl_sim.clients import client_app
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.strategies.messages import TrainReply
from tests.e2e.small_runs import BOUNDS, COUNTS, PLAIN, USERS, F, K, M, Run

pytestmark = pytest.mark.usefixtures("no_plots")

EVERYTHING = {"privacy__q_u": 1.0, "privacy__q_e": 1.0, "privacy__q_s": 1.0}


@pytest.fixture
def trained_on(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, list[int]]]:
    """The round's seed and the sentences of every client update that is computed, as the nodes compute it."""
    seen: list[tuple[int, list[int]]] = []
    work = client_app.bounded_sum

    def watched(model: Any, examples: Any, selection: Any, rule: Any, round_seed: int, *others: Any) -> TrainReply:
        seen.append((round_seed, selection.sentences.tolist()))
        return work(model, examples, selection, rule, round_seed, *others)

    monkeypatch.setattr(client_app, "bounded_sum", watched)
    return seen


def by_round(seen: list[tuple[int, list[int]]]) -> list[list[int]]:
    """Return the sentences of every round, of all nodes together."""
    rounds: dict[int, list[int]] = {}
    for seed, sentences in seen:
        rounds.setdefault(seed, []).extend(sentences)
    return [sorted(sentences) for sentences in rounds.values()]


def contributions(ownership: Ownership, sentences: list[int]) -> tuple[int, int, int]:
    """Return the most sentences of an entity, the most users of an entity, and the most sentences of a user."""
    mask = np.zeros(ownership.num_sentences, dtype=np.bool_)
    mask[sentences] = True
    of_entities = ownership.restricted_to(mask).entity_contributions()
    of_users = np.bincount(ownership.user_of_sentence[mask])
    return int(of_entities.sentences.max()), int(of_entities.users.max()), int(of_users.max())


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "most"), [("greedy", (K, None, M)), ("users", (K, F, M)), ("user_level", (None, F, M))]
)
def test_no_round_trains_on_more_than_the_bounds(
    name: str, most: tuple[int | None, ...], run: Run, corpus: Path, trained_on: list[tuple[int, list[int]]]
) -> None:
    rates = {"privacy__q_u": 1.0} if name == "user_level" else EVERYTHING
    run("run", rounds=3, **PLAIN, **BOUNDS[name], **rates)
    ownership = Corpus.open(corpus).ownership("train")
    whole = contributions(ownership, list(range(ownership.num_sentences)))
    rounds = by_round(trained_on)
    assert len(rounds) == 3
    for sentences in rounds:  # everything is sampled, so the bounds act, and at least two of three are reached
        limits = [one for one in zip(most, whole, contributions(ownership, sentences), strict=True) if one[0]]
        assert all(before > limit >= after for limit, before, after in limits)
        assert sum(after == limit for limit, _, after in limits) >= min(2, len(limits))
    together = contributions(ownership, sorted({s for sentences in rounds for s in sentences}))
    assert all(limit is None or count <= limit for limit, count in zip(most, together, strict=True))


@pytest.mark.system
def test_by_counts_entities_and_users_train_at_most_their_bounds_on_average(
    run: Run, corpus: Path, trained_on: list[tuple[int, list[int]]]
) -> None:
    run("run", rounds=60, **PLAIN, **COUNTS, **EVERYTHING)
    ownership, rounds = Corpus.open(corpus).ownership("train"), by_round(trained_on)
    mentions = [np.bincount(ownership.entities_of(np.array(one, int))[0], minlength=4) for one in rounds]
    sentences = [np.bincount(ownership.user_of_sentence[one], minlength=USERS) for one in rounds]
    for counts, bound in ((np.array(mentions), K), (np.array(sentences), M)):
        assert (counts > bound).any()  # the bound is one of the expectation, as the weights' proof needs
        # Sums of independent draws of mean ≤ the bound: 60 rounds far above it are rejected, and all far below it, too.
        total = counts.sum(axis=0)
        assert (stats.poisson.sf(total - 1, 60 * bound) > 1e-6).all()
        assert stats.poisson.cdf(total.max(), 30 * bound) > 0.999
