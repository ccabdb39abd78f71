"""Test adjacent real rounds without noise: within the bound, at the bound, and beyond it if the product is broken."""

from __future__ import annotations

import pytest

from fl_sim.auditing.real_rounds.round_sensitivity import SENSITIVITY_CASES, RoundDifference, measure_rounds
from tests.fl_sim.auditing.faults import fault

LEAST_RATIO = {"gpt2, beyond the cap": 0.5, "awd-lstm with dropout": 0.9, "user_level, local steps, dropout": 0.9}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", SENSITIVITY_CASES)
def test_the_difference_is_within_its_bound_and_close_to_it(name: str) -> None:
    differences = list(measure_rounds(name))
    assert all(difference.holds for difference in differences), differences
    assert max(difference.ratio for difference in differences) > LEAST_RATIO.get(name, 0.97)
    assert any(difference.entity_sentences and difference.user_sentences for difference in differences)


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("mutation", "name"),
    [
        ("ghost_norms_low", "gpt2"),
        ("ghost_norms_low", "lora"),
        ("ghost_norms_low", "awd-lstm with dropout"),
        ("ghost_norms_low", "user_level, gradients"),
        ("sentence_clip_off", "awd-lstm with dropout"),
        ("ghost_norms_low", "automatic clipping"),
        ("user_clip_off", "gpt2, beyond the cap"),
        ("votes_leak", "adaptive clip"),
        ("realised_denominator", "gpt2"),
        ("realised_denominator", "user_level, local steps"),
        ("first_entity_alone", "gpt2"),
        ("entities_ignored", "gpt2"),
    ],
)
def test_a_fault_in_the_product_exceeds_the_bound(mutation: str, name: str) -> None:
    with fault(mutation):
        assert not all(difference.holds for difference in measure_rounds(name, rounds=6))


@pytest.mark.parametrize("name", ["user_level, gradients", "user_level, local steps"])
def test_the_server_discards_updates_that_are_not_clipped(name: str) -> None:
    """A node whose sum is longer than its users allow counts as zero, so nothing of it is released."""
    with fault("user_clip_off"):
        assert all(difference.length == 0 for difference in measure_rounds(name, rounds=1))


def test_a_difference_without_a_bound_is_refuted() -> None:
    assert not RoundDifference("none", 0.1, 0.0, 0, 0).holds
    assert RoundDifference("none", 0.0, 0.0, 0, 0).record()["holds"] is True
