"""Run a sweep: many runs in one folder, in sequence or in parallel; a stopped sweep resumes.

    OUT/sweep.json             the sweep, so that another one cannot use the same folder
    OUT/runs/point0003-seed1/  one run folder per run
    OUT/table.json, table.md   the figures of every setting over its seeds, best first

Trying settings on private data is itself a release: the choice of the best setting depends on all runs. The table has
the ε of all runs together, from their ledgers, beside the ε of each.

>>> row = dict.fromkeys(("noise_multiplier", "mean", "deviation", *EPSILONS), 2.0)
>>> row |= {"settings": {"privacy.q_s": 0.1}, "runs": 1, "failed": {}}
>>> print(as_markdown({"metric": "perplexity", "rows": [row], "all_runs": {"note": ""}}).strip())
| privacy.q_s | z | perplexity | ± (sd) | runs | ε any | ε user | ε + entity p95 | robust |
|---|---|---|---|---|---|---|---|---|
| 0.1 | 2 | 2 | 2 | 1 | 2.00 | 2.00 | 2.00 | 2.00 |
"""

from __future__ import annotations

import json
import math
import statistics
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_sim.config import ConfigError
from fl_sim.files import owner_only, read_bytes
from fl_sim.formats import format_epsilon, markdown_cell, numbered, printable, round_up
from fl_sim.search.batch import DONE, FAILED, claim_folder, run_batch
from fl_sim.search.sweep_points import Point, Sweep
from fl_sim.storage.run_folder import DIVERGED, ResultsError, RunFolder, decode, encode, replace_file

EPSILONS = ("epsilon_any", "epsilon_user", "epsilon_user_entity_p95", "epsilon_user_entity_robust_p95")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one run of a sweep ended.

    Attributes:
        point: the run.
        status: ``done``, ``interrupted``, ``failed`` or ``diverged``.
        reason: of a failure or divergence, in one line; the name of the signal that interrupted.
    """

    point: Point
    status: str
    reason: str = ""


@owner_only()
def run_sweep(
    sweep: Sweep, out: Path, jobs: int = 1, observe: Callable[[Outcome], None] = lambda _: None
) -> list[Outcome]:
    """Run the unfinished runs of ``sweep``, write its table and return the outcomes.

    A stopped run resumes after its last checkpoint, a finished one is skipped, and a failed one does not stop the
    others. Ctrl-C ends each run after its current round, and then the sweep.

    Args:
        sweep: the runs.
        out: the sweep's folder.
        jobs: runs at once; above 1, each in its own process.
        observe: called with the outcome of every run, finished ones included.

    Raises:
        ResultsError: ``out`` is not a folder of this sweep.
    """
    claim_folder(out, "sweep.json", sweep.model_dump(mode="json"), "sweep")
    outcomes: list[Outcome] = []
    for outcome in _outcomes(sweep, out, jobs):
        outcomes.append(outcome)
        observe(outcome)
    outcomes.sort(key=lambda outcome: (outcome.point.number, sweep.seeds.index(outcome.point.seed)))
    write_table(sweep, out, outcomes)
    return outcomes


def _outcomes(sweep: Sweep, out: Path, jobs: int) -> Iterable[Outcome]:
    points = {point.name: point for point in sweep.points()}
    configs = {name: sweep.config(point, out / "runs" / name) for name, point in points.items()}
    for ending in run_batch(configs, jobs):
        yield Outcome(points[ending.name], ending.status, ending.reason)


def write_table(sweep: Sweep, out: Path, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Write ``table.json`` and ``table.md`` of all finished runs; return the content of the former."""
    ended = [o.point.name for o in outcomes if o.status in (DONE, DIVERGED)]
    folders = {name: RunFolder.open(out / "runs" / name) for name in ended}
    rows = [_row(sweep, group, folders) for group in _by_settings(outcomes)]
    rows.sort(key=lambda row: (row["mean"] is None, row["mean"] if row["mean"] is not None else 0.0))
    table = {"metric": sweep.metric, "rows": rows, "all_runs": _joint_account(list(folders.values()))}
    replace_file(out / "table.json", json.dumps(encode(table), indent=2).encode() + b"\n")
    replace_file(out / "table.md", as_markdown(table).encode())
    return table


def read_table(out: Path) -> dict[str, Any]:
    """Return the table of a sweep's folder; :class:`ResultsError` if there is none."""
    try:
        table = decode(json.loads(read_bytes(out / "table.json")))
    except FileNotFoundError as error:
        raise ResultsError(f"{out}: has no table.json; allowed: the folder of a sweep") from error
    except (ValueError, RecursionError) as error:
        raise ResultsError(f"{out / 'table.json'}: is corrupt (no JSON)") from error
    return dict(table)


def as_markdown(table: dict[str, Any]) -> str:
    """Return the table in Markdown: settings, the metric's mean and deviation, ε."""
    keys = _keys(table)
    names = [*keys, *_heads(table)]
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    for row in table["rows"]:
        cells = [markdown_cell(_short(row["settings"].get(key))) for key in keys]
        lines.append("| " + " | ".join([*cells, *_figures(row)]) + " |")
    lines += ["", table["all_runs"]["note"], *map(markdown_cell, _endings(table))]
    return "\n".join(lines) + "\n"


