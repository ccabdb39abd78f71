"""What a run has spent, from releases in its ledger: lost rounds, two sums of a round, and an attacker's rates."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fl_sim.config import RunConfig
from fl_sim.experiments.plan.run_plan import Planned, plan_run
from fl_sim.experiments.privacy_spent import PrivacySpent, account_for, read_ledgers
from fl_sim.storage.checkpoint import Checkpoint
from fl_sim.storage.model_files import ANCESTORS, Lineage
from fl_sim.storage.open_run import NO_ANCHOR, OpenRun
from fl_sim.storage.run_claim import RunClaim
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound
from fl_sim.strategies.accounting.attack_success import largest_true_positive_rate
from fl_sim.strategies.accounting.guarantee import Guarantee
from fl_sim.strategies.ledger import Ledger, LedgerError, epsilon_of, epsilon_of_any
from tests.fl_sim.ownerships import village
from tests.fl_sim.released_runs import GRAPH, ledger_of
from tests.strategies.federation import plan

SETTINGS: dict[str, Any] = {
    "rounds": 4, "privacy.noise_multiplier": 3.0, "privacy.q_e": 0.5, "privacy.q_s": 0.2, "privacy.user_cap": 2.0,
    "privacy.entity_bound": 3, "privacy.user_sentences": 5,
}  # fmt: skip


def spent_by(folder: Path, **changes: Any) -> tuple[PrivacySpent, Ledger, Planned]:
    config = RunConfig.from_mapping(SETTINGS | changes)
    planned = plan_run(config, village())
    run = OpenRun.begin(RunClaim.claim(folder), {}, Lineage(), [], NO_ANCHOR, secure_noise=False)
    return PrivacySpent(run, config, planned), run.ledger, planned


def test_every_line_states_the_bounds_of_the_plan(tmp_path: Path) -> None:
    spent, ledger, planned = spent_by(tmp_path)
    spent.before_release(1, "first")
    (entry,) = ledger.entries
    assert entry.terms.guarantee == planned.bounds.guarantee
    assert entry.terms.guarantee.entity_bound == 3
    assert entry.terms.mechanism.event() == planned.plan.mechanism.event()


@pytest.mark.system
def test_a_round_with_two_sums_counts_from_its_release_on(tmp_path: Path) -> None:
    spent, ledger, planned = spent_by(tmp_path)
    for server_round, total in ((1, "first"), (2, "second"), (2, "another")):
        spent.before_release(server_round, total)
    assert spent.after(1) == {"releases": 1, **planned.guarantees.after(1)}
    found = spent.after(2)
    assert found["releases"] == 3
    unit = planned.bounds.units(planned.plan.mechanism)["epsilon_user"]["epsilon_user"]
    assert found["epsilon_user"] == pytest.approx(epsilon_of(ledger.entries, unit.adjacency, 1e-5), rel=1e-6)
    assert found["epsilon_any"] == pytest.approx(epsilon_of_any(ledger.entries, 1e-5), rel=1e-6)
    assert found["epsilon_any"] > planned.guarantees.after(2)["epsilon_any"]
    assert spent.total() == found


def test_rounds_that_were_lost_in_a_crash_are_paid_for_again(tmp_path: Path) -> None:
    """With secure noise a repeated round has other samples and another line."""
    spent, ledger, planned = spent_by(tmp_path, **{"privacy.secure_noise": True})
    for server_round in (1, 2, 3):
        spent.before_release(server_round)
    assert spent.go_on_after(1) == 4
    for server_round in (2, 3, 4):
        spent.before_release(server_round)
    assert spent.total()["releases"] == 6
    assert spent.total()["epsilon_any"] == pytest.approx(epsilon_of_any(ledger.entries, 1e-5), rel=2e-3)
    assert spent.total()["epsilon_any"] > planned.guarantees.after(4)["epsilon_any"]


@pytest.mark.parametrize(("releases", "last"), [(6, 4), (5, 3), (4, 2)])
def test_lost_rounds_shorten_a_run_by_what_its_budget_lacks(tmp_path: Path, releases: int, last: int) -> None:
    """The budget admits so many releases, and two were lost after round 1 of 4."""
    longer = plan_run(RunConfig.from_mapping(SETTINGS | {"rounds": 6}), village())
    budget = longer.guarantees.after(releases)["epsilon_any"] * 1.001
    spent, _, _ = spent_by(tmp_path, **{"privacy.secure_noise": True, "privacy.epsilon_budget": budget})
    for server_round in (1, 2, 3):
        spent.before_release(server_round)
    assert spent.go_on_after(1) == last


def test_an_attacker_is_bounded_by_epsilon_at_every_delta_after_all_releases(tmp_path: Path) -> None:
    spent, ledger, _ = spent_by(tmp_path)
    for server_round in (1, 2, 3):
        spent.before_release(server_round, str(server_round))
    found = spent.attacker()["attacker"]
    assert found["unit"] == "any"
    for rate in (0.001, 0.01):
        expected = largest_true_positive_rate(lambda delta: epsilon_of_any(ledger.entries, delta), rate)
        assert found["largest_tpr_at_fpr"][f"{rate:g}"] == pytest.approx(expected, rel=2e-3)


# Accounts of ledgers: ancestors, newcomers, and what each line says itself


MECHANISM = plan(q_e=0.5, q_s=0.2, user_cap=4.0, noise_multiplier=3.0, population=50).mechanism
USER, BOTH = Adjacency(9), Adjacency(9, ContributionBound(2, 2))


def test_a_ledger_that_was_put_back_to_before_its_checkpoint_is_refused(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path / "run", MECHANISM, 2, seed=1)
    older = {file: file.read_bytes() for file in ledger.folder.iterdir()}
    ledger.record_release(ledger.entries[0].terms, 3)
    Checkpoint(3, np.zeros(2, np.float32), {}, ledger.head, {}).write(ledger.folder / "checkpoint")
    assert len(read_ledgers([ledger.folder])[0].entries) == 3
    for file, content in older.items():
        file.write_bytes(content)
    with pytest.raises(LedgerError, match="is not the ledger whose head hash was kept after 3 entries"):
        read_ledgers([ledger.folder])


def test_ancestors_come_first_and_count(tmp_path: Path) -> None:
    first = ledger_of(tmp_path / "first", MECHANISM, 2, seed=1)
    own = ledger_of(tmp_path / "own", MECHANISM, 3, seed=2, ancestors=(first,))
    ledgers = read_ledgers([own.folder])
    assert [ledger.run for ledger in ledgers] == [first.run, own.run]
    account = account_for(ledgers, USER, BOTH, 1e-5, None)
    entries = (*first.entries, *own.entries)
    assert account["releases"] == 5
    assert account["epsilon_user"] == epsilon_of(entries, USER, 1e-5)
    assert account["epsilon_any"] == epsilon_of_any(entries, 1e-5)


def test_an_ancestor_that_went_on_counts_with_all_of_its_releases(tmp_path: Path) -> None:
    first = ledger_of(tmp_path / "first", MECHANISM, 2, seed=1)
    own = ledger_of(tmp_path / "own", MECHANISM, 3, seed=2, ancestors=(first,))
    first.record_release(first.entries[0].terms, 3)
    for ledgers, releases in (([own], 5), ([own, first], 6), ([first, own], 6)):
        account = account_for(read_ledgers([one.folder for one in ledgers]), USER, BOTH, 1e-5, None)
        assert account["releases"] == releases


def test_ancestors_that_are_gone_or_changed_are_refused(tmp_path: Path) -> None:
    first = ledger_of(tmp_path / "first", MECHANISM, 2, seed=1)
    own = ledger_of(tmp_path / "own", MECHANISM, 3, seed=2, ancestors=(first,))
    kept = own.folder / ANCESTORS / first.run
    shutil.rmtree(kept)
    with pytest.raises(LedgerError, match="is missing"):
        read_ledgers([own.folder])
    ledger_of(kept, MECHANISM, 2, seed=1)  # of another run
    with pytest.raises(LedgerError, match=f"is not the ledger of the run {first.run}"):
        read_ledgers([own.folder])


def test_a_newcomer_is_charged_from_its_round_on_and_any_user_for_all(tmp_path: Path) -> None:
    first = ledger_of(tmp_path / "first", MECHANISM, 2, seed=1)
    own = ledger_of(tmp_path / "own", MECHANISM, 4, seed=2, ancestors=(first,))
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
    ledgers = [ledger_of(tmp_path / one.known, MECHANISM, 1, one, seed) for seed, one in enumerate(bounds)]
    for count, known in enumerate(("nothing", "counts", "graph"), start=1):
        assert account_for(ledgers[:count], USER, BOTH, 1e-5, None)["known"] == known
