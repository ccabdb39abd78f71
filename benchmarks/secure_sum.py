"""Compare secure sums with distributed noise to central noise: bits, cohort and drop-outs against ε and error.

    python benchmarks/secure_sum.py                                   # ten minutes on a core; prints a table
    python benchmarks/secure_sum.py --bits 14 --cohorts 50 --rounds 3 --json secure_sum.json
    python benchmarks/secure_sum.py --bits 16 --adversary server --target 8

Every row simulates rounds in which the invited nodes clip, rotate and round an update of 1,000 parameters, add a noise
share and reply modulo 2^bits; the stated share of them drops out. The error is that of the released sum against the sum
of the survivors' clipped updates, divided by that of central Gaussian noise whose ε against whoever sees the models is
the same figure. The noise is the least that meets the target: by default ε 2 against whoever sees the models.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from fl_sim.research.secure_sum.lattice_epsilon import ADVERSARIES, Adversary, design_for, epsilon
from fl_sim.research.secure_sum.noise_shares import DistributedNoise, ShareDesign
from fl_sim.research.secure_sum.simulated_sum import Node, SecureSum, release
from fl_sim.strategies.accounting.accountant import RoundEvent, calibrate_noise_multiplier
from fl_sim.strategies.accounting.adjacency import Adjacency
from fl_sim.strategies.primitives.limits import PrivacyError

RATE, DIMENSION, ROUNDS, DELTA = 0.05, 1000, 50, 1e-5
"""q, d, T and δ."""


@dataclass(frozen=True)
class Row:
    """Hold a row of the table; ``None`` where no design exists.

    Attributes:
        bits: of a coordinate.
        cohort: q·N, the expected number of invited nodes.
        dropout: the share of invited nodes that may drop out, and does.
        fewest: m.
        full: K.
        models: ε against whoever sees the models.
        server: ε against a server that draws its cohorts as stated.
        choosing: ε against a server that may invite a node to every round.
        error: RMSE of the sum, divided by that of central noise with the same ε.
        opened: the share of simulated rounds that were opened.
        seconds: of processor time for a reply.
    """

    bits: int
    cohort: int
    dropout: float
    fewest: int | None = None
    full: int | None = None
    models: float | None = None
    server: float | None = None
    choosing: float | None = None
    error: float | None = None
    opened: float | None = None
    seconds: float | None = None


def row_of(bits: int, cohort: int, dropout: float, rounds: int, adversary: Adversary, target: float) -> Row:
    """Return a row of simulated rounds with the least noise that meets ``target`` against ``adversary``."""
    settings = DistributedNoise(
        population=round(cohort / RATE), sampling_rate=RATE, dimension=DIMENSION, bits=bits, dropout=dropout
    )
    try:
        design = design_for(settings, adversary, target, ROUNDS, DELTA)
    except PrivacyError:
        return Row(bits, cohort, dropout)
    errors, opened, seconds = simulated(design, rounds)
    central = central_noise(epsilon(design, adversary, ROUNDS, DELTA))
    return Row(
        bits, cohort, dropout, design.fewest_survivors, design.full_shares,
        *(epsilon(design, adversary, ROUNDS, DELTA) for adversary in ("models", "server", "choosing_server")),
        math.sqrt(float(np.mean(np.square(errors)))) / central, opened, seconds,
    )  # fmt: skip


def central_noise(target: float) -> float:
    """Return the standard deviation of central noise on the sum, in units of the clip, at an ε."""
    event = RoundEvent("user_level", noise_multiplier=1.0, q_u=RATE)
    return calibrate_noise_multiplier(event, [Adjacency()], ROUNDS, DELTA, target)


def simulated(design: ShareDesign, rounds: int) -> tuple[list[float], float, float]:
    """Return the RMSE of the released sum in each opened round, the share of opened rounds, and seconds per reply."""
    settings, random = design.settings, np.random.default_rng(0)
    errors, replies, began = [], 0, 0.0
    for server_round in range(1, rounds + 1):
        invited = np.flatnonzero(random.random(settings.population) < settings.sampling_rate)
        survivors = invited[random.random(len(invited)) >= settings.dropout]
        direction = random.standard_normal(DIMENSION)
        total, exact = SecureSum(design), np.zeros(DIMENSION)
        for identity in survivors:
            update = direction + random.standard_normal(DIMENSION)
            update /= np.linalg.norm(update)
            exact += update
            start = time.process_time()
            reply = Node(design, 1.0, seed=0, identity=int(identity)).reply(update, server_round)
            began += time.process_time() - start
            total.add(reply)
            replies += 1
        released = release(design, total.open(), len(survivors), 1.0, seed=0, server_round=server_round)
        if released is not None:
            errors.append(float(np.sqrt(np.mean((released - exact) ** 2))))
    return errors, len(errors) / rounds, began / max(replies, 1)


def table(rows: list[Row]) -> str:
    """Return the rows as Markdown."""
    lines = [
        "| bits | cohort | drop-outs | m | K | ε models | ε server | ε choosing server | error ÷ central | ms a node |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        head = f"| {row.bits} | {row.cohort:,} | {row.dropout:.0%} |"
        if row.models is None or row.server is None or row.choosing is None:
            lines.append(f"{head} – | – | does not fit | | | | |")
        else:
            lines.append(
                f"{head} {row.fewest} | {row.full} | {row.models:.3g} | {row.server:.3g} | {row.choosing:.3g} | "
                f"{row.error:.3f} | {1000 * (row.seconds or 0.0):.1f} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bits", type=int, nargs="+", default=[8, 9, 10, 11, 12, 14, 16, 20])
    parser.add_argument("--cohorts", type=int, nargs="+", default=[50, 1000], help="expected numbers of invited nodes")
    parser.add_argument("--dropouts", type=float, nargs="+", default=[0.0, 0.1, 0.3])
    parser.add_argument("--rounds", type=int, default=2, help="simulated rounds of a row")
    parser.add_argument("--adversary", choices=ADVERSARIES, default="models", help="against whom the target is met")
    parser.add_argument("--target", type=float, default=2.0, help="ε of any user")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    arguments = parser.parse_args()
    rows = [
        row_of(bits, cohort, dropout, arguments.rounds, arguments.adversary, arguments.target)
        for cohort in arguments.cohorts
        for dropout in arguments.dropouts
        for bits in arguments.bits
    ]
    print(table(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
