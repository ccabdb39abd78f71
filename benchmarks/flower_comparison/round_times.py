"""Time a round of user-level DP beside one of plain FedAvg, on Flower's simulation engine.

The same simulation runs both in turns, on the same nodes, with the same expected cohort. A node takes ten local steps
of 32 examples, or returns at once, so that nothing but the round itself is timed. Enrolment, which a run pays once, is
timed apart.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy

from fl_sim.flower import UserLevelDifferentialPrivacy, private_messages, userlevelclipping_mod

LAYERS, EXAMPLES = 8, 32


class Setting(NamedTuple):
    """What is simulated.

    Attributes:
        nodes: how many there are.
        cohort: the expected number of them in a round.
        parameters: of the model.
        steps: local steps on 32 examples that a node takes; 0 for a node that returns at once.
    """

    nodes: int
    cohort: int
    parameters: int
    steps: int


COHORTS = ((2, 2), (50, 25), (1000, 50))
SETTINGS = [
    Setting(nodes, cohort, size, steps)
    for nodes, cohort in COHORTS
    for size in (100_000, 1_000_000)
    for steps in (10, 0)
]


def only_if_private(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Bound the update if the request is of a private round; pass on those of plain FedAvg."""
    if private_messages.RECORD not in message.content.config_records:
        return call_next(message, context)
    return userlevelclipping_mod(message, context, call_next)


client = ClientApp(mods=[only_if_private])


@client.train()
def train(message: Message, context: Context) -> Message:
    """Take the local steps on layers of their own, with a fixed target, so that nothing but arithmetic is done."""
    steps, arrays = int(message.content["config"]["steps"]), message.content["arrays"]
    moved = ArrayRecord({name: Array(_stepped(array.numpy(), steps)) for name, array in arrays.items()})
    return Message(RecordDict({"arrays": moved, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)


def _stepped(weight: npt.NDArray[np.float32], steps: int) -> npt.NDArray[np.float32]:
    """Return a layer, float32 (n, m), after some steps of gradient descent on the squared error of 32 examples."""
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((EXAMPLES, len(weight)), np.float32)
    for _ in range(steps):
        error = inputs @ weight - np.float32(1.0)
        weight = weight - np.float32(1e-4) * (inputs.T @ error)
    return weight + np.float32(1e-4)


def model_of(parameters: int) -> ArrayRecord:
    """Return a model of about so many parameters, in some layers."""
    width = round((parameters / LAYERS) ** 0.5)
    return ArrayRecord({f"layer{k}": Array(np.zeros((width, width), np.float32)) for k in range(LAYERS)})


def measured(setting: Setting, turns: int, rounds: int) -> dict[str, Any]:
    """Return the median seconds of a round of either, and of the enrolment.

    Args:
        setting: what is simulated.
        turns: how often the two take turns.
        rounds: of each turn; one more, the first, is not counted.
    """
    from flwr.simulation import run_simulation

    seconds: dict[str, list[float]] = {"plain": [], "private": []}
    enrolment: list[float] = []
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        while len(list(grid.get_node_ids())) < setting.nodes:
            time.sleep(0.1)
        nodes = None
        for _ in range(turns):
            seconds["plain"] += _rounds_of(_plain(setting), grid, setting, rounds)
            with tempfile.TemporaryDirectory() as folder:
                private = _private(setting, Path(folder) / "run")
                if nodes is None:
                    began = time.monotonic()
                    private.nodes.enrol(grid, 600.0)
                    enrolment.append(time.monotonic() - began)
                    nodes = private.nodes
                private.nodes = nodes
                seconds["private"] += _rounds_of(private, grid, setting, rounds)

    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        run_simulation(server, client, setting.nodes, backend_config={"client_resources": {"num_cpus": 1}})
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        **setting._asdict(),
        "rounds": turns * rounds,
        "plain_seconds": round(medians["plain"], 4),
        "private_seconds": round(medians["private"], 4),
        "ratio": round(medians["private"] / medians["plain"], 3),
        "enrolment_seconds": round(enrolment[0], 3),
    }


def _plain(setting: Setting) -> Strategy:
    fraction = setting.cohort / setting.nodes
    return FedAvg(fraction_train=fraction, fraction_evaluate=0.0, min_train_nodes=setting.cohort)


def _private(setting: Setting, folder: Path) -> UserLevelDifferentialPrivacy:
    return UserLevelDifferentialPrivacy(
        FedAvg(),
        population=setting.nodes,
        sampling_rate=setting.cohort / setting.nodes,
        clip_norm=1.0,
        noise_multiplier=1.0,
        folder=folder,
    )


def _rounds_of(strategy: Strategy, grid: Grid, setting: Setting, rounds: int) -> list[float]:
    """Return the seconds of each round but the first, from one end of a round to the next."""
    ends: list[float] = []
    strategy.start(
        grid,
        model_of(setting.parameters),
        num_rounds=rounds + 1,
        train_config=ConfigRecord({"steps": setting.steps}),
        evaluate_fn=lambda number, arrays: ends.append(time.monotonic()),
    )
    return np.diff(ends)[1:].tolist()
