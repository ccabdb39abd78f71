"""Attack every run of a figure, with the units that its seed draws.

Results are kept in the figure's folder, so an interrupted figure goes on where it was.

>>> published({"users": {"auc": 0.123456789, "bound": {"largest_advantage": 0.123456789, "claims": [1]}}})
{'users': {'auc': 0.123457, 'bound': {'largest_advantage': 0.123456789}}}
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fl_sim.auditing.leakage.attacked_run import Options
from fl_sim.auditing.leakage.leak import attack_runs
from fl_sim.files import owner_only
from fl_sim.reporting.run_facts import strategy_of
from fl_sim.research.uedp_paper.figure_corpora import CorpusStore
from fl_sim.research.uedp_paper.figure_records import AttackedPanelRecord, AttackedRunRecord, Attacks
from fl_sim.research.uedp_paper.figure_training import Plan, PlannedRun, corpus_record, ended_by_panel
from fl_sim.research.uedp_paper.figures import AttackSettings
from fl_sim.search.sweep import Ending
from fl_sim.storage import model_files
from fl_sim.storage.run_folder import RunFolder, decode, encode, replace_file

_ATTACKS = "attacks"
_BOUNDS = ("bound", "bounds")


def attacked_panels(
    plan: Plan, attack: AttackSettings, endings: Iterable[Ending], out: Path, store: CorpusStore
) -> list[AttackedPanelRecord]:
    """Attack the finished runs; return the records of the panels that have any."""
    records, figure = [], plan.figure
    for panel, done, failed in ended_by_panel(plan, endings):
        attacked = []
        chosen = [run for run in done if attack.joint is None or run.point.x in (None, attack.joint)]
        for number, run in enumerate(chosen, start=1):
            store.say(f"attacking {run.name} ({number} of {len(chosen)})")
            raw, source, curve = None, figure.corpora[panel.corpus], run.curve
            if curve.deidentified is not None or curve.missed is not None:  # the corpus from which the run's was made
                raw = store.prepared(panel.corpus, source, curve.entities, seed=run.seed, kept=curve.kept)
            attacked.append(_attacked(run, figure.metric, attack, raw, out / _ATTACKS))
        if attacked:
            records.append(
                AttackedPanelRecord(
                    name=panel.name,
                    title=panel.title,
                    corpus=corpus_record(plan.corpora[panel.name]),
                    runs=tuple(attacked),
                    failed=failed,
                )
            )
    return records


def published(value: Any, *, measured: bool = True) -> Any:
    """Return records of attacks without the (δ, ε) pairs of their bounds, which the rates follow from.

    Measured figures have six digits. Bounds keep all, because rounding could lower them.
    """
    if isinstance(value, Mapping):
        kept = {key: one for key, one in value.items() if key != "claims"}
        return {key: published(one, measured=measured and key not in _BOUNDS) for key, one in kept.items()}
    if isinstance(value, list | tuple):
        return [published(one, measured=measured) for one in value]
    return float(f"{value:.6g}") if measured and isinstance(value, float) else value


def _attacked(run: PlannedRun, metric: str, attack: AttackSettings, raw: str | None, kept: Path) -> AttackedRunRecord:
    folder = RunFolder.open(str(run.config.out))
    result: Mapping[str, Any] = folder.result or {}
    options = Options(seed=run.seed, **attack.model_dump(exclude={"joint"}))
    epsilon = result.get("epsilon_any")
    proven = raw is None and epsilon is not None and math.isfinite(float(epsilon))
    attacks = _kept_attacks(folder, options, raw, kept)
    spent = [float(folder.metrics()["seconds"].sum()), *(float(str(one.get("seconds", 0))) for one in attacks.values())]
    return AttackedRunRecord(
        curve=run.curve.name,
        label=run.curve.label,
        strategy=strategy_of(folder),
        deidentified=raw is not None,
        joint=run.point.x,
        seed=run.seed,
        epsilon_any=float(epsilon) if proven and epsilon is not None else None,
        utility=float(result[metric]),
        initial=float(result[f"initial_{metric}"]),
        attacks=attacks,
        seconds=sum(spent),
    )


def _kept_attacks(folder: RunFolder, options: Options, raw: str | None, kept: Path) -> Attacks:
    """Return the records of the attacks on a run: those that are kept, if model, ledger and options are the same."""
    file, result = kept / f"{folder.path.name}.json", folder.result or {}
    parts = {"options": options.record(), "raw": raw} | {key: result[key] for key in ("ledger", model_files.KEY)}
    of = json.dumps(encode(parts), sort_keys=True)
    try:
        known = decode(json.loads(file.read_bytes()))
    except (FileNotFoundError, ValueError):
        known = None
    if known is None or known["of"] != of:
        (found,) = attack_runs([folder.path], options, raw=raw).runs
        known = {"of": of, "attacks": published(found.record()["attacks"])}
        with owner_only():
            kept.mkdir(parents=True, exist_ok=True)
            replace_file(file, json.dumps(encode(known)).encode())
    attacks: Attacks = known["attacks"]
    return attacks
