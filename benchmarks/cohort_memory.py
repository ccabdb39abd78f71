"""What a worker holds in a round, by the size of the cohort: peak resident memory, and what Python and numpy hold.

    python benchmarks/cohort_memory.py --users 1000 4000 16000

Every round is done in a fork of a process that has done one before. Resident memory has the holes that the allocator
leaves between blocks; the last column has not, and not the tensors of a pass either.
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

from fl_sim.clients.examples import Examples
from fl_sim.clients.gradients.clipped_sums import GradientSum
from fl_sim.clients.models.language_model import LanguageModel, load_model
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.clients.selection import Selection
from fl_sim.clients.training import bounded_sum
from fl_sim.data_prep.store.encode import EncodedSplit
from fl_sim.strategies.client_rules import ClientRule, ClippedGradients, LocalSteps

SENTENCES = 2  # of a user
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
        a_round(model, drawn(300), 300, rule)
    print("| | users | peak above what was resident, MiB | resident afterwards, MiB | Python and numpy, KiB |")
    print("|---|---|---|---|---|")
    for name, rule in RULES.items():
        for users in args.users:
            if os.fork() == 0:
                examples = drawn(users)
                peak, after = resident(model, examples, users, rule)
                held = in_python(model, examples, users, rule)
                print(f"| {name} | {users:,} | {peak:.0f} | {after:.0f} | {held:,.0f} |", flush=True)
                os._exit(0)
            os.wait()


def drawn(users: int) -> Examples:
    """Random sentences."""
    rng = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(SHORTEST, LONGEST + 1, users * SENTENCES))])
    return Examples(EncodedSplit(rng.integers(2, VOCABULARY, offsets[-1]).astype(np.int32), offsets))


def a_round(model: LanguageModel, examples: Examples, users: int, rule: ClientRule) -> None:
    everybody = Selection(np.arange(users), np.arange(users * SENTENCES), np.full(users, SENTENCES))
    bounded_sum(model, examples, everybody, rule, round_seed=0)


def resident(model: LanguageModel, examples: Examples, users: int, rule: ClientRule) -> tuple[float, float]:
    """The peak above what was resident before, and what is resident once free memory was given back; MiB."""
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is now what is resident now
    a_round(model, examples, users, rule)
    peak = _status("VmHWM") - before
    ctypes.CDLL(None).malloc_trim(0)
    return peak, _status("VmRSS")


def _status(name: str) -> float:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status[name].split()[0]) / 1024


def in_python(model: LanguageModel, examples: Examples, users: int, rule: ClientRule) -> float:
    """The most that Python and numpy hold in a round without its passes, which take long to trace; KiB."""
    nothing = lambda *_: None  # noqa: E731
    with (
        mock.patch.object(GradientSum, "add", nothing),
        mock.patch("fl_sim.clients.gradients.user_sums._together", nothing),
    ):
        tracemalloc.start()
        a_round(model, examples, users, rule)
        return tracemalloc.get_traced_memory()[1] / 1024


if __name__ == "__main__":
    main()
