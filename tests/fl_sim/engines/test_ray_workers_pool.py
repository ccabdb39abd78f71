"""The pool of Ray workers, without Ray: who is handed out once a worker was lost."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

from fl_sim.engines import ray_workers


class FakeWorker:
    """A Ray actor in this process. A future is a worker and what becomes of it: an exception, or an answer."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state: Exception | None = None
        self.__ray_ready__ = self.work = self

    def remote(self, *_: object) -> tuple[FakeWorker, object]:
        return self, object()


class FakeRay:
    """What the pool uses of Ray. A future is decided when it is looked at."""

    def wait(self, futures: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        return futures, []

    def get(self, future: tuple[FakeWorker, object]) -> tuple[str, str, str]:
        if (error := future[0].state) is not None:
            raise error
        return future[0].name, "reply", "context"


EMPTY = SimpleNamespace(has_content=lambda: False)  # a message
LOST, GONE = ActorUnavailableError("it starts again", None), ActorDiedError()


class Pool:
    """Our pool with workers ``a``, ``b``, … , the last of which is handed out first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, names: str) -> None:
        monkeypatch.setattr(ray_workers, "ray", FakeRay())
        monkeypatch.setattr(ray_workers.BasicActorPool, "__init__", lambda pool: None)
        self.unfit, self.judged_unfit = "", "again"
        self.workers = {name: FakeWorker(name) for name in names}
        self.pool = ray_workers.WorkerPool(list(self.workers.values()), self.ask, self.judge)
        self.pool.pool, self.pool.num_actors, self.pool._future_to_actor = [], 0, {}
        self.pool.add_actors_to_pool(100)  # what Flower counts; it gets those that are there
        assert self.pool.num_actors == len(names)

    def ask(self, worker: FakeWorker) -> tuple[FakeWorker, object]:
        return worker.__ray_ready__.remote()

    def judge(self, answer: tuple[str, str, str]) -> str:
        return self.judged_unfit if answer[0] in self.unfit else "ready"

    def begin(self) -> tuple[FakeWorker, object]:
        return self.pool.submit(lambda worker, *job: worker.work.remote(*job), (None, EMPTY, "0", None))

    def end(self, future: tuple[FakeWorker, object]) -> str:
        """As Flower's backend does: whose work it was."""
        try:
            self.pool.fetch_result_and_return_actor_to_pool(future)
        except Exception:
            self.pool.add_actor_back_to_pool(future)
        return future[0].name

    def do(self, pieces: int) -> str:
        """Who does so many pieces of work, one after the other."""
        return "".join(self.end(self.begin()) for _ in range(pieces))


def test_a_lost_worker_is_out_until_it_has_started_again_and_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(monkeypatch, "ab")
    pool.workers["b"].state = LOST
    assert pool.do(3) == "baa"
    at_a = pool.begin()
    pool.workers["b"].state = None
    at_b = pool.begin()  # while it was starting this would have waited for a
    assert pool.end(at_b) + pool.end(at_a) == "ba"
    pool.workers["a"].state = LOST
    assert pool.do(1) == "a"
    pool.workers["a"].state = None
    assert pool.do(2) == "bb"
    assert pool.pool._future_to_actor == {}


def test_a_worker_that_restarted_and_cannot_work_gets_none_until_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(monkeypatch, "ab")
    pool.workers["b"].state, pool.unfit = LOST, "b"
    assert pool.do(2) == "ba"
    pool.workers["b"].state = None  # it is there, without its corpus
    at_a = pool.begin()
    timer = threading.Timer(0.2, pool.end, [at_a])
    timer.start()
    assert pool.do(2) == "aa"
    timer.join()
    pool.unfit = ""
    assert sorted(pool.end(future) for future in (pool.begin(), pool.begin())) == ["a", "b"]


def test_a_worker_that_restarted_and_never_can_work_is_out(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(monkeypatch, "ab")
    pool.workers["b"].state, pool.unfit, pool.judged_unfit = LOST, "b", "out"
    assert pool.do(2) == "ba"
    pool.workers["b"].state = None
    assert pool.do(2) == "aa"
    assert pool.pool._starting == {}  # nobody asks it again
    pool.workers["a"].state = GONE
    assert pool.do(1) == "a"
    with pytest.raises(ActorUnavailableError):
        pool.begin()


def test_a_worker_whose_work_failed_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(monkeypatch, "a")
    pool.workers["a"].state = RayTaskError("train", "no corpus here", OSError("no corpus here"))
    assert pool.do(2) == "aa"


@pytest.mark.parametrize("state", [LOST, GONE])
def test_work_is_lost_at_once_where_no_worker_is_left(monkeypatch: pytest.MonkeyPatch, state: Exception) -> None:
    """Whoever asks again finds the worker that came back, if it has."""
    pool = Pool(monkeypatch, "a")
    pool.workers["a"].state = state
    assert pool.do(1) == "a"
    for _ in range(2):
        with pytest.raises(ActorUnavailableError, match="no worker is there"):
            pool.begin()
    pool.workers["a"].state = None
    if state is LOST:
        assert pool.do(1) == "a"


def test_work_waits_for_those_that_are_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(monkeypatch, "ab")
    pool.workers["b"].state = GONE
    pool.do(1)
    at_a = pool.begin()
    timer = threading.Timer(0.2, pool.end, [at_a])
    timer.start()
    assert pool.end(pool.begin()) == "a"
    timer.join()
