"""Run our real rounds on the worst-case corpora, with a table of gradients for a language model, and attack their sums.

All else is the product's own code: its strategy on the inline grid (:mod:`fl_sim.auditing.inline_rounds`),
:func:`fl_sim.clients.selection.select_for` (entity and sentence sampling) and
:func:`fl_sim.strategies.primitives.clipping.project` (both clips).

The attack is the strongest test, the likelihood ratio of all released sums. The attacker knows both corpora and the
mechanism and observes every round's noisy sum. The attack estimates the distribution of the sum under sampling from
rounds without noise (with seeds of their own), so it fits any mechanism, a broken one included. The accuracy of that
estimate affects the power of the attack, never the validity of the bound.

>>> from fl_sim.strategies.accounting.adjacency import ContributionBound
>>> event = RoundEvent("uedp", noise_multiplier=1.0, user_cap=4)
>>> worst_case(event, Adjacency(user_sentences=2, entity_bound=ContributionBound(3, 2)))
Scenario(entity_users=3, entity_sentences=2, user_sentences=2, background=0, companions=0, everywhere=False)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from fl_sim.auditing.inline_rounds import Release, run_rounds
from fl_sim.auditing.lower_bounds import Floats, Scores
from fl_sim.auditing.worst_case_corpora import CopiedCorpus, Scenario, build, gradients
from fl_sim.clients.selection import Selection, WeightedSelection, select_for
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.accounting.adjacency import Adjacency, PrivacyError
from fl_sim.strategies.accounting.guarantee import NoiseScale
from fl_sim.strategies.accounting.paper_model import PublishedSettings
from fl_sim.strategies.client_rules import ClientRule
from fl_sim.strategies.mechanism import Mechanism, PrivacyPlan
from fl_sim.strategies.messages import TrainReply, TrainRequest
from fl_sim.strategies.primitives import clipping, streams
from fl_sim.strategies.published import Published, PublishedTerms
from fl_sim.strategies.registry import load_strategy

_NO_NOISE = 1e-9
_COMPANIONS = 16  # at q_e ½, none of them is sampled in one round of 65,536
_MOST_SENTENCES = 10_000_000  # of a pair of corpora
_ENOUGH_SENTENCES = 2.0  # a user without a bound owns this many times ŵ/q_s sentences, enough to fill the cap
_LEARNING_COPIES = 20_000
_LEARNING_ROUNDS = 2
_ITEMS_PER_BATCH = 2_000_000  # users and sentences in memory at once
_DECIMALS = 5  # sums without noise that agree to this number of decimals count as one value


@dataclass(frozen=True, slots=True)
class AuditedMechanism:
    """Run a mechanism of the product, in its real code, on one pair of corpora."""

    mechanism: Mechanism
    scenario: Scenario

    @property
    def noise_std(self) -> float:
        """Return the standard deviation of the noise on a round's sum, in units of the user clip β."""
        return self.mechanism.noise_per_clip

    @property
    def random_shift(self) -> bool:
        """Tell whether sampling makes the shift of a round's sum by the protected data random."""
        mechanism, entity = self.mechanism, self.scenario.entity_users > 0
        return not (mechanism.q_u == mechanism.q_s == 1 and (mechanism.q_e == 1 or not entity))

    def outputs(self, present: bool, rounds: int, copies: int, seed: int, *, noise: bool = True) -> NDArray[np.float64]:
        """Return sums of independent copies, with their noise or without, float64 (rounds, copies), in units of β."""
        plan = PrivacyPlan(mechanism=self.mechanism, rounds=rounds, delta=0.5)
        mechanism = (plan if noise else plan.with_noise(_NO_NOISE)).mechanism
        corpus = build(self.scenario, copies, present=present)
        sums: list[NDArray[np.float64]] = []

        def answer(request: TrainRequest) -> TrainReply:
            chosen = select_for(request.rule, corpus.ownership, request.users, request.round_seed)
            return bounded_sum(corpus, chosen, request.rule, mechanism.user_clip(mechanism.clip_norm))

        def observe(release: Release) -> None:
            sums.append(release.noisy_sum / mechanism.user_clip(mechanism.clip_norm))

        model = np.zeros(copies, dtype=np.float32)
        plan = replace(plan, mechanism=mechanism)
        run_rounds(plan, corpus.ownership.sentences_per_user, model, answer, seed, observe)
        return np.array(sums)


def bounded_sum(corpus: CopiedCorpus, chosen: Selection, rule: ClientRule, user_clip: float) -> TrainReply:
    """Σ_u Π_β(Σ_s Π_c(g_s)) on every copy's coordinate, with g_s from the table of gradients, which β scales.

    Each distinct gradient and each distinct sum of a user is projected once, by the real projection, which depends on
    nothing else.
    """
    table = gradients(user_clip)
    for row in table:
        clipping.project(row, rule.sentence_clip)
    owner = np.repeat(np.arange(len(chosen.users)), chosen.counts)
    of_sentence = table[corpus.kinds[chosen.sentences], 0].astype(np.float64)
    if isinstance(chosen, WeightedSelection):  # user weights are 1; other weights would need other worst cases
        of_sentence *= chosen.weights
    sums = np.bincount(owner, weights=of_sentence, minlength=len(chosen.users))
    distinct, position = np.unique(sums.astype(np.float32), return_inverse=True)
    for value in distinct[:, None]:
        clipping.project(value, rule.user_clip)
    copy = corpus.copy_of_user[chosen.users]
    total = np.bincount(copy, weights=distinct[position].astype(np.float64), minlength=corpus.copies)
    return TrainReply(total.astype(np.float32), len(chosen.users), len(chosen.sentences), 0, 0, 0.0)


