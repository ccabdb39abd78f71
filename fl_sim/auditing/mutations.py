"""Mechanisms broken on purpose, one part each: an audit that does not notice them proves nothing.

They exist at the audit's own seam only; the product has no switch that weakens it.
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
    """``seam`` with the named part broken; :class:`PrivacyError` for a name that is not in :data:`MUTATIONS`."""
    if name not in MUTATIONS:
        raise PrivacyError(f"mutation is {name!r}; allowed: {', '.join(sorted(MUTATIONS))}")
    return MUTATIONS[name](seam)


def noise_halved(seam: Seam) -> Seam:
    """The noise has half the standard deviation that is accounted for."""
    return replace(seam, plan=seam.plan.with_noise(seam.plan.mechanism.noise_multiplier / 2))


def sentence_clip_removed(seam: Seam) -> Seam:
    """Sentences are not clipped to c; users still are, to β."""
    return replace(seam, project_sentence=_no_clip)


def user_clip_removed(seam: Seam) -> Seam:
    """Users are not clipped to β; sentences still are, to c."""
    return replace(seam, project_user=_no_clip)


def clip_removed(seam: Seam) -> Seam:
    """Nothing is clipped."""
    return user_clip_removed(sentence_clip_removed(seam))


def entity_sampling_per_user(seam: Seam) -> Seam:
    """Every user tosses its own coin for an entity, so that some of many knowers always take part."""
    return replace(seam, select=_select_with_sampling_per_user)


def any_entity_active(seam: Seam) -> Seam:
    """A sentence takes part as soon as one of its entities is active, as in the published algorithm."""
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
    chosen = select(ownership, user_runs, round_seed, 1.0, q_s)
    sentence, entity = _mentions(ownership, chosen.sentences)
    owner = np.repeat(np.arange(len(chosen.users)), chosen.counts)[sentence]
    pairs, position = np.unique(owner * ownership.num_entities + entity, return_inverse=True)
    uniforms = streams.generator(round_seed, "mutated entity coins").random(len(pairs)) < q_e
    inactive = np.bincount(sentence[~uniforms[position]], minlength=len(chosen.sentences))
    return _keep(chosen, inactive == 0)


def _select_any_active(ownership: Ownership, user_runs: Ints, round_seed: int, q_e: float, q_s: float) -> Selection:
    chosen = select(ownership, user_runs, round_seed, 1.0, q_s)
    sentence, entity = _mentions(ownership, chosen.sentences)
    up = sampling.sampled_entities(round_seed, entity, q_e)
    active = np.bincount(sentence[up], minlength=len(chosen.sentences))
    without = ownership.entities_per_sentence[chosen.sentences] == 0
    return _keep(chosen, without | (active > 0))


def _mentions(ownership: Ownership, sentences: Ints) -> tuple[Ints, Ints]:
    """Every mention as (position in ``sentences``, entity id)."""
    counts = ownership.entities_per_sentence[sentences]
    position = np.repeat(np.arange(len(sentences)), counts)
    within = np.arange(len(position)) - np.repeat(np.cumsum(counts) - counts, counts)
    return position, ownership.entity_ids[ownership.entity_offsets[sentences][position] + within].astype(np.int64)


def _keep(chosen: Selection, keep: Bools) -> Selection:
    owner = np.repeat(np.arange(len(chosen.users)), chosen.counts)
    counts = np.bincount(owner[keep], minlength=len(chosen.users))
    return Selection(users=chosen.users, sentences=chosen.sentences[keep], counts=counts)
