"""Printed text is never better than the figure behind it: ε, δ and z are rounded up, rates and lower bounds down."""

from __future__ import annotations

import ast
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fl_sim
from fl_sim import formats
from fl_sim.cli.commands import audit_command, plan_command
from fl_sim.cli.console import _describe
from fl_sim.cli.main import main
from fl_sim.engines.server_app import describe_row
from fl_sim.search.sweep import EPSILONS, Row, Table
from fl_sim.strategies.accounting import accountant
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound
from tests.fl_sim.conftest import Capture, Printed

UP, DOWN = ("epsilon", "delta", "noise_", "user_cap"), ("q_",)
GIVEN = re.compile(r"target_epsilon|epsilon_budget|privacy\.epsilon|number\.epsilon|self\.epsilon")
"""Settings, which are shown as they were given."""


def numbers(seed: int, count: int = 300) -> list[float]:
    return (10 ** np.random.default_rng(seed).uniform(-6, 4, count)).tolist()


def figure(text: str) -> float:
    return math.inf if text == "∞" else float(text.replace(",", ""))


# --- the functions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [*numbers(0), 0.0, 1.0, 0.9995, 99.995, 123456.4, 5e-324, 1e300])
def test_every_figure_is_rounded_to_its_safe_side(value: float) -> None:
    for text in (
        formats.format_epsilon(value),
        formats.format_figure("epsilon_user", value),
        formats.format_figure("delta_user", value),
        formats.format_figure("noise_multiplier", value),
        formats.round_up(value, 3),
    ):
        assert float(text) >= value
    for text in (
        formats.format_lower_bound(value),
        formats.format_figure("epsilon_lower_model", value),
        formats.format_figure("q_u", value),
        formats.round_down(value, 3),
    ):
        assert float(text) <= value
    assert float(formats.round_up(value)) == pytest.approx(value, rel=1e-5, abs=1e-300)
    assert float(formats.format_at_risk(value, 1000)) >= value * 1000


def test_figures_that_are_no_numbers() -> None:
    assert formats.format_figure("epsilon_user", math.inf) == "∞"
    assert formats.format_figure("noise_multiplier", math.inf) == "inf"
    assert formats.format_figure("ledger", ["a", "b"]) == "a, b"
    assert (
        formats.format_figure("defects", {"epsilon_lower": 1.239, "claimed": 0.5}) == "epsilon_lower 1.23, claimed 0.5"
    )
    assert formats.format_at_risk(None, 10) == formats.format_at_risk(1e-5, None) == "?"
    assert formats.format_lower_bound(None) == "–"


# --- what commands print, beside their JSON --------------------------------------------------------------------------


def as_text(capsys: Capture, line: str) -> dict[str, str]:
    """The figures that a command prints as text."""
    assert main(line.split()) == 0
    return dict(row.split(maxsplit=1) for row in capsys.readouterr().out.splitlines() if ":" not in row)


@pytest.mark.system
@pytest.mark.parametrize("z", [1.2345678, 3.9999999, 7.7])
@pytest.mark.parametrize("strategy", ["uedp --q-e 0.5123456789 --q-s 0.1234567891 --user-cap 3.3333333", "user_level"])
def test_account(strategy: str, z: float, printed: Printed, capsys: Capture) -> None:
    line = (
        f"account mechanism --strategy {strategy} --z {z} --q-u 0.3333333 --rounds 7 --delta 1.2345678e-5 --users 12345"
    )
    text, exact = as_text(capsys, line), printed(*line.split())
    compared = [name for name in exact if name.startswith((*UP, *DOWN))]
    assert len(compared) > 12
    for name in compared:
        assert figure(text[name]) <= exact[name] if name.startswith(DOWN) else figure(text[name]) >= exact[name]
    assert exact["delta_times_users"] == 12345 * 1.2345678e-5


@pytest.mark.system
@pytest.mark.parametrize("unknown", ["noise_multiplier", "q_u", "q_s", "user_cap", "rounds"])
def test_a_printed_setting_meets_the_target(unknown: str, capsys: Capture) -> None:
    given = {"z": "25", "rounds": "20", "q-s": "0.2", "user-cap": "3"}
    given.pop({"noise_multiplier": "z", "q_s": "q-s", "user_cap": "user-cap"}.get(unknown, unknown), None)
    flags = " ".join(f"--{name} {value}" for name, value in given.items())
    text = as_text(capsys, f"account calibrate {flags} --delta 1e-5 --target-epsilon 1.7 --solve-for {unknown}")
    names = ("noise_multiplier", "q_u", "q_e", "q_s", "user_cap")
    event = RoundEvent("uedp", **{name: float(text[name]) for name in names})
    both = Adjacency(math.inf, ContributionBound(1, 1))
    assert accountant.epsilon(event, both, int(text["rounds"]), 1e-5) <= 1.7
    assert float(text["epsilon_user_entity"]) <= 1.7


