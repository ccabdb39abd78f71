"""Take every path of a client on the CPU and on another device, and print how far the results are apart, in JSON.

A process of its own, because torch keeps a device that it has learnt of:

    python -m tests.clients.paths_on_a_device       # the pretended device
    python -m tests.clients.paths_on_a_device cuda  # a real one
"""

from __future__ import annotations

import functools
import json
import math
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fl_sim.clients import batches
from fl_sim.clients.batches import Examples
from fl_sim.clients.frozen_states import SentenceStates, sentence_features, state_path
from fl_sim.clients.gradients.clipped_sums import clipped_gradient_sum
from fl_sim.clients.gradients.ghost_pass import gradient_path
from fl_sim.clients.models import language_model
from fl_sim.clients.models.frozen_head import has_finite_scores
from fl_sim.clients.models.language_model import LanguageModel, load_model
from fl_sim.clients.models.losses import held_out
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.clients.selection import Selection, WeightedSelection
from fl_sim.clients.tasks import Classification, Task
from fl_sim.clients.training import bounded_sum
from fl_sim.strategies.client_rules import ClientRule, ClippedGradients, LocalSteps, WeightedGradients
from fl_sim.strategies.primitives.adaptive_clip import AdaptiveClip
from tests.clients.models.models_to_try import random_split, shifted
from tests.clients.pretended_device import ROUNDED_PRODUCTS, pretended_device

COUNTS = [3, 7, 1]
CLASSES = Classification(("one", "two", "three"))
SMALL = {"hidden": 16, "layers": 1, "heads": 2, "max_tokens": 24}
LSTM = {"name": "awd-lstm", "hidden": 12, "layers": 2, "embedding": 8, "max_tokens": 24}
RATES = {"q_e": 1.0, "q_s": 1.0}
VOTE = AdaptiveClip(quantile=0.3, learning_rate=0.2, count_noise=1.5).vote
UEDP = ClippedGradients(**RATES, sentence_clip=0.1, user_clip=0.3)
Results = list[np.ndarray]
Path_ = Callable[[str], Results]
"""Take a path on a device."""


def selection() -> Selection:
    return Selection(np.arange(3), np.arange(sum(COUNTS)), np.array(COUNTS, dtype=np.int64))


def weighted() -> Selection:
    one = selection()
    weights = 0.2 + np.arange(sum(COUNTS)) % 3 / 4
    return WeightedSelection(one.users, one.sentences, one.counts, weights, np.array([0.5, 1.0, 0.25]))


def split(task: Task | None = None, **parts: Any) -> Examples:
    targets = None if task is None else (np.arange(sum(COUNTS)) % 3).astype(np.int32)
    return Examples(random_split(sum(COUNTS)), targets, **parts)


@functools.cache
def model_on(device: str, task: Task | None = None, **settings: Any) -> LanguageModel:
    model = shifted(load_model(ModelSpec(**(SMALL | settings), device=device), seed=0, task=task))
    if (taken := gradient_path(model)).name != "fast":
        raise AssertionError(f"the slow path: {taken.reason}")
    return model


def round_of(rule: ClientRule, task: Task | None = None, **settings: Any) -> Path_:
    """Return the path of a node's round: its sum, loss and votes."""

    def path(device: str) -> Results:
        chosen = weighted() if isinstance(rule, WeightedGradients) else selection()
        reply = bounded_sum(model_on(device, task, **settings), split(task), chosen, rule, 3)
        return [reply.vector, *map(np.array, (reply.loss_sum, reply.votes, reply.clipped))]

    return path


def from_features(device: str) -> Results:
    model = model_on(device, CLASSES, tune="head")
    sentences = split(CLASSES)
    features = sentence_features(model, sentences.read(range(sum(COUNTS))))
    return [features, bounded_sum(model, replace(sentences, features=features), selection(), UEDP, 3).vector]


def from_states(device: str) -> Results:
    model = model_on(device, lora_rank=2, lora_layers=1, layers=2)
    with tempfile.TemporaryDirectory() as folder:
        sentences = split()
        states = SentenceStates(model, sentences.encoded, state_path(model, sentences.encoded, Path(folder)))
        return [bounded_sum(model, replace(sentences, states=states), selection(), UEDP, 3).vector]


def evaluated(task: Task | None = None, **settings: Any) -> Path_:
    def path(device: str) -> Results:
        model = model_on(device, task, **settings)
        measured = held_out(model, split(task).read(range(sum(COUNTS))))
        return [measured.losses, measured.wrong, np.array(has_finite_scores(model), float)]

    return path


