"""Compare our engine with a plain torch loop, a fused batch, Flower with a node per user, and pfl, on one workload.

    python benchmarks/make_peer_environment.py pfl DIR   # once
    python benchmarks/engine_comparison.py --pfl DIR

Every contender is a process that does a few rounds on request. They take turns, so that other load on the machine
affects all of them alike; figures are medians over the turns. Users per CPU-second count the processor time of the
contender's process and its descendants. Memory is the peak of their combined PSS, sampled five times a second.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.records import Mention, Sentence

HERE = Path(__file__).resolve().parent / "engine"
LENGTH, VOCABULARY = 20, 5000
INLINE = {"engine.name": "inline", "engine.nodes": 1}
RAY = {"engine.name": "ray", "engine.nodes": 2, "engine.num_cpus": 2}
USER = {"privacy.strategy": "user_level", "privacy.noise_multiplier": 1.0}
SENTENCE = {"privacy.strategy": "uedp", "privacy.noise_multiplier": 1.0, "privacy.q_s": 1.0, "privacy.q_e": 1.0}
IDLE = SENTENCE | {"privacy.q_s": 1e-9}
"""Rounds that sample users but none of their sentences: the cost of a round without its arithmetic."""

OURS: dict[str, dict[str, Any]] = {
    "ours user_level": USER | INLINE,
    "ours uedp": SENTENCE | INLINE,  # ŵ = the sentences of a user: one batch for all users
    "ours uedp, ŵ 1": SENTENCE | INLINE | {"privacy.user_cap": 1.0},  # every user's sum is clipped on its own
    "ours user_level, Ray": USER | RAY,
    "ours idle": IDLE | INLINE,
    "ours idle, Ray": IDLE | RAY,
}
SCRIPTS = {
    "torch loop": "floor.py",
    "fused batch": "fused.py",
    "pfl": "pfl_rounds.py",
    "Flower per user": "flower_per_user.py",
}
COMPARED = [
    ("ours user_level", "torch loop"), ("ours user_level", "pfl"), ("ours user_level, Ray", "Flower per user"),
    ("ours uedp", "fused batch"), ("ours uedp, ŵ 1", "fused batch"), ("pfl", "torch loop"),
]  # fmt: skip


class EndedError(Exception):
    """A contender's process ended too early."""


