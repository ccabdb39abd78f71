"""Rounds of `fl-sim run` on a million users beside rounds with as large a cohort on ten thousand.

    python benchmarks/million_users.py --folder DIR

makes two synthetic corpora in DIR, unless they are there: 1,000,000 users with 10,000,000 sentences, and 10,000 users
with 100,000 (the same distributions; `index_scale.py` draws and writes them). On each it runs the strategy ``uedp`` on
the inline engine, in a process of its own, in two ways:

* 1,000 users a round, all their sentences: q_u is 1,000 of the users;
* everybody (q_u = 1), 15,000 sentences a round: q_s is what brings so many.

It prints, for each, the processor time of a round (median), the time per sentence beside that of the small corpus, the
peak of the process's memory, and the most Python objects that were alive at once (blocks that Python has allocated,
sampled all along, so that an object per user or sentence would show).

Sentences are drawn as tokens, 4 to 10 each: turning ten million texts into tokens is no part of a round. All else is
what a run does.
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
from index_scale import drawn_corpus, drawn_split

from fl_sim.config import RunConfig
from fl_sim.data_prep.store.arrays import write_vector
from fl_sim.data_prep.store.atomic import folder_appearing_at
from fl_sim.data_prep.store.encode import EncodedSplit, open_encoded
from fl_sim.engines import simulation
from fl_sim.experiments import experiment
from fl_sim.reporting import plots

LARGE, SMALL = (1_000_000, 10_000_000), (10_000, 100_000)
COHORT, SENTENCES = 1_000, 15_000
Q_E = 0.5
USER_CAP = 40.0  # hardly anybody has more eligible sentences, so that all sentences share batches: the fastest rounds
TINY = {"model.name": "small-gpt2", "model.hidden": 16, "model.layers": 1, "model.heads": 2, "model.max_tokens": 16}
VOCABULARY = 4096  # the drawn tokens lie below, within every tokenizer's
LEAST, MOST = 4, 10  # tokens of a sentence: few, so that what is no arithmetic shows
BLOCK = 1 << 22


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=6, help="the first is not measured")
    parser.add_argument("--scale", type=float, default=1.0, help="of the larger corpus, to try it out")
    parser.add_argument("--measure", metavar="JSON", help="measure one run in this process")
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measured(args.folder, json.loads(args.measure), args.rounds)))
        return
    large = tuple(int(args.scale * size) for size in LARGE)
    corpora = {f"{users:,} users": (users, sentences) for users, sentences in (large, SMALL)}
    for users, sentences in corpora.values():
        if not (folder := args.folder / str(users)).exists():
            make(folder, users, sentences)
    for way, settings in {"1,000 users a round": thousand_users, "everybody, q_u = 1": everybody}.items():
        print(f"\n{way}")
        found = {name: figures_of(args, users, settings(users, size)) for name, (users, size) in corpora.items()}
        report(found)


def thousand_users(users: int, sentences: int) -> dict[str, float]:
    return {"privacy.q_u": COHORT / users, "privacy.q_s": 1.0}


def everybody(users: int, sentences: int) -> dict[str, float]:
    """Sentences have 0 to 3 entities, all of which must be active."""
    eligible = sentences * np.mean([Q_E**k for k in range(4)])
    return {"privacy.q_u": 1.0, "privacy.q_s": float(SENTENCES / eligible)}


def make(folder: Path, users: int, sentences: int) -> None:
    """A corpus whose texts are placeholders, and a little one to be held out."""
    rng = np.random.default_rng(0)
    train = drawn_split(rng, users, sentences, world=sentences)
    held_out = drawn_split(rng, 10, 100, world=100)
    drawn_corpus(folder, {"train": train, "validation": held_out}, compression="none")


def figures_of(args: argparse.Namespace, users: int, settings: Mapping[str, float]) -> dict[str, Any]:
    """:func:`measured` in a process of its own, whose memory is looked at from here."""
    command = [sys.executable, __file__, "--folder", str(args.folder / str(users)), "--rounds", str(args.rounds)]
    with subprocess.Popen([*command, "--measure", json.dumps(settings)], stdout=subprocess.PIPE, text=True) as process:
        peak = _Peak(psutil.Process(process.pid))
        with peak.watching():
            said, _ = process.communicate()
    if process.returncode:
        raise SystemExit(process.returncode)
    return {**json.loads(said), "peak_pss_mib": peak.mib}


def measured(folder: Path, settings: Mapping[str, float], rounds: int) -> dict[str, Any]:
    """A run in this process."""
    plots.write_run_plots = lambda run: None
    experiment.encode_split = drawn_tokens
    rows: list[dict[str, Any]] = []
    times = [time.process_time()]

    def note(row: Mapping[str, Any]) -> None:
        rows.append(dict(row))
        times.append(time.process_time())

    with tempfile.TemporaryDirectory(dir=folder.parent) as out, _Blocks().watching() as blocks:
        base = {"corpus.path": str(folder), "out": f"{out}/run", "engine.name": "inline", "rounds": rounds, **TINY}
        base |= {
            "privacy.q_e": Q_E,
            "privacy.user_cap": USER_CAP,
            "evaluation.every": rounds,
            "server.optimizer": "sgd",
        }
        simulation.run(RunConfig.from_mapping({**base, **settings}), observer=note)
    spent = np.diff(times)[2:]  # what comes before round 1, and round 1, in which everything is opened
    return {
        "round_cpu_seconds": float(np.median(spent)),
        "users": float(np.mean([row["cohort_users"] for row in rows[2:]])),
        "sentences": float(np.mean([row["cohort_sentences"] for row in rows[2:]])),
        "cpu_per_sentence": float(spent.sum() / sum(row["cohort_sentences"] for row in rows[2:])),
        "before_cpu_seconds": float(times[1] - times[0]),
        "python_objects": blocks.most,
    }


def drawn_tokens(texts: Any, tokenizer: Any, max_tokens: int, out: Path, *, bos_id: int, eos_id: int) -> EncodedSplit:
    """Stands for :func:`fl_sim.data_prep.store.encode.encode_split`: as many sentences as there are texts, of random
    tokens."""
    rng = np.random.default_rng(1)
    lengths = rng.integers(LEAST, MOST + 1, len(texts))

    def tokens() -> Iterator[np.ndarray]:
        for start in range(0, int(lengths.sum()), BLOCK):
            yield rng.integers(0, VOCABULARY, min(BLOCK, int(lengths.sum()) - start), dtype=np.int32)

    with folder_appearing_at(out) as folder:
        write_vector(folder / "tokens.npy", np.int32, tokens())
        write_vector(folder / "offsets.npy", np.int64, [np.concatenate(([0], np.cumsum(lengths)))])
    return open_encoded(out)


class _Watch:
    """Looks at something all along, in a thread."""

    seconds = 0.05

    def look(self) -> None:
        raise NotImplementedError

    @contextmanager
    def watching(self) -> Iterator[Any]:
        done = threading.Event()

        def watch() -> None:
            while not done.wait(self.seconds):
                self.look()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            done.set()
            thread.join()


class _Blocks(_Watch):
    """The most blocks of memory that Python had allocated at once: every object that is no array's content has one."""

    def __init__(self) -> None:
        self.most = 0

    def look(self) -> None:
        self.most = max(self.most, sys.getallocatedblocks())


