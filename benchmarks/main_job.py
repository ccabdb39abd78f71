"""Compare a round of a run with a plain gradient of as many of its messages, in turns; say where a round's time goes.

    python benchmarks/main_job.py                                                        # README's job
    python benchmarks/main_job.py --config conf/bundled.toml --set privacy.user_cap=2 --turns 7
    python benchmarks/main_job.py --profile                                              # an inline round, by its work

The contenders are a plain gradient in one process and in two (benchmarks/engine/plain_messages.py), and the run itself
on the inline engine and on Ray with one and with two workers: rounds as ``fl-sim run`` does them, without evaluation
and checkpoints. They take turns, so that other load affects all alike. Figures are per message, medians with ranges;
memory is the peak of a contender's processes together.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from engine.turns import Contender, all_ended, reported_end, spread, start

from fl_sim.clients.selection import select_for, thin
from fl_sim.config import RunConfig, parse_assignments
from fl_sim.experiments.plan.run_plan import plan_run
from fl_sim.experiments.run_inputs import build_model, open_corpus, task_of
from fl_sim.experiments.training_text import encode
from fl_sim.strategies.messages import runs_of
from fl_sim.strategies.primitives import sampling

PLAIN = {"plain": 1, "plain, two processes": 2}
OURS: dict[str, dict[str, Any]] = {
    "inline": {"engine.name": "inline", "engine.nodes": 1},
    "Ray, one worker": {"engine.name": "ray", "engine.nodes": 1, "engine.num_cpus": 1},
    "Ray, two workers": {"engine.name": "ray", "engine.nodes": 2, "engine.num_cpus": 2},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, default=Path("conf/irc.toml"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a key of it")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--only", nargs="*", default=[*PLAIN, *OURS], help="only these contenders")
    parser.add_argument("--profile", action="store_true", help="profile one inline round, and compare nothing")
    args = parser.parse_args()
    settings = parse_assignments(args.set)
    config = RunConfig.load(args.config).changed(settings)
    with tempfile.TemporaryDirectory() as folder:
        messages = write_round(config, Path(folder))
        spec = {"config": str(args.config), "folder": folder, "rounds": 10**4, "counted": "cohort_sentences"}
        names = ["inline"] if args.profile else args.only
        contenders: list[Contender] = []
        with all_ended(contenders):
            for name in names:
                script = "plain_messages.py" if name in PLAIN else "ours.py"
                own = {"settings": settings | OURS.get(name, {}), "processes": PLAIN.get(name), "profile": args.profile}
                with reported_end():
                    contenders.append(start(name, script, spec | own | {"name": name}))
            for _ in range(1 if args.profile else args.turns):
                for contender in contenders:
                    contender.turn(rounds=1, users=messages)
        if not args.profile:
            show(contenders, messages)


def write_round(config: RunConfig, folder: Path) -> int:
    """Write the tokens of the messages that train in the first round to ``folder``, and return their number."""
    corpus = open_corpus(config)
    ownership = corpus.ownership(config.corpus.train_split)
    planned = plan_run(config, ownership)
    mechanism = planned.plan.mechanism
    users = sampling.sample_users(config.seed, 1, ownership.num_users, mechanism.q_u)
    round_seed = sampling.round_seed(config.seed, 1)
    rule = mechanism.client_rule(mechanism.clip_norm)
    selection = select_for(rule, ownership, runs_of(users), round_seed)
    if planned.bounds.enforces:
        selection = thin(selection, planned.bounds.weights, round_seed)
    model = build_model(config, task_of(config, corpus))
    encoded = encode(corpus, config.corpus.train_split, model, folder / "encoded").encoded
    sentences = [encoded.sentence(int(s)) for s in selection.sentences]
    np.save(folder / "tokens.npy", np.concatenate(sentences))
    np.save(folder / "offsets.npy", np.cumsum([0, *map(len, sentences)]))
    return len(sentences)


def show(contenders: list[Contender], messages: int) -> None:
    """Print the table, and what the run does with the processor beside a plain gradient."""
    print(f"\nAbout {messages:,} messages a round; a round's figures are scaled to as many.\n")
    print("| contender | core-s a round | s a round | memory, MiB | start and first round, s |\n|---|---|---|---|---|")
    cpu = {c.name: [messages / rate for rate in c.per_cpu] for c in contenders}
    wall = {c.name: [messages / rate for rate in c.per_wall] for c in contenders}
    for c in contenders:
        print(f"| {c.name} | {spread(cpu[c.name])} | {spread(wall[c.name])} | {c.memory:,.0f} | {c.ready:.1f} |")
    print()
    compare("inline, of plain's speed per core-second", cpu, "plain", "inline")
    compare("Ray with two workers, of two plain processes' speed", wall, "plain, two processes", "Ray, two workers")
    compare("Ray with two workers, seconds of a round by those of inline", wall, "Ray, two workers", "inline")


def compare(words: str, figures: dict[str, list[float]], one: str, other: str) -> None:
    if {one, other} <= figures.keys():
        print(f"{words}: {spread([a / b for a, b in zip(figures[one], figures[other], strict=True)])}")


if __name__ == "__main__":
    main()
