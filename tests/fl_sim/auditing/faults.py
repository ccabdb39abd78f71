"""Break the product's own code on purpose: an audit that misses a fault shows nothing.

Every fault replaces one function of the product within a ``with`` block of this process; no switch of the product
weakens it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from fl_sim.clients import selection, training
from fl_sim.clients.gradients import clipped_sums, user_sums
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.strategies import aggregation
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.aggregation import BoundedSumStrategy
from fl_sim.strategies.primitives import clipping, noise, sampling, streams
from fl_sim.strategies.uedp import UserEntityDP
from fl_sim.strategies.user_level import UserLevelDP

_intact_norms = clipped_sums.norm_bounds
_intact_draw = sampling.sampled_sentences
_intact_range = sampling.sampled_sentence_range
_intact_votes = training._sentence_votes
_intact_noise = BoundedSumStrategy._add_noise


def fault(name: str) -> AbstractContextManager[Any]:
    """Return a block in which the product has the fault ``name``."""
    return FAULTS[name]()


def _noise(share: float) -> AbstractContextManager[Any]:
    """The noise has ``share`` of its standard deviation."""

    def add(total: Any, seed: int, server_round: int, std: float, *stream: str) -> float:
        return noise.add_gaussian_noise(total, seed, server_round, share * std, *stream)

    return patch.object(aggregation, "add_gaussian_noise", add)


@contextmanager
def _realised_denominator() -> Iterator[None]:
    """The sum is divided by the number of sentences that took part, not by the public expectation."""

    def add(
        self: BoundedSumStrategy, server_round: int, total: Any, std: float, stream: str, purpose: str = "noise"
    ) -> float:
        norm = _intact_noise(self, server_round, total, std, stream, purpose)
        if purpose == "noise":
            total *= self.mechanism.denominator / max(self.tally.cohort_sentences, 1)
        return norm

    with patch.object(BoundedSumStrategy, "_add_noise", add):
        yield


@contextmanager
def _sentences_twice_as_often() -> Iterator[None]:
    """Sentences are sampled with twice the probability that is accounted for."""
    with (
        patch.object(sampling, "sampled_sentences", lambda s, ids, q: _intact_draw(s, ids, min(1.0, 2 * q))),
        patch.object(sampling, "sampled_sentence_range", lambda s, a, b, q: _intact_range(s, a, b, min(1.0, 2 * q))),
    ):
        yield


@contextmanager
def _accounted_rate_halved() -> Iterator[None]:
    """The accountant is told half of the rate at which sentences, or users, are sampled."""
    uedp, user_level = UserEntityDP.event, UserLevelDP.event

    def halved(event: Callable[[Any], RoundEvent], rate: str) -> Callable[[Any], RoundEvent]:
        return lambda self: replace(event(self), **{rate: getattr(event(self), rate) / 2})

    with (
        patch.object(UserEntityDP, "event", halved(uedp, "q_s")),
        patch.object(UserLevelDP, "event", halved(user_level, "q_u")),
    ):
        yield


def _active(of_mentions: Callable[[Ownership, Any, Any, int, float], Any]) -> AbstractContextManager[Any]:
    """A sentence takes part if enough of its entities do, by another rule than that all are sampled.

    Args:
        of_mentions: returns which mentions are active, given ownership, the sentence of each mention, its entity, the
            round's seed and q_e; a sentence is active if one of its mentions is.
    """

    def active(ownership: Ownership, sentences: Any, round_seed: int, q_e: float) -> Any:
        entities, counts = ownership.entities_of(sentences)
        place = np.repeat(np.arange(len(sentences)), counts)
        sampled = of_mentions(ownership, sentences[place], entities, round_seed, q_e)
        return (counts == 0) | (np.bincount(place[sampled], minlength=len(sentences)) > 0)

    return patch.object(selection, "_entities_active", active)


def _first_entity_alone() -> AbstractContextManager[Any]:
    """A sentence takes part if the first of its entities is sampled, whatever the others are."""

    def first(ownership: Ownership, sentences: Any, entities: Any, round_seed: int, q_e: float) -> Any:
        begins = np.diff(sentences, prepend=-1) != 0
        return begins & sampling.sampled_entities(round_seed, ownership.draws_of(entities), q_e)

    return _active(first)


def _entities_sampled_per_user() -> AbstractContextManager[Any]:
    """Every user draws entities alone, so that some of many users who mention one always take part."""

    def own(ownership: Ownership, sentences: Any, entities: Any, round_seed: int, q_e: float) -> Any:
        pairs = ownership.user_of_sentence[sentences] * ownership.num_entities + entities
        _, position = np.unique(pairs, return_inverse=True)
        return (streams.generator(round_seed, "a user's own entities").random(len(pairs)) < q_e)[position]

    return _active(own)


def _clips_off(*radii: float) -> AbstractContextManager[Any]:
    """Nothing is clipped to these radii, where the audit's gradients are clipped; to any, if none is given."""
    intact = clipping.project

    def project(vector: Any, radius: float) -> float:
        return clipping.norm(vector) if radius in radii or not radii else intact(vector, radius)

    return patch.object(clipping, "project", project)


@contextmanager
def _ghost_norms_low() -> Iterator[None]:
    """No user is measured by a vector, whose length has no such fault."""
    low = patch.object(clipped_sums, "norm_bounds", lambda *given: 0.9 * _intact_norms(*given))
    with low, patch.object(user_sums, "_VECTOR", math.inf):
        yield


FAULTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "noise_reduced": lambda: _noise(0.95),
    "noise_halved": lambda: _noise(0.5),
    "noise_off": lambda: _noise(0.0),
    # Sentences keep their length; users are clipped where the code says that they must be.
    "sentence_clip_off": lambda: patch.object(clipped_sums, "clip_factors", lambda norms, *_: torch.ones(len(norms))),
    # The client update of a user, gradients or local steps, keeps its length.
    "user_clip_off": lambda: patch.object(training, "_share", lambda norm, radius: 1.0),
    # A tenth too small, after the product has compared them with autograd.
    "ghost_norms_low": _ghost_norms_low,
    # Votes on the clip count tenfold and are not bounded with the update.
    "votes_leak": lambda: patch.object(training, "_sentence_votes", lambda *given: 10.0 * _intact_votes(*given)),
    "realised_denominator": _realised_denominator,
    "sentences_twice_as_often": _sentences_twice_as_often,
    "accounted_rate_halved": _accounted_rate_halved,
    "entities_ignored": lambda: patch.object(
        sampling, "sampled_entities", lambda seed, ids, q_e: np.ones(len(ids), bool)
    ),
    "first_entity_alone": _first_entity_alone,
    # A sentence takes part as soon as one of its entities is sampled, as in the published algorithm.
    "any_entity_active": lambda: _active(
        lambda owned, _, entities, seed, q_e: sampling.sampled_entities(seed, owned.draws_of(entities), q_e)
    ),
    "entities_sampled_per_user": _entities_sampled_per_user,
}
