"""Train the digits of ``examples/quickstart`` under Flower's wrapper and under ours: accuracy, stated ε, proven ε.

200 users, one per node, with 7 or 8 digits each; the same clip, noise multiplier and expected cohort for all.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp import Grid, RdpAccountant, ServerApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Strategy,
)
from flwr.supercore.privacy_accounting import NeighboringRelation, PrivacyConfig, SamplingMethod

from fl_sim.auditing.lower_bounds import gaussian_epsilon
from fl_sim.engines.engine import run_inline
from fl_sim.flower import UserLevelDifferentialPrivacy, userlevelclipping_mod
from fl_sim.strategies.accounting.accountant import RoundEvent, epsilon
from fl_sim.strategies.accounting.adjacency import Adjacency

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "quickstart"))

from quickstart.softmax import held_out_accuracy, initial_model, share_of, train_model

USERS, COHORT, ROUNDS = 200, 50, 20
CLIP, NOISE, DELTA = 1.0, 1.0, 1e-4
LEARNING_RATE = 0.5
SEEDS = range(5)
RATE = COHORT / USERS
ANY_USER = Adjacency()


class Contender(NamedTuple):
    """A way to train the app.

    Attributes:
        words: what it is, for the table.
        strategy: builds the server's strategy, given a folder and a seed.
        mods: of the client.
        uniform: whether the client claims one example, so that all weights are equal.
        stated: ε that it states after all rounds, None for none.
        proven: ε that is proven for what it does.
        why: what the proven ε rests on.
    """

    words: str
    strategy: Callable[[Path, int], Strategy]
    mods: list[Any]
    uniform: bool
    stated: Callable[[Strategy], float | None]
    proven: float
    why: str


def fedavg(cohort: int = COHORT, users: int = USERS) -> FedAvg:
    """Return FedAvg with a cohort of fixed size and no evaluation on nodes."""
    return FedAvg(
        fraction_train=cohort / users, min_train_nodes=cohort, min_available_nodes=cohort, fraction_evaluate=0.0
    )


def flowers_accountant(users: int = USERS, delta: float = DELTA) -> RdpAccountant:
    """Return Flower's accountant, in the only mode that its fixed clipping allows: no amplification, add or remove."""
    mode, relation = SamplingMethod.NO_AMPLIFICATION, NeighboringRelation.ADD_OR_REMOVE_ONE
    return RdpAccountant(
        PrivacyConfig(target_delta=delta, population_size=users, sampling_method=mode, neighboring_relation=relation)
    )


def epsilon_of_fixed_cohorts(noise: float, rate: float, rounds: int, delta: float) -> float:
    """Return ε of an unweighted mean of a cohort of fixed size n with noise zC/n, if a user is added or removed.

    A user who is drawn takes another one's place in the cohort, so the mean moves by up to 2C/n: a Gaussian of noise
    multiplier z/2, with the mixture n/N over cohorts with and without the user.
    """
    event = RoundEvent("user_level", noise_multiplier=noise / 2, q_u=rate)
    return epsilon(event, ANY_USER, rounds=rounds, delta=delta)


def epsilon_of_any_weights(noise: float, cohort: int, rounds: int, delta: float) -> float:
    """Return ε of a mean with weights that clients choose: one of them may move it by 2C, under noise zC/n."""
    return gaussian_epsilon(2 * cohort / noise * math.sqrt(rounds), delta)


