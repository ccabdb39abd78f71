"""Check the engines: a run of two rounds on each engine and device must end with the same model.

Two nodes compute in both engines, so on one device even the bits are the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fl_sim.config import RunConfig
from fl_sim.diagnosis.finding import Finding
from fl_sim.engines import simulation
from fl_sim.storage.checkpoint import Checkpoint

_SETTINGS = {
    "corpus.path": "bundled",
    "rounds": 2,
    "model.hidden": 32,
    "model.layers": 1,
    "model.heads": 2,
    "privacy.strategy": "uedp",
    "privacy.q_u": 1.0,
    "privacy.q_e": 0.5,
    "privacy.q_s": 0.01,
    "privacy.noise_multiplier": 1.0,
    "evaluation.every": 2,
    "evaluation.max_sentences": 20,
    "engine.nodes": 2,
}
_TOLERANCE = 1e-3  # between devices, of how far the model moved


def check_engines(devices: list[str], folder: Path, observer: Callable[[str], None]) -> list[Finding]:
    """Return a finding per engine and device: whether its run ends as that of the inline engine on the CPU.

    Args:
        devices: of torch; the first is ``cpu``.
        folder: an empty one for the runs.
        observer: called with the name of each run before it begins.
    """
    findings: list[Finding] = []
    expected: np.ndarray | None = None
    for device in devices:
        for engine in ("inline", "ray"):
            name = f"{engine} on {device}"
            observer(f"two rounds, {name}")
            try:
                began = time.monotonic()
                model = _run(engine, device, folder / name.replace(" ", "-"))
                seconds = time.monotonic() - began
            except Exception as error:  # whatever keeps a run from working here is what is asked for
                findings.append(Finding(name, "no run", "failed", _one_line(error)))
                continue
            expected = model if expected is None else expected
            findings.append(_compared(name, model, expected, seconds, same_device=device == devices[0]))
    return findings


def _run(engine: str, device: str, out: Path) -> np.ndarray:
    """Return the model after two rounds, float32 (d,)."""
    settings = _SETTINGS | {"engine.name": engine, "model.device": device, "out": str(out)}
    folder = simulation.run(RunConfig.from_mapping(settings))
    checkpoint = Checkpoint.read(folder.checkpoint_dir)
    if checkpoint is None:
        raise ValueError("the run left no checkpoint")
    return checkpoint.vector


def _compared(name: str, model: np.ndarray, expected: np.ndarray, seconds: float, *, same_device: bool) -> Finding:
    difference = float(np.linalg.norm(model - expected) / np.linalg.norm(expected))
    if difference == 0:
        return Finding(name, f"two rounds in {seconds:.0f} s, same bits", "ok")
    good = not same_device and difference <= _TOLERANCE
    advice = "" if good else "the same seed gives another run here: report it, with this table"
    return Finding(name, f"differs by {difference:.0e}", "ok" if good else "failed", advice)


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
