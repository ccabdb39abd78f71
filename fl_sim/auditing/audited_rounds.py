"""Run our real rounds on the worst-case corpora, with a table of gradients in place of the language model.

All else is the product's own code: the Flower strategy on the inline grid (user sampling, messages, checks, noise,
denominator, server step), :func:`fl_sim.clients.selection.select` (entity and sentence sampling) and
:func:`fl_sim.strategies.primitives.clipping.project` (both clips). A :class:`Seam` names these parts so that a test can
replace each by a broken one; the product has no such switch.

Then break one part of a mechanism on purpose, because an audit that misses such a fault shows nothing; then the audit
targets of the product's mechanisms, each with its worst-case pair of corpora.

The mutations exist at the audit's own seam only; no switch of the product weakens it.

>>> from fl_sim.auditing.audited_rounds import seam_of
>>> from fl_sim.strategies.accounting.accountant import RoundEvent
>>> seam = seam_of(RoundEvent("uedp", noise_multiplier=2.0), rounds=1, delta=1e-5)
>>> broken = mutate(seam, "user_clip_removed")
>>> broken.project_sentence is seam.project_sentence, broken.project_user is seam.project_user
(True, False)

>>> from fl_sim.strategies.accounting.adjacency import ContributionBound
>>> event = RoundEvent("uedp", noise_multiplier=1.0, user_cap=4)
>>> scenario = worst_case(event, Adjacency(user_sentences=2, entity_bound=ContributionBound(3, 2)))
>>> scenario.users, scenario.sentences, scenario.background
(4, 8, 0)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from numpy.typing import NDArray

from fl_sim.auditing.worst_case_corpora import CopiedCorpus, Scenario, background_needed, build, gradients
from fl_sim.clients.selection import Selection, WeightedSelection, select, select_for
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.engines.engine import run_inline
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.accounting.adjacency import Adjacency, PrivacyError
from fl_sim.strategies.accounting.guarantee import NoiseScale
from fl_sim.strategies.accounting.paper_model import PublishedSettings
from fl_sim.strategies.aggregation import BoundedSumStrategy, Federation, RoundParts
from fl_sim.strategies.client_rules import ClientRule
from fl_sim.strategies.mechanism import PrivacyPlan
from fl_sim.strategies.messages import (
    TRAIN_ACTION,
    TrainReply,
    TrainRequest,
    arrays_to_vector,
    vector_to_arrays,
)
from fl_sim.strategies.postprocessing import ServerOptimizerConfig, build_optimizer
from fl_sim.strategies.primitives import clipping, sampling, streams
from fl_sim.strategies.published import Published, PublishedTerms
from fl_sim.strategies.registry import load_strategy

Floats = NDArray[np.float64]
Vector = NDArray[np.float32]
Select = Callable[[Ownership, NDArray[np.int64], int, float, float], Selection]
Project = Callable[[Vector, float], float]

_PLAIN_SUM = ServerOptimizerConfig(optimizer="sgd", learning_rate=1.0)


@dataclass(frozen=True, slots=True)
class Seam:
    """Name the parts of a mechanism that an audit runs.

    Attributes:
        plan: the rates, clips and noise that the rounds really use.
        build: builds the server's strategy.
        select: selects the sentences of a round; None for the product's selection.
        project_sentence: clips the gradient of a sentence in place.
        project_user: clips the sum of a user in place.
    """

    plan: PrivacyPlan
    build: Callable[[RoundParts], BoundedSumStrategy] = BoundedSumStrategy
    select: Select | None = None
    project_sentence: Project = clipping.project
    project_user: Project = clipping.project


def release(seam: Seam, corpus: CopiedCorpus, rounds: int, seed: int) -> Floats:
    """Run rounds and return the noisy sum of every copy, float64 (rounds, copies), in units of the user clip β.

    Args:
        seam: the mechanism.
        corpus: one of the two corpora.
        rounds: T, the number of rounds.
        seed: root seed of every draw.
    """
    models = [np.zeros(corpus.copies, dtype=np.float32)]
    federation = Federation("{}", corpus.ownership.sentences_per_user, seed)
    strategy = seam.build(RoundParts(seam.plan, federation, build_optimizer(_PLAIN_SUM, corpus.copies)))
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy.start(
            grid,
            vector_to_arrays(models[0]),
            num_rounds=rounds,
            evaluate_fn=lambda number, arrays: models.append(arrays_to_vector(arrays)) if number else None,
        )

    run_inline(server, _client(seam, corpus), num_nodes=1)
    steps = np.diff(np.asarray(models, dtype=np.float64), axis=0)
    mechanism = seam.plan.mechanism
    return steps * (mechanism.denominator / mechanism.user_clip(mechanism.clip_norm))


def _client(seam: Seam, corpus: CopiedCorpus) -> ClientApp:
    client = ClientApp()

    @client.train(TRAIN_ACTION)
    def train(message: Message, context: Context) -> Message:
        request = TrainRequest.from_message(message)
        rule = request.rule
        chosen = chosen_sentences(seam, corpus, request)
        return Message(bounded_sum(seam, corpus, chosen, rule).to_record(request), reply_to=message)

    return client


def chosen_sentences(seam: Seam, corpus: CopiedCorpus, request: TrainRequest) -> Selection:
    """Return the seam's selection if it has one, else the product's."""
    rule = request.rule
    if seam.select is None:
        return select_for(rule, corpus.ownership, request.users, request.round_seed)
    return seam.select(corpus.ownership, request.users, request.round_seed, rule.q_e, rule.q_s)


def bounded_sum(seam: Seam, corpus: CopiedCorpus, chosen: Selection, rule: ClientRule) -> TrainReply:
    """Σ_u Π_β(Σ_s Π_c(g_s)) on every copy's coordinate, with g_s from the table of gradients.

    Each distinct gradient and each distinct sum of a user is projected once, by the real projection, which depends on
    nothing else.

    Args:
        seam: the mechanism.
        corpus: one of the two corpora.
        chosen: the selected sentences.
        rule: the round's rule, with both clips.
    """
    mechanism = seam.plan.mechanism
    table = gradients(mechanism.user_clip(mechanism.clip_norm))
    for row in table:
        seam.project_sentence(row, rule.sentence_clip)
    owner = np.repeat(np.arange(len(chosen.users)), chosen.counts)
    of_sentence = table[corpus.kinds[chosen.sentences], 0].astype(np.float64)
    if isinstance(chosen, WeightedSelection):  # user weights are 1; other weights would need other worst cases
        of_sentence *= chosen.weights
    sums = np.bincount(owner, weights=of_sentence, minlength=len(chosen.users))
    distinct, position = np.unique(sums.astype(np.float32), return_inverse=True)
    for value in distinct[:, None]:
        seam.project_user(value, rule.user_clip)
    copy = corpus.copy_of_user[chosen.users]
    total = np.bincount(copy, weights=distinct[position].astype(np.float64), minlength=corpus.copies)
    return TrainReply(total.astype(np.float32), len(chosen.users), len(chosen.sentences), 0, 0, 0.0)


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
        mechanism, entity = self.seam.plan.mechanism, self.scenario.entity_users > 0
        return not (mechanism.q_u == mechanism.q_s == 1 and (mechanism.q_e == 1 or not entity))

    def outputs(self, present: bool, rounds: int, copies: int, seed: int, *, noise: bool = True) -> NDArray[np.float64]:
        seam = self.seam
        if not noise:
            seam = replace(seam, plan=seam.plan.with_noise(_NO_NOISE))
        return release(seam, build(self.scenario, present, copies), rounds, seed)


def seam_of(event: RoundEvent, rounds: int, delta: float) -> Seam:
    """The real mechanism that ``event`` describes. The clip c is 1: nothing depends on its scale."""
    strategy = load_strategy(event.strategy)
    own: dict[str, Any] = {"clipping": event.clipping} if "clipping" in strategy.fields_of_own_keys() else {}
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
    settings: PublishedSettings, entities: int, adjacency: Adjacency, user_clip: float, noise: NoiseScale
) -> OwnMechanism:
    """Return the product's ``published``, weights 1 and sums of weights public, on its worst-case corpora.

    The F users who mention e' own a sentence that pulls the other way. Their sentence with e', which also mentions
    :data:`_COMPANIONS` other entities, outweighs it as soon as one of its entities is sampled.

    Args:
        settings: the settings of the training, with the estimator f_E or f_E+.
        entities: |E|.
        adjacency: the protected user and entity.
        user_clip: β.
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
        entity_users=entity_bound.users if entity_bound.total else 0,
        entity_sentences=entity_bound.sentences_per_user if entity_bound.total else 0,
        user_sentences=int(user_sentences),
        background=background_needed(entity_bound.sentences_per_user, event.user_cap, event.clips_sentences)
        if entity_bound.total
        else 0,
        companions=companions if entity_bound.total else 0,
    )
