"""Model a round of the published algorithm, as its paper states it and as its authors' code ran it.

The model replaces the product's own strategy (``fl_sim.auditing.audited_rounds.published_target``) for f_E, for an
entity that hundreds of users mention, and for the authors' code. A test compares it with the strategy.

The paper ("User-entity differential privacy in learning natural language models", Algorithm 1) is modelled with all
weights 1 and W_u, W_e, W_s public, the case in which it has the fewest defects. A round then releases, in units of the
user clip β and before the public denominator D = q_u W_u (q_e W_e + q_s W_s), the sum of the sampled users' clipped
updates plus N(0, (z (q_u|U| + 1))²). A sentence takes part as soon as any of its entities is sampled.

On the worst-case corpora every user who mentions the entity e' owns one sentence with it, which also mentions
``companions`` further entities, and text that pulls the other way and outweighs nothing: without e' the user's clipped
update is −β, with it +β. The protected user u' adds +β. In a fixed cohort u' replaces another user, so there all other
users pull the other way even if no entity is protected.

>>> stated = PublishedMechanism("f_e_plus", users=946, users_per_round=50, q_e=0.5, noise_multiplier=2.0, entities=7610,
...                             plain_sentences=2864)
>>> stated.noise_std
102.0
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fl_sim.strategies.accounting import paper_model
from fl_sim.strategies.accounting.adjacency import PrivacyError
from fl_sim.strategies.accounting.paper_model import Estimator, PublishedSettings
from fl_sim.strategies.primitives import streams

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Defects:
    """List the departures of the authors' code from the paper.

    Attributes:
        variance_as_std: the noise has standard deviation σ² where the paper has σ.
        fixed_cohort: a fixed number of users is drawn, instead of each user with probability q_u.
        clip_before_adam: the gradient is clipped, but the update is an AdamW step along it.
    """

    variance_as_std: bool = False
    fixed_cohort: bool = False
    clip_before_adam: bool = False


_CERTAIN = 1e-15  # a smaller probability that no companion is sampled counts as 0

AS_STATED = Defects()
AS_CODED = Defects(variance_as_std=True, fixed_cohort=True, clip_before_adam=True)


@dataclass(frozen=True, slots=True)
class PublishedMechanism:
    """Model a training of the published algorithm on its worst-case pair of corpora, as an audit target.

    Attributes:
        estimator: ``f_e``, ``f_e_plus``, or ``user_level`` (the paper's baseline, noise zβ on the sum).
        users: |U|.
        users_per_round: q_u·|U|, a whole number for a fixed cohort.
        q_e: entity sampling rate (q_s is 1, as in the paper's runs).
        noise_multiplier: z.
        entities: |E| = W_e; matters to the defects only.
        plain_sentences: |S| = W_s; matters to the defects only.
        user_clip: β; matters to the defects only.
        update_norm: norm of a user's AdamW update under ``clip_before_adam`` (:func:`adamw_update_norm`).
        reach_users: F, the number of users who mention e'; 0 protects no entity.
        user: whether u' is protected.
        companions: the number of further entities in every sentence with e'.
        defects: the departures of the authors' code to model.

    Raises:
        PrivacyError: if a count is impossible.
    """

    estimator: Estimator
    users: int
    users_per_round: float
    q_e: float
    noise_multiplier: float
    entities: int
    plain_sentences: int
    user_clip: float = 0.1
    update_norm: float = 0.1
    reach_users: int = 0
    user: bool = True
    companions: int = 64
    defects: Defects = AS_STATED

    def __post_init__(self) -> None:
        if not 0 <= self.reach_users <= self.users:
            raise PrivacyError(f"reach_users is {self.reach_users}; allowed: 0 to users ({self.users})")
        if self.defects.fixed_cohort and self.users_per_round != int(self.users_per_round):
            raise PrivacyError(f"users_per_round is {self.users_per_round}; allowed: a whole number as coded")
        if not self._samples_text and self.defects.variance_as_std:
            raise PrivacyError("estimator is user_level; allowed as coded: f_e, f_e_plus")

    @property
    def denominator(self) -> float:
        """Return D, the denominator of the sum (weights 1)."""
        extended = self.plain_sentences if self.estimator == "f_e_plus" else 0
        return paper_model.denominator(self.users_per_round, self.q_e, self.entities, extended)

    @property
    def noise_std(self) -> float:
        """On the sum, in units of β."""
        stated = self._settings.noise_per_clip
        if not self.defects.variance_as_std:
            return stated
        return paper_model.coded_noise(stated, self.user_clip, self.denominator)

    @property
    def _samples_text(self) -> bool:
        """Whether entities and sentences are sampled: under both estimators of the paper, not under its baseline."""
        return self.estimator in ("f_e", "f_e_plus")

    @property
    def _settings(self) -> PublishedSettings:
        return PublishedSettings(self.estimator, self.users, self.users_per_round, self.noise_multiplier, self.q_e)

    @property
    def items_per_copy(self) -> int:
        return 4

    @property
    def random_shift(self) -> bool:
        same_cohort = self.defects.fixed_cohort and self.reach_users == self.users and not self.user
        return not same_cohort or (1 - self.q_e) ** self.companions > _CERTAIN

    def outputs(self, present: bool, rounds: int, copies: int, seed: int, *, noise: bool = True) -> NDArray[np.float64]:
        """Return the noisy sums of independent copies, float64 (rounds, copies), in units of β."""
        rng = streams.generator(seed, "published rounds")
        sums = np.stack([self._sum(present, copies, rng) for _ in range(rounds)])
        return sums + rng.normal(0.0, self.noise_std, sums.shape) if noise else sums

    def _sum(self, present: bool, copies: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return Σ of the sampled users' updates in one round, float64 (copies,)."""
        knowers, lone = self._sampled(present and self.user, copies, rng)
        background, entity = self._active(copies, rng)
        turned = entity & (present and self.reach_users > 0)
        pull = np.where(turned, 1.0, np.where(background, -1.0, 0.0))
        scale = self.update_norm / self.user_clip if self.defects.clip_before_adam else 1.0
        return np.asarray(scale * (knowers * pull + lone), dtype=np.float64)

    def _sampled(self, enrolled: bool, copies: int, rng: np.random.Generator) -> tuple[Ints, Bools]:
        """Return the number of opposed users in the cohort, and whether u' is in it, (copies,) each."""
        if not self.defects.fixed_cohort:
            q_u = self.users_per_round / self.users
            lone = rng.random(copies) < q_u if enrolled else np.zeros(copies, dtype=np.bool_)
            return rng.binomial(self.reach_users, q_u, copies), lone
        cohort, opposed = int(self.users_per_round), self.reach_users or self.users
        lone = rng.random(copies) < (cohort / (self.users + 1) if enrolled else 0.0)
        return rng.hypergeometric(opposed, self.users - opposed, cohort - lone), lone

    def _active(self, copies: int, rng: np.random.Generator) -> tuple[Bools, Bools]:
        """Whether the opposed text and the sentences with e' take part: any of their entities is sampled."""
        if not self._samples_text:
            return np.ones(copies, dtype=np.bool_), np.ones(copies, dtype=np.bool_)
        companion = rng.random(copies) < 1 - (1 - self.q_e) ** self.companions  # at least one of them is
        protected = rng.random(copies) < self.q_e
        # f_e_plus: plain sentences are always in (q_s = 1); f_e trains on sentences with entities alone
        background = np.ones(copies, dtype=np.bool_) if self.estimator == "f_e_plus" else companion
        return background, companion | protected


def adamw_update_norm(parameters: int, learning_rate: float, steps: int, clip_norm: float) -> float:
    """Return the L2 norm of the update by AdamW steps whose gradients all have norm ``clip_norm``.

    AdamW divides the gradient by its own size, so the clip does not bound the update, which grows with the number of
    parameters. The norm is measured by running torch's AdamW (weight decay 0, from zero) on 1,000 coordinates and
    scaled up: with equal gradients every coordinate moves by the same amount.

    Args:
        parameters: d, the number of parameters.
        learning_rate: the learning rate of AdamW.
        steps: the number of steps.
        clip_norm: the norm of the gradient of every step.
    """
    import torch

    sample = 1000
    weights = torch.zeros(sample, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.AdamW([weights], lr=learning_rate, weight_decay=0.0)
    for _ in range(steps):
        weights.grad = torch.full_like(weights, clip_norm / parameters**0.5)
        optimizer.step()
    return float(weights.detach().norm()) * (parameters / sample) ** 0.5
