"""The next token comes with the probability that temperature, top-k and top-p give it."""

from __future__ import annotations

import numpy as np
import pytest

from fl_sim.clients.errors import ModelError
from fl_sim.clients.generation import Sampling, draw, probabilities

SCORES = np.log(np.array([0.5, 0.3, 0.15, 0.05]))


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(), [0.5, 0.3, 0.15, 0.05]),
        (Sampling(top_k=2), [0.625, 0.375, 0, 0]),
        (Sampling(top_p=0.6), [0.625, 0.375, 0, 0]),
        (Sampling(top_p=0.01), [1, 0, 0, 0]),
        (Sampling(top_k=9, top_p=0.9), [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0]),
        (Sampling(temperature=0.5), np.array([25, 9, 2.25, 0.25]) / 36.5),
    ],
    ids=str,
)
def test_probabilities(sampling: Sampling, expected: list[float]) -> None:
    np.testing.assert_allclose(probabilities(SCORES, sampling), expected, atol=1e-12)
    rng = np.random.default_rng(3)
    drawn = np.bincount([draw(SCORES, sampling, rng) for _ in range(4000)], minlength=4) / 4000
    np.testing.assert_allclose(drawn, expected, atol=0.03)
    assert not drawn[np.asarray(expected) == 0].any()


def test_equal_scores_keep_the_order_of_their_ids() -> None:
    assert probabilities(np.zeros(4), Sampling(top_k=2)).tolist() == [0.5, 0.5, 0, 0]


def test_every_draw_takes_one_number_of_the_stream() -> None:
    for sampling in (Sampling(), Sampling(temperature=0.0), Sampling(top_k=1)):
        rng = np.random.default_rng(0)
        draw(SCORES, sampling, rng)
        assert rng.random() == np.random.default_rng(0).random(2)[1]


def test_a_tiny_temperature_does_not_overflow() -> None:
    assert probabilities(1e30 * SCORES, Sampling(temperature=1e-300)).tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize("score", [np.nan, np.inf])
def test_scores_of_a_diverged_model_are_refused(score: float) -> None:
    with pytest.raises(ModelError, match="not finite"):
        draw(np.array([0.0, score]), Sampling(), np.random.default_rng(0))


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_tokens", 0), ("temperature", -1.0), ("temperature", float("inf")), ("temperature", float("nan")),
     ("top_k", -1), ("top_p", 0.0), ("top_p", 1.1), ("top_p", float("nan"))],
)  # fmt: skip
def test_settings_out_of_range(name: str, value: float) -> None:
    with pytest.raises(ModelError, match=f"{name} is .*; allowed: "):
        Sampling(**{name: value})  # type: ignore[arg-type]
