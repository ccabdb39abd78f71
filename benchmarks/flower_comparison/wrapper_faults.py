"""Try what a node may send, in one round of Flower's wrapper and of ours, with real messages on nodes in this process.

Four nodes train a model of an array ``w`` (2,) and a number ``s``, a parameter without dimensions. What is recorded is
what happened in this run, not what the code seems to do.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Strategy,
)

from benchmarks.flower_comparison.digits_contenders import fedavg, flowers_accountant
from fl_sim.engines.engine import run_inline
from fl_sim.flower import UserLevelDifferentialPrivacy, userlevelclipping_mod

NODES, CLIP, NOISE = 4, 1.0, 1e-3  # hardly any noise, so that what happens is seen
Floats = npt.NDArray[np.float64]
Move = Callable[[int], tuple[Floats, float]]

WAYS = {"flower_server": "Flower, server-side", "flower_client": "Flower, client-side", "ours": "ours"}


def observed() -> dict[str, dict[str, str]]:
    """Return what happened, by what one node did and by the strategy."""
    return {
        "one update is NaN": _of_each(lambda node: (np.full(2, np.nan if node == 0 else 0.1), 0.0)),
        "one update is zero": _of_each(lambda node: (np.zeros(2) if node == 0 else np.full(2, 0.1), 0.0)),
        "a parameter without dimensions moves by 100 C": _of_each(lambda node: (np.zeros(2), 100.0)),
        "one node fails": _of_each(_one_fails),
        "weights differ, accountant on": {
            "flower_server": _round_of(
                lambda folder: _server(accounted=True), [], lambda node: (np.full(2, 0.1), 0.0), weights=True
            ),
            "flower_client": _round_of(
                lambda folder: _client(accounted=True),
                [fixedclipping_mod],
                lambda node: (np.full(2, 0.1), 0.0),
                weights=True,
            ),
            "ours": _round_of(_ours, [userlevelclipping_mod], lambda node: (np.full(2, 0.1), 0.0), weights=True),
        },
    }


def adaptive_clips(rounds: int = 5) -> list[float]:
    """Return the clip of Flower's adaptive clipping after each round, when every update is longer than it.

    The quantile to reach is 0.5, so that the clip should grow.
    """
    strategy = DifferentialPrivacyServerSideAdaptiveClipping(
        fedavg(NODES, NODES), 0.1, NODES, clipped_count_stddev=0.06
    )
    clips: list[float] = []
    _train(
        strategy,
        _client_app([], lambda node: (np.full(2, 10.0), 0.0)),
        rounds,
        lambda: clips.append(strategy.clipping_norm),
    )
    return [round(clip, 4) for clip in clips]


def noise_repeats() -> bool:
    """Return whether two rounds of Flower's wrapper draw the same noise if numpy's global generator has one seed."""
    models = []
    for _ in range(2):
        np.random.seed(7)  # noqa: NPY002  what any code of the same process may do
        app = _client_app([], lambda node: (np.full(2, 0.1), 0.1))
        models.append(_train(_server(accounted=False), app, 1)["w"])
    return bool(np.array_equal(*models))


def _of_each(move: Move) -> dict[str, str]:
    return {
        "flower_server": _round_of(lambda folder: _server(accounted=False), [], move),
        "flower_client": _round_of(lambda folder: _client(accounted=False), [fixedclipping_mod], move),
        "ours": _round_of(_ours, [userlevelclipping_mod], move),
    }


def _round_of(build: Callable[[Path], Strategy], mods: list[Any], move: Move, *, weights: bool = False) -> str:
    """Return in words what one round did to the model."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            model = _train(build(Path(folder) / "run"), _client_app(mods, move, weights=weights), 1)
        except Exception as error:
            return f"the run ends: {type(error).__name__}: {' '.join(str(error).split())}"[:160]
    values = np.concatenate([np.ravel(value) for value in model.values()])
    if not np.isfinite(values).all():
        return "the model is NaN"
    length = float(np.linalg.norm(values))
    return "the model does not move: the round is lost" if length == 0 else f"the model moves by {length:.3f} C"


class _Listing:
    """Return all replies at once, as Flower's own grids do; its adaptive clipping reads them twice."""

    def __init__(self, grid: Grid) -> None:
        self.get_node_ids, self.push_messages, self.pull_messages = (
            grid.get_node_ids,
            grid.push_messages,
            grid.pull_messages,
        )
        self._grid = grid

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return list(self._grid.send_and_receive(messages, timeout=timeout))


def _train(
    strategy: Strategy, app: ClientApp, rounds: int, after: Callable[[], None] = lambda: None
) -> dict[str, npt.NDArray[Any]]:
    """Return the model after some rounds."""
    model: dict[str, npt.NDArray[Any]] = {}
    server = ServerApp()

    def look(server_round: int, arrays: ArrayRecord) -> None:
        model.update({name: array.numpy() for name, array in arrays.items()})
        after()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        initial = ArrayRecord({"w": Array(np.zeros(2)), "s": Array(np.zeros(()))})
        strategy.start(cast(Grid, _Listing(grid)), initial, num_rounds=rounds, evaluate_fn=look)

    run_inline(server, app, NODES)
    return model


def _client_app(mods: list[Any], move: Move, *, weights: bool = False) -> ClientApp:
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        node, arrays = int(context.node_config["partition-id"]), message.content["arrays"]
        by, number = move(node)
        moved = {"w": Array(arrays["w"].numpy() + by), "s": Array(np.asarray(arrays["s"].numpy() + number))}
        metrics = MetricRecord({"num-examples": 1 + node if weights else 1})
        return Message(RecordDict({"arrays": ArrayRecord(moved), "metrics": metrics}), reply_to=message)

    return app


def _one_fails(node: int) -> tuple[Floats, float]:
    if node == 0:
        raise RuntimeError("no memory left")
    return np.full(2, 0.1), 0.0


def _server(*, accounted: bool) -> Strategy:
    accountant = flowers_accountant(NODES) if accounted else None
    return DifferentialPrivacyServerSideFixedClipping(fedavg(NODES, NODES), NOISE, CLIP, NODES, accountant=accountant)


def _client(*, accounted: bool) -> Strategy:
    accountant = flowers_accountant(NODES) if accounted else None
    return DifferentialPrivacyClientSideFixedClipping(fedavg(NODES, NODES), NOISE, CLIP, NODES, accountant=accountant)


def _ours(folder: Path) -> Strategy:
    return UserLevelDifferentialPrivacy(
        FedAvg(), population=NODES, sampling_rate=1.0, clip_norm=CLIP, noise_multiplier=NOISE, folder=folder
    )
