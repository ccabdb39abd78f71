"""``fl-sim doctor``: check this installation and machine in a minute, or which ways of training a model fit a GPU."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from fl_sim.cli.flags import assignments, print_json
from fl_sim.cli.verbs import Verb, as_json, quiet
from fl_sim.config import ConfigError, RunConfig, add_setting, parse_assignments
from fl_sim.formats import table_cell

if TYPE_CHECKING:
    from fl_sim.engines.worker_memory import Budget

EXIT_FAILED = 1
_SECONDS = 32.0  # until the last run is cut off; the end of Ray and of this process take some more
_STYLES = {"ok": "green", "note": "dim", "warning": "yellow", "failed": "bold red"}


@click.command(cls=Verb)
@click.option("--quick", is_flag=True, help="No runs: versions and machine alone.")
@click.option(
    "--model", metavar="NAME",
    help="Instead: which ways of training this model fit into a GPU; a folder with its config.json suffices.",
)  # fmt: skip
@click.option(
    "--gpu-memory", metavar="GIB", type=float,
    help="With --model: what a worker has on its GPU (all of the smallest GPU here by default).",
)  # fmt: skip
@assignments
@as_json
@quiet
def doctor(
    quick: bool, model: str | None, gpu_memory: float | None, assignments: tuple[str, ...], as_json: bool, quiet: bool
) -> int:
    """Check this installation and machine in a minute: versions, devices, and a short run on each engine.

    With --model it says instead which ways of training a model fit into a GPU; --set gives a key of model., such as
    model.lora_rank=8, and then this one way is counted. Exit code 1 means that a check failed, or that nothing fits.
    """
    began, console = time.monotonic(), Console(stderr=True, quiet=quiet)
    if model is not None:
        return _count_memory(model, gpu_memory, assignments, console, as_json)
    for flag, given in (("--gpu-memory", gpu_memory is not None), ("--set", bool(assignments))):
        if given:
            raise ConfigError(f"{flag} is given without --model; allowed: with it")
    from fl_sim.engines.checkup import checkup, worst

    findings = checkup(
        quick=quick,
        observer=lambda what: console.print(f"checking: {what}", highlight=False),
        seconds=began + _SECONDS - time.monotonic(),  # torch is imported by now
    )
    verdict = worst(findings)
    if as_json:
        print_json({"verdict": verdict, "findings": findings})
    else:
        table = Table(box=None, pad_edge=False)
        for column in ("check", "found", "verdict", "advice"):
            table.add_column(column, overflow="fold")
        for finding in findings:
            cells = (finding.name, finding.value, finding.verdict, finding.advice)
            table.add_row(*map(table_cell, cells), style=_STYLES[finding.verdict])
        Console().print(table)
    return EXIT_FAILED if verdict == "failed" else 0


def _count_memory(
    model: str, gpu_memory: float | None, assignments: Sequence[str], console: Console, as_json: bool
) -> int:
    """Print which ways of training a model fit; return 0, or 1 if none does."""
    from fl_sim.clients.models.architectures.model_source import source_of
    from fl_sim.engines.worker_memory import GIB, WAYS, budgets

    memory, settings = _gpu_memory(gpu_memory), parse_assignments(assignments)
    for key in settings:
        if not key.startswith("model.") or key in ("model.name", "model.device"):
            raise ConfigError(f"--set is {key}; allowed with --model: keys of model. but name and device")
    add_setting(settings, "model.name", model)
    spec = RunConfig.load(None, {"corpus.path": "bundled", **settings}).model.model_copy(update={"device": "cuda"})
    ways = {"as set": {}} if assignments else WAYS
    if not source_of(spec.name).architecture.mixed_precision:  # it is no transformer: it trains all, in float32
        ways = {name: way for name, way in ways.items() if not way}
    counted: list[Budget] = []
    for name, way in ways.items():
        console.print(f"counting: {name}", highlight=False)
        counted += budgets(spec, memory, {name: way})
    if as_json:
        rows = [asdict(budget) | {"total": budget.memory.total} for budget in counted]
        print_json({"model": spec.name, "gpu_memory": memory, "ways": rows})
    else:
        _print_budgets(counted, f"{spec.name}, a worker with {memory / GIB:,.1f} GiB on its GPU")
    return 0 if any(budget.fits for budget in counted) else EXIT_FAILED


def _gpu_memory(gpu_memory: float | None) -> int:
    """Return the bytes that a worker has on its GPU."""
    import torch

    from fl_sim.engines.worker_memory import GIB

    if gpu_memory is not None:
        if not (gpu_memory > 0 and math.isfinite(gpu_memory)):
            raise ConfigError(f"--gpu-memory is {gpu_memory}; allowed: a number of GiB above 0")
        return round(gpu_memory * GIB)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise ConfigError("--gpu-memory is not given, and there is no GPU here; allowed: a number of GiB, such as 80")
    return min(torch.cuda.get_device_properties(index).total_memory for index in range(count))


def _print_budgets(found: list[Budget], title: str) -> None:
    from fl_sim.engines.worker_memory import GIB

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
