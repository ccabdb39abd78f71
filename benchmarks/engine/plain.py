"""Code shared by all contenders: the users' tokens, the model, and rounds on request. Imports torch, not fl_sim."""

from __future__ import annotations

import functools
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

BATCH, RATE, CLIP = 16, 0.1, 1.0
HIDDEN, LAYERS, HEADS = 128, 2, 4


def read_spec() -> dict[str, Any]:
    """Return the workload given on the command line: tokens (a file), users, sentences, cohort, vocabulary, folder."""
    torch.set_num_threads(1)
    return dict(json.loads(sys.argv[1]))


def users_of(spec: dict[str, Any]) -> torch.Tensor:
    """Return all tokens, int64 ``(users, sentences, tokens)``."""
    return torch.from_numpy(np.load(spec["tokens"]).astype(np.int64))


def gpt2(spec: dict[str, Any]) -> Any:
    """Return the model of every contender: a small GPT-2 without dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=spec["vocabulary"], n_positions=spec["length"], n_embd=HIDDEN, n_layer=LAYERS, n_head=HEADS,
        activation_function="gelu_pytorch_tanh", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0,
        eos_token_id=1,
    )  # fmt: skip
    module = GPT2LMHeadModel(config)
    module.set_attn_implementation("eager")
    return module


@functools.cache
def cached_workload(spec: str) -> tuple[torch.Tensor, Any]:
    """Return the tokens and the model of a workload (JSON); a process that gets the same one again reuses them.

    It stands in this module so that a Ray worker imports it by name. A function of the main script is sent along with
    every task and would lose its cache.
    """
    torch.set_num_threads(1)
    workload = json.loads(spec)
    return users_of(workload), gpt2(workload)


def loss_of(module: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Return the mean next-token cross-entropy over a batch of sentences, int64 ``(sentences, tokens)``."""
    logits = module(input_ids=tokens[:, :-1], use_cache=False).logits
    return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def cohort_of(spec: dict[str, Any], rng: np.random.Generator) -> list[int]:
    """Return a round's users: as many as the workload's cohort, sampled without replacement."""
    return rng.choice(spec["users"], spec["cohort"], replace=False).tolist()


def on_demand(one_round: Callable[[], object]) -> None:
    """Do a first round, then rounds on request, until the benchmark closes the pipe."""
    one_round()
    while (rounds := next_request()) > 0:
        for _ in range(rounds):
            one_round()


_OUT = sys.stdout


def redirect_output() -> None:
    """Redirect what this process and its children print to stderr.

    The pipe to the benchmark then carries only what :func:`next_request` writes.
    """
    global _OUT
    _OUT = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)


def next_request(users: int | None = None) -> int:
    """Report that the requested rounds are done, and return how many to do next (0: none).

    Args:
        users: users that took part, if the number is not fixed.
    """
    print("done" if users is None else f"done {users}", file=_OUT, flush=True)
    return int(sys.stdin.readline() or 0)


def simulate(server: Any, client: Any, nodes: int, workers: int) -> None:
    """Run Flower's apps on Ray, without its lines for every message."""
    from flwr.simulation import run_simulation

    os.environ.setdefault("RAY_raylet_start_wait_time_s", "300")  # for busy machines
    os.environ.setdefault("RAY_agent_register_timeout_ms", "300000")
    redirect_output()
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    ray = {"num_cpus": workers, "include_dashboard": False}
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": ray}
    try:
        run_simulation(server, client, nodes, backend_config=resources)
    finally:
        sys.stderr.flush()


def folder_of(spec: dict[str, Any]) -> Path:
    return Path(spec["folder"])
