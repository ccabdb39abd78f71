"""Measure the server's part of a round by the size of the model: processor time of each step, and peak memory.

    python benchmarks/server_round.py --parameters 124439808 --nodes 2

The nodes' sums are given; no model computes. Memory is what the process holds above its imports and one reply, in
multiples of the model (float32).
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fl_sim.engines.engine import run_inline
from fl_sim.storage.checkpoint import Checkpoint
from fl_sim.strategies import aggregation
from fl_sim.strategies.aggregation import BoundedSumStrategy, Federation, OrderedSum, RoundParts
from fl_sim.strategies.messages import TRAIN_ACTION, TrainReply, TrainRequest, arrays_to_vector, vector_to_arrays
from fl_sim.strategies.postprocessing import Adam, ServerOptimizerConfig, build_optimizer
from fl_sim.strategies.registry import plan_from_record

SPENT: list[dict[str, float]] = []  # seconds of each step, round by round


def main() -> None:
    """Run the rounds and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=124_439_808)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    before = psutil.Process().memory_info().rss
    measure_steps()
    run(args.parameters, args.nodes, args.rounds)
    model = 4 * args.parameters
    print(f"\n{args.parameters:,} parameters, {args.nodes} nodes, {args.rounds} rounds\n")
    print("| step | CPU-seconds a round: median | least | most |\n|---|---|---|---|")
    for name in SPENT[0]:
        seconds = [spent[name] for spent in SPENT[: args.rounds]]
        print(f"| {name} | {median(seconds):.2f} | {min(seconds):.2f} | {max(seconds):.2f} |")
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before - model  # one reply stays for all nodes
    print(f"\npeak memory above imports and reply: {peak / 2**20:,.0f} MiB, {peak / model:.1f} times the model")


def measure_steps() -> None:
    """Count the processor time of the steps of a round from now on."""
    for owner, name, step in (
        (OrderedSum, "settle", "sum"),
        (aggregation.clipping, "norm", "norms of replies"),
        (aggregation, "sum_hash", "hash of the sum"),
        (aggregation, "add_gaussian_noise", "noise"),
        (Adam, "stepped", "Adam"),
        (aggregation, "vector_to_arrays", "serialising the model"),
        (Checkpoint, "write", "checkpoint"),
    ):
        setattr(owner, name, measured(getattr(owner, name), step))


def measured(function: Callable[..., Any], step: str) -> Callable[..., Any]:
    """Return ``function``, whose processor time is added to that of ``step``."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        began = time.process_time()
        try:
            return function(*args, **kwargs)
        finally:
            SPENT[-1][step] += time.process_time() - began

    return wrapped


def run(size: int, nodes: int, rounds: int) -> None:
    """Run rounds in which every node sends the same small sum."""
    sent: dict[str, RecordDict] = {}

    def answer(request: TrainRequest) -> RecordDict:
        if "arrays" not in sent:
            vector = np.full(size, 1e-6, np.float32)
            sent["arrays"] = RecordDict({"arrays": vector_to_arrays(vector)})
        counts = TrainReply(np.zeros(1, np.float32), 1, 1, 0, 0, 0.0).to_record(request)
        counts.array_records["arrays"] = sent["arrays"].array_records["arrays"]
        return counts

    client = ClientApp()

    @client.train(TRAIN_ACTION)
    def train(message: Message, context: Context) -> Message:
        return Message(answer(TrainRequest.from_message(message)), reply_to=message)

    strategy, server = build(size, nodes, rounds), ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        with tempfile.TemporaryDirectory() as folder:

            def after(server_round: int, arrays: Any) -> None:
                if server_round:
                    Checkpoint(server_round, arrays_to_vector(arrays), strategy.state(), {}, {}).write(Path(folder))
                SPENT.append(defaultdict(float))

            strategy.start(grid, vector_to_arrays(np.zeros(size, np.float32)), num_rounds=rounds, evaluate_fn=after)

    run_inline(server, client, nodes)


def build(size: int, nodes: int, rounds: int) -> BoundedSumStrategy:
    """Return the strategy ``uedp`` of one user per node, with noise and Adam."""
    plan = plan_from_record(
        {
            "strategy": "uedp",
            "population": nodes,
            "q_u": 1.0,
            "q_e": 1.0,
            "q_s": 1.0,
            "clip_norm": 1.0,
            "user_cap": 1.0,
            "noise_multiplier": 1.0,
            "rounds": rounds,
            "delta": 1e-5,
        }
    )
    federation = Federation("{}", np.ones(nodes, dtype=np.int64), seed=0)
    return BoundedSumStrategy(RoundParts(plan, federation, build_optimizer(ServerOptimizerConfig(), size, rounds)))


if __name__ == "__main__":
    main()
