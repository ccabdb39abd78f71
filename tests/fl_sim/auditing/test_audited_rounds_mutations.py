"""Test that an audit refutes every mechanism broken on purpose, and passes the intact one."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from fl_sim.auditing.cases import Finding, examine, own_case
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound
from fl_sim.strategies.primitives import sampling
from tests.fl_sim.auditing.faults import _clips_off, fault

# Where each fault shows: the event (a sentence's clip is 1), whom it protects, how many other entities stand beside e'.
SHOWS: dict[str, tuple[RoundEvent, Adjacency, int]] = {
    "noise_halved": (RoundEvent("uedp", 1.0), Adjacency(1), 0),
    "sentence_clip_off": (RoundEvent("uedp", 1.0, user_cap=10), Adjacency(0, ContributionBound(1, 1)), 0),
    "user_clip_off": (RoundEvent("uedp", 1.0, user_cap=2), Adjacency(20), 0),
    "clips_off": (RoundEvent("user_level", 1.0), Adjacency(1), 0),
    "entities_sampled_per_user": (
        RoundEvent("uedp", 0.1, q_e=0.1, user_cap=5), Adjacency(0, ContributionBound(20, 1)), 0,
    ),
    "any_entity_active": (RoundEvent("uedp", 0.5, q_e=0.1, user_cap=2), Adjacency(0, ContributionBound(2, 1)), 10),
    "users_always_sampled": (RoundEvent("uedp", 0.5, q_u=0.1), Adjacency(1), 0),
}  # fmt: skip


def broken(name: str) -> AbstractContextManager[Any]:
    """Break the mechanism; its clips where the audit's gradients are clipped."""
    if name == "users_always_sampled":
        return patch.object(sampling, "sample_users", lambda seed, number, users, q_u: np.arange(users))
    radii = {"sentence_clip_off": (1.0,), "user_clip_off": (2.0,), "clips_off": ()}
    return _clips_off(*radii[name]) if name in radii else fault(name)


def examined(name: str, block: AbstractContextManager[Any]) -> Finding:
    event, adjacency, companions = SHOWS[name]
    case = own_case(name, event, adjacency, 1, 1e-5)
    target = replace(case.target, scenario=replace(case.target.scenario, companions=companions))
    with block:
        return examine(replace(case, target=target), trials=4_000, seed=0, confidence=0.95)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", SHOWS)
def test_the_whole_mechanism_passes_and_the_broken_one_is_caught(name: str) -> None:
    assert examined(name, nullcontext()).holds
    found = examined(name, broken(name))
    assert not found.holds, found.record()
