"""How a run computes the gradients of single sentences, and what a round costs if that is slow.

>>> GradientCost(GradientPath("slow", "its norms differ"), sentences=1200.0, seconds=0.5).warnings()[0]
'Gradients are computed one sentence at a time (its norms differ): about 10 min of one processor a round.'
>>> GradientCost(GradientPath("fast"), sentences=1200.0, seconds=0.5).record()
{'gradients': {'path': 'fast'}}
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from fl_sim.clients.batches import Example
from fl_sim.clients.gradients.ghost_pass import GradientPath
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.models.losses import loss_gradients
from fl_sim.clients.training import gradient_path_of
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.experiments.cost.forecast import duration, expected_sentences
from fl_sim.experiments.plan.run_plan import Planned


@dataclass(frozen=True)
class GradientCost:
    """The path of a run's per-sentence gradients.

    Attributes:
        path: the path; None if the strategy needs no gradient of a single sentence or user.
        sentences: the expected number of sentences of a round.
        seconds: what one sentence takes on the slow path here, in seconds; 0 on the fast path, which is not timed.
    """

    path: GradientPath | None
    sentences: float = 0.0
    seconds: float = 0.0

    @classmethod
    def of(cls, model: LanguageModel, planned: Planned, ownership: Ownership, tokens: float) -> GradientCost:
        """Return the path of a run, and the expected cost if it is slow.

        Args:
            model: the model.
            planned: the plan of the run.
            ownership: users, sentences and entities of the training split.
            tokens: the mean length of a sentence.
        """
        mechanism = planned.plan.mechanism
        path = gradient_path_of(model, mechanism.client_rule(mechanism.clip_norm))
        if path is None or path.name == "fast":
            return cls(path)
        return cls(path, expected_sentences(planned, ownership), _seconds_of_one(model, tokens))

    def record(self) -> dict[str, Any]:
        """Return the entry of result.json; none without a path."""
        if self.path is None:
            return {}
        slow = {"reason": self.path.reason, "seconds_per_round": self.sentences * self.seconds}
        return {"gradients": {"path": self.path.name} | (slow if self.path.name == "slow" else {})}

    def warnings(self) -> tuple[str, ...]:
        """Return the warning before the first round of a run on the slow path."""
        if self.path is None or self.path.name == "fast":
            return ()
        return (
            f"Gradients are computed one sentence at a time ({self.path.reason}): about "
            f"{duration(self.sentences * self.seconds)} of one processor a round.",
        )


def _seconds_of_one(model: LanguageModel, tokens: float) -> float:
    """Return the time of plain autograd, in seconds, for the gradient of a random sentence of ``tokens`` tokens."""
    length = min(max(2, round(tokens)), model.task.longest(model.max_tokens))
    drawn = np.random.default_rng(0).integers(0, model.vocabulary_size, length)
    batch = model.batch([Example(drawn, target=0)])
    times = []
    for _ in range(2):  # the first one is slower
        began = time.perf_counter()
        loss_gradients(model, batch)
        times.append(time.perf_counter() - began)
    return min(times)
