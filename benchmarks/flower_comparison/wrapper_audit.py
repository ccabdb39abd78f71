"""Attack one round of Flower's wrapper and of ours: does the model tell whether one user took part?

Nine users want to move the first parameter down by C, the attacked user wants to move it up by C. With the user there
are ten nodes, without there are nine; every strategy draws nine of them (ours: each with probability 0.9). The attack
reads the first parameter of the released model. Every round starts from the model before it, so that the rounds of one
training are independent trials; all messages are those of a training.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg, Strategy

from benchmarks.flower_comparison.digits_contenders import (
    ANY_USER,
    epsilon_of_any_weights,
    epsilon_of_fixed_cohorts,
    fedavg,
    flowers_accountant,
)
from fl_sim.auditing.lower_bounds import Scores, epsilon_lower_bound, judge_claims
from fl_sim.engines.engine import run_inline
from fl_sim.flower import UserLevelDifferentialPrivacy, userlevelclipping_mod
from fl_sim.strategies.accounting.accountant import RoundEvent, epsilon

NODES, COHORT, CLIP, NOISE, DELTA = 10, 9, 1.0, 1.0, 1e-5
HEAVY, LIGHT = 1_000_000, 10  # num-examples that the attacked user and the others report
CONFIDENCE = 0.99
DELTAS = (1e-5, 1e-3, 0.01, 0.05, 0.1, 0.2)
_IN_A_TRAINING = 250

Build = Callable[[Path], Strategy]


def audited(trials: int) -> list[dict[str, Any]]:
    """Return what the attack finds in each strategy, by ``trials`` rounds with and as many without the user."""
    rate = COHORT / NODES
    fixed = epsilon_of_fixed_cohorts(NOISE, rate, 1, DELTA)
    weighted = epsilon_of_any_weights(NOISE, COHORT, 1, DELTA)
    ours = RoundEvent("user_level", noise_multiplier=NOISE, q_u=rate)
    claims = [(delta, epsilon(ours, ANY_USER, rounds=1, delta=delta)) for delta in DELTAS]
    cases: list[tuple[str, str, Build, list[Any], int, list[tuple[float, float]], float]] = [
        ("flower_weighted", "Flower's wrapper, example weights, a heavy user (ε that its accountant has for z)",
         lambda folder: _flower(accounted=False), [], HEAVY, _stated(), weighted),
        ("flower_accounted", "Flower's wrapper with its accountant, equal weights",
         lambda folder: _flower(accounted=True), [], LIGHT, _stated(), fixed),
        ("ours", "UserLevelDifferentialPrivacy, a heavy user", _ours, [userlevelclipping_mod], HEAVY, claims,
         epsilon(ours, ANY_USER, rounds=1, delta=DELTA)),
    ]  # fmt: skip
    return [_judged(*case, trials) for case in cases]


def _judged(
    name: str, words: str, build: Build, mods: list[Any], weight: int, claims: list[tuple[float, float]], proven: float,
    trials: int,
) -> dict[str, Any]:  # fmt: skip
    present, without = (released(build, mods, weight, nodes, trials) for nodes in (NODES, NODES - 1))
    scores = Scores(without=without, present=present)
    verdict = judge_claims(scores, claims, CONFIDENCE)
    return {
        "name": name,
        "words": words,
        "trials": trials,
        "mean_without": round(float(without.mean()), 4),
        "mean_present": round(float(present.mean()), 4),
        "noise_std": round(NOISE * CLIP / COHORT, 4),
        "epsilon_stated": claims[0][1],
        "epsilon_proven": proven,
        "epsilon_at_least": epsilon_lower_bound(scores, DELTA, CONFIDENCE),
        "judged": {"delta": verdict.delta, "claimed": verdict.claimed, "at_least": verdict.epsilon},
        "refuted": verdict.refuted,
    }


def released(build: Build, mods: list[Any], weight: int, nodes: int, trials: int) -> npt.NDArray[np.float64]:
    """Return by how much each of ``trials`` rounds moved the first parameter, float64 (trials,)."""
    app, moves = _client_app(mods, weight), list[float]()
    while len(moves) < trials:
        moves += _moves(build, app, nodes, min(_IN_A_TRAINING, trials - len(moves)))
    return np.array(moves)


def _moves(build: Build, app: ClientApp, nodes: int, rounds: int) -> list[float]:
    firsts, server = list[float](), ServerApp()

    def look(server_round: int, arrays: ArrayRecord) -> None:
        firsts.append(float(arrays["w"].numpy()[0]))

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        with tempfile.TemporaryDirectory() as folder:
            initial = ArrayRecord({"w": Array(np.zeros(2))})
            build(Path(folder) / "run").start(grid, initial, num_rounds=rounds, evaluate_fn=look)

    run_inline(server, app, nodes)
    return np.diff(firsts).tolist()


def _client_app(mods: list[Any], weight: int) -> ClientApp:
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        attacked = context.node_config["partition-id"] == NODES - 1
        moved = message.content["arrays"]["w"].numpy() + np.array([CLIP if attacked else -CLIP, 0.0])
        metrics = MetricRecord({"num-examples": weight if attacked else LIGHT})
        return Message(RecordDict({"arrays": ArrayRecord({"w": Array(moved)}), "metrics": metrics}), reply_to=message)

    return app


def _flower(*, accounted: bool) -> Strategy:
    accountant = flowers_accountant(NODES, DELTA) if accounted else None
    return DifferentialPrivacyServerSideFixedClipping(fedavg(COHORT, NODES), NOISE, CLIP, COHORT, accountant=accountant)


def _ours(folder: Path) -> Strategy:
    return UserLevelDifferentialPrivacy(
        FedAvg(), population=NODES, sampling_rate=COHORT / NODES, clip_norm=CLIP, noise_multiplier=NOISE, delta=DELTA,
        folder=folder,
    )  # fmt: skip


def _stated() -> list[tuple[float, float]]:
    """Return the pairs (δ, ε) that Flower's accountant states for one round."""
    from flwr.supercore.privacy_accounting import GaussianPrivacyEvent

    accountant = flowers_accountant(NODES, DELTA)
    accountant.compose(GaussianPrivacyEvent(noise_multiplier=NOISE, sample_size=COHORT, population_size=NODES))
    pairs = [(delta, accountant.get_epsilon(delta)) for delta in DELTAS]
    return [(delta, stated) for delta, stated in pairs if math.isfinite(stated)]
