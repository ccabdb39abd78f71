"""Canaries judge a run by their coins: a run that is not what its ledger says is found, an honest one is not."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from fl_sim.auditing.leakage import canary_exposure
from fl_sim.auditing.leakage.attacked_run import BeforeTraining, NotApplicableError, Options
from fl_sim.auditing.leakage.canary_exposure import (
    CanaryExposure,
    CanaryExposures,
    attack_canaries,
    entity_contribution,
)
from fl_sim.auditing.leakage.membership import canary_users
from fl_sim.auditing.leakage.name_ranking import attack_names
from fl_sim.auditing.leakage.proven_rates import LedgerProof
from fl_sim.clients.models.language_model import LanguageModel, load_model
from fl_sim.clients.tasks import Classification
from fl_sim.data_prep.canaries import CanarySettings, PlantedCanaries, SecretLaw, draw_canaries, read_canaries
from fl_sim.data_prep.prepare import prepare
from fl_sim.data_prep.readers.prepared_corpus import PreparedReader
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.strategies.accounting.guarantee import Guarantee
from fl_sim.strategies.ledger import Entry, ReleaseRecord
from fl_sim.strategies.user_level import UserLevelDP
from tests.fl_sim.auditing.leakage.memorising import SPEC, memorised
from tests.tiny import tiny_corpus

OPTIONS = Options(secrets=60, entities=10, candidates=4)


@pytest.fixture(scope="module")
def with_canaries(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    base = tiny_corpus(tmp_path_factory.mktemp("canaries") / "tiny")
    return prepare(
        PreparedReader(source=str(base)).read(), base.parent / "planted", canaries=CanarySettings(112, seed=1)
    ).corpus


@pytest.fixture(scope="module")
def planted(with_canaries: Corpus) -> PlantedCanaries:
    return read_canaries(with_canaries)


@pytest.fixture(scope="module")
def learned(planted: PlantedCanaries) -> LanguageModel:
    """A model that knows the included canaries of users by heart."""
    texts = [c.text(planted.law) for c in planted.canaries if c.included and c.owner == "user"]
    return memorised(texts, steps=120)


def ledger(noise: float, population: int, guarantee: Guarantee) -> LedgerProof:
    mechanism = UserLevelDP(
        strategy="user_level", population=population, q_u=1.0, q_e=1.0, q_s=1.0, clip_norm=1.0, user_cap=1.0,
        noise_multiplier=noise,
    )  # fmt: skip
    return LedgerProof((Entry("run", 1, ReleaseRecord.of(mechanism, seed=0)),), "run", guarantee)


def attacked(corpus: Corpus, model: LanguageModel, noise: float = 20.0, population: int | None = None) -> Any:
    """Return what the attack reads of a run whose ledger states this noise."""
    guarantee = Guarantee(known="graph", entity_users=2)
    users = read_canaries(corpus).population(corpus) if population is None else population
    return SimpleNamespace(
        corpus=corpus, model=model, before=BeforeTraining(model), proof=ledger(noise, users, guarantee),
        bounds=SimpleNamespace(guarantee=guarantee), members=SimpleNamespace(split="train"), has_raw_text=False,
    )  # fmt: skip


@pytest.mark.system
def test_a_model_that_remembers_contradicts_a_ledger_with_much_noise(
    with_canaries: Corpus, learned: LanguageModel
) -> None:
    found = attack_canaries(attacked(with_canaries, learned), OPTIONS)
    assert (found.verdict.state, found.verdict.pairs) == ("beyond", 112)
    assert len(found.bounds) == 14
    assert all(bound.largest_advantage < 0.2 for bound in found.bounds.values())
    assert found.bounds["entity", 64].largest_advantage == found.bounds["entity", 2].largest_advantage  # F is 2
    record = json.dumps(found.record(), allow_nan=False)
    names = {canary.name for canary in read_canaries(with_canaries).canaries if canary.name}
    assert not any(words in record for words in (*names, "secret words", "arrow"))


@pytest.mark.system
def test_nothing_is_proven_for_a_name_that_the_runs_own_text_may_not_mark(
    with_canaries: Corpus, learned: LanguageModel
) -> None:
    run = attacked(with_canaries, learned)
    run.has_raw_text = True
    bounds = attack_canaries(run, OPTIONS).bounds
    assert {owner for (owner, _), bound in bounds.items() if bound.is_proven} == {"user"}


@pytest.mark.parametrize("marked", [True, False])
def test_nothing_is_proven_for_a_name_that_was_removed_from_the_runs_text(
    marked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = draw_canaries(CanarySettings(28)).canaries
    canaries = tuple(one if marked else one.model_copy(update={"name": None}) for one in drawn)
    known = PlantedCanaries(seed=0, law=SecretLaw(), canaries=canaries)
    exposures = (CanaryExposure(c.number, c.owner, c.repetitions, c.included, 1, 0.0, 0.0) for c in canaries)
    found = CanaryExposures(tuple(exposures), drawn=60, possible=1000, seed=0)
    monkeypatch.setattr(canary_exposure, "read_canaries", lambda corpus: known)
    monkeypatch.setattr(canary_exposure, "canary_exposures", lambda *arguments, **named: found)
    corpus: Any = SimpleNamespace(
        has_canaries=True, manifest=SimpleNamespace(splits={"train": SimpleNamespace(users=9)})
    )
    model: Any = SimpleNamespace(task=SimpleNamespace(classes=()))
    bounds = attack_canaries(attacked(corpus, model, population=9), OPTIONS).bounds
    proven = {owner for (owner, _), bound in bounds.items() if bound.is_proven}
    assert proven == ({"user", "entity"} if marked else {"user"})


def test_every_test_has_its_share_of_the_failure_and_the_largest_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Canaries of one kind are tested at the bound of their own contribution, those of an owner at the largest."""
    exposures = CanaryExposures(
        tuple(
            CanaryExposure(number, "user", 1 + 7 * (number % 2), number < 2, 1, 0.0, float(number))
            for number in range(4)
        ),
        drawn=60, possible=1000, seed=0,
    )  # fmt: skip
    honest = ledger(2.0, 10, Guarantee())
    large, small = (SimpleNamespace(is_proven=True, trade_off=lambda name=name: name) for name in ("large", "small"))
    proven = {("user", 1): small, ("user", 8): large}
    tested: list[tuple[Any, ...]] = []

    def refutes(trade_off: Any, included: Any, scores: Any, confidence: float) -> bool:
        tested.append((trade_off, len(scores), confidence))
        return False

    monkeypatch.setattr(canary_exposure, "refutes_by_ranking", refutes)
    run = SimpleNamespace(corpus=None, proof=honest)
    planted = SimpleNamespace(population=lambda corpus: 10)
    verdict = canary_exposure.judge_canaries(run, planted, exposures, proven, 0.03)  # type: ignore[arg-type]
    assert tested == [("small", 2, 0.99), ("large", 2, 0.99), ("large", 4, 0.99)]
    assert (verdict.state, verdict.pairs, verdict.failure) == ("within", 4, 0.03)


