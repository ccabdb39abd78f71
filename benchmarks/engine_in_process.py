"""Measure the arithmetic of a round alone, in one process: users per CPU-second of a plain torch loop and of ours.

The contenders are a plain torch loop, a fused batch, and our `user_level` and `uedp`; they take turns.

    python benchmarks/engine_in_process.py
    python benchmarks/engine_in_process.py --memory 100 1000

There is no Flower, Ray, run folder or noise. It approximates `benchmarks/engine_comparison.py` within a minute.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent / "engine"))
import plain
from engine_comparison import LENGTH, VOCABULARY, _save_tokenizer

from fl_sim.clients.batches import Example
from fl_sim.clients.models.language_model import LanguageModel, load_model
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.clients.selection import Selection
from fl_sim.clients.training import bounded_sum
from fl_sim.strategies.client_rules import ClippedGradients, LocalSteps


class Sentences:
    """Examples held in memory."""

    def __init__(self, tokens: np.ndarray) -> None:
        self._tokens = tokens.reshape(-1, tokens.shape[-1])

    def read(self, ids: np.ndarray) -> list[Example]:
        return [Example(self._tokens[number], number=int(number)) for number in ids]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=40)
    parser.add_argument("--sentences", type=int, nargs="*", default=[15, 2], help="per user")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument(
        "--memory",
        type=int,
        nargs="*",
        metavar="USERS",
        help="print the peak memory of rounds of this many users instead",
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        _save_tokenizer(Path(folder) / "tokenizer")
        sizes = {"hidden": plain.HIDDEN, "layers": plain.LAYERS, "heads": plain.HEADS, "max_tokens": LENGTH}
        model = load_model(ModelSpec(**sizes, tokenizer=str(Path(folder) / "tokenizer")), seed=0)
    if args.memory:
        show_memory(model, args.memory, args.sentences)
        return
    print(f"{model.num_parameters:,} parameters; median users per CPU-second, {args.turns} turns of {args.users} users")
    for sentences in args.sentences:
        tokens = np.random.default_rng(0).integers(2, VOCABULARY, (args.users, sentences, LENGTH))
        show(sentences, measure(contenders(model, tokens.astype(np.int32)), args.users, args.turns))


def measure(works: dict[str, Callable[[], object]], users: int, turns: int) -> dict[str, list[float]]:
    """Return the users per CPU-second of each contender, one figure per turn."""
    for work in works.values():
        work()
    rates: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(turns):
        for name, work in works.items():
            before = time.process_time()
            work()
            rates[name].append(users / (time.process_time() - before))
    return rates


def contenders(model: LanguageModel, tokens: np.ndarray) -> dict[str, Callable[[], object]]:
    """Return, by name, a function that does one round of all users.

    Args:
        model: the model that all contenders use.
        tokens: int32 (users, sentences, tokens).
    """
    users, sentences, _ = tokens.shape
    counts = np.full(users, sentences)
    selection = Selection(np.arange(users), np.arange(users * sentences), counts)
    read: Any = Sentences(tokens)
    steps = LocalSteps(q_e=1.0, q_s=1.0, user_clip=1.0, batch_size=plain.BATCH, learning_rate=plain.RATE)
    shared = ClippedGradients(q_e=1.0, q_s=1.0, sentence_clip=1.0, user_clip=float(sentences))
    apart = ClippedGradients(q_e=1.0, q_s=1.0, sentence_clip=1.0, user_clip=1.0)
    whole = torch.from_numpy(tokens.astype(np.int64))
    return {
        "torch loop": lambda: _loop(model.module, whole),
        "fused batch": lambda: _fused(model.module, whole.flatten(0, 1)),
        "ours user_level": lambda: bounded_sum(model, read, selection, steps, 0),
        "ours uedp": lambda: bounded_sum(model, read, selection, shared, 0),
        "ours uedp, ŵ 1": lambda: bounded_sum(model, read, selection, apart, 0),
    }


def _loop(module: Any, users: torch.Tensor) -> None:
    parameters = list(module.parameters())
    start = [p.detach().clone() for p in parameters]
    total = [torch.zeros_like(p) for p in parameters]
    for sentences in users:
        optimizer = torch.optim.SGD(parameters, lr=plain.RATE)
        for batch in sentences.split(plain.BATCH):
            optimizer.zero_grad()
            plain.loss_of(module, batch).backward()
            optimizer.step()
        with torch.no_grad():
            torch._foreach_add_(total, torch._foreach_sub(parameters, start))
            torch._foreach_copy_(parameters, start)


def _fused(module: Any, sentences: torch.Tensor) -> None:
    module.zero_grad()
    for batch in sentences.split(51):
        (plain.loss_of(module, batch) * (len(batch) / len(sentences))).backward()


def show_memory(model: LanguageModel, cohorts: list[int], sentences: list[int]) -> None:
    """Print the process's peak memory in a round, for each of our contenders and each cohort."""
    print("| sentences per user | users | contender | peak resident memory, MiB |\n|---|---|---|---|")
    for count, users in itertools.product(sentences, cohorts):
        tokens = np.random.default_rng(0).integers(2, VOCABULARY, (users, count, LENGTH), dtype=np.int32)
        for name, work in contenders(model, tokens).items():
            if name.startswith("ours"):
                Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the current resident memory
                work()
                print(f"| {count} | {users:,} | {name} | {_peak():,.0f} |", flush=True)


def _peak() -> float:
    """Return the process's peak resident memory in MiB since the last reset."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1024


def show(sentences: int, rates_by_name: dict[str, list[float]]) -> None:
    """Print the table for one number of sentences per user."""
    print(f"\n{sentences} sentences per user\n")
    print("| | users per CPU-second | of the torch loop | of the fused batch |\n|---|---|---|---|")
    for name, rates in rates_by_name.items():
        floor, bound = (
            statistics.median(a / b for a, b in zip(rates, rates_by_name[other], strict=True))
            for other in ("torch loop", "fused batch")
        )
        print(f"| {name} | {statistics.median(rates):.1f} | {floor:.2f} | {bound:.2f} |")


if __name__ == "__main__":
    main()
