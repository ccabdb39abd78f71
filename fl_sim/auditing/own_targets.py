"""Make audit targets of the product's mechanisms, each with its worst-case pair of corpora.

>>> from fl_sim.strategies.accounting.adjacency import ContributionBound
>>> event = RoundEvent("uedp", noise_multiplier=1.0, user_cap=4)
>>> scenario = worst_case(event, Adjacency(user_sentences=2, entity_bound=ContributionBound(3, 2)))
>>> scenario.users, scenario.sentences, scenario.background
(4, 8, 0)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_sim.auditing.audited_rounds import Seam, release
from fl_sim.auditing.worst_case_corpora import Scenario, background_needed, build
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.accounting.adjacency import Adjacency
from fl_sim.strategies.accounting.paper_model import PublishedSettings
from fl_sim.strategies.mechanism import PrivacyPlan
from fl_sim.strategies.published import Published, PublishedTerms
from fl_sim.strategies.registry import load_strategy

_NO_NOISE = 1e-9
_COMPANIONS = 16  # at q_e ½, none of them is sampled in one round of 65,536
_ENOUGH_SENTENCES = 2.0  # a user without a bound owns this many times ŵ/q_s sentences, enough to fill the cap


@dataclass(frozen=True, slots=True)
class OwnMechanism:
    """Run a mechanism of the product, in its real code, on one pair of corpora."""

    seam: Seam
    scenario: Scenario

    @property
    def noise_std(self) -> float:
        return self.seam.plan.mechanism.noise_per_clip

    @property
    def items_per_copy(self) -> int:
        return self.scenario.users + self.scenario.sentences * (1 + self.scenario.companions)

    @property
    def random_shift(self) -> bool:
        mechanism, entity = self.seam.plan.mechanism, self.scenario.reach_users > 0
        return not (mechanism.q_u == mechanism.q_s == 1 and (mechanism.q_e == 1 or not entity))

    def outputs(self, present: bool, rounds: int, copies: int, seed: int, *, noise: bool = True) -> NDArray[np.float64]:
        seam = self.seam
        if not noise:
            seam = replace(seam, plan=seam.plan.with_noise(_NO_NOISE))
        return release(seam, build(self.scenario, present, copies), rounds, seed)


def seam_of(event: RoundEvent, rounds: int, delta: float) -> Seam:
    """The real mechanism that ``event`` describes. The clip c is 1: nothing depends on its scale."""
    strategy = load_strategy(event.strategy)
    own: dict[str, Any] = {"clipping": event.clipping} if "clipping" in strategy.keys else {}
    mechanism = strategy(
        strategy=event.strategy,
        population=1,
        q_u=event.q_u,
        q_e=event.q_e,
        q_s=event.q_s,
        clip_norm=1.0,
        user_cap=event.user_cap,
        noise_multiplier=event.noise_multiplier,
        **own,
    )
    return Seam(PrivacyPlan(mechanism=mechanism, rounds=rounds, delta=delta))


def published_target(
    settings: PublishedSettings, entities: int, user_clip: float, reach_users: int, user: bool
) -> OwnMechanism:
    """Return the product's ``published`` with f_E+ and the noise that the paper states, on its worst-case corpora.

    The F users who mention e' own a plain sentence that pulls the other way. Their sentence with e', which also
    mentions :data:`_COMPANIONS` other entities, outweighs it as soon as one of its entities is sampled.

    Args:
        settings: the settings of the training.
        entities: |E|.
        user_clip: β.
        reach_users: F, the number of users who mention e'; 0 protects no entity.
        user: whether a user is protected too.
    """
    terms = PublishedTerms(
        estimator="f_e_plus",
        noise="as-stated",
        user_weights=settings.users,
        entity_weights=entities,
        extended_weights=settings.sentences - settings.sensitive_sentences,
        sentences=settings.sentences,
        sensitive_sentences=settings.sensitive_sentences,
    )
    mechanism = Published(
        population=settings.users,
        q_u=settings.q_u,
        q_e=settings.q_e,
        q_s=1.0,
        clip_norm=user_clip,
        user_cap=1.0,
        noise_multiplier=settings.noise_multiplier,
        terms=terms,
    )
    knows = reach_users > 0
    scenario = Scenario(
        reach_users=reach_users,
        reach_sentences=int(knows),
        user_sentences=int(user),
        background=int(knows),
        companions=_COMPANIONS if knows else 0,
    )
    return OwnMechanism(Seam(PrivacyPlan(mechanism=mechanism, rounds=1, delta=0.5)), scenario)


def worst_case(event: RoundEvent, adjacency: Adjacency, companions: int = 0) -> Scenario:
    """Return the pair of corpora within ``adjacency`` that shifts a round's sum the most.

    A protected user without a bound gets enough sentences to fill the cap in nearly every round.

    Args:
        event: the event of every round.
        adjacency: the protected user and entity.
        companions: further entities in every sentence with e'.
    """
    entity_bound, user_sentences = adjacency.entity_bound, adjacency.user_sentences
    if math.isinf(user_sentences):
        user_sentences = math.ceil(_ENOUGH_SENTENCES * event.user_cap / event.q_s)
    return Scenario(
        reach_users=entity_bound.users if entity_bound.total else 0,
        reach_sentences=entity_bound.sentences_per_user if entity_bound.total else 0,
        user_sentences=int(user_sentences),
        background=background_needed(entity_bound.sentences_per_user, event.user_cap, event.clips_sentences)
        if entity_bound.total
        else 0,
        companions=companions if entity_bound.total else 0,
    )
