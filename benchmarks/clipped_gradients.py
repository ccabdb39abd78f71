"""Compare the sum of clipped sentence gradients with Opacus' ghost clipping and with a plain batch gradient.

    python benchmarks/make_peer_environment.py opacus DIR        # once
    DIR/bin/python benchmarks/clipped_gradients.py

All three compute on one module, a decoder of linear layers, layer norms and embeddings that both libraries know, on one
thread, and take turns; a figure is the CPU-seconds of one batch. "plain" is the gradient of the batch's loss without
any clip, "Opacus" the sum that its ghost clipping leaves in ``grad`` after two backward passes. The two private sums
must agree.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from private_step import NoTokenizer  # of this folder: Opacus installs a package called benchmarks
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


from fl_sim.clients.batches import Batch, Example
from fl_sim.clients.gradients.clipped_sums import GradientSum
from fl_sim.clients.gradients.ghost_pass import gradient_path
from fl_sim.clients.models import Architecture
from fl_sim.clients.models.architectures.model_source import ModelSource
from fl_sim.clients.models.language_model import LanguageModel

VOCABULARY, CLIP = 5000, 0.1
WIDTHS = {"1 M parameters": (96, 2), "10 M parameters": (384, 4)}
"""Width and layers."""
LENGTHS = (20, 128)
BATCH_TOKENS = 1024
TOLERANCE = 1e-4


class Block(nn.Module):
    """Attention and a feed-forward network, each after a layer norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.joined = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = width // 32

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        seen = self.before(states)
        parts = (
            layer(seen).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        attended = functional.scaled_dot_product_attention(*parts, is_causal=True)
        states = states + self.joined(attended.transpose(1, 2).flatten(2))
        return states + self.down(functional.gelu(self.up(self.between(states))))


class Decoder(nn.Module):
    """Scores of the next word, (B, T, V), from tokens and positions, (B, T)."""

    def __init__(self, width: int, layers: int, longest: int) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.last, self.output = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        states = self.embedding(tokens) + self.places(positions)
        for block in self.blocks:
            states = block(states)
        return self.output(self.last(states))


class Decoders(Architecture):
    """Lets fl_sim run a `Decoder`."""

    def build(self, spec: object, vocabulary: object, *, output_layer: bool) -> nn.Module:
        raise NotImplementedError("the benchmark makes its own")

    def scores(self, module: nn.Module, batch: Batch) -> torch.Tensor:
        return module(batch.inputs, batch.positions)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--batches", type=int, default=4, help="per turn")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for length in LENGTHS:
        for size, (width, layers) in WIDTHS.items():
            compare(f"{length} tokens, {size}", Decoder(width, layers, length), length, args)


def compare(title: str, module: Decoder, length: int, args: argparse.Namespace) -> None:
    """Print the ratios of one size."""
    rows = BATCH_TOKENS // length
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (rows, length + 1))
    hooked = copy.deepcopy(module)  # Opacus' hooks stay on its modules
    works = {"ours": ours(module, tokens), "plain": plain(module, tokens), "Opacus": opacus(hooked, tokens)}
    private = {name: works[name]() for name in ("ours", "Opacus")}
    error = float((private["ours"] - private["Opacus"]).norm() / private["Opacus"].norm())
    if not error < TOLERANCE:
        sys.exit(f"{title}: the two sums differ by {error:.1e} of their norm; allowed: {TOLERANCE:.0e}")
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(args.turns):
        for name, work in works.items():
            seconds[name].append(cpu_seconds(work, args.batches))
    count = sum(parameter.numel() for parameter in module.parameters())
    print(f"{title} ({count:,}): ours {1e3 * statistics.median(seconds['ours']):.0f} ms a batch of {rows} sentences")
    for other in ("Opacus", "plain"):
        ratios = [theirs / own for theirs, own in zip(seconds[other], seconds["ours"], strict=True)]
        print(f"  {statistics.median(ratios):.2f} times the speed of {other} ({min(ratios):.2f} to {max(ratios):.2f})")


def cpu_seconds(work: Callable[[], object], batches: int) -> float:
    """Return the CPU-seconds of one call of ``work``, the mean of several."""
    before = time.process_time()
    for _ in range(batches):
        work()
    return (time.process_time() - before) / batches


def ours(module: Decoder, tokens: np.ndarray) -> Callable[[], torch.Tensor]:
    """Return fl_sim's sum of clipped gradients, negated as Opacus' is; float32 (d,)."""
    spec = SimpleNamespace(
        name="decoder", device="cpu", max_tokens=tokens.shape[1], precision="float32", lora_layers=None,
        batch_tokens=BATCH_TOKENS + len(tokens), checkpointing=False, tf32=False,
    )  # fmt: skip
    source = ModelSource(Decoders(), "decoder", ships=False)
    model = LanguageModel(module, NoTokenizer(VOCABULARY), spec, seed=0, source=source)  # type: ignore[arg-type]
    if gradient_path(model).name != "fast":
        sys.exit(f"fl_sim goes one sentence at a time: {gradient_path(model).reason}")
    sentences = [Example(row.astype(np.int32), number=number) for number, row in enumerate(tokens)]
    total = GradientSum(model)

    def work() -> torch.Tensor:
        total.reset()
        total.add(sentences, CLIP)
        return -total.flat

    return work


def inputs_of(tokens: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    words = torch.from_numpy(tokens)
    positions = torch.arange(words.shape[1] - 1).repeat(len(words), 1)
    return words[:, :-1].contiguous(), positions, words[:, 1:].contiguous()


def sentence_means(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    nats = functional.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="none")
    return nats.view(targets.shape).mean(dim=1)


def plain(module: Decoder, tokens: np.ndarray) -> Callable[[], object]:
    """Return the gradient of the batch's loss."""
    words, positions, targets = inputs_of(tokens)

    def work() -> object:
        losses = sentence_means(module(words, positions), targets)
        return torch.autograd.grad(losses.sum(), list(module.parameters()))

    return work


def opacus(module: Decoder, tokens: np.ndarray) -> Callable[[], torch.Tensor]:
    """Return the sum of ghost clipping's two backward passes, float32 (d,)."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping

    words, positions, targets = inputs_of(tokens)
    watched = GradSampleModuleFastGradientClipping(
        module, batch_first=True, loss_reduction="sum", max_grad_norm=CLIP, use_ghost_clipping=True
    )
    watched.disable_hooks()

    def work() -> torch.Tensor:
        watched.enable_hooks()
        losses = sentence_means(watched(words, positions), targets)
        losses.sum().backward(retain_graph=True)
        watched.zero_grad()
        factors = watched.get_clipping_coef()
        watched.disable_hooks()
        (factors * losses).sum().backward()
        total = torch.cat([parameter.grad.flatten() for parameter in module.parameters() if parameter.grad is not None])
        watched.zero_grad()
        return total

    return work


if __name__ == "__main__":
    main()
