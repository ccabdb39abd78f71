"""What an attack takes of a run: the contribution of a user, and the file of a result that depends on all it should."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fl_sim.auditing.leakage import attacked_run
from fl_sim.auditing.leakage.attacked_run import AttackedRun
from fl_sim.auditing.leakage.membership import _proven_user
from fl_sim.auditing.leakage.rates import LedgerProof
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.storage import model_files
from fl_sim.strategies.accounting.guarantee import Guarantee
from fl_sim.strategies.ledger import Entry, ReleaseRecord
from fl_sim.strategies.user_level import UserLevelDP

RELEASE = ReleaseRecord.of(
    UserLevelDP(population=2, q_u=1.0, q_e=1.0, q_s=1.0, clip_norm=1.0, user_cap=1.0, noise_multiplier=1.0), seed=0
)
PROOF = LedgerProof((Entry("run", 1, RELEASE, "sum"),), "run", Guarantee())


def run_of(**changes: Any) -> AttackedRun:
    """A run of two members with three and one sentence, and a non-member with two; one sentence is left out."""
    owned = Ownership(np.array([0, 3, 4]), np.zeros(5, np.int64), np.empty(0, np.int32), num_entities=0)
    others = Ownership(np.array([0, 2]), np.zeros(3, np.int64), np.empty(0, np.int32), num_entities=0)
    fields = {
        "folder": SimpleNamespace(result={model_files.KEY: "model"}, path=Path("runs/first")),
        "corpus": SimpleNamespace(fingerprint="text"),
        "proof": PROOF,
        "bounds": SimpleNamespace(
            ownership=owned, weights=np.array([0.5, 0.0, 1.0, 1.0]), guarantee=Guarantee(user_sentences=5)
        ),
        "members": SimpleNamespace(split="train", ownership=owned),
        "non_members": SimpleNamespace(split="validation", ownership=others),
        "kept": Path("kept"),
    }
    return AttackedRun(**{"config": None, "model": None, **fields, **changes})


def test_a_sentence_of_any_weight_counts_as_a_contribution() -> None:
    assert [run_of().contribution_of(user) for user in (0, 1)] == [2, 1]
    assert run_of().largest_contribution_of(0) == 2


@pytest.mark.parametrize(("member", "most"), [(0, 2.0), (1, 2.0)])
def test_an_attack_on_users_is_bounded_by_the_largest_contribution_of_either_side(member: int, most: float) -> None:
    run = run_of(proof=SimpleNamespace(of_user=lambda sentences: sentences))
    samples = SimpleNamespace(
        members=SimpleNamespace(users=np.array([member])), non_members=SimpleNamespace(users=np.array([0]))
    )
    assert _proven_user(run, samples) == most
    alone = SimpleNamespace(members=SimpleNamespace(users=np.array([0, 1])), non_members=samples.non_members)
    fewer = replace(run, bounds=SimpleNamespace(**{**vars(run.bounds), "guarantee": Guarantee(user_sentences=1)}))
    assert _proven_user(fewer, alone) == 2.0  # of a member


def test_a_kept_result_is_that_of_model_text_releases_and_references(monkeypatch: pytest.MonkeyPatch) -> None:
    models = {"reference": "of the first training"}
    opened = SimpleNamespace(open=lambda folder: SimpleNamespace(result={model_files.KEY: models[folder]}))
    monkeypatch.setattr(attacked_run, "RunFolder", opened)
    other = replace(PROOF, entries=(*PROOF.entries, replace(PROOF.entries[0], sum="another")))
    runs = [run_of(), run_of(proof=other), run_of(corpus=SimpleNamespace(fingerprint="other text"))]
    files = [run.file_of({"attack": "users"}, ".json", ["reference"]) for run in runs]
    files += [run_of().file_of({"attack": "sentences"}, ".json", ["reference"]), run_of().file_of({}, ".json")]
    models["reference"] = "of another training"
    files.append(run_of().file_of({"attack": "users"}, ".json", ["reference"]))
    assert len(set(files)) == len(files)
    models["reference"] = "of the first training"
    assert run_of().file_of({"attack": "users"}, ".json", ["reference"]) == files[0]
