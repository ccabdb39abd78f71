"""The paper's printed ε, and what is proven for the mechanism it states."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest
from scipy import integrate, stats

from fl_sim.strategies.accounting.adjacency import PrivacyError
from fl_sim.strategies.accounting.paper_model import PublishedSettings, epsilon_as_published, log_moment

# Figures printed in the user-entity DP paper, section VI, with the settings they belong to.
ROWS = list(csv.DictReader((Path(__file__).parents[1] / "golden" / "published_epsilon.csv").open()))


def settings_of(row: dict[str, str]) -> PublishedSettings:
    return PublishedSettings(
        estimator=row["estimator"],
        users=int(row["users"]),
        users_per_round=float(row["users_per_round"]),
        noise_multiplier=float(row["z"]),
        q_e=float(row["q_e"] or 1),
        sentences=int(row["sentences"]),
        sensitive_sentences=int(row["sensitive_sentences"]),
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['dataset']}-{row['estimator']}-{row['entities']}")
def test_the_printed_figures_are_reproduced(row: dict[str, str]) -> None:
    computed = epsilon_as_published(settings_of(row), int(row["rounds"]), float(row["delta"]))
    assert computed == pytest.approx(float(row["published_epsilon"]), abs=0.01)


@pytest.mark.parametrize(("q", "z", "order"), [(0.05, 2.0, 3), (0.3, 1.0, 8), (1.0, 1.5, 5)])
def test_the_moment_agrees_with_integration(q: float, z: float, order: int) -> None:
    def integrand(x: float) -> float:
        base = stats.norm.pdf(x, 0, z)
        return base * ((1 - q) + q * math.exp((2 * x - 1) / (2 * z**2))) ** (order + 1)

    exact = math.log(integrate.quad(integrand, -20 * z, 40 * z, points=[0.0, float(order)], limit=400)[0])
    assert log_moment(q, z, order) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"estimator": "f_x"}, "estimator is"),
        ({"users": 0}, "users is 0"),
        ({"users_per_round": 11}, "users_per_round is 11"),
        ({"sensitive_sentences": 0}, "sensitive_sentences is 0"),
        ({"sensitive_sentences": 21}, "sensitive_sentences is 21"),
        ({"sentences": 0}, "sentences is 0"),
        ({"noise_multiplier": -1.0}, "noise_multiplier is -1"),
        ({"q_e": 0.0}, "q_e is 0"),
    ],
)
def test_impossible_settings_are_refused(change: dict, message: str) -> None:
    good = {"estimator": "f_e", "users": 10, "users_per_round": 2, "noise_multiplier": 1.0, "sentences": 20}
    with pytest.raises(PrivacyError, match=message):
        PublishedSettings(**(good | {"sensitive_sentences": 5} | change))
