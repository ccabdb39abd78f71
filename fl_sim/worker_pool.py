"""The Ray workers of a run: those that were lost are asked last, because they are starting again, or gone for good."""

from __future__ import annotations

from typing import Any

import ray
from flwr.app import Context, Message
from flwr.simulation.ray_transport.ray_actor import BasicActorPool


class WorkerPool(BasicActorPool):
    """Flower's pool, which hands out the worker that came back last.

    After a failure that would be the worker that failed, again and again. Here a worker without a result goes to the
    other end, so that what was lost with it is done by any other that is idle.
    """

    def fetch_result_and_return_actor_to_pool(self, future: Any) -> tuple[Message, Context]:
        """What a worker answers; raises Ray's exception if it is lost."""
        _, reply, context = ray.get(future)
        super().add_actor_back_to_pool(future)
        return reply, context

    def add_actor_back_to_pool(self, future: Any) -> None:
        """Take back the worker of a ``future`` that brought no result."""
        self.pool.insert(0, self._future_to_actor.pop(future))