def as_text(table: dict[str, Any]) -> str:
    """Return the table for a terminal of 80 columns: the settings, numbered, and under them their figures."""
    keys = _keys(table)
    settings = [
        ", ".join(f"{key} {printable(_short(row['settings'].get(key)))}" for key in keys) or "the base"
        for row in table["rows"]
    ]
    lines = numbered(settings, _heads(table), [_figures(row) for row in table["rows"]])
    notes = [line for note in (table["all_runs"]["note"], *_endings(table)) for line in textwrap.wrap(note, 80)]
    return "\n".join([*lines, "", *notes]) + "\n"


def _keys(table: dict[str, Any]) -> list[str]:
    return sorted({key for row in table["rows"] for key in row["settings"]})


def _heads(table: dict[str, Any]) -> list[str]:
    return ["z", table["metric"], "± (sd)", "runs", "ε any", "ε user", "ε + entity p95", "robust"]


def _figures(row: dict[str, Any]) -> list[str]:
    noise = row["noise_multiplier"]
    measured = [_short(row[name]) for name in ("mean", "deviation", "runs")]
    return ["–" if noise is None else round_up(noise, 4), *measured, *(format_epsilon(row[name]) for name in EPSILONS)]


def _endings(table: dict[str, Any]) -> list[str]:
    """Return a line for each run that failed or diverged, with the reason."""
    return [
        f"{status.capitalize()}: {name}: {reason}"
        for status in (FAILED, DIVERGED)
        for row in table["rows"]
        for name, reason in row.get(status, {}).items()
    ]


def _by_settings(outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    groups: dict[int, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.point.number, []).append(outcome)
    return list(groups.values())


def _row(sweep: Sweep, group: Sequence[Outcome], folders: dict[str, RunFolder]) -> dict[str, Any]:
    results = [folders[o.point.name].result or {} for o in group if o.point.name in folders]
    values = [_figure(result, sweep.metric) for result in results]
    finite = values if all(map(math.isfinite, values)) else []  # a mean without the seeds that diverged misleads
    epsilons = [_epsilons(folders[o.point.name]) for o in group if o.point.name in folders]
    plan = results[0].get("plan", {}) if results else {}
    return {
        "settings": dict(group[0].point.settings),
        "runs": len(results),
        "values": values,
        "mean": statistics.fmean(finite) if finite else None,
        "deviation": statistics.stdev(finite) if len(finite) > 1 else None,
        "noise_multiplier": plan.get("noise_multiplier"),
        **{name: max((e[name] for e in epsilons), default=None) for name in EPSILONS},
        **{status: {o.point.name: o.reason for o in group if o.status == status} for status in (FAILED, DIVERGED)},
    }


def _figure(result: dict[str, Any], metric: str) -> float:
    value = result.get(metric)
    if isinstance(value, bool) or not isinstance(value, int | float):
        numbers = sorted(k for k, v in result.items() if isinstance(v, int | float) and not isinstance(v, bool))
        raise ConfigError(f"metric is '{metric}', which a run's result does not have; allowed: {', '.join(numbers)}")
    return float(value)


def _epsilons(folder: RunFolder) -> dict[str, float]:
    last = folder.metrics().iloc[-1]
    return {name: float(last.get(name, math.inf)) for name in EPSILONS}


def _joint_account(folders: Sequence[RunFolder]) -> dict[str, Any]:
    """Return ε for an adversary who observes the models of all runs, composed from their ledgers.

    The runs are independent: each has its own seed.
    """
    from fl_sim.experiments.privacy_spent import account_for, read_ledgers
    from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound, covering

    warning = "Trying settings on private data is a release too. "
    if not folders:
        return {"runs": 0, "note": "No run is finished."}
    results = [folder.result or {} for folder in folders]
    corpora = {json.dumps(result["corpus"], sort_keys=True) for result in results}
    if len(corpora) > 1:
        note = warning + "These runs are on different corpora, so no single ε covers all of them."
        return {"runs": len(folders), "note": note}
    sentences = max(float(result["user_sentences"]) for result in results)
    # One entity for all runs: that of the largest bound of any run, as bounds of runs differ in what they leave of it.
    entity_bound = covering([ContributionBound(**result["reach"]["p95"]) for result in results])
    delta = max(float(result["plan"]["delta"]) for result in results)
    user = Adjacency(sentences)
    ledgers = read_ledgers([folder.path for folder in folders])
    account = account_for(ledgers, user, Adjacency(sentences, entity_bound), delta, None)
    note = warning + (
        f"Guarantee for the models of all {len(folders)} runs and the choice among them, at δ = {delta:g}: "
        f"ε user {format_epsilon(account['epsilon_user'])}, with an entity at the 95th percentile "
        f"{format_epsilon(account['epsilon_user_entity'])}, robust "
        f"{format_epsilon(account['epsilon_user_entity_robust'])}. "
        "To publish one run at its own ε, choose its settings on public data."
    )
    return {"runs": len(folders), **account, "note": note}


def _short(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return "∞" if math.isinf(value) else f"{value:.4g}"
    return str(value)
