"""Exposure of canaries: uniform where a canary was left out, high where a model memorised it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fl_sim.auditing.leakage import canary_exposure
from fl_sim.auditing.leakage.canary_exposure import (
    canary_exposures,
    most_by_chance,
    sentence_nats,
    uniform_exposure,
)
from fl_sim.auditing.lower_bounds import curve_trade_off, refutes_by_ranking
from fl_sim.clients.errors import ModelError
from fl_sim.clients.models.language_model import load_model
from fl_sim.data_prep.canaries import CanarySettings, PlantedCanaries, SecretLaw, draw_canaries
from tests.fl_sim.auditing.leakage.memorising import SPEC, memorised


def of_users(planted: PlantedCanaries) -> PlantedCanaries:
    return planted.model_copy(update={"canaries": tuple(c for c in planted.canaries if c.owner == "user")})


@pytest.mark.nightly
def test_the_exposure_of_left_out_canaries_is_uniform() -> None:
    """The model has trained on other canaries, with the same public words."""
    planted = of_users(draw_canaries(CanarySettings(400, seed=3)))
    texts = [c.text(planted.law) for c in planted.canaries]
    model = memorised(texts[:20], steps=30)
    left_out = planted.model_copy(update={"canaries": planted.canaries[20:]})
    exposures = canary_exposures(model, left_out, seed=0, drawn=300)
    ranks = np.array([canary.rank for canary in exposures.canaries])
    assert stats.kstest(ranks / 301, "uniform").pvalue > 1e-3
    mean = np.mean([canary.exposure for canary in exposures.canaries])
    assert abs(mean - 1 / math.log(2)) < 4 / math.log(2) / math.sqrt(len(ranks))
    assert abs(uniform_exposure(300) - 1 / math.log(2)) < 0.02


@pytest.mark.nightly
def test_a_model_that_memorised_the_included_canaries_is_exposed() -> None:
    planted = of_users(draw_canaries(CanarySettings(64, seed=1)))
    included = [c.text(planted.law) for c in planted.canaries if c.included]
    before = canary_exposures(load_model(SPEC, seed=0), planted, seed=0, drawn=200)
    after = canary_exposures(memorised(included, steps=120), planted, seed=0, drawn=200)
    means = {included: after.means()[None, None, included][1] for included in (True, False)}
    assert means[True].low > 5
    assert means[False].low < 1 / math.log(2) < means[False].high
    assert before.means()[None, None, True][1].value < 3
    # Coins and scores are what the one-run audit takes: it refutes ε = 0.5 after, and not before.
    claim = curve_trade_off([(1e-5, 0.5)])
    assert refutes_by_ranking(claim, *after.audit_arrays(), confidence=0.999)
    assert not refutes_by_ranking(claim, *before.audit_arrays(), confidence=0.999)


@pytest.mark.nightly
def test_every_owner_and_number_of_repetitions_has_a_mean() -> None:
    planted = draw_canaries(CanarySettings(28, seed=1))
    exposures = canary_exposures(load_model(SPEC, seed=0), planted, seed=0, drawn=30)
    by_kind = {group: canaries for group, (canaries, _) in exposures.means().items()}
    assert by_kind[None, None, True] + by_kind[None, None, False] == 28
    assert sum(n for (owner, times, _), n in by_kind.items() if owner == "entity" and times is None) == 14
    assert sum(n for (owner, times, _), n in by_kind.items() if times == 64) == 4
    included, scores = exposures.audit_arrays("user", 64)
    assert included.tolist() == [planted.canaries[i].included for i in (12, 26)]
    assert scores.shape == (2,)


def test_a_small_set_of_secrets_is_ranked_exactly() -> None:
    law = SecretLaw(words=("apple", "moon"), length=3)
    planted = draw_canaries(CanarySettings(1), law)
    model = load_model(SPEC, seed=0)
    canary = canary_exposures(model, planted, seed=0, drawn=1000).canaries[0]
    nats = sentence_nats(model, [planted.canaries[0].text(law, secret) for secret in range(8)])
    rank = 1 + int((np.delete(nats, planted.canaries[0].secret) <= nats[planted.canaries[0].secret]).sum())
    assert (canary.rank, canary.exposure) == (rank, math.log2(8) - math.log2(rank))


def test_what_cannot_be_attacked_is_one_line() -> None:
    planted = draw_canaries(CanarySettings(2))
    short = load_model(SPEC.model_copy(update={"max_tokens": 6}), seed=0)
    with pytest.raises(ModelError, match=r"^an attacked text has more than 6 tokens; allowed: "):
        canary_exposures(short, planted, seed=0, drawn=5)


@pytest.mark.parametrize("canaries", [1, 4, 30])
def test_secrets_never_seen_stay_below_what_chance_allows(canaries: int) -> None:
    """Of uniform ranks among 1,001, a mean exposure above it has probability 2.5 % at most, and not much less."""
    ranks = np.random.default_rng(0).integers(1, 1002, size=(20_000, canaries))
    above = (np.log2(1001) - np.log2(ranks)).mean(axis=1) > most_by_chance(canaries)
    assert 0.018 < above.mean() < 0.028


def test_no_canary_s_secret_is_among_those_drawn_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the rank of one that was left out would depend on those that were included."""
    planted, left_out = draw_canaries(CanarySettings(number=4)), []
    draw = type(planted.law).draw

    def noted(law: Any, rng: Any, number: int, without: Any = ()) -> Any:
        left_out.append(set(without))
        return draw(law, rng, number, without=without)

    monkeypatch.setattr(type(planted.law), "draw", noted)
    monkeypatch.setattr(canary_exposure, "sentence_nats", lambda model, texts: np.arange(len(texts), dtype=float))
    canary_exposure.canary_exposures(None, planted, seed=0, drawn=20)  # type: ignore[arg-type]
    assert left_out
    assert all(secrets == {canary.secret for canary in planted.canaries} for secrets in left_out)


def test_ties_count_against_the_canary(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that finds all secrets alike has learnt none."""
    monkeypatch.setattr(canary_exposure, "sentence_nats", lambda model, texts: np.ones(len(texts)))
    found = canary_exposures(None, draw_canaries(CanarySettings(number=4)), seed=0, drawn=20)  # type: ignore[arg-type]
    assert {(canary.rank, canary.exposure) for canary in found.canaries} == {(21, 0.0)}


def test_included_canaries_are_those_of_the_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary_exposure, "sentence_nats", lambda model, texts: np.arange(len(texts), dtype=float))
    planted = draw_canaries(CanarySettings(number=28, seed=1))
    found = canary_exposures(None, planted, seed=0, drawn=20)  # type: ignore[arg-type]
    coins = [canary.included for canary in planted.canaries]
    assert set(coins) == {True, False}
    assert found.audit_arrays()[0].tolist() == coins
