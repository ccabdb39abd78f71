"""A finished run's model as encoder, and what the run promises to those whose text it was trained on.

That promise speaks of the *training data of the run*, and follows from its ledger alone; the privacy layer's speaks of
the *text that is sent later*. Neither says anything of the other, nor of the examples that the server's classifier (and
the encoder, where it is trained on) learns from. Whatever is computed from the run's models is covered by its ε.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fl_sim.config import ConfigError
from fl_sim.experiments.ledger_account import account_for, read_ledgers
from fl_sim.storage import model_files
from fl_sim.storage.run_folder import MODEL_FOLDER, RunFolder
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound
from fl_sim.strategies.ledger import LedgerError

_CONTRIBUTION_QUANTILES = ("median", "p95", "max")


def guarantee_of_run(folder: Path) -> dict[str, Any]:
    """ε of everything that the run released, as its ledger has it, JSON-ready but for infinities.

    ``epsilon_user`` is that of a user with at most ``user_sentences`` sentences, ``epsilon_user_unbounded`` of any;
    ``entities`` has those of a user and an entity at the median, 95th-percentile and largest reach of the run's corpus.

    Raises:
        LedgerError: the ledger is missing or changed, or is not that of the run's result.
        ResultsError: the model's files are not those that the run left.
        ConfigError: the run is not finished, or has no model.
    """
    (ledger,) = read_ledgers([folder])
    run = RunFolder.open(folder)
    result = run.result
    if result is None:
        raise ConfigError(f"encoder.run: {folder} has no result.json; allowed: a finished run")
    if result["rounds"] != ledger.last_round:
        raise LedgerError(
            f"{folder}: the model is that of round {result['rounds']}, the ledger ends with {ledger.last_round}"
        )
    if not run.model_dir.is_dir():
        raise ConfigError(f"encoder.run: {folder} has no folder {MODEL_FOLDER}; allowed: a run that kept its model")
    model_files.check(run.model_dir, result)
    bound, delta = result["user_sentences"], result["plan"]["delta"]
    entity_bounds = {name: ContributionBound(**result["reach"][name]) for name in _CONTRIBUTION_QUANTILES}
    found = {
        name: account_for([ledger], Adjacency(bound), Adjacency(bound, r), delta, None)
        for name, r in entity_bounds.items()
    }
    whole = account_for([ledger], Adjacency(), Adjacency(), delta, None)
    first = found[_CONTRIBUTION_QUANTILES[0]]
    return {
        "covers": "the training data of the run",
        "run": ledger.run,
        "strategy": result["plan"]["strategy"],
        "corpus": result["corpus"]["name"],
        "releases": first["releases"],
        "noiseless_releases": first["noiseless_releases"],
        "delta": delta,
        "user_sentences": bound,
        "epsilon_user": first["epsilon_user"],
        "epsilon_user_unbounded": whole["epsilon_user"],
        "entities": {
            name: {
                "reach": result["reach"][name],
                "epsilon": row["epsilon_user_entity"],
                "epsilon_robust": row["epsilon_user_entity_robust"],
            }
            for name, row in found.items()
        },
    }
