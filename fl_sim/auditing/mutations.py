"""Break one part of a mechanism on purpose: an audit that misses such a fault shows nothing.

The mutations exist at the audit's own seam only; no switch of the product weakens it.

>>> from fl_sim.auditing.own_targets import seam_of
>>> from fl_sim.strategies.accounting.accountant import RoundEvent
>>> seam = seam_of(RoundEvent("uedp", noise_multiplier=2.0), rounds=1, delta=1e-5)
>>> broken = mutate(seam, "user_clip_removed")
>>> broken.project_sentence is seam.project_sentence, broken.project_user is seam.project_user
(True, False)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fl_sim.auditing.audited_rounds import Seam, Vector
from fl_sim.clients.selection import Selection, select
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.strategies.accounting.adjacency import PrivacyError
from fl_sim.strategies.primitives import clipping, sampling, streams

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def mutate(seam: Seam, name: str) -> Seam:
    """Return ``seam`` with the named part broken.

    Raises:
        PrivacyError: if ``name`` is not in :data:`MUTATIONS`.
    """
    if name not in MUTATIONS:
        raise PrivacyError(f"mutation is {name!r}; allowed: {', '.join(sorted(MUTATIONS))}")
    return MUTATIONS[name](seam)


def noise_halved(seam: Seam) -> Seam:
    """The noise has half the standard deviation that is accounted for."""
    return replace(seam, plan=seam.plan.with_noise(seam.plan.mechanism.noise_multiplier / 2))


def sentence_clip_removed(seam: Seam) -> Seam:
    """Clip users to β, but not sentences to c."""
    return replace(seam, project_sentence=_no_clip)


def user_clip_removed(seam: Seam) -> Seam:
    """Clip sentences to c, but not users to β."""
    return replace(seam, project_user=_no_clip)


def clip_removed(seam: Seam) -> Seam:
    """Clip neither sentences nor users."""
    return user_clip_removed(sentence_clip_removed(seam))


def entity_sampling_per_user(seam: Seam) -> Seam:
    """Sample an entity for each user separately, so that some of many users who mention it always take part."""
    return replace(seam, select=_select_with_sampling_per_user)


def any_entity_active(seam: Seam) -> Seam:
    """Include a sentence as soon as one of its entities is active, as in the published algorithm."""
    return replace(seam, select=_select_any_active)


MUTATIONS: dict[str, Callable[[Seam], Seam]] = {
    "noise_halved": noise_halved,
    "sentence_clip_removed": sentence_clip_removed,
    "user_clip_removed": user_clip_removed,
    "clip_removed": clip_removed,
    "entity_coins_per_user": entity_sampling_per_user,
    "any_entity_active": any_entity_active,
}


def _no_clip(vector: Vector, radius: float) -> float:
    return clipping.norm(vector)


def _select_with_sampling_per_user(
    ownership: Ownership, user_runs: Ints, round_seed: int, q_e: float, q_s: float
) -> Selection:
    selection = select(ownership, user_runs, round_seed, 1.0, q_s)
    sentence, entity = _mentions(ownership, selection.sentences)
    owner = np.repeat(np.arange(len(selection.users)), selection.counts)[sentence]
    pairs, position = np.unique(owner * ownership.num_entities + entity, return_inverse=True)
    sampled = streams.generator(round_seed, "mutated entity coins").random(len(pairs)) < q_e
    inactive = np.bincount(sentence[~sampled[position]], minlength=len(selection.sentences))
    return _keep(selection, inactive == 0)


def _select_any_active(ownership: Ownership, user_runs: Ints, round_seed: int, q_e: float, q_s: float) -> Selection:
    selection = select(ownership, user_runs, round_seed, 1.0, q_s)
    sentence, entity = _mentions(ownership, selection.sentences)
    sampled = sampling.sampled_entities(round_seed, entity, q_e)
    active = np.bincount(sentence[sampled], minlength=len(selection.sentences))
    without_entity = ownership.entities_per_sentence[selection.sentences] == 0
    return _keep(selection, without_entity | (active > 0))


def _mentions(ownership: Ownership, sentences: Ints) -> tuple[Ints, Ints]:
    """Return every mention as (position in ``sentences``, entity id), int64 (num_mentions,) each."""
    counts = ownership.entities_per_sentence[sentences]
    position = np.repeat(np.arange(len(sentences)), counts)
    within = np.arange(len(position)) - np.repeat(np.cumsum(counts) - counts, counts)
    return position, ownership.entity_ids[ownership.entity_offsets[sentences][position] + within].astype(np.int64)


def _keep(selection: Selection, keep: Bools) -> Selection:
    """Return the selection with only the sentences of the mask ``keep``."""
    owner = np.repeat(np.arange(len(selection.users)), selection.counts)
    counts = np.bincount(owner[keep], minlength=len(selection.users))
    return Selection(users=selection.users, sentences=selection.sentences[keep], counts=counts)
