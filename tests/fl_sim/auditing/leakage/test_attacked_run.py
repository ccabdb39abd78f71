"""What an attack takes of a run: the contribution of a user, and the model with which it began."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fl_sim.auditing.leakage import attacked_run
from fl_sim.auditing.leakage.attacked_run import AttackedRun
from fl_sim.auditing.leakage.membership import proven_user
from fl_sim.auditing.leakage.proven_rates import LedgerProof
from fl_sim.data_prep.store.contribution_limits import DeclaredCounts
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.experiments.plan.guarantees import Declared, EnforcedBounds
from fl_sim.storage.open_run import Computation
from fl_sim.storage.run_folder import ResultsError
from fl_sim.strategies.accounting.guarantee import Guarantee
from fl_sim.strategies.ledger import Entry, Ledger, ReleaseRecord
from fl_sim.strategies.user_level import UserLevelDP

RELEASE = ReleaseRecord.of(
    UserLevelDP(population=2, q_u=1.0, q_e=1.0, q_s=1.0, clip_norm=1.0, user_cap=1.0, noise_multiplier=1.0), seed=0
)
PROOF = LedgerProof((Entry("run", 1, RELEASE, "sum"),), "run", Guarantee())


OWNED = Ownership(np.array([0, 3, 4]), np.zeros(5, np.int64), np.empty(0, np.int32), num_entities=0)


def bounds_of(guarantee: Guarantee) -> EnforcedBounds:
    return EnforcedBounds(
        guarantee, OWNED, np.array([0.5, 0.0, 0.25, 1.0]), Declared(), DeclaredCounts.of(OWNED), 0.0, False
    )


def run_of(**changes: Any) -> AttackedRun:
    """A run of two members with three and one sentence, and a non-member with two; one sentence is left out."""
    others = Ownership(np.array([0, 2]), np.zeros(3, np.int64), np.empty(0, np.int32), num_entities=0)
    fields = {
        "folder": None,
        "corpus": None,
        "proof": PROOF,
        "bounds": bounds_of(Guarantee(known="graph", user_sentences=5, public_weights=True)),
        "members": SimpleNamespace(split="train", ownership=OWNED),
        "non_members": SimpleNamespace(split="validation", ownership=others),
    }
    return AttackedRun(**{"config": None, "model": None, **fields, **changes})


def test_runs_that_began_alike_share_what_was_found_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    digests = {"first": "a", "second": "a", "third": "b"}
    monkeypatch.setattr(attacked_run, "initial_digest", lambda folder: digests[folder.path])
    monkeypatch.setattr(attacked_run, "initial_model", lambda folder, config: digests[folder.path])
    config = SimpleNamespace(model="small", task="next word")
    first, second, third = (run_of(folder=SimpleNamespace(path=path), config=config) for path in digests)
    found = [run.before.once("text", lambda run=run: run.folder.path) for run in (first, second, third)]
    assert found == ["first", "first", "third"]


@pytest.mark.parametrize("parts", [{}, {"initial_model": "another"}, []])
def test_what_a_run_began_with_is_what_its_ledger_is_bound_to(parts: Any, tmp_path: Path) -> None:
    began = Computation({"initial_model": "a digest"})
    Ledger.create(tmp_path).bind(began.digest)
    Computation(parts, salt=began.salt).write(tmp_path)
    folder = SimpleNamespace(path=tmp_path)
    with pytest.raises(ResultsError, match="is not what the run's ledger is bound to"):
        _ = run_of(folder=folder, config=SimpleNamespace(model="small", task="next word")).before


def test_a_sentence_of_any_weight_counts_as_a_contribution() -> None:
    assert [run_of().bounds.contribution_of(user) for user in (0, 1)] == [2, 1]


def test_by_counts_the_weights_of_a_users_sentences_add_up_to_its_contribution() -> None:
    for most in (1, 5):
        bounds = bounds_of(Guarantee(known="counts", user_sentences=most))
        assert [bounds.contribution_of(user) for user in (0, 1)] == [1, 1]  # of 0.75, rounded up, and 1
    assert bounds_of(Guarantee(known="counts", entity_bound=5)).contribution_of(0) == 2  # nothing bounds a user


@pytest.mark.parametrize(("member", "most"), [(0, 2.0), (1, 2.0)])
def test_an_attack_on_users_is_bounded_by_the_largest_contribution_of_either_side(member: int, most: float) -> None:
    run = run_of(proof=SimpleNamespace(of_user=lambda sentences: sentences))
    members, non_members = SimpleNamespace(users=np.array([member])), SimpleNamespace(users=np.array([0]))
    assert proven_user(run, members, non_members) == most
    fewer = replace(run, bounds=replace(run.bounds, configured=Guarantee(known="graph", user_sentences=1)))
    both = SimpleNamespace(users=np.array([0, 1]))
    assert proven_user(fewer, both, non_members) == 2.0  # of a member
