"""Check the arithmetic of clipped gradients on a device: norms against autograd, repeatability, and throughput.

>>> [finding.verdict for finding in check_gradients("cpu", sentences=8)]
['ok', 'ok', 'ok']
"""

from __future__ import annotations

import time

import numpy as np
import torch

from fl_sim.clients.batches import Example
from fl_sim.clients.device import full_precision
from fl_sim.clients.gradients.clipped_sums import Tally, add_one, clipped_gradient_sum
from fl_sim.clients.models.language_model import LanguageModel, load_model
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.diagnosis.finding import Finding

_CLIP = 0.05  # below the norm of nearly every sentence's gradient, so that the norms decide the sum
_TOLERANCE = 1e-4  # of the norm of the sum: the ghost norms' own tolerance, with the rounding of float32 sums
_MATRIX = 1024
_PRODUCTS = 8
_TOKENS = 24


def check_gradients(device: str, sentences: int = 64) -> list[Finding]:
    """Return findings about the clipped gradients of the model that ships, on made-up sentences.

    Args:
        device: of torch.
        sentences: how many.
    """
    model = load_model(ModelSpec(device=device), seed=0)
    examples = _examples(model, sentences)
    fast, first = _timed_sum(model, examples, device)
    repeated, second = _timed_sum(model, examples, device)
    return [
        _norms(device, fast, _by_definition(model, examples)),
        _repeated(device, bool((fast == repeated).all())),
        _throughput(device, model, examples, min(first, second)),
    ]


def _norms(device: str, fast: np.ndarray, exact: np.ndarray) -> Finding:
    error = float(np.linalg.norm(fast - exact) / np.linalg.norm(exact))
    good = error <= _TOLERANCE
    advice = "" if good else "clipped gradients are wrong here: do not train on this device, and report it"
    shown = f"differ from autograd by {error:.0e} (allowed {_TOLERANCE:.0e})"
    return Finding(f"clipped gradients on {device}", shown, "ok" if good else "failed", advice)


def _repeated(device: str, same: bool) -> Finding:
    advice = "" if same else "a round that is repeated after a kill is another release, and counts in ε"
    shown = "same bits" if same else "other bits"
    return Finding(f"a repeated round on {device}", shown, "ok" if same else "warning", advice)


def _throughput(device: str, model: LanguageModel, examples: list[Example], seconds: float) -> Finding:
    """Return the speed of clipped gradients beside that of large matrix products, six operations a weight and token."""
    tokens = sum(map(model.task.size, examples))
    rate, peak = 6 * model.num_parameters * tokens / seconds, _peak(device)
    shown = f"{tokens / seconds:,.0f} tokens a second, {rate / peak:.0%} of matrix products' speed"
    return Finding(f"throughput on {device}", shown, "ok")


def _by_definition(model: LanguageModel, examples: list[Example]) -> np.ndarray:
    total, tally = torch.zeros(model.num_parameters, device=model.device), Tally()
    views = model.parameters.views(total)
    with full_precision():
        for example in examples:
            add_one(model, model.batch([example]), _CLIP, views, tally)
    return total.cpu().numpy()


def _timed_sum(model: LanguageModel, examples: list[Example], device: str) -> tuple[np.ndarray, float]:
    """Return the sum of clipped gradients, float32 (d,), and the seconds that it took."""
    began = time.perf_counter()
    vector = clipped_gradient_sum(model, examples, _CLIP).vector
    _wait(device)
    return vector, time.perf_counter() - began


def _peak(device: str) -> float:
    """Return the operations a second of products of square float32 matrices."""
    matrix = torch.ones(_MATRIX, _MATRIX, device=device)
    matrix @ matrix
    _wait(device)
    began = time.perf_counter()
    for _ in range(_PRODUCTS):
        matrix @ matrix
    _wait(device)
    return 2 * _MATRIX**3 * _PRODUCTS / (time.perf_counter() - began)


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def _examples(model: LanguageModel, sentences: int) -> list[Example]:
    draws = np.random.default_rng(0)
    lengths = draws.integers(4, _TOKENS, size=sentences)
    return [Example(draws.integers(0, model.vocabulary_size, size=n).astype(np.int32)) for n in lengths]
