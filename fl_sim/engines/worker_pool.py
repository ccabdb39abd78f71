"""The Ray workers of a run: one that was lost is given work again once it has started again, and not before."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import ray
from flwr.app import Context, Message
from flwr.simulation.ray_transport.ray_actor import BasicActorPool
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError, RayTaskError

_LOOK_SECONDS = 0.1  # between two looks for a worker, while all of them are at work or starting


class WorkerPool(BasicActorPool):
    """Flower's pool, of workers that are there already, without those that are lost.

    A worker that is starting again fails at once whatever it is given, so it would fail all that is waiting, and be
    idle for the next. Here it stays out until it answers, and then comes last: what was lost with it is done by any
    other that is idle. Work for which no worker is idle waits for one; if none is at work either, and none has started
    again, it is lost, too, and whoever asked for it decides how long to go on asking.

    Args:
        workers: handles of Flower's actors.
        args, kwargs: as Flower's pool.
    """

    def __init__(self, workers: Sequence[Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._workers = workers
        self._change = threading.Condition()  # Flower has a thread for every worker
        self._starting: dict[Any, Any] = {}  # what each lost worker was asked, to answer when it is there again

    def add_actors_to_pool(self, num_actors: int) -> None:
        """Let in the workers that were started before, however many Flower counts."""
        self.pool.extend(self._workers)
        self.num_actors += len(self._workers)

    def submit(self, actor_fn: Callable[..., Any], job: tuple[Any, ...]) -> Any:
        """Give ``job`` to a worker as soon as one is idle; raises ActorUnavailableError if there is none left."""
        with self._change:
            while True:
                self._take_back_the_started()
                if self.pool:
                    return super().submit(actor_fn, job)
                if not self._future_to_actor:
                    raise ActorUnavailableError("no worker is there", None)
                self._change.wait(_LOOK_SECONDS)

    def fetch_result_and_return_actor_to_pool(self, future: Any) -> tuple[Message, Context]:
        """What a worker answers; raises Ray's exception if it is lost."""
        try:
            _, reply, context = ray.get(future)
        except RayTaskError:  # the work failed, and not the worker
            raise
        except RayError:
            with self._change:
                self._await(self._future_to_actor.pop(future))
            raise
        with self._change:
            super().add_actor_back_to_pool(future)
            self._change.notify()
        return reply, context

    def add_actor_back_to_pool(self, future: Any) -> None:
        """Take back the worker of a ``future`` that brought no result, unless it is lost."""
        with self._change:
            if future in self._future_to_actor:
                self.pool.insert(0, self._future_to_actor.pop(future))
                self._change.notify()

    def _await(self, worker: Any) -> None:
        self._starting[worker.__ray_ready__.remote()] = worker

    def _take_back_the_started(self) -> None:
        """Let in those that answer, ask those again that cannot yet, and forget those that never will."""
        if not self._starting:
            return
        answered, _ = ray.wait(list(self._starting), num_returns=len(self._starting), timeout=0)
        for answer in answered:
            worker = self._starting.pop(answer)
            try:
                ray.get(answer)
            except ActorDiedError:
                continue
            except RayError:
                self._await(worker)
            else:
                self.pool.insert(0, worker)
