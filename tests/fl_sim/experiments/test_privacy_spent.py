"""What a run has spent, from releases in its ledger: lost rounds, two sums of a round, and an attacker's rates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fl_sim.config import RunConfig
from fl_sim.experiments.plan.run_plan import Planned, plan_run
from fl_sim.experiments.privacy_spent import PrivacySpent
from fl_sim.storage.model_files import Lineage
from fl_sim.storage.open_run import NO_ANCHOR, OpenRun
from fl_sim.storage.run_claim import RunClaim
from fl_sim.strategies.accounting.attack_success import largest_true_positive_rate
from fl_sim.strategies.ledger import Ledger, epsilon_of, epsilon_of_any
from tests.fl_sim.ownerships import village

SETTINGS: dict[str, Any] = {
    "rounds": 4, "privacy.noise_multiplier": 3.0, "privacy.q_e": 0.5, "privacy.q_s": 0.2, "privacy.user_cap": 2.0,
    "privacy.entity_bound": 3, "privacy.user_sentences": 5,
}  # fmt: skip


def spent_by(folder: Path, **changes: Any) -> tuple[PrivacySpent, Ledger, Planned]:
    config = RunConfig.from_mapping(SETTINGS | changes)
    planned = plan_run(config, village())
    run = OpenRun.begin(RunClaim.claim(folder), {}, Lineage(), [], NO_ANCHOR, secure_noise=False)
    return PrivacySpent(run, config, planned), run.ledger, planned


def test_every_line_states_the_bounds_of_the_plan(tmp_path: Path) -> None:
    spent, ledger, planned = spent_by(tmp_path)
    spent.before_release(1, "first")
    (entry,) = ledger.entries
    assert entry.terms.guarantee == planned.bounds.guarantee
    assert entry.terms.guarantee.entity_bound == 3
    assert entry.terms.mechanism.event() == planned.plan.mechanism.event()


@pytest.mark.system
def test_a_round_with_two_sums_counts_from_its_release_on(tmp_path: Path) -> None:
    spent, ledger, planned = spent_by(tmp_path)
    for server_round, total in ((1, "first"), (2, "second"), (2, "another")):
        spent.before_release(server_round, total)
    assert spent.after(1) == {"releases": 1, **planned.guarantees.after(1)}
    found = spent.after(2)
    assert found["releases"] == 3
    unit = planned.bounds.units(planned.plan.mechanism)["epsilon_user"]["epsilon_user"]
    assert found["epsilon_user"] == pytest.approx(epsilon_of(ledger.entries, unit.adjacency, 1e-5), rel=1e-6)
    assert found["epsilon_any"] == pytest.approx(epsilon_of_any(ledger.entries, 1e-5), rel=1e-6)
    assert found["epsilon_any"] > planned.guarantees.after(2)["epsilon_any"]
    assert spent.total() == found


def test_rounds_that_were_lost_in_a_crash_are_paid_for_again(tmp_path: Path) -> None:
    """With secure noise a repeated round has other samples and another line."""
    spent, ledger, planned = spent_by(tmp_path, **{"privacy.secure_noise": True})
    for server_round in (1, 2, 3):
        spent.before_release(server_round)
    assert spent.go_on_after(1) == 4
    for server_round in (2, 3, 4):
        spent.before_release(server_round)
    assert spent.total()["releases"] == 6
    assert spent.total()["epsilon_any"] == pytest.approx(epsilon_of_any(ledger.entries, 1e-5), rel=2e-3)
    assert spent.total()["epsilon_any"] > planned.guarantees.after(4)["epsilon_any"]


def test_an_attacker_is_bounded_by_epsilon_at_every_delta_after_all_releases(tmp_path: Path) -> None:
    spent, ledger, _ = spent_by(tmp_path)
    for server_round in (1, 2, 3):
        spent.before_release(server_round, str(server_round))
    found = spent.attacker()["attacker"]
    assert found["unit"] == "any"
    for rate in (0.001, 0.01):
        expected = largest_true_positive_rate(lambda delta: epsilon_of_any(ledger.entries, delta), rate)
        assert found["largest_tpr_at_fpr"][f"{rate:g}"] == pytest.approx(expected, rel=2e-3)
