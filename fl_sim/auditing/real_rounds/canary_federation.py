"""Run real rounds on users and entities of canaries beside real users, and read the releases along the canaries.

Each of m units is one protected user u' and one protected entity e' with the users who mention it; all its sentences
are the same canary sentence. A unit that is left out keeps its place, because who mentions whom may be public: its
sentences are selected like all others and then add nothing, to the sum and to the votes. Everything else is the
product's: the Flower strategy on the inline grid (user sampling, noise, denominator, adaptive clip, server step),
:func:`fl_sim.clients.selection.select_for`, and :func:`fl_sim.clients.training.bounded_sum` on a real model.

>>> units = CanaryUnits.of(Scenario(reach_users=2, reach_sentences=1, user_sentences=3), units=4, texts=())
>>> units.ownership.num_users, units.ownership.num_sentences, units.unit_of_sentence[:5].tolist()
(12, 20, [0, 0, 0, 0, 0])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from numpy.typing import NDArray

from fl_sim.auditing.real_rounds.canary_model import along_canaries, canary_tokens
from fl_sim.auditing.worst_case_corpora import Scenario
from fl_sim.clients import training
from fl_sim.clients.batches import Examples
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.selection import Selection, select_for
from fl_sim.data_prep.store.encode import EncodedSplit
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.engines.engine import run_inline
from fl_sim.strategies.aggregation import BoundedSumStrategy, Federation, RoundParts
from fl_sim.strategies.mechanism import PrivacyPlan
from fl_sim.strategies.messages import TRAIN_ACTION, TrainReply, TrainRequest, arrays_to_vector, vector_to_arrays
from fl_sim.strategies.postprocessing import ServerOptimizerConfig, build_optimizer

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

BYSTANDER = -1
_PLAIN_SUM = ServerOptimizerConfig(optimizer="sgd", learning_rate=1.0)


@dataclass(frozen=True, eq=False)
class CanaryUnits:
    """Hold the incidence of m units of canaries and of bystanders.

    Attributes:
        ownership: the users, sentences and entities; entity i is that of unit i.
        unit_of_sentence: the unit of each sentence, :data:`BYSTANDER` for real text, int64 (S,).
        texts: the sentences of the bystanders, one user each.
        units: m.
    """

    ownership: Ownership
    unit_of_sentence: Ints
    texts: Sequence[str]
    units: int

    @classmethod
    def of(cls, scenario: Scenario, units: int, texts: Sequence[str]) -> CanaryUnits:
        """Return ``units`` copies of ``scenario`` and a user for each of ``texts``."""
        mentions = [scenario.reach_sentences] * scenario.reach_users
        users = [*mentions, scenario.user_sentences] if scenario.user_sentences else mentions
        with_entity = np.arange(sum(users)) < sum(mentions)
        counts = np.concatenate([np.tile(users, units), np.ones(len(texts))]).astype(np.int64)
        unit = np.repeat(np.arange(units), sum(users))
        mentioned = np.concatenate([np.tile(with_entity, units), np.zeros(len(texts), dtype=np.bool_)])
        unit_of_sentence = np.concatenate([unit, np.full(len(texts), BYSTANDER)]).astype(np.int64)
        ownership = Ownership(
            user_offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            entity_offsets=np.concatenate([[0], np.cumsum(mentioned)]).astype(np.int64),
            entity_ids=unit_of_sentence[mentioned].astype(np.int32),
            num_entities=units,
        )
        return cls(ownership, unit_of_sentence, tuple(texts), units)

    def examples(self, model: LanguageModel) -> Examples:
        """Return the sentences of all units and bystanders, in the tokens of ``model``."""
        canaries = [canary_tokens(model, unit) for unit in range(self.units)]
        real = [example.tokens for example in model.encode(list(self.texts))]
        sentences = [canaries[unit] for unit in self.unit_of_sentence if unit != BYSTANDER] + real
        offsets = np.concatenate([[0], np.cumsum([len(tokens) for tokens in sentences])]).astype(np.int64)
        return Examples(EncodedSplit(np.concatenate(sentences).astype(np.int32), offsets))

    def keep(self, selection: Selection, included: Bools) -> Selection:
        """Return the selection without the sentences of units that are left out.

        Args:
            selection: the product's selection.
            included: whether each unit is included, bool (m,).
        """
        kept = np.append(included, True)[self.unit_of_sentence[selection.sentences]]  # the last is BYSTANDER's
        owner = np.repeat(np.arange(len(selection.users)), selection.counts)
        counts = np.bincount(owner[kept], minlength=len(selection.users))
        return replace(selection, sentences=selection.sentences[kept], counts=counts)


@dataclass(frozen=True, eq=False)
class Releases:
    """Hold the releases of T rounds along the canaries' directions.

    Attributes:
        along: the noisy sums along each unit's direction, in user clips, float64 (T, m).
        clips: c of each round, float64 (T,).
    """

    along: Floats
    clips: Floats


@dataclass(frozen=True, eq=False)
class RealCorpus:
    """Hold what a node needs for real rounds.

    Attributes:
        model: the real model; rounds change its parameters.
        ownership: the users, sentences and entities.
        examples: the sentences.
        keep: returns the selection without the sentences that add nothing in this corpus.
    """

    model: LanguageModel
    ownership: Ownership
    examples: Examples
    keep: Callable[[Selection], Selection]


Observer = Callable[[int, Floats, BoundedSumStrategy, list[TrainReply]], None]
"""Called with each round, its noisy sum, float64 (d,), the strategy, and the replies of the round before any noise."""


def run_rounds(corpus: RealCorpus, plan: PrivacyPlan, seed: int, observe: Observer) -> None:
    """Run the rounds of ``plan`` on one node, with the product's strategy, selection and bounded sums.

    Args:
        corpus: model, incidence and sentences.
        plan: the mechanism and the number of rounds.
        seed: root seed of every draw.
        observe: reads every round.
    """
    federation = Federation("{}", corpus.ownership.sentences_per_user, seed)
    strategy = BoundedSumStrategy(
        RoundParts(plan, federation, build_optimizer(_PLAIN_SUM, corpus.model.num_parameters))
    )
    initial, replies = corpus.model.get_vector(), list[TrainReply]()
    last = [initial.astype(np.float64)]

    def read(server_round: int, arrays: ArrayRecord) -> None:
        vector = arrays_to_vector(arrays).astype(np.float64)
        if server_round:
            observe(server_round, (vector - last[0]) * plan.mechanism.denominator, strategy, replies)
            replies.clear()
        last[0] = vector

    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy.start(grid, vector_to_arrays(initial), num_rounds=plan.rounds, evaluate_fn=read)

    run_inline(server, _client(corpus, replies), num_nodes=1)
    corpus.model.set_vector(initial)


def _client(corpus: RealCorpus, replies: list[TrainReply]) -> ClientApp:
    client = ClientApp()

    @client.train(TRAIN_ACTION)
    def train(message: Message, context: Context) -> Message:
        request = TrainRequest.from_message(message)
        selection = select_for(request.rule, corpus.ownership, request.users, request.round_seed)
        corpus.model.set_vector(request.vector)
        replies.append(
            training.bounded_sum(
                corpus.model, corpus.examples, corpus.keep(selection), request.rule, request.round_seed
            )
        )
        return Message(replies[-1].to_record(request), reply_to=message)

    return client


def release_along_canaries(
    model: LanguageModel,
    units: CanaryUnits,
    included: Bools,
    plan: PrivacyPlan,
    seed: int,
    progress: Callable[[int], None] = lambda server_round: None,
) -> Releases:
    """Run all rounds of ``plan`` and return what they release along the canaries.

    Args:
        model: a model with at least m canaries (:func:`~fl_sim.auditing.real_rounds.canary_model.canary_model`).
        units: the users and entities.
        included: whether each unit is included, bool (m,).
        plan: the mechanism and the number of rounds.
        seed: root seed of every draw of the rounds.
        progress: called with every round that is released.
    """
    mechanism = plan.mechanism
    clips: list[float] = []
    rows: list[Floats] = []

    def observe(server_round: int, noisy: Floats, strategy: BoundedSumStrategy, replies: list[TrainReply]) -> None:
        adapted = strategy.tally.clip_norm
        clips.append(mechanism.clip_norm if adapted is None else adapted)
        rows.append(along_canaries(model, noisy[None])[0, : units.units] / mechanism.user_clip(clips[-1]))
        progress(server_round)

    corpus = RealCorpus(
        model, units.ownership, units.examples(model), lambda selection: units.keep(selection, included)
    )
    run_rounds(corpus, plan, seed, observe)
    return Releases(np.array(rows), np.array(clips))
