"""Compare rounds of `fl-sim run` on a million users with rounds of the same cohort size on ten thousand.

    python benchmarks/million_users.py --folder DIR

makes two synthetic corpora in DIR unless they exist: 1,000,000 users with 10,000,000 sentences, and 10,000 users with
100,000 (the same distributions; `index_scale.py` draws and writes them). On each it runs the strategy ``uedp`` on
the inline engine, in a separate process, in two ways:

* 1,000 users per round with all their sentences: q_u is 1,000 divided by the number of users;
* all users (q_u = 1) and 15,000 sentences per round: q_s is chosen to give that many.

It prints the median processor time of a round, the time per sentence relative to the small corpus, the peak memory of
the process, and the largest number of live Python objects. (Those are the blocks allocated by Python, sampled
throughout the run, so that an object per user or per sentence would show.)

Sentences are drawn as 4 to 10 tokens each, because tokenising ten million texts is not part of a round. Everything
else is what a run does.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from engine_comparison import pss
from index_scale import draw_split, write_drawn_corpus

from fl_sim.config import RunConfig
from fl_sim.data_prep.store.atomic import folder_appearing_at
from fl_sim.data_prep.store.encode import EncodedSplit, open_encoded
from fl_sim.data_prep.store.layout import write_vector
from fl_sim.engines import simulation
from fl_sim.experiments import training_text
from fl_sim.reporting import plots

LARGE, SMALL = (1_000_000, 10_000_000), (10_000, 100_000)
COHORT, SENTENCES = 1_000, 15_000
Q_E = 0.5
USER_CAP = (
    40.0  # hardly any user has more eligible sentences, so all sentences are batched together: the fastest rounds
)
TINY = {"model.name": "small-gpt2", "model.hidden": 16, "model.layers": 1, "model.heads": 2, "model.max_tokens": 16}
VOCABULARY = 4096  # an upper bound of the drawn tokens, within every tokenizer's vocabulary
LEAST, MOST = 4, 10  # tokens of a sentence: few, so that the overhead shows
BLOCK = 1 << 22


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=6, help="the first is not measured")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the larger corpus, as a factor; for trials")
    parser.add_argument("--measure", metavar="JSON", help="measure one run in this process")
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.folder, json.loads(args.measure), args.rounds)))
        return
    large = tuple(int(args.scale * size) for size in LARGE)
    corpora = {f"{users:,} users": (users, sentences) for users, sentences in (large, SMALL)}
    for users, sentences in corpora.values():
        if not (folder := args.folder / str(users)).exists():
            make(folder, users, sentences)
    for mode, settings in {"1,000 users a round": thousand_users, "everybody, q_u = 1": everybody}.items():
        print(f"\n{mode}")
        figures = {name: figures_of(args, users, settings(users, size)) for name, (users, size) in corpora.items()}
        report(figures)


def thousand_users(users: int, sentences: int) -> dict[str, float]:
    """Return rates that sample :data:`COHORT` users with all their sentences."""
    return {"privacy.q_u": COHORT / users, "privacy.q_s": 1.0}


def everybody(users: int, sentences: int) -> dict[str, float]:
    """Return rates that sample every user and :data:`SENTENCES` sentences (with 0 to 3 entities, all to be sampled)."""
    eligible = sentences * np.mean([Q_E**k for k in range(4)])
    return {"privacy.q_u": 1.0, "privacy.q_s": float(SENTENCES / eligible)}


def make(folder: Path, users: int, sentences: int) -> None:
    """Write a corpus with placeholders for texts and a small validation split."""
    rng = np.random.default_rng(0)
    train = draw_split(rng, users, sentences, world=sentences)
    held_out = draw_split(rng, 10, 100, world=100)
    write_drawn_corpus(folder, {"train": train, "validation": held_out}, compression="none")


def figures_of(args: argparse.Namespace, users: int, settings: Mapping[str, float]) -> dict[str, Any]:
    """Run :func:`measure` in a separate process and sample its memory from this one."""
    command = [sys.executable, __file__, "--folder", str(args.folder / str(users)), "--rounds", str(args.rounds)]
    with subprocess.Popen([*command, "--measure", json.dumps(settings)], stdout=subprocess.PIPE, text=True) as process:
        peak = _PeakMemory(psutil.Process(process.pid))
        with peak.sampling():
            output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(process.returncode)
    return {**json.loads(output), "peak_pss_mib": peak.mib}


def measure(folder: Path, settings: Mapping[str, float], rounds: int) -> dict[str, Any]:
    """Do a run in this process; return its figures."""
    plots.write_run_plots = lambda run: None
    training_text.encode_split = draw_tokens
    rows: list[dict[str, Any]] = []
    times = [time.process_time()]

    def note(row: Mapping[str, Any]) -> None:
        rows.append(dict(row))
        times.append(time.process_time())

    with tempfile.TemporaryDirectory(dir=folder.parent) as out, _PeakBlocks().sampling() as blocks:
        base = {"corpus.path": str(folder), "out": f"{out}/run", "engine.name": "inline", "rounds": rounds, **TINY}
        base |= {
            "privacy.q_e": Q_E,
            "privacy.user_cap": USER_CAP,
            "evaluation.every": rounds,
            "server.optimizer": "sgd",
        }
        simulation.run(RunConfig.from_mapping({**base, **settings}), on_row=note)
    round_seconds = np.diff(times)[2:]  # without the start and round 1, which opens the corpus
    return {
        "round_cpu_seconds": float(np.median(round_seconds)),
        "users": float(np.mean([row["cohort_users"] for row in rows[2:]])),
        "sentences": float(np.mean([row["cohort_sentences"] for row in rows[2:]])),
        "cpu_per_sentence": float(round_seconds.sum() / sum(row["cohort_sentences"] for row in rows[2:])),
        "before_cpu_seconds": float(times[1] - times[0]),
        "python_objects": blocks.most,
    }


def draw_tokens(texts: Any, tokenizer: Any, max_tokens: int, out: Path, *, bos_id: int, eos_id: int) -> EncodedSplit:
    """Write one sentence of random tokens per text; replaces :func:`fl_sim.data_prep.store.encode.encode_split`."""
    rng = np.random.default_rng(1)
    lengths = rng.integers(LEAST, MOST + 1, len(texts))

    def tokens() -> Iterator[np.ndarray]:
        for start in range(0, int(lengths.sum()), BLOCK):
            yield rng.integers(0, VOCABULARY, min(BLOCK, int(lengths.sum()) - start), dtype=np.int32)

    with folder_appearing_at(out) as folder:
        write_vector(folder / "tokens.npy", np.int32, tokens())
        write_vector(folder / "offsets.npy", np.int64, [np.concatenate(([0], np.cumsum(lengths)))])
    return open_encoded(out)


class _Sampler:
    """Sample a figure throughout a block, in a thread."""

    seconds = 0.05

    def sample(self) -> None:
        raise NotImplementedError

    @contextmanager
    def sampling(self) -> Iterator[Any]:
        stop = threading.Event()

        def repeat() -> None:
            while not stop.wait(self.seconds):
                self.sample()

        thread = threading.Thread(target=repeat, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            stop.set()
            thread.join()


class _PeakBlocks(_Sampler):
    """The largest number of memory blocks allocated by Python: one per object, none for the content of arrays."""

    def __init__(self) -> None:
        self.most = 0

    def sample(self) -> None:
        self.most = max(self.most, sys.getallocatedblocks())


class _PeakMemory(_Sampler):
    """The peak memory (PSS) of a process and its children."""

    seconds = 1.0

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self.mib = 0

    def sample(self) -> None:
        try:
            tree = [self._process, *self._process.children(recursive=True)]
            self.mib = max(self.mib, round(sum(pss(one.pid) for one in tree)))
        except psutil.Error:  # a process ended meanwhile
            return


def report(figures_by_corpus: Mapping[str, dict[str, Any]]) -> None:
    """Print a line per corpus, and the ratio of the times per sentence."""
    large, small = figures_by_corpus.values()
    for name, figures in figures_by_corpus.items():
        print(
            f"{name}: {figures['round_cpu_seconds']:.2f} s of processor time a round, {figures['users']:,.0f} users, "
            f"{figures['sentences']:,.0f} sentences, {1e6 * figures['cpu_per_sentence']:.0f} µs a sentence; peak "
            f"{figures['peak_pss_mib']:,} MiB; {figures['python_objects']:,} Python objects at most; "
            f"{figures['before_cpu_seconds']:.0f} s before the first round"
        )
    print(f"time per sentence, large to small: {large['cpu_per_sentence'] / small['cpu_per_sentence']:.3f}")


if __name__ == "__main__":
    main()
