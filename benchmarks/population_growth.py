"""Measure what a message costs, and the memory of server and worker, as the population grows; a table and a picture.

    python benchmarks/population_growth.py --folder DIR --picture growth.png          # 10^3 to 10^6 users

makes a synthetic corpus of ten sentences a user in DIR for each population, unless it exists (`index_scale.py` draws
and writes them). On each it runs the strategy ``uedp`` on Ray with one worker, in a process of its own, in two ways:

* 1,000 users a round with all their sentences: q_u is 1,000 divided by the number of users;
* all users (q_u = 1) and 4,000 sentences a round: q_s is chosen to give that many.

Processor time is that of server and worker in a round, the median over the rounds; memory is the peak of each (PSS). A
worker's own memory is what no file backs: pages of tokens and incidence are the system's to take back.
Sentences are drawn as 4 to 10 tokens each, because tokenising ten million texts is not part of a round, and the model
is tiny, so that all that is not arithmetic shows. Everything else is what a run does.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from engine.turns import pss
from index_scale import draw_split, write_drawn_corpus

from fl_sim.config import RunConfig
from fl_sim.data_prep.store.atomic import folder_appearing_at
from fl_sim.data_prep.store.encode import EncodedSplit, encode_once, open_encoded
from fl_sim.data_prep.store.layout import write_vector
from fl_sim.engines import simulation
from fl_sim.experiments import training_text
from fl_sim.reporting import plots

PER_USER = 10  # sentences
COHORT, MESSAGES = 1_000, 4_000
Q_E = 0.5
TINY = {"model.name": "small-gpt2", "model.hidden": 16, "model.layers": 1, "model.heads": 2, "model.max_tokens": 16}
FIXED = {
    "engine.name": "ray",
    "engine.nodes": 1,
    "engine.num_cpus": 1,
    "privacy.q_e": Q_E,
    "privacy.user_cap": 40.0,  # hardly any user has more, so that all sentences share batches: the fastest rounds
    "privacy.entity_bound": "unbounded",
    "privacy.user_sentences": "unbounded",
    "privacy.noise_multiplier": 4.0,
    "server.optimizer": "sgd",
}
VOCABULARY = 4096  # an upper bound of the drawn tokens, within every tokenizer's vocabulary
LEAST, MOST = 4, 10  # tokens of a sentence
BLOCK = 1 << 22
Figures = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--users", type=int, nargs="+", default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=9, help="the first is not measured")
    parser.add_argument("--picture", type=Path, help="draw the figures into this file")
    parser.add_argument("--measure", metavar="JSON", help="measure one run in this process")
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.folder, json.loads(args.measure), args.rounds)))
        return
    for users in args.users:
        if not (folder := args.folder / str(users)).exists():
            make(folder, users)
    drawn = {}
    for mode, settings in {"1,000 users a round": thousand_users, "4,000 messages of everybody": everybody}.items():
        print(f"\n{mode}\n\n| users | messages a round | CPU-s a round | µs a message ", end="")
        print("| worker, MiB | its own | server, MiB |")
        print("|---|---|---|---|---|---|---|")
        drawn[mode] = {users: figures_of(args, users, settings(users)) for users in args.users}
    if args.picture:
        draw(drawn, args.picture)


def thousand_users(users: int) -> dict[str, float]:
    """Return rates that sample :data:`COHORT` users with all their sentences."""
    return {"privacy.q_u": min(1.0, COHORT / users), "privacy.q_s": 1.0}


def everybody(users: int) -> dict[str, float]:
    """Return rates that sample every user and :data:`MESSAGES` sentences (with 0 to 3 entities, all to be sampled)."""
    eligible = PER_USER * users * np.mean([Q_E**k for k in range(4)])
    return {"privacy.q_u": 1.0, "privacy.q_s": min(1.0, float(MESSAGES / eligible))}


def make(folder: Path, users: int) -> None:
    """Write a corpus with placeholders for texts and a small validation split."""
    rng = np.random.default_rng(0)
    train = draw_split(rng, users, PER_USER * users, world=PER_USER * users)
    held_out = draw_split(rng, 10, 100, world=100)
    write_drawn_corpus(folder, {"train": train, "validation": held_out}, compression="none")


def figures_of(args: argparse.Namespace, users: int, settings: Mapping[str, float]) -> Figures:
    """Run :func:`measure` in a process of its own, so that no memory of another run counts, and print its row."""
    command = [sys.executable, __file__, "--folder", str(args.folder / str(users)), "--rounds", str(args.rounds)]
    done = subprocess.run([*command, "--measure", json.dumps(settings)], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(done.returncode)
    found: Figures = json.loads(done.stdout.splitlines()[-1])
    print(
        f"| {users:,} | {found['messages']:,.0f} | {found['cpu']:.2f} | {found['per_message']:.0f} "
        f"| {found['worker']:,.0f} | {found['own']:,.0f} | {found['server']:,.0f} |",
        flush=True,
    )
    return found


def measure(folder: Path, settings: Mapping[str, float], rounds: int) -> Figures:
    """Do a run in this process and Ray's; return its figures."""
    plots.write_run_plots = lambda run: None
    training_text.encode_once = draw_tokens
    server = psutil.Process()
    messages, used = [0], [0.0]
    peaks = {"server": 0.0, "worker": 0.0, "own": 0.0}

    def workers() -> list[psutil.Process]:
        return [p for p in server.children(recursive=True) if " ".join(p.cmdline()).startswith("ray::ClientAppActor")]

    def note(row: Mapping[str, Any]) -> None:
        messages.append(row.get("cohort_sentences", 0))
        times = [process.cpu_times() for process in [server, *workers()]]
        used.append(sum(t.user + t.system for t in times))

    def sample() -> None:
        peaks["server"] = max(peaks["server"], pss(server.pid))
        for worker in workers():
            peaks["worker"] = max(peaks["worker"], pss(worker.pid))
            peaks["own"] = max(peaks["own"], pss(worker.pid, "Pss_Anon"))

    with tempfile.TemporaryDirectory(dir=folder.parent) as out, repeated(sample, seconds=1.0):
        base = {"corpus.path": str(folder), "out": f"{out}/run", "rounds": rounds, "evaluation.every": 10**6}
        simulation.run(RunConfig.from_mapping({**base, **TINY, **FIXED, **settings}), on_row=note)
    cpu, counts = np.diff(used)[2:], np.array(messages[3:])  # without the start and round 1, which opens the corpus
    per_message = 1e6 * float(np.median(cpu / counts))
    return {"cpu": float(np.median(cpu)), "messages": float(counts.mean()), "per_message": per_message, **peaks}


