"""The picture of utility by user draws what the result says, also without intervals or kinds of tokens."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fl_sim.reporting.held_out import HeldOutFigures, PersonalFigures
from fl_sim.reporting.plots import held_out_figure
from fl_sim.reporting.recorded import parsed
from fl_sim.reporting.run_facts import read_facts
from fl_sim.storage.run_folder import RunFolder

T = TypeVar("T")


def figure(value: float, spread: float = 0.1) -> dict[str, float]:
    return {"value": value, "low": value - spread, "high": value + spread}


def held_out(**changes: Any) -> dict[str, Any]:
    return {
        "users": 9, "sentences": 1234, "cut": 0, "interval": "", "resamples": 10,
        "figures": {"bits_per_byte": figure(2.0), "perplexity_per_word": figure(4000, 100),
                    "perplexity_per_token": figure(300, 9)},
        "metric": "bits_per_byte", "deciles": [1.6 + 0.1 * n for n in range(9)],
        "by_sentences": [
            {"lowest": 1, "highest": 1, "users": 1, "figure": figure(2.5, math.nan)},
            {"lowest": 64, "highest": None, "users": 8, "figure": figure(1.9)},
        ],
        "by_mention": {"entity_tokens": {"share": 0.25, "figures": {"bits_per_byte": figure(3.0)}},
                       "other_tokens": {"share": 0.75, "figures": {"bits_per_byte": figure(1.5)}}},
    } | changes  # fmt: skip


def personal() -> dict[str, Any]:
    names = ("start", "run", "alone", "continued")
    return {
        "metric": "bits_per_byte", "users": 2, "steps": 20, "learning_rate": {"alone": 3e-4, "continued": 3e-4},
        "trained": {"alone": "all parameters", "continued": "all parameters"},
        "figures": {name: figure(2 + place / 10) for place, name in enumerate(names)},
        "differences": {"alone": figure(0.1), "continued": figure(-0.1)}, "better": {"alone": 0.0, "continued": 0.5},
        "by_user": {name: [2.0, 2.2] for name in names},
    }  # fmt: skip


def read(kind: type[T], values: dict[str, Any]) -> T:
    return parsed(kind, values, Path("result.json"))


def test_the_picture_draws_deciles_classes_and_parts(make_run: Callable[..., RunFolder]) -> None:
    run = make_run("uedp", rounds=1, result={"held_out": held_out(), "model_files": {"a": "b"}})
    deciles, sizes, parts = held_out_figure(read_facts(run)).axes
    np.testing.assert_allclose(deciles.lines[1].get_ydata(), held_out()["deciles"])
    assert [label.get_text() for label in sizes.get_xticklabels()] == ["1", "64 or more"]
    assert [label.get_text() for label in parts.get_xticklabels()] == ["entity\ntokens", "other\ntokens"]
    assert deciles.get_ylabel() == "held-out bits per byte"
    run.write_personal(personal() | {"model_files": {"a": "b"}})
    assert len(held_out_figure(read_facts(run)).axes) == 4


def test_unknown_places_of_tokens_leave_a_panel_empty(make_run: Callable[..., RunFolder]) -> None:
    facts = held_out(by_mention={})
    run = make_run("uedp", rounds=1, result={"held_out": facts})
    assert held_out_figure(read_facts(run)).axes[2].get_xlabel() == "no places of tokens"
    assert not any("tokens (" in line for line in read(HeldOutFigures, facts).lines())


def test_the_words() -> None:
    first, figures, deciles, sizes, parts = read(HeldOutFigures, held_out()).lines()
    assert first.startswith("1,234 held-out sentences of 9 users; in brackets 95 % intervals")
    assert "bits per byte 2.00 (1.90 to 2.10); perplexity per word 4,000.0 (3,900.0 to 4,100.0)" in figures
    assert "perplexity per token 300.0 (291.0 to 309.0), explained by the tokenizer" in figures
    assert deciles.endswith("1.60 1.70 1.80 1.90 2.00 2.10 2.20 2.30 2.40")
    assert sizes.endswith("1: 2.50, 64 or more: 1.90 (1.80 to 2.00)")
    assert "entity tokens 3.00 (2.90 to 3.10) (25 % of all), other tokens 1.50 (1.40 to 1.60) (75 % of all)" in parts
    lines = read(PersonalFigures, personal()).lines()
    assert "this run 2.10 (2.00 to 2.20)" in lines[0]
    assert "-0.10 (-0.20 to 0.00) from this run; better than this run for 50 % of these users" in lines[2]
    assert lines[-1].endswith("no ε covers them")
