"""Measure a worker's memory in a round by the size of the cohort: peak resident memory, and what Python and numpy hold.

    python benchmarks/cohort_memory.py --users 1000 4000 16000

Every round runs in a fork of a process that has already done one. Resident memory includes the gaps that the allocator
leaves between blocks. The last column excludes these gaps and the tensors of a pass.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import tracemalloc
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from fl_sim.clients.batches import Examples
from fl_sim.clients.gradients.clipped_sums import GradientSum
from fl_sim.clients.models.language_model import LanguageModel, load_model
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.clients.selection import Selection
from fl_sim.clients.training import bounded_sum
from fl_sim.data_prep.store.encode import EncodedSplit
from fl_sim.strategies.client_rules import ClientRule, ClippedGradients, LocalSteps

SENTENCES = 2  # per user
SHORTEST, LONGEST, VOCABULARY = 4, 10, 4096
RULES = {
    "user_level": LocalSteps(q_e=1.0, q_s=1.0, user_clip=1.0, batch_size=16),
    "uedp": ClippedGradients(q_e=1.0, q_s=1.0, sentence_clip=1.0, user_clip=40.0),
    "uedp, ŵ 1": ClippedGradients(q_e=1.0, q_s=1.0, sentence_clip=1.0, user_clip=1.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, nargs="+", default=[1000, 4000, 16000])
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = load_model(ModelSpec(hidden=16, layers=1, heads=2, max_tokens=16), seed=0)
    for rule in RULES.values():
        run_round(model, random_examples(300), 300, rule)
    print("| | users | peak above what was resident, MiB | resident afterwards, MiB | Python and numpy, KiB |")
    print("|---|---|---|---|---|")
    for name, rule in RULES.items():
        for users in args.users:
            if os.fork() == 0:
                examples = random_examples(users)
                peak, after = resident_memory(model, examples, users, rule)
                held = python_memory(model, examples, users, rule)
                print(f"| {name} | {users:,} | {peak:.0f} | {after:.0f} | {held:,.0f} |", flush=True)
                os._exit(0)
            os.wait()


def random_examples(users: int) -> Examples:
    """Return ``users`` times two sentences of random tokens."""
    rng = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(SHORTEST, LONGEST + 1, users * SENTENCES))])
    return Examples(EncodedSplit(rng.integers(2, VOCABULARY, offsets[-1]).astype(np.int32), offsets))


def run_round(model: LanguageModel, examples: Examples, users: int, rule: ClientRule) -> None:
    """Compute the cohort's bounded sum, with every user and every sentence selected."""
    everybody = Selection(np.arange(users), np.arange(users * SENTENCES), np.full(users, SENTENCES))
    bounded_sum(model, examples, everybody, rule, round_seed=0)


def resident_memory(model: LanguageModel, examples: Examples, users: int, rule: ClientRule) -> tuple[float, float]:
    """Return a round's peak above the resident memory before it, and the resident memory after trimming; in MiB."""
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the current resident memory
    run_round(model, examples, users, rule)
    peak = _status("VmHWM") - before
    ctypes.CDLL(None).malloc_trim(0)
    return peak, _status("VmRSS")


def _status(name: str) -> float:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status[name].split()[0]) / 1024


def python_memory(model: LanguageModel, examples: Examples, users: int, rule: ClientRule) -> float:
    """Return the peak of what Python and numpy hold in a round, in KiB.

    The forward and backward passes are skipped, because tracing them takes long.
    """
    skip = lambda *_: None  # noqa: E731
    with (
        mock.patch.object(GradientSum, "add", skip),
        mock.patch("fl_sim.clients.gradients.user_sums._in_one_pass", skip),
    ):
        tracemalloc.start()
        run_round(model, examples, users, rule)
        return tracemalloc.get_traced_memory()[1] / 1024


if __name__ == "__main__":
    main()
