"""Compare a private gradient with a non-private one on one device: tokens per second, and share of a GPU's peak.

    python benchmarks/private_step.py --device cuda --precision bfloat16              # GPT-2, 124 M random weights
    python benchmarks/private_step.py --device cuda --precision bfloat16 --workers 4  # processes that share the GPU
    python benchmarks/private_step.py --layers 2 --hidden 128 --heads 4 --vocabulary 5000 --sentences 64 --turns 3

``uedp`` clips every sentence exactly. ``uedp, ŵ 1`` also clips every user's sum of two sentences. ``fused batch`` is
the non-private gradient of all sentences. ``round`` is a whole private round of a run without Ray: sample users, load
the model, compute the sum of ``uedp``, add noise, take the server's step. The contenders take turns.

Only torch and transformers are needed. The tokens are random, so there is no tokenizer. A step counts as 6 operations
per parameter and token, although a private step does more.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fl_sim.clients.batches import Example
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.models.losses import sentence_losses
from fl_sim.clients.selection import Selection
from fl_sim.clients.training import bounded_sum
from fl_sim.strategies.client_rules import ClippedGradients
from fl_sim.strategies.primitives import sampling
from fl_sim.strategies.primitives.noise import gaussian_noise

SENTENCES_PER_USER = 2
USER_RATE, SEED = 0.5, 0  # q_u of a round
PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}
"""Dense bf16 operations per second, as stated by the manufacturer."""


class NoTokenizer:
    """The part of a tokenizer that a model reads when the tokens are given."""

    bos_token_id = eos_token_id = 0

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size


class Sentences:
    """Random sentences held in memory."""

    def __init__(self, count: int, length: int, vocabulary: int) -> None:
        self._tokens = np.random.default_rng(0).integers(1, vocabulary, (count, length)).astype(np.int32)

    def read(self, ids: np.ndarray) -> list[Example]:
        return [Example(self._tokens[number], number=int(number)) for number in ids]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--precision", default="float32", choices=["float32", "bfloat16"], help="precision of matrix products"
    )
    parser.add_argument("--checkpointing", action="store_true", help="compute blocks again in the backward pass")
    parser.add_argument("--tf32", action="store_true", help="TF32 in the forward and backward pass")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--vocabulary", type=int, default=50257)
    parser.add_argument("--sentences", type=int, default=256, help="sentences per step")
    parser.add_argument("--tokens", type=int, default=64, help="tokens per sentence")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--workers", type=int, default=1, help="processes that share the device")
    args = parser.parse_args()
    torch.set_num_threads(1)
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(args.workers)
    with context.Pool(args.workers, initializer=_hold, initargs=(barrier,)) as pool:
        measurements = pool.map(measure, [args] * args.workers, chunksize=1)
    show(args, measurements)


_barrier: object


def _hold(barrier: object) -> None:
    """Keep the barrier at which the workers of a pool wait for each other."""
    global _barrier
    _barrier = barrier


def measure(args: argparse.Namespace) -> dict[str, list[float]]:
    """Return the seconds of each contender, one figure per turn; its peak memory in MiB on CUDA; its parameters.

    All workers start each step together.
    """
    torch.set_num_threads(1)
    model = random_gpt2(args)
    sentences = Sentences(round(args.sentences / USER_RATE), args.tokens, args.vocabulary)
    works = steps(model, sentences, args.sentences)
    for work in works.values():
        work()
    figures: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(args.turns):
        for name, work in works.items():
            _barrier.wait()  # type: ignore[attr-defined]
            figures[name].append(_seconds(work, model.device))
    if model.device.type == "cuda":
        figures["memory"] = [torch.cuda.max_memory_allocated() / 2**20]
    figures["parameters"] = [model.num_parameters]
    return figures


def random_gpt2(args: argparse.Namespace) -> LanguageModel:
    """Return a GPT-2 of the given sizes with random weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_embd": args.hidden, "n_layer": args.layers, "n_head": args.heads, "n_positions": args.tokens}
    config = GPT2Config(vocab_size=args.vocabulary, bos_token_id=0, eos_token_id=0, **sizes)
    spec = SimpleNamespace(
        name="random GPT-2",
        device=args.device,
        max_tokens=args.tokens,
        precision=args.precision,
        lora_layers=None,
        batch_tokens=None,
        checkpointing=args.checkpointing,
        tf32=args.tf32,
    )
    return LanguageModel(GPT2LMHeadModel(config).to(args.device), NoTokenizer(args.vocabulary), spec, seed=0)