def whole_run(strategy: str, **changes: Any) -> Path_:
    """Return the path of a run of two rounds: server, node and evaluation."""

    def path(device: str) -> Results:
        from fl_sim.engines import simulation
        from fl_sim.reporting import plots
        from tests.e2e.small_runs import configuration, model_of, small_corpus

        plots.write_run_plots = lambda run: None  # type: ignore[assignment]
        with tempfile.TemporaryDirectory() as folder:
            corpus = small_corpus(Path(folder) / "corpus")
            settings = {"privacy__strategy": strategy, "server__optimizer": "sgd", "model__device": device} | changes
            return [model_of(simulation.run(configuration(corpus, Path(folder) / "run", **settings)))]

    return path


PATHS: dict[str, Path_] = {
    "uedp": round_of(UEDP),
    "automatic clipping": round_of(replace(UEDP, stability=0.05)),
    "adaptive clip": round_of(replace(UEDP, vote=VOTE)),
    "no clip": round_of(ClippedGradients(**RATES, user_clip=math.inf)),
    "one local step": round_of(LocalSteps(**RATES, user_clip=0.3)),
    "local steps, sgd": round_of(LocalSteps(**RATES, user_clip=0.3, epochs=2, batch_size=3)),
    "weights of the paper": round_of(WeightedGradients(**RATES, user_clip=0.3)),
    "lora": round_of(UEDP, lora_rank=2),
    "lora, states of lower layers": from_states,
    "lora, a base of bfloat16": round_of(UEDP, lora_rank=2, frozen_precision="bfloat16"),
    "checkpointing": round_of(UEDP, checkpointing=True),
    "biases": round_of(UEDP, tune="bias"),
    "awd-lstm": round_of(UEDP, **LSTM),
    "awd-lstm, dropout": round_of(UEDP, **LSTM, dropout=1.0),
    "awd-lstm, dropout, local steps": round_of(
        LocalSteps(**RATES, user_clip=0.3, epochs=2, batch_size=3), **LSTM, dropout=1.0
    ),
    "classification": round_of(UEDP, CLASSES),
    "features of a frozen encoder": from_features,
    "evaluation": evaluated(),
    "evaluation, a frozen head": evaluated(lora_rank=2),
    "a run of uedp": whole_run("uedp", privacy__q_s=0.8, privacy__user_cap=2.0),
}
ROUNDED: dict[str, Path_] = {
    "local steps, adam": round_of(LocalSteps(**RATES, user_clip=0.3, epochs=2, batch_size=3, optimizer="adam")),
    "tf32": round_of(UEDP, tf32=True),
    "bfloat16": round_of(UEDP, precision="bfloat16"),
    "bfloat16, lora": round_of(UEDP, lora_rank=2, precision="bfloat16"),
}
"""Paths that enlarge the last bit, in which the attention of the two devices differs (``eager`` on the CPU)."""


def apart(path: Path_) -> float | str:
    """Return the distance of both devices' results, relative to their norm; or the error."""
    try:
        pairs = zip(path("cpu"), path("cuda"), strict=True)
        return max(float(np.linalg.norm(there - here) / (np.linalg.norm(here) or 1.0)) for here, there in pairs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def clip_in_tf32() -> float | str:
    """Return by how much clipped gradients of single sentences miss the clip, which all of them exceed."""
    try:
        ROUNDED_PRODUCTS.clear()
        model = model_on("cuda", tf32=True)
        sums = [clipped_gradient_sum(model, [one], 0.1).vector for one in split().read(range(sum(COUNTS)))]
        if not (ROUNDED_PRODUCTS or _is_real()):
            return "no product was rounded"
        return max(abs(float(np.linalg.norm(vector.astype(np.float64))) / 0.1 - 1) for vector in sums)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _is_real() -> bool:
    return sys.argv[1:] == ["cuda"]


def main() -> None:
    if not _is_real():
        device, found = pretended_device(), language_model._device
        language_model._device = lambda name: device if name == "cuda" else found(name)
    torch.set_num_threads(1)
    results: dict[str, Any] = {name: apart(path) for name, path in (PATHS | ROUNDED).items()}
    made = batches.Batch.__init__  # a batch's targets on the CPU, whatever the model's device
    batches.Batch.__init__ = lambda self, inputs, targets, **p: made(self, inputs, targets.cpu(), **p)  # type: ignore[method-assign]
    results["planted fault"] = apart(PATHS["uedp"])
    batches.Batch.__init__ = made  # type: ignore[method-assign]
    results["clip in tf32"] = clip_in_tf32()
    results["in a fixed order"] = model_on("cuda").in_fixed_order
    results["repeatable"] = torch.are_deterministic_algorithms_enabled()
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
