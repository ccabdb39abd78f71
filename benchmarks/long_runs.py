"""Measure whether a round costs the same at the end of a long run as at its start, and whether memory stays flat.

    python benchmarks/long_runs.py --rounds 5000                          # a tiny model, inline
    python benchmarks/long_runs.py --rounds 200 --nodes 500               # 500 nodes in one process
    python benchmarks/long_runs.py --rounds 60 --nodes 500 --engine ray   # and on Ray

A table has the medians of a window of rounds at the start (after a warm-up) and at the end: processor seconds of this
process a round, which other work on the machine changes less than the time on the clock, and resident memory.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_sim.config import RunConfig
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.records import Mention, Sentence
from fl_sim.engines import simulation
from fl_sim.reporting import plots

SETTINGS: dict[str, Any] = {
    "model.hidden": 8, "model.layers": 1, "model.heads": 1, "model.max_tokens": 8, "privacy.q_s": 0.5,
    "privacy.noise_multiplier": 4.0, "evaluation.max_sentences": 4,
}  # fmt: skip
WARM_UP = 0.02
WINDOW = 0.1
PAGE = os.sysconf("SC_PAGE_SIZE") / 2**20


@dataclass(frozen=True)
class Round:
    """What a round cost.

    Attributes:
        cpu: processor seconds of this process.
        wall: seconds on the clock.
        memory: resident memory after it, MiB.
    """

    cpu: float
    wall: float
    memory: float


class Meter:
    """Measure every round; called with its row."""

    def __init__(self) -> None:
        self.rounds: list[Round] = []
        self._cpu, self._wall = time.process_time(), time.monotonic()

    def __call__(self, row: Mapping[str, Any]) -> None:
        cpu, wall = time.process_time(), time.monotonic()
        self.rounds.append(Round(cpu - self._cpu, wall - self._wall, _resident()))
        self._cpu, self._wall = cpu, wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5000)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--engine", choices=["inline", "ray"], default="inline")
    args = parser.parse_args()
    plots.write_run_plots = lambda run: []
    with tempfile.TemporaryDirectory() as folder:
        for line in measure(args.rounds, args.nodes, args.engine, Path(folder)):
            print(line)


def measure(rounds: int, nodes: int, engine: str, folder: Path) -> list[str]:
    """Run ``rounds`` rounds with a user per node, at least six; return the table as lines.

    Args:
        rounds: of the run.
        nodes: of the engine.
        engine: ``inline`` or ``ray``.
        folder: an empty folder.
    """
    write_corpus(_sentences(max(nodes, 6)), folder / "corpus", name="long")
    settings = {"corpus.path": str(folder / "corpus"), "out": str(folder / "run"), "rounds": rounds, **SETTINGS}
    settings |= {"engine.name": engine, "engine.nodes": nodes}
    if engine == "ray":
        settings["engine.num_cpus"] = 2
    meter = Meter()
    began = time.monotonic()
    simulation.run(RunConfig.from_mapping(settings), on_row=meter)
    first, last = windows(meter.rounds)
    rows = [
        ("processor time a round, ms", *(1000 * statistics.median(r.cpu for r in part) for part in (first, last))),
        ("time a round, ms", *(1000 * statistics.median(r.wall for r in part) for part in (first, last))),
        ("resident memory, MiB", *(statistics.median(r.memory for r in part) for part in (first, last))),
    ]
    lines = [
        f"{rounds:,} rounds, {nodes} nodes, {engine}: {time.monotonic() - began:.0f} s",
        f"| | rounds {WARM_UP:.0%} to {WARM_UP + WINDOW:.0%} | the last {WINDOW:.0%} | last / first |",
        "|---|---|---|---|",
    ]
    return lines + [f"| {name} | {start:.2f} | {end:.2f} | {end / start:.3f} |" for name, start, end in rows]


def windows(rounds: list[Round]) -> tuple[list[Round], list[Round]]:
    """Return the rounds of the first window after the warm-up, and of the last."""
    size, skipped = max(1, int(WINDOW * len(rounds))), int(WARM_UP * len(rounds)) + 2
    return rounds[skipped : skipped + size], rounds[-size:]


def _resident() -> float:
    gc.collect(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def _sentences(users: int) -> Any:
    for split in ("train", "validation"):
        for user in range(users):
            for number in range(2):
                yield Sentence(split, f"user {user}", f"Ada saw {number} boats.", (Mention(0, 3, "PER"),))


if __name__ == "__main__":
    main()
