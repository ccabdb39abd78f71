"""The law of users: the fit finds a law again, the one in the code is that of the record, and ``plan`` uses it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from fl_sim.config import ConfigError
from fl_sim.search.planner import IRC_LAW, START, UsersLaw, error_on, fitted, law_of

RECORD = Path(__file__).resolve().parents[3] / "results" / "users_law" / "irc.json"
LAW = UsersLaw(largest_gain=1.2, half=900.0, error=0.01, lowest=50.0, highest=5000.0, rounds=20)


def points(law: UsersLaw, noise: float, seed: int = 0) -> list[tuple[float, float]]:
    draws = np.random.default_rng(seed)
    return [(float(r), law.gain(float(r)) + noise * draws.standard_normal()) for r in np.geomspace(50, 5000, 12)]


def test_the_fit_finds_the_law_again() -> None:
    assert fitted(*zip(*points(LAW, 0.0), strict=True)) == pytest.approx((1.2, 900.0), rel=1e-4)
    found = law_of(points(LAW, 0.01), points(LAW, 0.01, seed=1), 20)
    assert (found.largest_gain, found.half) == pytest.approx((1.2, 900.0), rel=0.05)
    assert 0.005 < found.error < 0.02
    assert (found.lowest, found.highest) == (50.0, 5000.0)


def test_the_law_is_that_of_the_record_and_holds_on_points_held_out_of_it() -> None:
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    rows = [
        [(row["signal_to_noise"], math.log(row["initial_perplexity"] / row["perplexity"])) for row in record[part]]
        for part in ("fitted", "held_out")
    ]
    law = law_of(rows[0], rows[1], record["law"]["rounds"])
    for name, value in record["law"].items():
        assert getattr(law, name) == pytest.approx(value, rel=1e-4)
        assert getattr(IRC_LAW, name) == pytest.approx(value, rel=1e-3)
    assert pytest.approx(record["fitted"][0]["initial_perplexity"], abs=0.1) == START
    mean = sum(gain for _, gain in rows[0]) / len(rows[0])
    by_mean = math.sqrt(sum((gain - mean) ** 2 for _, gain in rows[1]) / len(rows[1]))
    assert error_on(law, rows[1]) < by_mean / 5  # a law that says nothing would fail here


def test_users_and_perplexity_are_inverse() -> None:
    for ratio in (10.0, 900.0, 40_000.0):
        assert LAW.ratio_for(LAW.perplexity(ratio, 400.0), 400.0) == pytest.approx(ratio)
    assert math.isinf(LAW.ratio_for(400.0 * math.exp(-1.21), 400.0))
    assert LAW.perplexity(1e12, 400.0) == pytest.approx(400.0 * math.exp(-1.2))
    assert LAW.covers(60.0, 20)
    assert not LAW.covers(5001.0, 20)
    assert not LAW.covers(60.0, 12)


@pytest.mark.parametrize("perplexity", [0.0, -1.0, 400.0, 500.0, math.nan])
def test_a_perplexity_that_no_training_is_about_is_refused(perplexity: float) -> None:
    with pytest.raises(ConfigError, match=r"perplexity is .*; allowed: above 0 and below the 400 of the start"):
        LAW.ratio_for(perplexity, 400.0)
