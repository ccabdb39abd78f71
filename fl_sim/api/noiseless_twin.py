"""Train the noiseless twin of a private run: what the same work is worth without privacy.

The twin has the run's corpus, model, seed, optimizer and rounds, samples users at the same rate and reads as many
sentences a round, without bounds, clip and noise. It protects nobody.

>>> check_can_have_twin(RunConfig.from_mapping({"privacy.strategy": "noiseless"}))
Traceback (most recent call last):
fl_sim.config.ConfigError: --baseline is given with privacy.strategy noiseless; allowed: with a private strategy
"""

from __future__ import annotations

from collections.abc import Sequence

from fl_sim.api import runs
from fl_sim.api.runs import Run
from fl_sim.config import ConfigError, RunConfig
from fl_sim.experiments.observers import Observer
from fl_sim.experiments.run_record import Record
from fl_sim.reporting.without_privacy import NOISELESS, find_without_privacy
from fl_sim.storage.run_folder import ResultsError, RunFolder
from fl_sim.strategies.client_rules import LocalSteps
from fl_sim.strategies.registry import plan_from_record


def check_can_have_twin(config: RunConfig) -> None:
    """Refuse a run that has no twin: it is noiseless itself.

    Raises:
        ConfigError: it is.
    """
    if config.privacy.strategy == NOISELESS:
        raise ConfigError(f"--baseline is given with privacy.strategy {NOISELESS}; allowed: with a private strategy")


def twin_of(run: Run) -> RunConfig:
    """Return the configuration of a finished run's noiseless twin; its folder is ``<the run's>-noiseless``.

    Raises:
        ResultsError: the run has not finished, or read no sentence.
    """
    if not run.finished or run.result is None:
        raise ResultsError(f"{run.path}: is not finished; allowed: a run that has ended, or fl-sim resume before")
    config, mechanism = run.config, plan_from_record(Record.read(run.folder).plan).mechanism
    read = run.metrics.get("cohort_sentences")
    size = (run.result.get("corpus") or {}).get("sentences")
    if read is None or not read.sum() or not isinstance(size, int) or not size:
        raise ResultsError(f"{run.path}: has read no sentence; allowed: a run that has trained")
    rule = mechanism.client_rule(mechanism.clip_norm)
    every = mechanism.q_e == mechanism.q_s == 1 and (run.result.get("kept") or {"sentences": 1})["sentences"] == 1
    privacy = {
        "strategy": NOISELESS,
        "q_u": mechanism.q_u,
        "q_e": 1.0,
        "q_s": 1.0 if every else min(1.0, float(f"{read.mean() / (mechanism.q_u * size):.4g}")),
        "delta": config.privacy.delta,
    }
    whole = {name: value for name, value in config.model_dump().items() if name not in ("observers", "tracking")}
    if isinstance(rule, LocalSteps):
        whole["local"]["update"] = "steps"
    others = {"out": f"{run.path}-{NOISELESS}", "rounds": run.result["rounds"], "anchor": None, "origin": {}}
    return RunConfig.from_mapping({**whole, **others, "privacy": privacy})


def train_twin(run: Run, observers: Sequence[Observer] = ()) -> Run:
    """Train the noiseless twin of a finished run, or go on with it; one that is there already is not trained again.

    Every later report of the run, and of others like it in the same folder, shows it.

    Returns:
        The twin, finished or interrupted.

    Raises:
        ResultsError: the run has no twin, or the twin's folder is another run's.
        ConfigError: the run is noiseless itself.
    """
    check_can_have_twin(run.config)
    found = find_without_privacy(run.folder)
    if found is not None and found.as_long:
        return Run(RunFolder.open(run.path.parent / found.run))
    config = twin_of(run)
    folder = str(config.out)
    try:
        begun = RunFolder.open(folder)
    except ResultsError:
        return runs.run(config, observers=observers)  # which refuses a folder that is not empty
    if begun.finished or Record.read(begun).config.model_copy(update={"out": config.out}) != config:
        raise ResultsError(f"{folder}: is another run; allowed: a folder that is new, or was begun for this twin")
    return runs.resume(folder, observers=observers)