@dataclass
class Contender:
    """A process that does rounds, and their measured cost.

    Attributes:
        started: clock at its start, in seconds.
        ready: seconds from its start to the end of its first round.
        ready_cpu: the same in CPU-seconds.
        per_cpu: users per CPU-second, one figure per turn.
        per_wall: users per second, one figure per turn.
        round_cpu: CPU-seconds of a round, one figure per turn.
        round_wall: seconds of a round, one figure per turn.
        memory: peak memory in MiB.
    """

    name: str
    process: subprocess.Popen[str]
    started: float
    ready: float = 0.0
    ready_cpu: float = 0.0
    per_cpu: list[float] = field(default_factory=list)
    per_wall: list[float] = field(default_factory=list)
    round_cpu: list[float] = field(default_factory=list)
    round_wall: list[float] = field(default_factory=list)
    memory: float = 0.0

    def wait(self) -> int | None:
        """Wait for the requested rounds; return how many users took part, or None if the number is fixed."""
        answer, *users = (self.process.stdout.readline() if self.process.stdout else "").split() or [""]
        if answer != "done":
            raise EndedError(f"{self.name} ended early: {self.process.wait()}")
        return int(users[0]) if users else None

    def turn(self, rounds: int, users: int) -> None:
        """Request ``rounds`` rounds of about ``users`` users each, and measure them."""
        cpu_before, began = self.cpu_seconds(), time.monotonic()
        with self._watched_memory():
            print(rounds, file=self.process.stdin, flush=True)
            users_done = self.wait() or rounds * users
        wall, cpu = time.monotonic() - began, max(self.cpu_seconds() - cpu_before, 1e-9)
        self.per_wall.append(users_done / wall)
        self.per_cpu.append(users_done / cpu)
        self.round_wall.append(wall / rounds)
        self.round_cpu.append(cpu / rounds)

    def _tree(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            own = psutil.Process(self.process.pid)
            return [own, *own.children(recursive=True)]
        return []

    def cpu_seconds(self) -> float:
        """Return the CPU-seconds that the process and its descendants have used so far."""
        used = 0.0
        for process in self._tree():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                used += times.user + times.system
        return used

    @contextlib.contextmanager
    def _watched_memory(self) -> Iterator[None]:
        stop = threading.Event()

        def watch() -> None:
            while True:
                self.memory = max(self.memory, sum(pss(process.pid) for process in self._tree()))
                if stop.wait(0.2):
                    return

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield
        finally:
            stop.set()
            watcher.join()


def pss(process: int) -> float:
    """Return the PSS of a process in MiB (a page shared by n processes counts 1/n); 0 after it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pfl", type=Path, metavar="DIR", help="environment made by make_peer_environment.py")
    parser.add_argument("--sentences", type=int, nargs="*", default=[15, 2], help="per user")
    parser.add_argument("--users", type=int, default=2000)
    parser.add_argument("--cohort", type=int, default=100)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2, help="per turn")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="only these contenders")
    args = parser.parse_args()
    names = args.only or [*OURS, *SCRIPTS]
    if args.pfl is None:
        names = [name for name in names if name != "pfl"]
    for sentences in args.sentences:
        with tempfile.TemporaryDirectory() as folder:
            spec = workload(Path(folder), args.users, sentences, args.cohort, 1 + args.turns * args.rounds)
            show(sentences, run_contenders(names, spec, args))


def workload(folder: Path, users: int, sentences: int, cohort: int, rounds: int) -> dict[str, Any]:
    """Write random sentences to ``folder``, as token ids and as a corpus with a tokenizer that yields them.

    Args:
        folder: an empty folder.
        users: number of users.
        sentences: sentences per user.
        cohort: users expected in a round.
        rounds: rounds that a contender does in all.

    Returns:
        The workload as each contender reads it from its command line.
    """
    words = np.random.default_rng(0).integers(2, VOCABULARY, (users, sentences, LENGTH - 2))
    ends = np.zeros((users, sentences, 1), dtype=words.dtype)
    np.save(folder / "tokens.npy", np.concatenate((ends, words, ends + 1), axis=2).astype(np.int32))
    _save_tokenizer(folder / "tokenizer")
    write_corpus(_sentences(words), folder / "corpus", name="synthetic")
    return {
        "tokens": str(folder / "tokens.npy"), "folder": str(folder), "users": users, "sentences": sentences,
        "cohort": cohort, "length": LENGTH, "vocabulary": VOCABULARY, "workers": 2, "rounds": rounds,
    }  # fmt: skip


def _sentences(words: np.ndarray) -> Iterator[Sentence]:
    for user, own in enumerate(words):
        for number, sentence in enumerate(own):
            text = " ".join(f"w{word}" for word in sentence)
            mentions = (Mention(0, text.index(" "), "X"),) if number % 3 == 0 else ()
            yield Sentence("train", f"user {user}", text, mentions)
    yield Sentence("validation", "somebody", "w2 w3", ())


def _save_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<s>": 0, "</s>": 1} | {f"w{number}": number for number in range(2, VOCABULARY)}
    plain = Tokenizer(models.WordLevel(vocabulary, unk_token="w2"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=plain, bos_token="<s>", eos_token="</s>").save_pretrained(folder)


def run_contenders(names: list[str], spec: dict[str, Any], args: argparse.Namespace) -> list[Contender]:
    """Start every contender, then let them take turns; return those that started."""
    running: list[Contender] = []
    try:
        for name in names:
            try:
                running.append(start(name, spec, args.pfl))
            except EndedError as error:  # e.g. Ray did not start in time on a busy machine; the others go on
                print(error, file=sys.stderr)
        for _ in range(args.turns):
            for contender in running:
                contender.turn(args.rounds, spec["cohort"])
    finally:
        for contender in running:
            contender.process.stdin and contender.process.stdin.close()
        for contender in running:
            contender.process.wait()
    return running


def start(name: str, spec: dict[str, Any], pfl: Path | None) -> Contender:
    """Start a contender and wait for its first round."""
    python = str(pfl / "bin" / "python") if name == "pfl" and pfl else sys.executable
    settings = {"privacy.user_cap": float(spec["sentences"])} if "uedp" in name else {}
    spec = spec | {"name": name.replace(" ", "-"), "settings": settings | OURS.get(name, {})}
    command = [python, str(HERE / SCRIPTS.get(name, "ours.py")), json.dumps(spec)]
    began = time.monotonic()
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    contender = Contender(name, subprocess.Popen(command, **pipes), began)
    contender.wait()
    contender.ready, contender.ready_cpu = time.monotonic() - began, contender.cpu_seconds()
    return contender


def show(sentences: int, contenders: list[Contender]) -> None:
    """Print the table of one workload, and the ratios of the compared pairs."""
    print(f"\n{sentences} sentences per user\n")
    print("| contender | users per CPU-second | users per second | memory, MiB | start and first round, s | CPU-s |")
    print("|---|---|---|---|---|---|")
    cpu = {c.name: statistics.median(c.per_cpu) for c in contenders}
    for c in contenders:
        wall = statistics.median(c.per_wall)
        print(f"| {c.name} | {cpu[c.name]:.1f} | {wall:.1f} | {c.memory:,.0f} | {c.ready:.1f} | {c.ready_cpu:.1f} |")
    print()
    by_name = {c.name: c for c in contenders}
    for one, other in COMPARED:
        if one in cpu and other in cpu:
            ratios = [a / b for a, b in zip(by_name[one].per_cpu, by_name[other].per_cpu, strict=True)]
            print(f"{one} / {other}: {statistics.median(ratios):.2f} of the users per CPU-second "
                  f"({min(ratios):.2f} to {max(ratios):.2f})")  # fmt: skip
    if {"ours idle", "ours idle, Ray"} <= cpu.keys():
        one, other = by_name["ours idle"], by_name["ours idle, Ray"]
        wall, used = (
            statistics.median(b - a for a, b in zip(inline, ray, strict=True))
            for inline, ray in ((one.round_wall, other.round_wall), (one.round_cpu, other.round_cpu))
        )
        print(f"Flower and Ray add {wall:.2f} s to a round, and {used:.2f} CPU-seconds")


if __name__ == "__main__":
    main()
