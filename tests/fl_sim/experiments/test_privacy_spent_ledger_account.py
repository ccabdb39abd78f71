"""ε of runs on one corpus from ledgers alone, read in process: ancestors, newcomers, and what each line says itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fl_sim.experiments.privacy_spent import account_for, read_ledgers
from fl_sim.storage.checkpoint import Checkpoint
from fl_sim.storage.model_files import ANCESTORS
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound
from fl_sim.strategies.accounting.guarantee import Guarantee
from fl_sim.strategies.ledger import Ledger, LedgerError, ReleaseRecord, epsilon_of, epsilon_of_any
from tests.strategies.federation import plan

MECHANISM = plan(q_e=0.5, q_s=0.2, user_cap=4.0, noise_multiplier=3.0, population=50).mechanism
GRAPH = Guarantee(known="graph", entity_bound=3, user_sentences=9)
USER, BOTH = Adjacency(9), Adjacency(9, ContributionBound(2, 2))


def ledger_of(
    folder: Path, count: int, seed: int, guarantee: Guarantee = GRAPH, ancestors: tuple[Ledger, ...] = ()
) -> Ledger:
    folder.mkdir(parents=True)
    ledger = Ledger.create(folder, [ancestor.head for ancestor in ancestors])
    for ancestor in ancestors:
        kept = folder / ANCESTORS / ancestor.run
        kept.mkdir(parents=True)
        for file in ancestor.folder.glob("ledger.*"):
            (kept / file.name).write_bytes(file.read_bytes())
    terms = ReleaseRecord.of(MECHANISM, seed, guarantee)
    for number in range(1, count + 1):
        ledger.record_release(terms, number)
    return ledger


def test_a_ledger_that_was_put_back_to_before_its_checkpoint_is_refused(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path / "run", 2, seed=1)
    older = {file: file.read_bytes() for file in ledger.folder.iterdir()}
    ledger.record_release(ledger.entries[0].terms, 3)
    Checkpoint(3, np.zeros(2, np.float32), {}, ledger.head, {}).write(ledger.folder / "checkpoint")
    assert len(read_ledgers([ledger.folder])[0].entries) == 3
    for file, content in older.items():
        file.write_bytes(content)
    with pytest.raises(LedgerError, match="is not the ledger whose head hash was kept after 3 entries"):
        read_ledgers([ledger.folder])


def test_ancestors_come_first_and_count(tmp_path: Path) -> None:
    first = ledger_of(tmp_path / "first", 2, seed=1)
    own = ledger_of(tmp_path / "own", 3, seed=2, ancestors=(first,))
    ledgers = read_ledgers([own.folder])
    assert [ledger.run for ledger in ledgers] == [first.run, own.run]
    account = account_for(ledgers, USER, BOTH, 1e-5, None)
    entries = (*first.entries, *own.entries)
    assert account["releases"] == 5
    assert account["epsilon_user"] == epsilon_of(entries, USER, 1e-5)
    assert account["epsilon_any"] == epsilon_of_any(entries, 1e-5)


def test_a_newcomer_is_charged_from_its_round_on_and_any_user_for_all(tmp_path: Path) -> None:
    first = ledger_of(tmp_path / "first", 2, seed=1)
    own = ledger_of(tmp_path / "own", 4, seed=2, ancestors=(first,))
    account = account_for(read_ledgers([own.folder]), USER, BOTH, 1e-5, joined_at=3)
    everything = (*first.entries, *own.entries)
    assert (account["releases"], account["releases_robust"]) == (2, 6)
    assert account["epsilon_user"] == epsilon_of(own.entries[2:], USER, 1e-5)
    assert account["epsilon_user_entity"] == epsilon_of(own.entries[2:], BOTH, 1e-5)
    assert account["epsilon_any"] == epsilon_of_any(everything, 1e-5)
    assert account["epsilon_user_entity_robust"] == epsilon_of(everything, BOTH, 1e-5, robust=True)


def test_an_account_takes_as_known_the_most_that_one_of_its_runs_does(tmp_path: Path) -> None:
    nothing, counts = Guarantee(known="nothing"), Guarantee(known="counts", entity_bound=3, user_sentences=9)
    bounds = (nothing, counts, GRAPH)
    ledgers = [ledger_of(tmp_path / one.known, 1, seed, one) for seed, one in enumerate(bounds)]
    for count, known in enumerate(("nothing", "counts", "graph"), start=1):
        assert account_for(ledgers[:count], USER, BOTH, 1e-5, None)["known"] == known
