"""Time the ε of every entity of a large synthetic corpus, detected and robust, and report the share that is exact.

    python benchmarks/entity_epsilon.py [--mentions N] [--entities N] [--sampling users sentences both]

Mentions per entity and sentences per user follow Zipf distributions; every entity occurs. Everything runs on one core.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.experiments.plan.entity_report import Training, entity_epsilons, summarise
from fl_sim.strategies.accounting.accountant import RoundEvent

EVENTS = {
    "users": RoundEvent("uedp", 1.0, q_u=0.05, q_e=0.5, user_cap=15),
    "sentences": RoundEvent("uedp", 1.0, q_e=0.5, q_s=0.05, user_cap=5),
    "both": RoundEvent("uedp", 1.0, q_u=0.2, q_e=0.5, q_s=0.25, user_cap=5),
}


def synthetic(entities: int, users: int, mentions: int, seed: int = 0) -> Ownership:
    """Return a corpus of about ``mentions`` mentions, two per sentence, with Zipf-distributed entities and users."""
    rng, sentences = np.random.default_rng(seed), mentions // 2
    popular = rng.choice(entities, mentions - entities, p=_zipf(entities, 0.9))
    mentioned = np.concatenate([np.arange(entities), popular])
    pairs = np.unique(rng.integers(0, sentences, mentions) * entities + mentioned)
    owners = np.sort(rng.choice(users, sentences, p=_zipf(users, 0.8)))
    return Ownership(
        user_offsets=np.searchsorted(owners, np.arange(users + 1)).astype(np.int64),
        entity_offsets=np.searchsorted(pairs // entities, np.arange(sentences + 1)).astype(np.int64),
        entity_ids=(pairs % entities).astype(np.int32),
        num_entities=entities,
    )


def _zipf(number: int, exponent: float) -> np.ndarray:
    weights = 1.0 / np.arange(1, number + 1) ** exponent
    return weights / weights.sum()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entities", type=int, default=100_000)
    parser.add_argument("--users", type=int, default=20_000)
    parser.add_argument("--mentions", type=int, default=700_000)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--sampling", nargs="+", choices=EVENTS, default=list(EVENTS))
    args = parser.parse_args()
    ownership = synthetic(args.entities, args.users, args.mentions)
    contributions = ownership.entity_contributions()
    print(
        f"{ownership.num_entities:,} entities, {len(ownership.entity_ids):,} mentions, {ownership.num_users:,} users; "
        f"the largest entity has {contributions.users.max():,} users"
    )
    head = f"{'sampling':<10}{'profiles':>9}{'wall s':>8}{'CPU s':>7}"
    print(f"{head}{'median ε':>10}{'largest':>12}")
    for name in args.sampling:
        wall, processor = time.perf_counter(), time.process_time()
        epsilons = entity_epsilons(ownership, Training(EVENTS[name], args.rounds, 1e-5, 40))
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        report = summarise(epsilons)
        spread = report["epsilon_user_entity"]
        print(
            f"{name:<10}{report['distinct_profiles']:>9,}{wall:>8.1f}{processor:>7.1f}"
            f"{spread['median']:>10.4g}{spread['max']:>12.6g}",
            flush=True,
        )


if __name__ == "__main__":
    main()
