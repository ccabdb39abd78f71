"""The model that a run released last, loaded from its folder after its files are checked.

>>> released_model(RunFolder(Path("runs/first"), config={}, environment={}))
Traceback (most recent call last):
fl_sim.storage.run_folder.ResultsError: runs/first: has no model yet; allowed: a run that has ended, or was interrupted
"""

from __future__ import annotations

import json
from pathlib import Path

from fl_sim.clients.errors import ModelError
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.tasks import make_task
from fl_sim.config import RunConfig
from fl_sim.experiments.run_inputs import build_model
from fl_sim.experiments.run_record import Record
from fl_sim.files import read_bytes
from fl_sim.formats import shortened
from fl_sim.storage import model_files
from fl_sim.storage.open_run import Computation, digest_of
from fl_sim.storage.run_folder import ResultsError, RunFolder
from fl_sim.strategies.ledger import Ledger


def released_model(run: RunFolder) -> LanguageModel:
    """Return the model of a run that ended, or was interrupted between two rounds, as it was evaluated last.

    Raises:
        ResultsError: the run has no model yet, has diverged, or its files are not the ones that it wrote.
        ModelError: the model cannot be loaded, or the frozen model below its adapter is another one than in the run.
    """
    result = run.result
    if result is None or not run.model_dir.is_dir():
        raise ResultsError(f"{run.path}: has no model yet; allowed: a run that has ended, or was interrupted")
    if run.diverged:
        raise ResultsError(f"{run.path}: the run diverged, and its model is of no use; allowed: one that is finite")
    model_files.check(run.model_dir, result)
    config = Record.read(run).config
    if config.model.lora_rank:
        model = initial_model(run, config)
        _read_adapter(model, run.model_dir)
        return model
    saved = config.changed({"model.name": str(run.model_dir.absolute()), "model.tokenizer": None})
    return build_model(saved, make_task(config.task, _classes(run.model_dir)))


def initial_model(run: RunFolder, config: RunConfig) -> LanguageModel:
    """Return the model with which a run of this configuration began; its folder has a model.

    Raises:
        ModelError: it cannot be loaded, or has other weights than when the run began.
        ResultsError: the record of its weights is missing, or not what the run's ledger is bound to.
        LedgerError: the ledger cannot be read.
    """
    began = initial_digest(run)
    model = build_model(config, make_task(config.task, _classes(run.model_dir)))
    if began != digest_of(model.weights()):
        raise ModelError(f"model.name is '{config.model.name}', whose weights are not those with which the run began")
    return model


def initial_digest(run: RunFolder) -> str | None:
    """Return the digest of the weights with which a run began, to which its ledger is bound; None without one.

    Raises:
        ResultsError: the record of its weights is missing, or not what the run's ledger is bound to.
        LedgerError: the ledger cannot be read.
    """
    return Computation.of_ledger(Ledger.read(run.path)).parts.get("initial_model")


def _classes(folder: Path) -> tuple[str, ...]:
    """Return the classes for which the model in a folder was trained; empty for the next word."""
    try:
        return tuple(json.loads(read_bytes(folder / "spec.json")).get("classes", ()))
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise ModelError(f"{folder / 'spec.json'}: is missing or no record of a model") from error


def _read_adapter(model: LanguageModel, folder: Path) -> None:
    """Set the adapter, and the classification head if there is one, to those in a folder."""
    from peft import load_peft_weights, set_peft_model_state_dict
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        body = model.module if model.classifier is None else model.classifier.body
        set_peft_model_state_dict(body, load_peft_weights(str(folder), device=str(model.device)))
        if model.classifier is not None:
            model.classifier.head.load_state_dict(load_file(folder / "head.safetensors"))
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"cannot load the adapter in {folder}: {shortened(error)}") from error
