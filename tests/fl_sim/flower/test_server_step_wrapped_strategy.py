"""A wrapped strategy goes on from its state, and changes nothing else of the process."""

from __future__ import annotations

import copy
import logging

import numpy as np
import pytest
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, Strategy

from fl_sim.engines import grids
from fl_sim.flower.private_messages import ArrayLayout
from fl_sim.flower.server_step import WrappedStrategy
from fl_sim.strategies.primitives.limits import PrivacyError
from tests.fl_sim.flower.apps import NodesHere, as_task, model, nodes_of


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
    for restored in (step.state(), {}):  # a run that goes on replaces what its checkpoint has, and nothing else
        with pytest.raises(PrivacyError, match="has trained before"):
            step.check_new(restored)


def test_numbers_that_a_strategy_changes_are_restored_exactly() -> None:
    before, after = _Kept(), _Kept()
    for strategy in (before, after):
        strategy.rate, strategy.steps, strategy.warm = 0.1, 0, False  # type: ignore[attr-defined]
    step, new = WrappedStrategy(before), WrappedStrategy(after)
    assert step.state() == {}
    before.rate, before.steps, before.warm, before.best = 0.1 / 3, 2**60 + 1, True, -7  # type: ignore[attr-defined]
    new.restore(step.state())
    for name in ("rate", "steps", "warm", "best"):
        assert getattr(after, name) == getattr(before, name)
        assert type(getattr(after, name)) is type(getattr(before, name))
    new.check_new()  # a number alone is no training


def test_a_strategy_waits_for_the_nodes_that_it_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grids, "_NODES_SECONDS", 0.01)
    here = NodesHere(nodes_of(3))
    assert len(list(WrappedStrategy(FedAvg(min_available_nodes=3)).attended(here).get_node_ids())) == 3
    with pytest.raises(grids.GridError, match="min_available_nodes is 4: only 3 of 4 nodes are there after"):
        WrappedStrategy(FedAvg(min_available_nodes=4)).attended(here)
    WrappedStrategy(FedAvg()).attended(NodesHere(nodes_of(1)))  # by default one node will do, which may hold all users