def draw_tokens(
    corpus: Any, split: str, tokenizer: Any, max_tokens: int, out: Path, *, bos_id: int, eos_id: int
) -> EncodedSplit:
    """Write one sentence of random tokens per text of the training split; encode what is held out."""
    if split != "train":
        return encode_once(corpus, split, tokenizer, max_tokens, out, bos_id=bos_id, eos_id=eos_id)
    rng = np.random.default_rng(1)
    lengths = rng.integers(LEAST, MOST + 1, len(corpus.texts(split)))

    def tokens() -> Iterator[np.ndarray]:
        for start in range(0, int(lengths.sum()), BLOCK):
            yield rng.integers(0, VOCABULARY, min(BLOCK, int(lengths.sum()) - start), dtype=np.int32)

    with folder_appearing_at(out) as folder:
        write_vector(folder / "tokens.npy", np.int32, tokens())
        write_vector(folder / "offsets.npy", np.int64, [np.concatenate(([0], np.cumsum(lengths)))])
    return open_encoded(out)


@contextmanager
def repeated(sample: Any, seconds: float) -> Iterator[None]:
    """Call ``sample`` again and again in a thread."""
    stop = threading.Event()

    def repeat() -> None:
        while not stop.wait(seconds):
            try:
                sample()
            except psutil.Error:  # a process ended meanwhile
                continue

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def draw(drawn: Mapping[str, Mapping[int, Figures]], file: Path) -> None:
    """Draw cost and memory over the population."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3), layout="constrained")
    cost, memory = figure.subplots(1, 2)
    for mode, by_users in drawn.items():
        users = list(by_users)
        cost.plot(users, [by_users[n]["per_message"] for n in users], marker="o", label=mode)
        memory.plot(users, [by_users[n]["own"] for n in users], marker="o", label=f"worker's own, {mode}")
        memory.plot(users, [by_users[n]["server"] for n in users], marker="s", ls="--", label=f"server, {mode}")
    for axes, label in ((cost, "CPU-µs a message"), (memory, "peak memory, MiB")):
        axes.set(xscale="log", xlabel="users in the corpus", ylabel=label, ylim=(0, None))
        axes.legend(fontsize="x-small")
        axes.grid(alpha=0.3)
    figure.savefig(file, dpi=150)


if __name__ == "__main__":
    main()
