"""``fl-sim audit``: one JSON object, a plain exit code, and clear refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fl_sim.auditing import cases, ledger_audit
from fl_sim.auditing.cases import Case, Finding
from fl_sim.auditing.ledger_audit import Check, LedgerAudit
from fl_sim.auditing.real_rounds import round_sensitivity
from fl_sim.cli.main import main
from fl_sim.strategies.accounting import accountant
from tests.fl_sim.auditing.faults import fault
from tests.fl_sim.conftest import Capture, Printed, Refusal

QUICK = ["--trials", "2000"]
LONE_USER = ["audit", "mechanism", "--z", "1", "--entity-users", "0", *QUICK]
PUBLISHED = [
    *("--estimator", "f_e_plus", "--users", "100", "--users-per-round", "10", "--sentences", "1400"),
    *("--sensitive-sentences", "1100", "--q-e", "0.5", "--z", "2", *QUICK),
]


def test_json_is_one_object_and_the_promise_holds(printed: Printed) -> None:
    report = printed(*LONE_USER)
    (found,) = report["audits"]
    assert report["strategy"] == "uedp"
    assert found["case"] == "user"
    assert 0 < found["epsilon_lower"] < found["epsilon_lower_gaussian"] < found["epsilon_proven"]
    assert found["confidence"] == 0.95
    assert found["holds"] is True


@pytest.mark.parametrize("seed", ["-1", "99999999999999999999999999"])
@pytest.mark.parametrize(
    "words",
    [
        *(["mechanism", "--z", "1"], ["published", *PUBLISHED], ["table"]),
        *(["one-run"], ["rounds"], ["sensitivity"], ["ledger", "no/such/run"]),
    ],
    ids=lambda words: words[0],
)
def test_seeds_are_those_that_runs_can_have(words: list[str], seed: str, refusal: Refusal) -> None:
    said = refusal("audit", *words, "--seed", seed)
    assert f": seed is {seed}; allowed: an integer in [0, {2**63 - 1}]\n" in said


def test_a_fault_is_refuted_with_exit_code_1(printed: Printed) -> None:
    with fault("noise_halved"):
        assert printed(*LONE_USER, code=1)["audits"][0]["holds"] is False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["audit", "mechanism", "--z", "1", "--epoch-rounds", "5"], "No such option '--epoch-rounds'"),
        (["audit", "rounds", "--canaries", "1"], "canaries is 1; allowed: an integer of 2 to 4096"),
        (["audit", "rounds", "--canaries", "8", "--case", "gpt"], "case is 'gpt'; allowed: uedp"),
        (["audit", "ledger", "no/such/run"], "no/such/run: there is no such folder"),
        (["audit", "published", "--as-coded", *PUBLISHED], "entities is missing"),
        (["audit", "published", "--unit", "none", *PUBLISHED], "--unit is 'none'; allowed: user, entity, user_entity"),
        ([*LONE_USER, "--confidence", "1"], "confidence is 1.0; allowed: between 0 and 1"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(arguments: list[str], message: str, capsys: Capture) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    last = captured.err.strip().splitlines()[-1]  # after the name of the case
    assert last.startswith("fl-sim audit")
    assert message in last


@pytest.fixture
def quick_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table's layout does not depend on its ε, which take seconds at full reach."""
    monkeypatch.setattr(accountant, "epsilon", lambda *args: 1e9)


@pytest.mark.usefixtures("quick_claims")
def test_the_table_has_every_mechanism_at_every_reach() -> None:
    units: dict[str, list[str]] = {}
    for case in cases.cases():
        mechanism, _, unit = case.name.rpartition(": ")
        units.setdefault(mechanism, []).append(unit)
    every = ["user", "user, entity of 1 users", "user, entity of 15 users", "entity of all users"]
    assert list(units.values()) == [every] * 6


@pytest.mark.nightly
@pytest.mark.usefixtures("quick_claims")
def test_the_table_is_printed_as_json_and_text(
    monkeypatch: pytest.MonkeyPatch, printed: Printed, capsys: Capture
) -> None:
    some = [case for case in cases.cases() if case.name.startswith("published f_E+, as stated")]
    monkeypatch.setattr(cases, "cases", lambda: iter(some))
    examine, found = cases.examine, dict[str, Finding]()

    def examined_once(case: Case, **settings: Any) -> Finding:
        if case.name not in found:
            found[case.name] = examine(case, **settings)
        return found[case.name]

    monkeypatch.setattr(cases, "examine", examined_once)
    assert [found["case"] for found in printed("audit", "table", *QUICK)["audits"]] == [case.name for case in some]
    assert main(["audit", "table", *QUICK]) == 0
    text = capsys.readouterr().out.splitlines()
    assert max(map(len, text)) <= 80
    assert "(claim refuted)" in "".join(text)


@pytest.mark.system
def test_random_canaries_in_a_real_training(capsys: Capture) -> None:
    command = ["audit", "rounds", "--canaries", "64", "--case", "nothing-sampled", "--rounds", "3", "--z", "0.5"]
    assert main([*command, "--json"]) == 0
    captured = capsys.readouterr()
    (found,) = json.loads(captured.out)["audits"]
    assert found["canaries"] == 64
    assert found["noise_multiplier"] == 0.5
    assert found["holds"] is True
    assert "nothing-sampled, round 3 of 3" in captured.err
    with fault("noise_off"):
        assert main(command) == 1
    assert "noise" in capsys.readouterr().out.splitlines()[1]


@pytest.mark.system
def test_sensitivity_in_text_and_json(monkeypatch: pytest.MonkeyPatch, printed: Printed, capsys: Capture) -> None:
    chosen = {"gpt2": round_sensitivity.SENSITIVITY_CASES["gpt2"]}
    monkeypatch.setattr(round_sensitivity, "SENSITIVITY_CASES", chosen)
    found = printed("audit", "sensitivity")["rounds"]
    assert [difference["case"] for difference in found] == ["gpt2"] * 4  # the last without e'
    with fault("ghost_norms_low"):
        assert main(["audit", "sensitivity"]) == 1
    assert "REFUTED" in capsys.readouterr().out


def test_a_ledger_in_text_and_json(monkeypatch: pytest.MonkeyPatch, printed: Printed, capsys: Capture) -> None:
    checks = (Check("chain", True, "30 entries"), Check("noise", False, "0.95 of σ"))
    monkeypatch.setattr(ledger_audit, "audit_ledger", lambda folder, seed: LedgerAudit(folder, checks))
    found = printed("audit", "ledger", "a", "b", code=1)["ledgers"]
    assert [(audit["folder"], audit["refuted"]) for audit in found] == [("a", ["noise"]), ("b", ["noise"])]
    assert main(["audit", "ledger", "a"]) == 1
    assert "REFUTED  0.95 of σ" in capsys.readouterr().out
