"""Run our real rounds on the worst-case corpora, with a table of gradients in place of the language model.

All else is the product's own code: the Flower strategy on the inline grid (user sampling, messages, checks, noise,
denominator, server step), :func:`fl_sim.clients.selection.select` (entity and sentence sampling) and
:func:`fl_sim.strategies.primitives.clipping.project` (both clips). A :class:`Seam` names these parts so that a test can
replace each by a broken one; the product has no such switch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from numpy.typing import NDArray

from fl_sim.auditing.worst_case_corpora import CopiedCorpus, gradients
from fl_sim.clients.selection import Selection, WeightedSelection, select_for
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.engines.engine import run_inline
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
from fl_sim.strategies.primitives import clipping

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
