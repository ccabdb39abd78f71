"""What all contenders share, fl_sim or not: the users' tokens, the model, and rounds on demand. Knows torch alone."""

from __future__ import annotations

import functools
import json
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


def given() -> dict[str, Any]:
    """The workload, from the command line: tokens (a file), users, sentences, cohort, vocabulary, and a folder."""
    torch.set_num_threads(1)
    return dict(json.loads(sys.argv[1]))


def users_of(spec: dict[str, Any]) -> torch.Tensor:
    """All tokens, int64 (users, sentences, tokens)."""
    return torch.from_numpy(np.load(spec["tokens"]).astype(np.int64))


def gpt2(spec: dict[str, Any]) -> Any:
    """The model of every contender: a small GPT-2 without dropout."""
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
def opened(spec: str) -> tuple[torch.Tensor, Any]:
    """Tokens and model, which a process that is told its workload (JSON) again and again keeps. In this module, so that
    a worker of Ray finds it by name: what is in a script is sent along with every task, and forgets."""
    torch.set_num_threads(1)
    given = json.loads(spec)
    return users_of(given), gpt2(given)


def loss_of(module: Any, tokens: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy of the next word over a batch of sentences (B, T)."""
    scores = module(input_ids=tokens[:, :-1], use_cache=False).logits
    return functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())


def cohort_of(spec: dict[str, Any], draws: np.random.Generator) -> list[int]:
    """As many users as are expected in a round."""
    return draws.choice(spec["users"], spec["cohort"], replace=False).tolist()


def on_demand(one_round: Callable[[], object]) -> None:
    """Warm up, then do rounds whenever the other side asks for them, until it closes the pipe."""
    one_round()
    while (rounds := asked()) > 0:
        for _ in range(rounds):
            one_round()


_OUT = sys.stdout


def quietly() -> None:
    """Whatever this process and those that it starts print goes to stderr; the pipe is for :func:`asked` alone, and
    ends with this process."""
    global _OUT
    _OUT = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)


def asked(users: int | None = None) -> int:
    """Say that all asked for is done, with how many users unless it was as many as expected; how many rounds to do
    next, 0 for none."""
    print("done" if users is None else f"done {users}", file=_OUT, flush=True)
    return int(sys.stdin.readline() or 0)


def folder_of(spec: dict[str, Any]) -> Path:
    return Path(spec["folder"])
