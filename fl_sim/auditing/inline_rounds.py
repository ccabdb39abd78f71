"""Run a mechanism's real rounds on one node in this process, with sums of the caller's choice.

User sampling, messages, checks of replies, noise, denominator, adaptive clip and server step are the product's: its
Flower strategy on the inline grid.

>>> from fl_sim.strategies.noiseless import Noiseless
>>> mechanism = Noiseless(population=2, q_u=1.0, q_e=1.0, q_s=1.0, clip_norm=1.0, user_cap=1.0, noise_multiplier=0.0)
>>> def answer(request):
...     return TrainReply(np.ones(3, np.float32), users=2, sentences=2, clipped=0, nonfinite=0, loss_sum=0.0)
>>> released = list[Release]()
>>> plan = PrivacyPlan(mechanism=mechanism, rounds=2, delta=0.5)
>>> run_rounds(plan, np.ones(2, np.int64), np.zeros(3, np.float32), answer, seed=0, observe=released.append)
>>> [(release.server_round, release.noisy_sum.tolist()) for release in released]
[(1, [1.0, 1.0, 1.0]), (2, [1.0, 1.0, 1.0])]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from numpy.typing import NDArray

from fl_sim.engines.engine import run_inline
from fl_sim.strategies.aggregation import BoundedSumStrategy, Federation, RoundParts
from fl_sim.strategies.mechanism import PrivacyPlan
from fl_sim.strategies.messages import TRAIN_ACTION, TrainReply, TrainRequest, arrays_to_vector, vector_to_arrays
from fl_sim.strategies.postprocessing import ServerOptimizerConfig, build_optimizer

_PLAIN_SUM = ServerOptimizerConfig(optimizer="sgd", learning_rate=1.0)


@dataclass(frozen=True, eq=False)
class Release:
    """Hold what a round releases, and what it was made of.

    Attributes:
        server_round: the round, from 1.
        noisy_sum: the difference of the models times the public denominator, float64 (d,).
        clip_norm: c of the round.
        reply: the node's reply, without noise; None if no user was sampled.
    """

    server_round: int
    noisy_sum: NDArray[np.float64]
    clip_norm: float
    reply: TrainReply | None


def run_rounds(
    plan: PrivacyPlan,
    sentences_per_user: NDArray[np.int64],
    initial: NDArray[np.float32],
    answer: Callable[[TrainRequest], TrainReply],
    seed: int,
    observe: Callable[[Release], None],
) -> None:
    """Run the rounds of a plan.

    Args:
        sentences_per_user: of each user, int64 (U,).
        initial: the model, float32 (d,).
        answer: returns the bounded sum that a request asks for.
    """
    mechanism = plan.mechanism
    federation = Federation("{}", sentences_per_user, seed)
    strategy = BoundedSumStrategy(RoundParts(plan, federation, build_optimizer(_PLAIN_SUM, len(initial))))
    replies = list[TrainReply]()
    before = [initial.astype(np.float64)]

    def read(server_round: int, arrays: ArrayRecord) -> None:
        vector = arrays_to_vector(arrays).astype(np.float64)
        if server_round:
            adapted = strategy.tally.clip_norm
            clip = mechanism.clip_norm if adapted is None else adapted
            reply = replies.pop() if replies else None
            observe(Release(server_round, (vector - before[0]) * mechanism.denominator, clip, reply))
        before[0] = vector

    server, client = ServerApp(), ClientApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy.start(grid, vector_to_arrays(initial), num_rounds=plan.rounds, evaluate_fn=read)

    @client.train(TRAIN_ACTION)
    def train(message: Message, context: Context) -> Message:
        request = TrainRequest.from_message(message)
        replies.append(answer(request))
        return Message(replies[-1].to_record(request), reply_to=message)

    run_inline(server, client, num_nodes=1)
