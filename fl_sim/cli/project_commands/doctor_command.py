"""Check this installation and machine in a minute: versions, devices, and a short run on each engine.

With ``--model`` it says instead which ways of training a model fit into a GPU.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl_sim.clients.models.model_spec import ModelSpec
    from fl_sim.diagnosis.checkup import Finding
    from fl_sim.diagnosis.memory_budget import Budget

EXIT_FAILED = 1
_STYLES = {"ok": "green", "note": "dim", "warning": "yellow", "failed": "bold red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``fl-sim doctor``."""
    parser.add_argument("--quick", action="store_true", help="no runs: versions and machine alone")
    parser.add_argument(
        "--model", metavar="NAME",
        help="instead: which ways of training this model fit into a GPU; a folder with its config.json suffices",
    )  # fmt: skip
    parser.add_argument(
        "--gpu-memory", metavar="GIB", type=float,
        help="with --model: what a worker has on its GPU (default: all of the smallest GPU here)",
    )  # fmt: skip
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE",
        help="with --model: a key of model., such as model.lora_rank=8; then this one way is counted",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def run(args: argparse.Namespace) -> int:
    """Print what was found; return 0, or 1 if a check failed or nothing fits."""
    if args.model is not None:
        return _count_memory(args)
    _refuse_without_model(args)
    from dataclasses import asdict

    from rich.console import Console

    from fl_sim.diagnosis.checkup import checkup, worst

    console = Console(stderr=True, quiet=args.quiet)
    findings = checkup(quick=args.quick, observer=lambda what: console.print(f"checking: {what}", highlight=False))
    verdict = worst(findings)
    if args.json:
        print(json.dumps({"verdict": verdict, "findings": [asdict(f) for f in findings]}, ensure_ascii=False))
    else:
        _print(findings)
    return EXIT_FAILED if verdict == "failed" else 0


def _print(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table

    from fl_sim.formats import table_cell

    table = Table(box=None, pad_edge=False)
    for column in ("check", "found", "verdict", "advice"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        cells = (finding.name, finding.value, finding.verdict, finding.advice)
        table.add_row(*map(table_cell, cells), style=_STYLES[finding.verdict])
    Console().print(table)


def _refuse_without_model(args: argparse.Namespace) -> None:
    from fl_sim.config import ConfigError

    for flag, value in (("--gpu-memory", args.gpu_memory), ("--set", args.set)):
        if value not in (None, []):
            raise ConfigError(f"{flag} is given without --model; allowed: with it")


def _count_memory(args: argparse.Namespace) -> int:
    """Print which ways of training a model fit; return 0, or 1 if none does."""
    from dataclasses import asdict

    from rich.console import Console

    from fl_sim.diagnosis.memory_budget import GIB, WAYS, budgets

    memory = _gpu_memory(args)
    spec = _spec(args)
    console = Console(stderr=True, quiet=args.quiet)
    found: list[Budget] = []
    for name, settings in ({"as set": {}} if args.set else _allowed_ways(spec, WAYS)).items():
        console.print(f"counting: {name}", highlight=False)
        found += budgets(spec, memory, {name: settings})
    if args.json:
        ways = [asdict(budget) | {"total": budget.memory.total} for budget in found]
        print(json.dumps({"model": spec.name, "gpu_memory": memory, "ways": ways}, ensure_ascii=False))
    else:
        _print_budgets(found, f"{spec.name}, a worker with {memory / GIB:,.1f} GiB on its GPU")
    return 0 if any(budget.fits for budget in found) else EXIT_FAILED


def _gpu_memory(args: argparse.Namespace) -> int:
    """Return the bytes that a worker has on its GPU."""
    import math

    import torch

    from fl_sim.config import ConfigError
    from fl_sim.diagnosis.memory_budget import GIB

    if args.gpu_memory is not None:
        if not (args.gpu_memory > 0 and math.isfinite(args.gpu_memory)):
            raise ConfigError(f"--gpu-memory is {args.gpu_memory}; allowed: a number of GiB above 0")
        return round(args.gpu_memory * GIB)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise ConfigError("--gpu-memory is not given, and there is no GPU here; allowed: a number of GiB, such as 80")
    return min(torch.cuda.get_device_properties(index).total_memory for index in range(count))


def _spec(args: argparse.Namespace) -> ModelSpec:
    """Return the model that the flags name, on a GPU."""
    from fl_sim.config import ConfigError, RunConfig, add_setting, parse_assignments

    settings = parse_assignments(args.set)
    for key in settings:
        if not key.startswith("model.") or key in ("model.name", "model.device"):
            raise ConfigError(f"--set is {key}; allowed with --model: keys of model. but name and device")
    add_setting(settings, "model.name", args.model)
    return RunConfig.load(None, {"corpus.path": "bundled", **settings}).model.model_copy(update={"device": "cuda"})


def _allowed_ways(spec: ModelSpec, ways: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the ways that the model's architecture has: one that is no transformer trains all, in float32."""
    from fl_sim.clients.models.architectures.model_source import source_of

    if source_of(spec.name).architecture.mixed_precision:
        return ways
    return {name: settings for name, settings in ways.items() if not settings}


def _print_budgets(found: list[Budget], title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    from fl_sim.diagnosis.memory_budget import GIB
    from fl_sim.formats import table_cell

    table = Table(title=table_cell(title), title_justify="left", box=None, pad_edge=False)
    for column in ("GiB", "trained", "model", "sum", "batch", "tokens", "needed", "fits", "server"):
        table.add_column(column, justify="left" if column in ("GiB", "fits") else "right", overflow="fold")
    for budget in found:
        memory = budget.memory
        sizes = [f"{size / GIB:,.2f}" for size in (memory.model, memory.sum, memory.batch)]
        verdict = "yes" if budget.fits else "no"
        table.add_row(
            budget.setting, f"{memory.trainable:,}", *sizes, f"{memory.batch_tokens:,}",
            f"{budget.needed / GIB:,.1f}", verdict, f"{budget.server / GIB:,.1f}",
            style="green" if budget.fits else "bold red",
        )  # fmt: skip
    Console().print(table)
    print(
        "needed: model, sum, the largest micro-batch that fits (else one sentence) or the check before round 1,\n"
        "0.7 GiB for CUDA, and a tenth for the allocator. server: main memory, at most. Counted from shapes: no\n"
        "weight is read."
    )