def steps(model: LanguageModel, sentences: Sentences, count: int) -> dict[str, Callable[[], object]]:
    """Return the contenders by name.

    Args:
        model: the model; every contender leaves its parameters unchanged.
        sentences: the users' sentences.
        count: sentences of a step (in expectation, for a round).
    """
    users = count // SENTENCES_PER_USER
    all_users = _all_of(np.arange(users))

    def private(cap: int) -> Callable[[], object]:
        return lambda: bounded_sum(model, sentences, all_users, _rule(cap), SEED)  # type: ignore[arg-type]

    return {
        "fused batch": lambda: fused(model, sentences.read(all_users.sentences)),
        "uedp": private(SENTENCES_PER_USER),
        "uedp, ŵ 1": private(1),
        "round": _Round(model, sentences, users),
    }


class _Round:
    """A round, always from the same θ: θ + (Σ of a sampled cohort's clipped gradients + N(0, β² I)) / (q_u·N)."""

    def __init__(self, model: LanguageModel, sentences: Sentences, expected: int) -> None:
        self._model, self._sentences, self._expected = model, sentences, expected
        self._start, self._number = model.get_vector(), 0

    def __call__(self) -> np.ndarray:
        self._number += 1
        cohort = sampling.sample_users(SEED, self._number, round(self._expected / USER_RATE), USER_RATE)
        self._model.set_vector(self._start)
        rule = _rule(SENTENCES_PER_USER)
        seed = sampling.round_seed(SEED, self._number)
        reply = bounded_sum(self._model, self._sentences, _all_of(cohort), rule, seed)  # type: ignore[arg-type]
        noise = gaussian_noise(SEED, self._number, len(self._start), rule.user_clip)
        return self._start + (reply.vector + noise) / self._expected


def _rule(cap: int) -> ClippedGradients:
    return ClippedGradients(q_e=1.0, q_s=1.0, sentence_clip=1.0, user_clip=float(cap))


def _all_of(users: np.ndarray) -> Selection:
    """Select both sentences of each user, int64 ``(num_users,)``."""
    sentences = (users[:, None] * SENTENCES_PER_USER + np.arange(SENTENCES_PER_USER)).ravel()
    return Selection(users, sentences, np.full(len(users), SENTENCES_PER_USER))


def fused(model: LanguageModel, examples: list[Example]) -> list[torch.Tensor]:
    """Return the gradient of the mean loss, one tensor per parameter; micro-batches are those of the private step."""
    parameters = list(model.parameters.tensors.values())
    at_once = max(1, model.batch_tokens // len(examples[0]))
    total = [torch.zeros_like(parameter) for parameter in parameters]
    for start in range(0, len(examples), at_once):
        loss = sentence_losses(model, examples[start : start + at_once]).sum() / len(examples)
        torch._foreach_add_(total, list(torch.autograd.grad(loss, parameters)))
    return total


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    before = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - before


def show(args: argparse.Namespace, measurements: list[dict[str, list[float]]]) -> None:
    """Print a line per contender: all workers together, medians over the turns."""
    parameters = int(measurements[0]["parameters"][0])
    chip = torch.cuda.get_device_name() if args.device.startswith("cuda") else "CPU"
    peak = next((value for name, value in PEAKS.items() if name in chip), None)
    print(f"{parameters:,} parameters, {args.sentences} sentences of {args.tokens}, {args.workers} worker(s), {chip}")
    for name in ("fused batch", "uedp", "uedp, ŵ 1", "round"):
        turns = zip(*(worker[name] for worker in measurements), strict=True)
        seconds = statistics.median(map(max, turns))
        rate = args.workers * args.sentences * args.tokens / seconds
        plain = statistics.median(worker["fused batch"][turn] / worker[name][turn] for worker in measurements
                                  for turn in range(args.turns))  # fmt: skip
        share = f", {100 * 6 * parameters * rate / peak:.1f} % of the bf16 peak" if peak else ""
        print(f"{name:12}  {rate:12,.0f} tokens/s  {plain:5.2f} of the fused batch{share}")
    if "memory" in measurements[0]:
        print(f"most memory of a worker on the device: {max(worker['memory'][0] for worker in measurements):,.0f} MiB")


if __name__ == "__main__":
    main()
