"""``fl-sim account``: one JSON object, the figures of the accountant, one line for bad input."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fl_sim.cli.commands.run_command import run
from fl_sim.cli.main import main
from fl_sim.config import RunConfig, parse_assignments, parse_value
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.experiments.plan.run_plan import plan_run
from fl_sim.strategies.accounting.accountant import RoundEvent, epsilon
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound
from fl_sim.strategies.accounting.losses import composition
from tests.fl_sim.conftest import Capture, Printed, Refusal

UEDP = "account mechanism --q-u 1 --q-e 0.5 --q-s 0.05 --rounds 50 --delta 1e-5 --user-cap 15"
CALIBRATE = UEDP.replace("mechanism", "calibrate")
PUBLISHED = (
    "account published --estimator f_e_plus --users 946 --users-per-round 50 --q-e 0.5 "
    "--sentences 14040 --sensitive-sentences 11176 --z 2 --rounds 50 --delta 1e-5"
)


def test_uedp(printed: Printed) -> None:
    reach = ["--user-sentences", 15, "--entity-users", 15, "--entity-sentences", 1]
    report = printed(*UEDP.split(), "--z", 1, *reach)
    event = RoundEvent("uedp", 1.0, q_e=0.5, q_s=0.05, user_cap=15)
    both = Adjacency(15, ContributionBound(15, 1))
    assert report["epsilon_user"] == epsilon(event, Adjacency(15), 50, 1e-5)
    assert report["epsilon_user_entity"] == epsilon(event, both, 50, 1e-5)
    assert report["epsilon_user_entity_robust"] == epsilon(event.robust(), both, 50, 1e-5)
    assert report["delta_user_entity"] == pytest.approx(1e-5, rel=1e-2)


@pytest.mark.system
@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ("--known counts --entity-bound 7 --user-sentences 20", "epsilon_any"),
        ("--known graph --entity-bound 7 --user-sentences 20 --q-u 0.5 --clipping automatic", "epsilon_any"),
        ("--known nothing --entity-bound 7 --set privacy.population=60", "epsilon_stated"),
        (  # on the coarser grid of a long curve ε is smaller here
            "--known nothing --entity-bound 10 --set privacy.population=60 --z 20 --q-u 0.001 --q-s 0.1 --user-cap 1 "
            "--delta 1e-20",
            "epsilon_stated",
        ),
    ],
)
def test_the_flags_of_a_run_give_its_epsilon(printed: Printed, flags: str, name: str) -> None:
    words = f"--strategy uedp --z 4 --q-e 0.5 --q-s 0.05 --user-cap 2 --clip-norm 0.5 --rounds 20 {flags}".split()
    overrides = run.make_context("run", list(words)).params
    keys = {key.replace("__", "."): text for key, text in overrides.items() if "privacy" in key or key == "rounds"}
    values = {key: parse_value(key, text) for key, text in keys.items() if text is not None}
    values |= parse_assignments(overrides["assignments"])
    corpus = Ownership(np.arange(0, 61), np.arange(61), np.arange(60, dtype=np.int32) % 9, num_entities=9)
    of_run = plan_run(RunConfig.from_mapping(values), corpus).guarantees.after(20)
    pasted = " ".join(words).replace("--set privacy.population=", "--users ")
    report = printed("account", "mechanism", *pasted.split())
    assert (report[name], report["epsilon_user"]) == (of_run[name], of_run["epsilon_user"])


def test_no_delta_is_above_the_one_at_which_epsilon_is_proven(printed: Printed) -> None:
    line = "account mechanism --strategy user_level --q-u 0.5 --z 10 --rounds 10 --delta 1e-20"
    assert printed(*line.split())["delta_user"] <= 1e-20


@pytest.mark.system
def test_uedp_defaults_are_the_careful_ones(printed: Printed) -> None:
    line = "account mechanism --q-u 0.05 --q-e 0.5 --z 1 --rounds 5 --delta 1e-5"
    report = printed(*line.split())
    defaults = {"q_s": 1.0, "user_sentences": "inf", "reach_users": 1, "reach_sentences": 1, "user_cap": 1.0}
    assert {name: report[name] for name in defaults} == defaults


@pytest.mark.system
def test_published_never_stands_alone(printed: Printed, capsys: Capture) -> None:
    report = printed(*PUBLISHED.split())
    assert report["epsilon_as_published"] == pytest.approx(0.52, abs=0.01)
    assert report["reach_users"] == 946
    assert report["epsilon_user_entity"] > 50
    assert report["epsilon_user"] < report["epsilon_user_entity"]
    assert main([*PUBLISHED.split(), "--delta", "0.01"]) == 0
    shown = capsys.readouterr()
    assert "not a guarantee" in shown.out
    assert "warning: delta 0.01 is not below 1/users" in shown.err


@pytest.mark.system
@pytest.mark.parametrize("unit", ["user", "user_entity", "user_entity_robust", "both"])
def test_a_target_on_any_unit(printed: Printed, unit: str) -> None:
    asked = f"{CALIBRATE} --target-epsilon 2 --unit {unit} --user-sentences 15 --entity-users 15"
    report = printed(*asked.split())
    name = "epsilon_user_entity" if unit == "both" else f"epsilon_{unit}"
    assert 1.99 <= report[name] <= 2.0


def test_what_cannot_be_proven_is_inf(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(composition, "_TAIL_SHARE", 1e8)  # truncations use up more than δ
    line = "account mechanism --strategy user_level --q-u 0.5 --z 1 --rounds 50 --delta 1.25e-14 --json"
    assert main(line.split()) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["epsilon_user"] == "inf"
    assert "no finite ε can be proven" in output.err


def test_a_large_delta_is_warned_of(capsys: Capture) -> None:
    line = "account mechanism --strategy user_level --z 2 --rounds 1 --delta 0.5"
    assert main(line.split()) == 0
    assert "warning: delta 0.5 is large: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (UEDP + " --z 1e-243", "noise_multiplier is 1e-243; allowed: at least 0.001"),
        (UEDP + " --z 1 --user-sentences 1.5", "user_sentences is 1.5"),
        (UEDP + " --z 1 --entity-users -1", "reach users is -1"),
        (UEDP + " --z 1 --known counts --clipping user --entity-bound 3", "entity_bound is 3 without a clip on every"),
        (UEDP + " --z 1 --known counts --entity-bound 0", "entity_bound is 0"),
        (UEDP.replace("1e-5", "2") + " --z 1", "delta is 2"),
        (UEDP.replace("--rounds 50", "--rounds 0") + " --z 1", "rounds is 0"),
        (CALIBRATE + " --target-epsilon 1 --z 1", "noise_multiplier is 1, but it is solved for"),
        (CALIBRATE + " --target-epsilon 1 --epoch-rounds 4", "allowed: with 'user_level'"),
        (CALIBRATE.replace("--rounds 50 ", "") + " --z 1 --target-epsilon 1e-4 --solve-for rounds", "out of reach"),
        (PUBLISHED.replace("--users 946", "--users 10"), "users_per_round is 50"),
        (PUBLISHED.replace("1e-5", "0"), "delta is 0.0; allowed: in [1e-100, 1)"),
        (PUBLISHED.replace("--z 2", "--z 1e-300"), "noise_multiplier is 1e-300; allowed: at least 0.001"),
        ("account mechanism --strategy user_level --q-u 0.5 --q-e 0.5 --z 1 --rounds 1", "user_level with q_e 0.5"),
        ("account mechanism --strategy user_level --user-cap 2 --z 1 --rounds 1", "user_cap is 2 with user_level"),
        (PUBLISHED.replace("--sentences 14040 ", ""), "--sentences is missing; allowed: a value with --estimator f_e"),
        (PUBLISHED.replace("f_e_plus", "user_level"), "--q-e is given; allowed: nothing with --estimator user_level"),
    ],
)
def test_bad_input_is_one_line(refusal: Refusal, line: str, said: str) -> None:
    assert said in refusal(*line.split())
