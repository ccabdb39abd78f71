"""A node computes at the model of the request, on what its weights leave, and with the round's seed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import RecordDict

from fl_sim.clients import client_app
from fl_sim.clients.selection import Selection


def test_the_sum_is_that_of_the_request(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = SimpleNamespace(vector=np.zeros(2), num_parameters=2)
    model.set_vector = lambda vector: setattr(model, "vector", vector)
    selection = Selection(np.array([0]), np.array([0, 1, 2]), np.array([3]))
    summed: list[tuple[Any, ...]] = []

    def bounded_sum(model: Any, examples: Any, selection: Selection, rule: Any, round_seed: int, done: Any) -> Any:
        summed.append((model.vector.tolist(), selection.sentences.tolist(), rule, round_seed))
        return SimpleNamespace(to_record=lambda request: RecordDict())

    monkeypatch.setattr(client_app, "bounded_sum", bounded_sum)
    monkeypatch.setattr(client_app, "select_for", lambda rule, ownership, users, round_seed: selection)
    monkeypatch.setattr(client_app, "Message", lambda content, reply_to: content)
    for number in (1, 2):
        request = SimpleNamespace(
            rule="rule", users=np.array([[0, 1]]), round_seed=number, server_round=number, vector=np.full(2, number)
        )
        workspace = SimpleNamespace(
            model=model, ownership=None, weights=np.array([1.0, 0.0, 1.0]), examples=None, progress=tmp_path
        )
        client_app.bounded_reply(None, SimpleNamespace(node_id=1), request, workspace)  # type: ignore[arg-type]
    assert summed == [([1, 1], [0, 2], "rule", 1), ([2, 2], [0, 2], "rule", 2)]
