"""Measure the memory of one clipped micro-batch, in bytes of live tensors beside the model, on the CPU.

    python benchmarks/pass_memory.py --vocabulary 50257

A device's allocator holds the same tensors; attention kernels differ. Random weights, sentences of equal length.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.private_step import random_gpt2
from fl_sim.clients.batches import Example
from fl_sim.clients.gradients.clipped_sums import GradientSum
from fl_sim.clients.gradients.ghost_pass import gradient_path
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.diagnosis.worker_memory import LiveBytes

SETTINGS = {
    "float32": {"precision": "float32", "checkpointing": False},
    "bfloat16": {"precision": "bfloat16", "checkpointing": False},
    "float32, checkpointing": {"precision": "float32", "checkpointing": True},
    "bfloat16, checkpointing": {"precision": "bfloat16", "checkpointing": True},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in {"layers": 6, "hidden": 256, "heads": 4, "vocabulary": 4096, "tokens": 64}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--batch-tokens", type=int, default=1024)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name, clip_norm, peak, largest in measured(args):
        clip = "no clip" if math.isinf(clip_norm) else "clipped"
        print(f"{name:24} {clip:8} peak {peak / 2**20:8.0f} MiB, largest tensor {largest / 2**20:6.0f} MiB", flush=True)


def measured(args: argparse.Namespace) -> Iterator[tuple[str, float, int, int]]:
    """Yield the setting, the clip, the peak beside the model, and the largest tensor, in bytes."""
    for name, settings in SETTINGS.items():
        model = random_gpt2(SimpleNamespace(**vars(args), **settings, device="cpu", tf32=False))
        if gradient_path(model).name != "fast":
            raise RuntimeError(gradient_path(model).reason)
        for clip_norm in (0.1, math.inf):
            yield name, clip_norm, *_peak(model, args, clip_norm)


def _peak(model: LanguageModel, args: Any, clip_norm: float) -> tuple[int, int]:
    draws = np.random.default_rng(0)
    sentences = [
        Example(draws.integers(0, args.vocabulary, size=args.tokens))
        for _ in range(args.batch_tokens // (args.tokens - 1))
    ]
    total = GradientSum(model)
    with LiveBytes() as memory:
        total.add(sentences, clip_norm, max_batch_tokens=args.batch_tokens)
    return memory.peak, memory.largest


if __name__ == "__main__":
    main()
