"""A wrapped strategy goes on from its state, and changes nothing else of the process."""

from __future__ import annotations

import logging

import numpy as np
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedAvg

from fl_sim.flower.private_messages import ArrayLayout
from fl_sim.flower.server_step import WrappedStrategy
from tests.fl_sim.flower.apps import as_task, model


class _Kept(FedAvg):
    aggregates_one_reply = True


def test_a_state_of_many_arrays_is_restored_in_their_order() -> None:
    before, after = _Kept(), _Kept()
    before.moments = [np.full(2, float(k)) for k in range(12)]  # type: ignore[attr-defined]
    before.means = {f"layer {k}": np.full(1, float(-k)) for k in range(11, -1, -1)}  # type: ignore[attr-defined]
    state = WrappedStrategy(before).state()
    WrappedStrategy(after).restore(dict(sorted(state.items())))  # as a file has them
    assert [array[0] for array in after.moments] == list(range(12))  # type: ignore[attr-defined]
    assert list(after.means) == list(before.means)  # type: ignore[attr-defined]


def test_the_step_adds_the_average_and_leaves_the_log_as_it_was() -> None:
    log, level = logging.getLogger("flwr"), logging.getLogger("flwr").level
    log.setLevel(logging.DEBUG)
    try:
        step, layout = WrappedStrategy(FedAvg()), ArrayLayout.of(model())
        with as_task():
            content = step.content(1, model(), ConfigRecord())
            stepped = step.stepped(content, layout, np.arange(6.0))
        assert log.level == logging.DEBUG
    finally:
        log.setLevel(level)
    assert layout.vector(stepped).tolist() == list(np.arange(6.0))