def test_a_sweeps_table() -> None:
    values = np.reshape(numbers(1, 40), (-1, 5))
    names = ("noise_multiplier", *EPSILONS)
    figures = [dict(zip(names, row, strict=True)) for row in values.tolist()]
    rows = [Row(settings={}, values=[], failed={}, diverged={}, **row) for row in figures]
    lines = Table("loss", rows, {"note": ""}).text().splitlines()
    for line, row in zip(lines[len(rows) + 2 :], values, strict=False):
        _, z, *_, any_entity, user, both, robust = line.split()
        assert all(figure(cell) >= exact for cell, exact in zip((z, any_entity, user, both, robust), row, strict=True))


OF_OWNER = [f"epsilon_user_entity{robust}_{kind}" for kind in ("p95", "max") for robust in ("", "_robust")]


def test_a_plans_rows() -> None:
    for value in np.random.default_rng(2).uniform(0.01, 90, 100).tolist():
        rate = value / 100
        settings = dict.fromkeys(("signal_to_noise", "user_cap", "expected_sentences"), 1.0)
        settings |= {"q_u": rate, "q_s": rate, "q_e": 0.75, "rounds": 3, "noise_multiplier": value}
        settings |= dict.fromkeys(["epsilon_target", "epsilon_user"], value)
        report = {"proposal": settings, "alternatives": [], "fewer_rounds": []}
        _, _, q_u, q_s, q_e, _, z, _, _ = plan_command._settings_table(report)[1].split()
        _, *spent = plan_command._epsilon_table(report)[1].split()
        owner = {"owner": {"epsilons": [dict.fromkeys(OF_OWNER, value)]}}
        _, *epsilons = plan_command._owner_table(report | owner)[1].split()
        assert max(float(q_u), float(q_s)) <= rate
        assert float(q_e) == 0.75
        assert min(map(figure, (z, *spent, *epsilons))) >= value


@pytest.mark.parametrize(
    ("shown", "zero"),
    [
        (formats.format_epsilon, "0.000"),
        (formats.format_lower_bound, "0.000"),
        (formats.percent_down, "0.0"),
        (formats.percent_up, "0.0"),
        (lambda value: formats.nonzero(value, ".1f"), "0.0"),
        (lambda value: formats.nonzero(value, ".1%"), "0.0%"),
        (lambda value: formats.nonzero(value, ",.0f"), "0"),
    ],
)
def test_no_positive_figure_is_printed_as_zero(shown: Callable[[float], str], zero: str) -> None:
    assert shown(0.0) == zero
    for power in range(-12, 0):
        assert re.search("[1-9]", re.sub("e.*", "", shown(3.3 * 10**power))), (power, shown(10**power))


def test_a_plan_fits_80_columns() -> None:
    row: dict[str, float] = dict.fromkeys(("epsilon_target", "epsilon_user"), 123456.7)
    row |= {"signal_to_noise": 1234567.8, "user_cap": 2.5, "expected_sentences": 12345678.9, "rounds": 100_000}
    row |= {"q_u": 1.2345e-07, "q_s": 0.00012345, "q_e": 0.25, "noise_multiplier": 123.456}
    owner = {"epsilons": [dict.fromkeys(OF_OWNER, 123456.7)] * 3}
    report: dict[str, Any] = {"proposal": row, "alternatives": [row], "fewer_rounds": [row], "owner": owner}
    for table in (plan_command._settings_table, plan_command._epsilon_table, plan_command._owner_table):
        lines = table(report)
        assert max(map(len, lines)) <= 80
        assert len({len(line) for line in lines}) == 1
        assert not any("…" in line for line in lines)


def test_progress_lines_and_an_audit() -> None:
    for value in numbers(3, 50):
        row = {"round": 1, "epsilon_user": value, "epsilon_user_entity_p95": value}
        for line in (_describe(row), describe_row(row, 3)):
            printed = [figure(number) for number in re.findall(r"p95\) ([\d.]+), user ([\d.]+)", line)[0]]
            assert min(printed) >= value
        lines = audit_command._lines({"epsilon_lower": value, "epsilon_proven": value}).split()
        assert figure(lines[1]) <= value <= figure(lines[3])


# --- and whatever may be added ---------------------------------------------------------------------------------------


def formatted_epsilons(source: str) -> list[str]:
    """The expressions of f-strings that show an ε with a format that rounds to the nearest."""
    shown = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FormattedValue) and node.format_spec]
    values = [
        (ast.unparse(node.value), ast.unparse(node.format_spec).strip("f'\"")) for node in shown if node.format_spec
    ]
    return [value for value, spec in values if re.search("epsilon|ε", value) and re.search(r"[efgn%]$|\.\d", spec)]


@pytest.mark.system
def test_no_module_prints_an_epsilon_rounded_to_the_nearest() -> None:
    assert formatted_epsilons("f\"ε {row['epsilon_user']:.3g} and {format_epsilon(x):>8}\"") == ["row['epsilon_user']"]
    walk = os.walk(fl_sim.__path__[0], followlinks=True)
    modules = [Path(folder, name) for folder, _, names in walk for name in names if name.endswith(".py")]
    assert any(module.name == "calibration.py" for module in modules)  # behind a link
    found = {
        f"{module.name}: {value}"
        for module in modules
        for value in formatted_epsilons(module.read_text(encoding="utf-8"))
        if not GIVEN.search(value)
    }
    assert found == set()
