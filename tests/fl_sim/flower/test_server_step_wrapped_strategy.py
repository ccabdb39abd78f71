"""A wrapped strategy goes on from its state, and changes nothing else of the process."""

from __future__ import annotations

import copy
import logging

import numpy as np
import pytest
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, Strategy

from fl_sim.flower.private_messages import ArrayLayout
from fl_sim.flower.server_step import WrappedStrategy
from fl_sim.strategies.primitives.limits import PrivacyError
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


def _moved(strategy: Strategy, by: float = 1.0) -> WrappedStrategy:
    """A step after one round."""
    step, layout = WrappedStrategy(strategy), ArrayLayout.of(model())
    with as_task():
        step.stepped(step.content(1, model(), ConfigRecord()), layout, np.full(6, by))
    return step


@pytest.mark.parametrize(
    ("strategy", "keeps"),
    [
        (FedAvg(), ""),
        (_Kept(), ""),
        (FedAvgM(server_momentum=0.9), r" \(it keeps current_arrays, momentum_vector\)"),
        (FedAdam(), r" \(it keeps current_arrays, m_t, v_t\)"),
    ],
)
def test_a_strategy_that_has_trained_is_known_by_what_it_keeps(strategy: Strategy, keeps: str) -> None:
    WrappedStrategy(strategy).check_new()
    before, step = WrappedStrategy(strategy).settings(), _moved(strategy)
    assert WrappedStrategy(strategy).settings() == before
    for trained in (strategy, copy.deepcopy(strategy)):
        with pytest.raises(
            PrivacyError, match=f"has trained before{keeps}, and ε would not count that; allowed: a new"
        ):
            WrappedStrategy(trained).check_new()
    step.check_new(step.state())  # a run that goes on replaces what is kept
    if keeps:
        with pytest.raises(PrivacyError, match="has trained before"):
            step.check_new({})
