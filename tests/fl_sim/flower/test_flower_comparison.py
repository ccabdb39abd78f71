"""The records of ``results/flower`` are what the comparison gives today, and their page is made from them."""

from __future__ import annotations

import pytest

pytest.importorskip("sklearn", reason="the digits are those of scikit-learn")

from benchmarks import flower_privacy
from benchmarks.flower_comparison import digits_contenders, wrapper_audit
from benchmarks.flower_comparison.comparison_page import page

RECORDS = flower_privacy.records_in(flower_privacy.RESULTS)


def test_the_page_is_made_from_the_records() -> None:
    assert set(RECORDS) == set(flower_privacy.PARTS)
    assert (flower_privacy.RESULTS / "README.md").read_text(encoding="utf-8") == page(RECORDS), (
        "results/flower/README.md is out of date: python benchmarks/flower_privacy.py --parts"
    )


def test_the_proven_epsilons_are_those_of_the_accountant_today() -> None:
    contenders = digits_contenders.contenders()
    for row in RECORDS["digits"]["rows"]:
        proven = row["epsilon_proven"] if row["epsilon_proven"] is not None else float("inf")
        assert contenders[row["name"]].proven == pytest.approx(proven, rel=1e-6)
    stated = {row["name"]: row["epsilon_stated"] for row in RECORDS["digits"]["rows"]}
    assert stated["ours"] == pytest.approx(contenders["ours"].proven, rel=1e-4)
    assert dict(wrapper_audit._stated())[wrapper_audit.DELTA] == RECORDS["audit"]["rows"][1]["epsilon_stated"]


def test_a_fixed_cohort_can_cost_more_than_a_full_one_of_the_same_noise() -> None:
    """One round, nine of ten users: the user who is drawn takes another one's place, so noise counts half."""
    full = digits_contenders.epsilon(
        digits_contenders.RoundEvent("user_level", noise_multiplier=1.0), digits_contenders.ANY_USER, 1, 1e-5
    )
    assert digits_contenders.epsilon_of_fixed_cohorts(1.0, 0.9, 1, 1e-5) > 2 * full
    assert digits_contenders.epsilon_of_fixed_cohorts(2.0, 1.0, 1, 1e-5) == pytest.approx(full)


@pytest.mark.nightly
def test_the_attack_tells_a_heavy_user_from_flowers_average_alone() -> None:
    flowers, _, ours = flower_privacy._quietly(lambda: wrapper_audit.audited(150))
    assert flowers["refuted"]
    assert not ours["refuted"]
    noise = flowers["noise_std"]
    assert flowers["mean_present"] - flowers["mean_without"] > 10 * noise
    assert abs(ours["mean_present"] - ours["mean_without"]) < 2 * noise
