"""A federation without language models: nodes whose users send given vectors, on the inline grid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from scipy import stats

from fl_sim.engines.engine import run_inline
from fl_sim.strategies.aggregation import BoundedSumStrategy, Federation, RoundParts
from fl_sim.strategies.mechanism import PrivacyPlan
from fl_sim.strategies.messages import TRAIN_ACTION, TrainReply, TrainRequest, arrays_to_vector, vector_to_arrays
from fl_sim.strategies.postprocessing import AveragingConfig, IterateAverage, ServerOptimizerConfig, build_optimizer
from fl_sim.strategies.published import PublishedTerms
from fl_sim.strategies.registry import plan_from_record

Answer = Callable[[TrainRequest, np.ndarray], TrainReply]

PLAIN_SGD = ServerOptimizerConfig(optimizer="sgd", learning_rate=1.0)
TERMS = PublishedTerms(
    estimator="f_e_plus", noise="as-stated", user_weights=946.0, entity_weights=7610.0, extended_weights=2864.0,
    sentences=14_040, sensitive_sentences=11_176,
)  # fmt: skip


def plan(**changes: object) -> PrivacyPlan:
    """A small uedp plan with the given changes."""
    values: dict = {"strategy": "uedp", "population": 10, "noise_multiplier": 1e-12, "rounds": 1, "delta": 1e-5}
    values |= dict.fromkeys(("q_u", "q_e", "q_s", "clip_norm", "user_cap"), 1.0)
    given = {name: asdict(value) if is_dataclass(value) else value for name, value in (values | changes).items()}
    return plan_from_record(given)


def user_ids(request: TrainRequest) -> np.ndarray:
    """The sampled users of a request."""
    return np.concatenate([np.arange(first, stop) for first, stop in request.users])


def ones(request: TrainRequest, users: np.ndarray) -> TrainReply:
    """Every user sends 0.5 on the coordinate that its id names, modulo the model's size."""
    vector = np.zeros(len(request.vector), dtype=np.float32)
    np.add.at(vector, users % len(vector), np.float32(0.5))
    return TrainReply(vector, users=len(users), sentences=len(users), clipped=0, nonfinite=0, loss_sum=0.0)


def zeros(request: TrainRequest, users: np.ndarray) -> TrainReply:
    """Nobody moves the model."""
    return TrainReply(np.zeros_like(request.vector), len(users), len(users), 0, 0, 0.0)


def is_gaussian_of(std: float, noise: np.ndarray, level: float = 1e-6) -> bool:
    """Kolmogorov-Smirnov on all coordinates, and a chi-square test of the scale; ``level`` each.

    Secure noise is fresh at every run of the tests, so the level decides how often they fail for nothing.
    """
    flat = noise.ravel() / std
    variance = stats.chi2.cdf((flat**2).sum(), len(flat))
    return stats.kstest(flat, "norm").pvalue > level and level / 2 < variance < 1 - level / 2


def strategy_of(privacy: PrivacyPlan, **parts: Any) -> BoundedSumStrategy:
    """The strategy of a model of four parameters, ten users and plain SGD."""
    optimizer = build_optimizer(PLAIN_SGD, 4, 1)
    return BoundedSumStrategy(RoundParts(privacy, Federation("{}", np.full(10, 3), 0), optimizer, **parts))


def run_rounds(
    privacy: PrivacyPlan,
    *,
    size: int = 4,
    users: int = 10,
    nodes: int = 3,
    seed: int = 0,
    answer: Answer = ones,
    rounds: int = 1,
    before_release: Callable[[int, str], str] = lambda server_round, total: "",
    secure_noise: bool = False,
    noise_key: str = "",
    optimizer: ServerOptimizerConfig = PLAIN_SGD,
    averaging: AveragingConfig | None = None,
    observe: Callable[[BoundedSumStrategy], Any] = lambda strategy: None,
    resume: tuple[int, np.ndarray, dict[str, np.ndarray]] | None = None,
) -> tuple[list[np.ndarray], BoundedSumStrategy]:
    """The models after each round (the initial one is zero), and the strategy that made them.

    ``strategy.observed`` has what ``observe`` saw of it after each round. ``resume`` goes on after a round from its
    model and the strategy's state.
    """
    client = ClientApp()

    @client.train(TRAIN_ACTION)
    def train(message: Message, context: Context) -> Message:
        request = TrainRequest.from_message(message)
        return Message(answer(request, user_ids(request)).to_record(request), reply_to=message)

    federation = Federation("{}", np.full(users, 3, dtype=np.int64), seed)
    parts = RoundParts(
        privacy,
        federation,
        build_optimizer(optimizer, size, rounds),
        IterateAverage(averaging, size, rounds),
        before_release=before_release,
        secure_noise=secure_noise,
        noise_key=noise_key,
    )
    strategy = BoundedSumStrategy(parts)
    done, start = 0, np.zeros(size, dtype=np.float32)
    if resume is not None:
        done, start, state = resume
        strategy.restore(state)
    strategy.observed = []

    def after(server_round: int, arrays: ArrayRecord) -> None:
        models.append(arrays_to_vector(arrays))
        if server_round:
            strategy.observed.append(observe(strategy))

    models: list[np.ndarray] = []
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        arrays = vector_to_arrays(start)
        strategy.start(grid, arrays, num_rounds=rounds, evaluate_fn=after, first_round=done + 1)

    run_inline(server, client, nodes)
    return models[0 if done else 1 :], strategy
