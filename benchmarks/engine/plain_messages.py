"""The bound of a private round: one gradient of a round's sentences, by plain autograd, in one or several processes.

No clip, no noise and no fl_sim in the arithmetic: transformers' own forward pass, torch's cross-entropy, one backward
pass per batch of sentences of similar length.
"""

import multiprocessing
from multiprocessing.connection import Connection

import numpy as np
import plain
import torch
from torch.nn import functional

from fl_sim.clients.models.language_model import load_model
from fl_sim.config import RunConfig

Batches = list[tuple[torch.Tensor, torch.Tensor]]
IGNORED = -100


def batches_of(sentences: list[np.ndarray], most_tokens: int) -> Batches:
    """Return inputs and targets, int64 (rows, longest), of batches of at most ``most_tokens`` padded tokens."""
    batches, rows = [], []
    for sentence in [*sorted(sentences, key=len, reverse=True), None]:
        if rows and (sentence is None or (len(rows) + 1) * (len(rows[0]) - 1) > most_tokens):
            tokens = torch.full((len(rows), len(rows[0])), IGNORED)
            for row, own in zip(tokens, rows, strict=True):
                row[: len(own)] = torch.from_numpy(own.astype(np.int64))
            batches.append((tokens[:, :-1].clamp(min=0), tokens[:, 1:]))
            rows = []
        rows.append(sentence)
    return batches


def one_round(module: torch.nn.Module, batches: Batches) -> None:
    """Compute the gradient of Σ_s l(θ, s), l the mean over a sentence's predictions."""
    module.zero_grad()
    for inputs, targets in batches:
        scores = module(input_ids=inputs, use_cache=False).logits
        nats = functional.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)
        (nats.sum(dim=1) / (targets != IGNORED).sum(dim=1)).sum().backward()


def serve(spec: dict, share: int, pipe: Connection) -> None:
    """Compute a share of the round whenever the pipe asks for it."""
    torch.set_num_threads(1)
    work = workload(spec, share)
    while pipe.recv():
        one_round(*work)
        pipe.send(True)


def workload(spec: dict, share: int) -> tuple[torch.nn.Module, Batches]:
    """Return the model of the run, and the batches of one of ``processes`` shares of the round's sentences."""
    config = RunConfig.load(spec["config"]).changed(spec["settings"])
    model = load_model(config.model, config.seed)
    tokens, offsets = (np.load(plain.folder_of(spec) / f"{name}.npy") for name in ("tokens", "offsets"))
    sentences = np.split(tokens, offsets[1:-1])[share :: spec["processes"]]
    return model.module, batches_of(sentences, model.batch_tokens)


def main() -> None:
    spec = plain.read_spec()
    pipes = []
    for share in range(1, spec["processes"]):
        here, there = multiprocessing.Pipe()
        multiprocessing.get_context("spawn").Process(target=serve, args=(spec, share, there), daemon=True).start()
        pipes.append(here)
    work = workload(spec, 0)

    def round_of_all() -> None:
        for pipe in pipes:
            pipe.send(True)
        one_round(*work)
        for pipe in pipes:
            pipe.recv()

    plain.on_demand(round_of_all)
    for pipe in pipes:
        pipe.send(False)


if __name__ == "__main__":
    plain.redirect_output()
    main()