def test_canaries_that_decide_n_are_not_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary_exposure, "refutes_by_ranking", lambda *arguments: True)
    canaries = (CanaryExposure(number, "user", 1, number < 2, 1, 0.0, float(number)) for number in range(4))
    exposures = CanaryExposures(tuple(canaries), drawn=60, possible=1000, seed=0)
    proven: Any = {("user", 1): SimpleNamespace(is_proven=True, trade_off=lambda: None)}
    run: Any = SimpleNamespace(corpus=None, proof=ledger(2.0, 10, Guarantee()))
    states = {}
    for population in (9, 10, 11):
        planted: Any = SimpleNamespace(population=lambda corpus, users=population: users)
        states[population] = canary_exposure.judge_canaries(run, planted, exposures, proven, 0.03).state
    assert states == {9: "not tested", 10: "beyond", 11: "not tested"}


def test_the_contribution_of_an_entity_is_bounded_as_its_run_bounds_it() -> None:
    for stated in (Guarantee(), Guarantee(entity_bound=5, entity_users=5)):  # nothing is known, so nothing is enforced
        assert len(entity_contribution(stated, 64).profile) == 64
    weighted = entity_contribution(Guarantee(known="counts", entity_bound=5), 64)
    assert (len(weighted.profile), weighted.limit.sentences, weighted.limit.weighted) == (64, 5, True)


def test_canary_users_are_not_attacked_as_users(with_canaries: Corpus, planted: PlantedCanaries) -> None:
    assert canary_users(with_canaries) == planted.users
    assert len(planted.users) > 100


def test_classifiers_are_left_out(with_canaries: Corpus) -> None:
    classifier = load_model(SPEC, seed=0, task=Classification(("a", "b")))
    for attack in (attack_canaries, attack_names):
        with pytest.raises(NotApplicableError, match="predicts classes"):
            attack(attacked(with_canaries, classifier), OPTIONS)
