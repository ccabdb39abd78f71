"""Nodes that lie in a live Flower run: the model moves by what the clip allows, and every lie is counted by kind."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.engines import engine, simulation
from fl_sim.engines.grids import AttendedGrid, InlineGrid
from fl_sim.reporting.report import report_text
from fl_sim.reporting.run_facts import read_facts
from fl_sim.storage.run_folder import RunFolder
from fl_sim.strategies.aggregation import BoundedSumStrategy, partition_users
from fl_sim.strategies.messages import REJECTIONS
from tests.e2e import lying_nodes
from tests.e2e.lying_nodes import LIAR, LIES, LIES_TO_TELL
from tests.e2e.small_runs import QUICK_TO_LOAD, SAME_MODEL, USERS, apart, configuration, model_of

NODES = 3
ROUNDS = range(1, len(LIES) + 2)  # an honest one, then a lie each
LEARNING_RATE, CAP, CLIP = 0.5, 2.0, 1.0
SLACK = 1 + 1e-3  # what the server allows a float32 norm beyond the bound
SETTINGS: dict[str, Any] = {
    "rounds": 2,
    "engine__nodes": NODES,
    "privacy__q_u": 1.0,
    "privacy__q_s": 0.8,
    "privacy__clip_norm": CLIP,
    "privacy__user_cap": CAP,
    "server__optimizer": "sgd",
    "server__learning_rate": LEARNING_RATE,
    "evaluation__every": 100,
    "evaluation__max_sentences": 2,
    **QUICK_TO_LOAD,
}
Lie = Callable[..., RunFolder]


@pytest.fixture(scope="module")
def allowed(corpus: Path) -> float:
    """Return the bound of the liar's users: the most that its reply may add to a sum."""
    first, stop = partition_users(Corpus.open(corpus).ownership("train").sentences_per_user, NODES)[LIAR]
    assert first <= lying_nodes.USER_OF_THE_LIAR < stop
    return (stop - first) * CAP * CLIP


