"""The Ray workers of a run; a lost worker gets work again once it has restarted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal

import ray
from flwr.app import Context, Message
from flwr.simulation.ray_transport.ray_actor import BasicActorPool
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError, RayTaskError

from fl_sim.engines.broadcast import Broadcast

_LOOK_SECONDS = 0.1  # between two checks for an idle worker

Judgement = Literal["ready", "again", "out"]
"""What becomes of a restarted worker: it works again, is asked again, or gets no more work."""


class WorkerPool(BasicActorPool):
    """Flower's pool, of already started workers, without lost ones.

    A restarting worker fails any work immediately, so it would fail all pending work and be idle for the next. Here it
    stays out of the pool until it answers, and is then last in line: any other idle worker does the work lost with it.
    Work waits for an idle worker. If no worker is busy or restarted either, the work is lost, too, and the caller
    decides how long to retry.

    Args:
        workers: handles of Flower's actors.
        ask: returns a restarting worker's pending answer, which comes once the worker has restarted.
        judge: says of that answer whether the worker can work, is to be asked again, or stays out for good.
        args: of Flower's pool.
        kwargs: of Flower's pool.
    """

    def __init__(
        self,
        workers: Sequence[Any],
        ask: Callable[[Any], Any],
        judge: Callable[[Any], Judgement],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._workers, self._ask, self._judge = workers, ask, judge
        self._broadcast = Broadcast()
        self._change = threading.Condition()  # Flower has a thread for every worker
        self._starting: dict[Any, Any] = {}  # a pending answer of each lost worker, ready once it has restarted

    def add_actors_to_pool(self, num_actors: int) -> None:
        """Add the already started workers, whatever Flower's count."""
        self.pool.extend(self._workers)
        self.num_actors += len(self._workers)

    def submit(self, actor_fn: Callable[..., Any], job: tuple[Any, ...]) -> Any:
        """Give ``job`` to the next idle worker, without its arrays; raise ActorUnavailableError if none is left."""
        app_fn, message, number, context = job
        with self._change:
            light = self._broadcast.lightened(message)
            while True:
                self._readmit_restarted()
                if self.pool:
                    return super().submit(actor_fn, (app_fn, light, number, context))
                if not self._future_to_actor:
                    raise ActorUnavailableError("no worker is there", None)
                self._change.wait(_LOOK_SECONDS)

    def fetch_result_and_return_actor_to_pool(self, future: Any) -> tuple[Message, Context]:
        """Return a worker's reply; raise Ray's exception if the worker is lost."""
        try:
            _, reply, context = ray.get(future)
        except RayTaskError:  # the work failed, not the worker
            raise
        except RayError:
            with self._change:
                self._await_restart(self._future_to_actor.pop(future))
            raise
        with self._change:
            super().add_actor_back_to_pool(future)
            self._change.notify()
        return reply, context

    def add_actor_back_to_pool(self, future: Any) -> None:
        """Return the worker of a ``future`` without a result to the pool, unless it is lost."""
        with self._change:
            if future in self._future_to_actor:
                self.pool.insert(0, self._future_to_actor.pop(future))
                self._change.notify()

    def _await_restart(self, worker: Any) -> None:
        self._starting[self._ask(worker)] = worker

    def _readmit_restarted(self) -> None:
        """Readmit restarted workers, keep waiting for restarting ones, and drop those that are dead or cannot work."""
        if not self._starting:
            return
        answered, _ = ray.wait(list(self._starting), num_returns=len(self._starting), timeout=0)
        for answer in answered:
            worker = self._starting.pop(answer)
            try:
                judgement = self._judge(ray.get(answer))
            except ActorDiedError:
                judgement = "out"
            except RayError:
                judgement = "again"
            if judgement == "ready":
                self.pool.insert(0, worker)
            elif judgement == "again":
                self._await_restart(worker)
