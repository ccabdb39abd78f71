"""Compare the rounds of one cohort on Ray when few or many nodes share two workers.

    python benchmarks/many_nodes.py                                     # 2 and 64 nodes, five minutes
    python benchmarks/many_nodes.py --nodes 2 16 64 --idle              # rounds without a sentence: messages alone
    python benchmarks/many_nodes.py --flower                            # and Flower's own rounds, which compute nothing

The runs take turns, round by round, so that other load on the machine affects all of them alike.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from engine.turns import Contender, spread
from engine_comparison import IDLE, OURS, RAY, SCRIPTS, USER, run_contenders, workload


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 64])
    parser.add_argument("--users", type=int, default=2000)
    parser.add_argument("--cohort", type=int, default=100)
    parser.add_argument("--sentences", type=int, default=15, help="per user")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=1, help="per turn")
    parser.add_argument("--idle", action="store_true", help="no sentence is sampled")
    parser.add_argument("--flower", action="store_true", help="as many nodes of bare Flower besides")
    parser.set_defaults(pfl=None)
    args = parser.parse_args()
    names = [f"{nodes} nodes" for nodes in args.nodes]
    for name, nodes in zip(names, args.nodes, strict=True):
        OURS[name] = (IDLE if args.idle else USER) | RAY | {"engine.nodes": nodes}
    if args.flower:
        bare = [f"{nodes} nodes, Flower alone" for nodes in args.nodes]
        SCRIPTS.update(dict.fromkeys(bare, "bare_flower.py"))
        names += bare
    with tempfile.TemporaryDirectory() as folder:
        spec = workload(Path(folder), args.users, args.sentences, args.cohort, 2 + args.turns * args.rounds)
        show(run_contenders(names, spec, args))


def show(contenders: list[Contender]) -> None:
    """Print seconds and CPU-seconds of a round, and how many times those of the first contender they are."""
    print("| | a round, s | of the first | CPU-s | of the first |")
    print("|---|---|---|---|---|")
    for contender in contenders:
        figures = []
        for name in ("round_wall", "round_cpu"):
            values, first = getattr(contender, name), getattr(contenders[0], name)
            ratios = [value / other for value, other in zip(values, first, strict=True)]
            figures += [spread(values), spread(ratios)]
        print(f"| {contender.name} | {' | '.join(figures)} |")


if __name__ == "__main__":
    main()