@pytest.fixture
def lie(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lie:
    """Return a function that runs three nodes, of which one tells these lies, one a round from the second on."""

    def run(*names: str, grid: type[InlineGrid] = InlineGrid, **changes: Any) -> RunFolder:
        lying_nodes._earlier.clear()
        lying_nodes.honest_sums.clear()
        monkeypatch.setattr("fl_sim.reporting.plots.write_run_plots", lambda run: None)
        monkeypatch.setattr(engine, "client_app", lying_nodes.app)
        monkeypatch.setattr(engine, "InlineGrid", grid)
        monkeypatch.setenv(LIES_TO_TELL, ";".join(names))
        out = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        return simulation.run(configuration(corpus, out, **(SETTINGS | {"rounds": 1 + max(len(names), 1)} | changes)))

    return run


@pytest.fixture
def sums(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Return the sums of accepted replies of all rounds, float64 (d,) each."""
    seen: list[np.ndarray] = []
    before = BoundedSumStrategy._sum

    def spied(self: BoundedSumStrategy, replies: Any) -> Any:
        total, votes = before(self, replies)
        seen.append(total.copy())  # noise is added in place
        return total, votes

    monkeypatch.setattr(BoundedSumStrategy, "_sum", spied)
    return seen


def moved_apart(one: RunFolder, other: RunFolder) -> float:
    """Return the distance of two runs' models, as a norm of the sum of client updates: a step is η·sum / (q_u·N)."""
    distance = float(np.linalg.norm(model_of(one).astype(np.float64) - model_of(other)))
    return distance / LEARNING_RATE * USERS


@pytest.mark.system
def test_every_lie_moves_its_round_within_the_clip_and_is_counted_by_its_kind(
    lie: Lie, allowed: float, sums: list[np.ndarray], caplog: pytest.LogCaptureFixture
) -> None:
    names = [name for name in LIES if name != "silence"]
    with caplog.at_level(logging.WARNING):
        run = lie(*names)
    rows = run.metrics()
    for number, name in enumerate(names, start=2):
        moved = float(np.linalg.norm(sums[number - 1] - lying_nodes.honest_sums[number]))
        assert 0 < moved <= allowed * SLACK, name  # the liar's honest reply is missing, and nothing else
        row, kind = rows.iloc[number], LIES[name][0]
        assert (row["failed_nodes"], row[f"failed_{kind}"]) == (1, 1), name
        assert row["noise_norm"] > 0
    assert np.array_equal(sums[0], lying_nodes.honest_sums[1])
    told = Counter(LIES[name][0] for name in names)
    assert (run.result or {})["failed_nodes"] == told
    text = " ".join(report_text(read_facts(run)).split())
    assert all(f"{count} for {REJECTIONS[kind]}" in text for kind, count in told.items())
    assert all(record.getMessage().isprintable() for record in caplog.records)


@pytest.mark.sample(1)
@pytest.mark.system
@pytest.mark.parametrize("name", ["NaN", "a norm of 10^12"])
def test_the_same_run_without_the_liar_is_within_the_clip(name: str, lie: Lie, allowed: float) -> None:
    honest, lied = lie(), lie(name)
    assert 0 < moved_apart(honest, lied) <= allowed * SLACK
    rows = [run.metrics().iloc[2] for run in (honest, lied)]
    assert rows[0]["noise_norm"] == rows[1]["noise_norm"]
    assert rows[0]["epsilon_user"] == rows[1]["epsilon_user"]
    assert (honest.result or {})["failed_nodes"] == {}


@pytest.mark.system
def test_a_lie_within_the_bound_is_believed_and_moves_no_more(
    lie: Lie, allowed: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no server can see: the liar sends its whole bound, against its users' own direction."""

    def against(vector: np.ndarray) -> np.ndarray:
        return (-allowed / np.linalg.norm(vector) * vector).astype(np.float32)

    monkeypatch.setitem(LIES, "the whole bound", ("", lying_nodes._vector(against)))
    honest, lied = lie(), lie("the whole bound")
    assert allowed < moved_apart(honest, lied) <= 2 * allowed * SLACK
    assert (lied.result or {})["failed_nodes"] == {}


@pytest.mark.system
def test_every_reply_delivered_twice_counts_once(lie: Lie) -> None:
    honest, twice = lie(), lie(grid=lying_nodes.RepeatingGrid)
    assert moved_apart(honest, twice) == 0
    assert (twice.result or {})["failed_nodes"] == {"duplicate": 2 * NODES}


@pytest.mark.nightly
def test_a_silent_node_counts_as_zero_after_the_timeout(lie: Lie, allowed: float) -> None:
    honest, silent = lie(rounds=1), lie(rounds=1, grid=lying_nodes.LosingGrid, engine__timeout=4.0)
    assert 0 < moved_apart(honest, silent) <= allowed * SLACK
    assert (silent.result or {})["failed_nodes"] == {"silent": 1}


class SilencedGrid(InlineGrid):
    """A network that loses what a node would send much too late."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(lying_nodes, "SILENT_SECONDS", 0.0)
            liar, replies = list(self.get_node_ids())[LIAR], super().pull_messages(message_ids)
        silent = lying_nodes.lie_of(max(lying_nodes.honest_sums)) == "silence"
        return [reply for reply in replies if not (silent and reply.metadata.src_node_id == liar)]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for 4 s in rounds in which the server hears nothing of the liar, and without limit in all others."""
    before, calls = AttendedGrid.send_and_receive, []

    def limited(self: AttendedGrid, messages: Any, *, timeout: float | None = None) -> Any:
        calls.append(timeout)
        unheard = lying_nodes.lie_of((len(calls) - 1) % len(ROUNDS) + 1) in ("silence", "the name of another node")
        return before(self, messages, timeout=4.0 if unheard else timeout)

    monkeypatch.setattr(AttendedGrid, "send_and_receive", limited)


@pytest.mark.nightly
@pytest.mark.usefixtures("impatient")
def test_lies_on_ray_count_as_zero_as_they_do_inline(lie: Lie) -> None:
    on_ray = lie(*LIES, engine__name="ray", engine__num_cpus=2)
    inline = lie(*LIES, grid=SilencedGrid)
    told = Counter(kind for kind, _ in LIES.values())
    assert (inline.result or {})["failed_nodes"] == told
    told["silent"] += told.pop("impersonation")  # Flower's own link drops a reply in another node's name
    assert (on_ray.result or {})["failed_nodes"] == told
    assert apart(inline, on_ray, LEARNING_RATE) < SAME_MODEL
