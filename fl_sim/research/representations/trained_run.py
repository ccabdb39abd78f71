"""A finished run's model as encoder, and the run's guarantee for its training data.

This guarantee covers the *training data of the run* and follows from its ledger alone; the privacy layer's guarantee
covers the *text that is sent later*. Neither covers the other, nor the examples on which the server's classifier (and
an encoder that is trained further) is trained. The run's ε covers everything computed from the run's models.
"""

from __future__ import annotations

import math
from pathlib import Path

from fl_sim.config import ConfigError
from fl_sim.experiments.privacy_spent import account_for, are_covered, read_ledgers
from fl_sim.reporting.report import public_names_note
from fl_sim.reporting.run_facts import LEFT_OUT, read_facts
from fl_sim.research.representations.experiment_record import TrainingGuarantee
from fl_sim.storage import model_files
from fl_sim.storage.run_folder import MODEL_FOLDER, Result, RunFolder
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound
from fl_sim.strategies.ledger import LedgerError
from fl_sim.strategies.registry import plan_from_record

_CONTRIBUTION_QUANTILES = ("median", "p95", "max")


def guarantee_of_run(folder: Path) -> TrainingGuarantee:
    """Return ε of all releases in the run's ledger, with what the run's report says that it does not cover.

    Raises:
        LedgerError: the ledger is missing or changed, or does not match the run's result.
        ResultsError: the model's files are not the run's.
        ConfigError: the run is not finished, or has no model.
    """
    ledgers = read_ledgers([folder])
    result = _checked_result(folder, ledgers[-1].last_round)
    plan, covered = plan_from_record(result["plan"]), are_covered(ledgers, [RunFolder.open(folder)])
    bound = result["user_sentences"] if covered else math.inf  # an initial model may rest on more of a user
    entity_bounds = {name: ContributionBound(**result["reach"][name]) for name in _CONTRIBUTION_QUANTILES}
    accounts = {
        name: account_for(ledgers, Adjacency(bound), Adjacency(bound, r), plan.delta, None)
        for name, r in entity_bounds.items()
    }
    known = {name for name, r in entity_bounds.items() if covered and r.total}  # without entities no ε is of one
    unbounded = account_for(ledgers, Adjacency(), Adjacency(), plan.delta, None)
    first, facts = accounts[_CONTRIBUTION_QUANTILES[0]], read_facts(RunFolder.open(folder))
    notes = (LEFT_OUT if facts.left_out else None, public_names_note(facts), *facts.warnings)
    return {
        "covers": "the training data of the run",
        "run": ledgers[-1].run,
        "strategy": plan.mechanism.strategy,
        "corpus": str(result["corpus"]["name"]),
        "releases": first["releases"],
        "noiseless_releases": first["noiseless_releases"],
        "delta": plan.delta,
        "user_sentences": bound,
        "epsilon_user": first["epsilon_user"],
        "epsilon_user_unbounded": unbounded["epsilon_user"],
        "entities": {
            name: {
                "reach": result["reach"][name],
                "epsilon": row["epsilon_user_entity"] if name in known else math.inf,
                "epsilon_robust": row["epsilon_user_entity_robust"] if name in known else math.inf,
            }
            for name, row in accounts.items()
        },
        "warnings": [note for note in notes if note],
    }


def _checked_result(folder: Path, last_round: int) -> Result:
    """Return the result of a finished run whose model is that of ``last_round`` and has its checksums."""
    run = RunFolder.open(folder)
    result = run.result
    if result is None:
        raise ConfigError(f"encoder.run: {folder} has no result.json; allowed: a finished run")
    if result["rounds"] != last_round:
        raise LedgerError(f"{folder}: the model is that of round {result['rounds']}, the ledger ends with {last_round}")
    if not run.model_dir.is_dir():
        raise ConfigError(f"encoder.run: {folder} has no folder {MODEL_FOLDER}; allowed: a run that kept its model")
    model_files.check(run.model_dir, result)
    return result
