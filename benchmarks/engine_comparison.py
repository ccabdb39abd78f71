"""Compare our engine with a plain torch loop, a fused batch, Flower with a node per user, and pfl, on one workload.

    python benchmarks/make_peer_environment.py pfl DIR   # once
    python benchmarks/engine_comparison.py --pfl DIR

Every contender is a process that does a few rounds on request. They take turns, so that other load on the machine
affects all of them alike; figures are medians over the turns. Users per CPU-second count the processor time of the
contender's process and its descendants. Memory is the peak of their combined PSS, sampled five times a second.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from engine import plain
from engine.turns import Contender, all_ended, reported_end, start

from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.records import Mention, Sentence

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
            spec = workload(Path(folder), args.users, sentences, args.cohort, 2 + args.turns * args.rounds)
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
    with all_ended(running):
        for name in names:
            python = str(args.pfl / "bin" / "python") if name == "pfl" else sys.executable
            with reported_end():
                running.append(start(name, SCRIPTS.get(name, "ours.py"), spec_of(name, spec), python))
        for _ in range(args.turns):
            for contender in running:
                contender.turn(args.rounds, spec["cohort"])
    return running


def spec_of(name: str, workload: dict[str, Any]) -> dict[str, Any]:
    """Return the workload as a contender reads it; ours is a run with its settings."""
    if name in SCRIPTS:
        return workload | {"name": name}
    cap = {"privacy.user_cap": float(workload["sentences"])} if "uedp" in name else {}
    settings = (
        {
            "corpus.path": str(Path(workload["folder"]) / "corpus"),
            "model.name": "small-gpt2",
            "model.hidden": plain.HIDDEN,
            "model.layers": plain.LAYERS,
            "model.heads": plain.HEADS,
            "model.max_tokens": LENGTH,
            "model.tokenizer": str(Path(workload["folder"]) / "tokenizer"),
            "local.batch_size": plain.BATCH,
            "local.learning_rate": plain.RATE,
            "privacy.q_u": workload["cohort"] / workload["users"],
        }
        | cap
        | OURS[name]
    )
    return workload | {"name": name, "settings": settings}


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
