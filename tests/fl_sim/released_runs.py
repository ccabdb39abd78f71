"""Folders of runs, and ledgers, whose releases are planned and recorded, yet computed from nothing."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from fl_sim.config import RunConfig
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.experiments.plan.run_plan import plan_run
from fl_sim.experiments.run_inputs import declared
from fl_sim.experiments.run_record import computed_from, describe
from fl_sim.storage.model_files import ANCESTORS
from fl_sim.storage.open_run import Computation
from fl_sim.storage.run_folder import RunFolder
from fl_sim.strategies.accounting.guarantee import Guarantee
from fl_sim.strategies.ledger import Ledger, ReleaseRecord
from fl_sim.strategies.mechanism import Mechanism


def released_run(path: Path, corpus: Path, rounds_done: int, done_again: int = 0, **bounds: Any) -> RunFolder:
    """What a run of ten rounds leaves after some of them, the last one released ``done_again`` times more."""
    privacy = {"noise_multiplier": 3.0, "q_e": 0.5, "q_s": 0.1, "user_cap": 2.0, "user_sentences": 20} | bounds
    config = RunConfig.from_mapping({"corpus.path": str(corpus), "rounds": 10, "privacy": privacy})
    opened = Corpus.open(corpus)
    planned = plan_run(config, opened.ownership("train"), declared=declared(config, opened))
    folder = RunFolder.create(path, config=describe(config, planned, opened), environment={})
    ledger, terms = Ledger.create(folder.path), ReleaseRecord.of(planned.plan.mechanism, None, planned.bounds.guarantee)
    computation = Computation(computed_from(config, planned, {"corpus": opened.fingerprint, "tokens": ""}, ""))
    computation.write(folder.path)
    ledger.bind(computation.digest)
    for number in range(rounds_done + 1):
        folder.append_metrics({"round": number})
    for number in [*range(1, rounds_done + 1), *[rounds_done] * done_again]:
        ledger.record_release(terms, number)
    return folder


GRAPH = Guarantee(known="graph", entity_bound=3, user_sentences=9)


def ledger_of(
    folder: Path,
    mechanism: Mechanism,
    count: int,
    guarantee: Guarantee = GRAPH,
    seed: int = 7,
    ancestors: tuple[Ledger, ...] = (),
) -> Ledger:
    """The ledger of so many rounds in a new folder, which keeps those of the runs before."""
    folder.mkdir(parents=True)
    for ancestor in ancestors:
        shutil.copytree(ancestor.folder, folder / ANCESTORS / ancestor.run)
    ledger = Ledger.create(folder, [ancestor.head for ancestor in ancestors])
    for number in range(1, count + 1):
        ledger.record_release(ReleaseRecord.of(mechanism, seed, guarantee), number)
    return ledger