def mechanism_of(event: RoundEvent) -> Mechanism:
    """Return the real mechanism that ``event`` describes. The clip c is 1: nothing depends on its scale."""
    strategy = load_strategy(event.strategy)
    own: dict[str, Any] = {"clipping": event.clipping} if "clipping" in strategy.fields_of_own_keys() else {}
    return strategy(
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


def published_target(
    settings: PublishedSettings, entities: int, adjacency: Adjacency, user_clip: float, noise: NoiseScale
) -> AuditedMechanism:
    """Return the product's ``published``, f_E or f_E+, weights 1 and their sums public, on its worst-case corpora.

    The F users who mention e' own a sentence that pulls the other way. Their sentence with e', which also mentions
    :data:`_COMPANIONS` other entities, outweighs it as soon as one of its entities is sampled.

    Args:
        noise: whether the noise has the standard deviation that the paper states, or its square, as its code draws.
    """
    extended = settings.estimator == "f_e_plus"
    terms = PublishedTerms(
        estimator=settings.estimator,
        noise=noise,
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
    knows = adjacency.entity_bound.users > 0
    scenario = Scenario(
        entity_users=adjacency.entity_bound.users,
        entity_sentences=int(knows),
        user_sentences=int(adjacency.user_sentences > 0),
        background=int(knows),
        companions=_COMPANIONS if knows or not extended else 0,
        everywhere=not extended,
    )
    return AuditedMechanism(mechanism, scenario)


def worst_case(event: RoundEvent, adjacency: Adjacency) -> Scenario:
    """Return the pair of corpora within ``adjacency`` that shifts a round's sum the most.

    A protected user without a bound gets enough sentences to fill the cap in nearly every round. Opposed sentences
    reverse the clipped update of a user who mentions the entity: one, if only users are clipped; if sentences are, ŵ,
    and only where the sentences with the entity can exceed the cap.

    Raises:
        PrivacyError: nobody is protected, or the corpora would not fit into memory.
    """
    bound, user_sentences = adjacency.entity_bound, adjacency.user_sentences
    if math.isinf(user_sentences):
        user_sentences = math.ceil(_ENOUGH_SENTENCES * event.user_cap / event.q_s)
    opposed = 1
    if event.clips_sentences:
        opposed = math.ceil(event.user_cap) if bound.sentences_per_user > event.user_cap else 0
    scenario = (
        Scenario(bound.users, bound.sentences_per_user, int(user_sentences), background=opposed)
        if bound.total
        else Scenario(user_sentences=int(user_sentences))
    )
    if scenario.items > _MOST_SENTENCES:
        raise PrivacyError(
            f"the worst-case corpora have {scenario.items:,} users and sentences; allowed: at most {_MOST_SENTENCES:,} "
            "(smaller bounds, or a larger q_s)"
        )
    return scenario


@dataclass(frozen=True, slots=True)
class Distribution:
    """Hold the empirical distribution of a round's sum before noise: values and their log frequencies, float64 (V,).

    >>> distribution = Distribution(values=np.array([0.0, 1.0]), log_weights=np.log([0.5, 0.5]))
    >>> distribution.log_likelihood(np.array([[0.0, 10.0]]), noise_std=1.0).round(2)
    array([ -0.22, -41.19])
    """

    values: Floats
    log_weights: Floats

    def log_likelihood(self, outputs: Floats, noise_std: float) -> Floats:
        """Return Σ_t ln p(y_t), up to a constant, float64 (copies,), for outputs (rounds, copies)."""
        total = np.zeros(outputs.shape[1])
        for row in outputs:
            squares = ((row[:, None] - self.values) / noise_std) ** 2
            total += logsumexp(self.log_weights - squares / 2, axis=1)
        return total


def attack(target: AuditedMechanism, rounds: int, trials: int, seed: int) -> Scores:
    """Return the log likelihood ratios of ``trials`` independent trainings of ``rounds`` rounds on either corpus.

    Raises:
        PrivacyError: ``rounds`` or ``trials`` is impossible.
    """
    if trials < 8:
        raise PrivacyError(f"trials is {trials}; allowed: an integer of at least 8")
    if rounds < 1:
        raise PrivacyError(f"rounds is {rounds}; allowed: an integer of at least 1")
    absent, there = (_learn(target, present, seed) for present in (False, True))

    def scores(present: bool) -> Floats:
        parts = []
        for batch, copies in enumerate(_batches(target, trials)):
            of_trial = streams.derived_seed(seed, "audit trial", int(present), batch)
            outputs = target.outputs(present, rounds, copies, of_trial)
            std = target.noise_std
            parts.append(there.log_likelihood(outputs, std) - absent.log_likelihood(outputs, std))
        return np.concatenate(parts)

    return Scores(without=scores(False), present=scores(True))


def _learn(target: AuditedMechanism, present: bool, seed: int) -> Distribution:
    """Estimate the distribution of a round's sum before noise, from rounds that no trial uses."""
    copies = next(_batches(target, _LEARNING_COPIES))
    own_seed = streams.derived_seed(seed, "audit learning", int(present), 0)
    sums = target.outputs(present, _LEARNING_ROUNDS, copies, own_seed, noise=False)
    values, counts = np.unique(sums.round(_DECIMALS), return_counts=True)
    return Distribution(values, np.log(counts / counts.sum()))


def _batches(target: AuditedMechanism, copies: int) -> Iterator[int]:
    """Yield numbers of copies that fit into memory together and add up to ``copies``."""
    most = max(1, _ITEMS_PER_BATCH // max(target.scenario.items, 1))
    for start in range(0, copies, most):
        yield min(most, copies - start)
