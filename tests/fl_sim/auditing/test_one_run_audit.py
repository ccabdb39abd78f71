"""Test one-run auditing: canaries are included with probability ½, and sufficient noise hides them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fl_sim.auditing.one_run_audit import OneRunAudit, audit_training, plant
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.strategies.accounting.adjacency import PrivacyError

ROUNDS = 5


@pytest.fixture(scope="module")
def base() -> Corpus:
    return Corpus.open("bundled")


def test_exactly_the_included_canaries_are_users_of_the_corpus(base: Corpus, tmp_path: Path) -> None:
    planted = plant(base, 30, 7, tmp_path / "corpus")
    corpus = Corpus.open(planted.path)
    users = corpus.users("train")
    names = {name for name in users["user"] if name.startswith("canary-")}
    assert names == {f"canary-{i}" for i in np.flatnonzero(planted.included)}
    texts = set(corpus.texts("train").to_pylist())
    assert [text in texts for text in planted.texts] == planted.included.tolist()
    assert (users["sentences"][users["user"].str.startswith("canary-")] == 1).all()
    assert corpus.held_out_split == "validation"
    assert planted.population == len(users) + 30 - len(names), "N is the same whoever is included"
    assert plant(base, 30, 8, tmp_path / "other").population == planted.population


def audited(work: Path, noise_multiplier: float) -> OneRunAudit:
    overrides = {"rounds": ROUNDS, "privacy.noise_multiplier": noise_multiplier}
    return audit_training(work, canaries=40, seed=0, confidence=0.95, overrides=overrides)


@pytest.mark.nightly
@pytest.mark.usefixtures("no_plots")
def test_canaries_are_found_where_noise_is_missing_and_not_where_it_is_ample(tmp_path: Path) -> None:
    (tmp_path / "loud").mkdir()
    (tmp_path / "quiet").mkdir()
    loud, quiet = audited(tmp_path / "loud", 100.0), audited(tmp_path / "quiet", 0.01)
    assert loud.epsilon_lower == 0 <= loud.epsilon_proven < 1
    assert quiet.epsilon_lower > 1
    assert quiet.rounds == ROUNDS
    assert quiet.record()["holds"]
    assert quiet.record()["attack_auc"] > 0.9


def test_impossible_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PrivacyError, match="canaries is 1"):
        audit_training(tmp_path, canaries=1, seed=0, confidence=0.95)
    with pytest.raises(PrivacyError, match="confidence is -3"):  # at which guesses by chance would bound ε
        audit_training(tmp_path, canaries=2, seed=0, confidence=-3)
