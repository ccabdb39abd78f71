"""Break the product's own code on purpose while a real round runs: an audit that misses a fault shows nothing.

Every fault replaces one function of the product within a ``with`` block of this process; no switch of the product
weakens it.

>>> from fl_sim.strategies import aggregation
>>> intact = aggregation.add_gaussian_noise
>>> with fault("noise_off"):
...     aggregation.add_gaussian_noise(np.zeros(2), 0, 1, 5.0)
0.0
>>> aggregation.add_gaussian_noise is intact
True
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from fl_sim.clients import selection, training
from fl_sim.clients.gradients import clipped_sums
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.strategies import aggregation
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.accounting.adjacency import PrivacyError
from fl_sim.strategies.aggregation import BoundedSumStrategy
from fl_sim.strategies.primitives import noise, sampling
from fl_sim.strategies.uedp import UserEntityDP
from fl_sim.strategies.user_level import UserLevelDP

_intact_norms = clipped_sums.sure_norms
_intact_draw = sampling.sampled_sentences
_intact_range = sampling.sampled_sentence_range
_intact_votes = training._sentence_votes
_intact_noise = BoundedSumStrategy._add_noise


@contextmanager
def fault(name: str) -> Iterator[None]:
    """Break the product by the fault ``name`` within the block.

    Raises:
        PrivacyError: there is no such fault.
    """
    if name not in FAULTS:
        raise PrivacyError(f"mutation is {name!r}; allowed: {', '.join(sorted(FAULTS))}")
    with FAULTS[name]():
        yield


def _noise(share: float) -> AbstractContextManager[Any]:
    """The noise has ``share`` of its standard deviation."""

    def add(total: Any, seed: int, server_round: int, std: float, *stream: str) -> float:
        return noise.add_gaussian_noise(total, seed, server_round, share * std, *stream)

    return patch.object(aggregation, "add_gaussian_noise", add)


def _sentence_clip_off() -> AbstractContextManager[Any]:
    """Sentences keep their length; users are clipped where the code says that they must be."""
    return patch.object(clipped_sums, "clip_factors", lambda norms, *clip: torch.ones_like(norms).float())


def _user_clip_off() -> AbstractContextManager[Any]:
    """The client update of a user, gradients or local steps, keeps its length."""
    return patch.object(training, "_share", lambda norm, radius: 1.0)


def _ghost_norms_low() -> AbstractContextManager[Any]:
    """Ghost norms are a tenth too small, after the product has compared them with autograd."""
    return patch.object(
        clipped_sums, "sure_norms", lambda parts, clip_norm: _intact_norms(parts, clip_norm / 0.9) * 0.9
    )


def _votes_leak() -> AbstractContextManager[Any]:
    """Votes on the clip count tenfold and are not bounded with the update."""
    return patch.object(training, "_sentence_votes", lambda tally, rule: 10.0 * _intact_votes(tally, rule))


@contextmanager
def _realised_denominator() -> Iterator[None]:
    """The sum is divided by the number of sentences that took part, not by the public expectation."""

    def add(self: BoundedSumStrategy, server_round: int, total: Any, std: float, purpose: str = "noise") -> float:
        norm = _intact_noise(self, server_round, total, std, purpose)
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


def _entities_ignored() -> AbstractContextManager[Any]:
    """Every entity is active in every round."""
    return patch.object(
        sampling, "sampled_entities", lambda seed, entities, q_e: np.ones(len(entities), dtype=np.bool_)
    )


def _first_entity_alone() -> AbstractContextManager[Any]:
    """A sentence takes part if the first of its entities is sampled, whatever the others are."""

    def active(ownership: Ownership, sentences: Any, round_seed: int, q_e: float) -> Any:
        kept = np.ones(len(sentences), dtype=np.bool_)
        entities, counts = ownership.entities_of(sentences)
        first = entities[(np.cumsum(counts) - counts)[counts > 0]]
        kept[counts > 0] = sampling.sampled_entities(round_seed, ownership.draws_of(first), q_e)
        return kept

    return patch.object(selection, "_entities_active", active)


FAULTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "noise_reduced": lambda: _noise(0.95),
    "noise_off": lambda: _noise(0.0),
    "sentence_clip_off": _sentence_clip_off,
    "user_clip_off": _user_clip_off,
    "ghost_norms_low": _ghost_norms_low,
    "votes_leak": _votes_leak,
    "realised_denominator": _realised_denominator,
    "sentences_twice_as_often": _sentences_twice_as_often,
    "accounted_rate_halved": _accounted_rate_halved,
    "entities_ignored": _entities_ignored,
    "first_entity_alone": _first_entity_alone,
}