class _Peak(_Watch):
    """The most memory of a process and its children, each page by the share that each process has of it."""

    seconds = 1.0

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self.mib = 0

    def look(self) -> None:
        try:
            tree = [self._process, *self._process.children(recursive=True)]
            self.mib = max(self.mib, sum(_pss_kib(one.pid) for one in tree) >> 10)
        except (psutil.Error, OSError):  # a process that has ended meanwhile
            return


def _pss_kib(process: int) -> int:
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def report(found: Mapping[str, dict[str, Any]]) -> None:
    """The figures of a way, a line for each corpus, and the ratio of the first to the second."""
    large, small = found.values()
    for name, figures in found.items():
        print(
            f"{name}: {figures['round_cpu_seconds']:.2f} s of processor time a round, {figures['users']:,.0f} users, "
            f"{figures['sentences']:,.0f} sentences, {1e6 * figures['cpu_per_sentence']:.0f} µs a sentence; peak "
            f"{figures['peak_pss_mib']:,} MiB; {figures['python_objects']:,} Python objects at most; "
            f"{figures['before_cpu_seconds']:.0f} s before the first round"
        )
    print(f"time per sentence, large to small: {large['cpu_per_sentence'] / small['cpu_per_sentence']:.3f}")


if __name__ == "__main__":
    main()