def contenders() -> dict[str, Contender]:
    """Return the contenders by name."""
    weighted = epsilon_of_any_weights(NOISE, COHORT, ROUNDS, DELTA)
    fixed = epsilon_of_fixed_cohorts(NOISE, RATE, ROUNDS, DELTA)
    ours = epsilon(RoundEvent("user_level", noise_multiplier=NOISE, q_u=RATE), ANY_USER, rounds=ROUNDS, delta=DELTA)
    heavy = "positive weights of any size: a heavy user may move the mean by 2C"
    none = Contender("FedAvg without privacy", lambda folder, seed: fedavg(), [], False, _nothing, math.inf, "no noise")
    return {
        "fedavg": none,
        "flower_server": Contender(
            "Flower's server-side wrapper, example weights", lambda folder, seed: _server(None), [], False, _nothing,
            weighted, heavy,
        ),
        "flower_client": Contender(
            "Flower's client-side wrapper, example weights", lambda folder, seed: _client(), [fixedclipping_mod],
            False, _nothing, weighted, heavy,
        ),
        "flower_accounted": Contender(
            "Flower's server-side wrapper with its accountant, equal weights",
            lambda folder, seed: _server(flowers_accountant()), [], True, _spent, fixed,
            "a cohort of fixed size: adding a user replaces another one, 2C",
        ),
        "ours": Contender(
            "UserLevelDifferentialPrivacy", _ours, [userlevelclipping_mod], False, _ours_states, ours,
            "Poisson cohorts, unweighted sums, public denominator",
        ),
    }  # fmt: skip


def trained(contender: Contender, seed: int) -> tuple[float, list[float], float | None]:
    """Return the accuracy on held-out digits after all rounds, the seconds of every round, and the stated ε."""
    app, server = _client_app(contender), ServerApp()
    ends, figures = list[float](), dict[str, Any]()
    random.seed(seed), np.random.seed(seed)  # noqa: NPY002  Flower draws cohorts and noise from the global generators

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        with tempfile.TemporaryDirectory() as folder:
            strategy = contender.strategy(Path(folder) / "run", seed)
            result = strategy.start(
                grid,
                initial_model(),
                num_rounds=ROUNDS,
                evaluate_fn=lambda number, arrays: ends.append(time.monotonic()),
            )
        figures.update(accuracy=held_out_accuracy(result.arrays), stated=contender.stated(strategy))

    run_inline(server, app, USERS)
    return figures["accuracy"], np.diff(ends)[1:].tolist(), figures["stated"]


def compared() -> list[dict[str, Any]]:
    """Return a row per contender; seeds and contenders take turns, so that a busy machine is busy for all."""
    everything = contenders()
    results: dict[str, list[tuple[float, list[float], float | None]]] = {name: [] for name in everything}
    for seed in SEEDS:
        for name, contender in everything.items():
            results[name].append(trained(contender, seed))
    plain = _seconds(results["fedavg"])
    return [
        {
            "name": name,
            "words": everything[name].words,
            "epsilon_stated": runs[0][2],
            "epsilon_proven": None if math.isinf(everything[name].proven) else everything[name].proven,
            "why": everything[name].why,
            "accuracies": [round(accuracy, 4) for accuracy, _, _ in runs],
            "seconds_per_round_over_fedavg": round(_seconds(runs) / plain, 3),
        }
        for name, runs in results.items()
    ]


def _seconds(runs: list[tuple[float, list[float], float | None]]) -> float:
    return statistics.median(second for _, seconds, _ in runs for second in seconds)


def _client_app(contender: Contender) -> ClientApp:
    app = ClientApp(mods=contender.mods)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        images, labels = share_of(context.node_config["partition-id"], USERS)
        arrays: ArrayRecord = train_model(message.content["arrays"], images, labels, LEARNING_RATE)
        metrics = MetricRecord({"num-examples": 1 if contender.uniform else len(labels)})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


def _server(accountant: RdpAccountant | None) -> Strategy:
    return DifferentialPrivacyServerSideFixedClipping(fedavg(), NOISE, CLIP, COHORT, accountant=accountant)


def _client() -> Strategy:
    return DifferentialPrivacyClientSideFixedClipping(fedavg(), NOISE, CLIP, COHORT)


def _ours(folder: Path, seed: int) -> Strategy:
    return UserLevelDifferentialPrivacy(
        FedAvg(), population=USERS, sampling_rate=RATE, clip_norm=CLIP, noise_multiplier=NOISE, delta=DELTA,
        folder=folder, seed=seed,
    )  # fmt: skip


def _nothing(strategy: Strategy) -> None:
    return None


def _spent(strategy: Any) -> float:
    return float(strategy.privacy_spent().epsilon)


def _ours_states(strategy: Any) -> float:
    return float(strategy.epsilon())
