"""Measure the time to bound what entities and users contribute in a large corpus.

    python benchmarks/bounds_scale.py --sentences 1000000

Users have 20 sentences of 0 to 3 entities of Zipf popularity. Times are of the processor. A million sentences take
1 to 3 seconds; more than ten are a failure.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from fl_sim.data_prep.store.contribution_limits import ContributionLimits, greedy_weights, proportional_weights
from fl_sim.data_prep.store.ownership import Ownership

SECONDS = 10.0
CASES = {
    "greedy, k 10": (greedy_weights, ContributionLimits(10)),
    "greedy, k 10, F 5, m 15": (greedy_weights, ContributionLimits(10, 5, 15)),
    "greedy, k 1, F 1, m 1": (greedy_weights, ContributionLimits(1, 1, 1)),
    "weights, k 10, m 15": (proportional_weights, ContributionLimits(10, None, 15)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sentences", type=int, default=1_000_000)
    args = parser.parse_args()
    ownership = crowd(args.sentences)
    order = np.random.default_rng(1).permutation(args.sentences)
    for name, (rule, limits) in CASES.items():
        began = time.process_time()
        weights = rule(ownership, limits, order)
        seconds = time.process_time() - began
        print(f"{name}: {seconds:.1f} s, {weights.mean():.1%} of the weight kept")
        if args.sentences <= 1_000_000 and seconds > SECONDS:
            raise SystemExit(f"{name} took {seconds:.1f} s; allowed: {SECONDS:.0f} s for a million sentences")


def crowd(sentences: int) -> Ownership:
    """Return users with 20 sentences each, of entities that follow Zipf's law."""
    draw = np.random.default_rng(0)
    counts = draw.integers(0, 4, sentences)
    owners = np.repeat(np.arange(sentences), counts)
    mentions = np.unique(owners * sentences + (draw.zipf(1.3, len(owners)) % sentences))
    owners, entities = np.divmod(mentions, sentences)
    offsets = np.concatenate(([0], np.cumsum(np.bincount(owners, minlength=sentences))))
    users = np.minimum(np.arange(0, sentences + 20, 20), sentences)
    return Ownership(users.astype(np.int64), offsets.astype(np.int64), entities.astype(np.int32), sentences)


if __name__ == "__main__":
    main()
