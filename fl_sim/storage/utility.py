"""The utility metric of each task, in metrics, result, report and plots; lower is better.

>>> UTILITIES["classification"].show(0.125)
'12.5%'
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fl_sim.formats import nonzero
from fl_sim.storage.run_folder import RunFolder


@dataclass(frozen=True, slots=True)
class Utility:
    """The utility metric of a task.

    Attributes:
        column: its key in a metrics row and in the result (``initial_<column>`` for the starting model).
        words: its name in texts.
        reference: key in the result of the utility without a model.
        reference_words: name of that reference in texts.
        form: format specification.
    """

    column: str
    words: str
    reference: str
    reference_words: str
    form: str

    def show(self, value: float) -> str:
        """Return a value as text: "not finite" for the figure of a model that has diverged."""
        return nonzero(value, self.form) if math.isfinite(value) else "not finite"


UTILITIES = {
    "next-word": Utility("perplexity", "held-out perplexity", "unigram_perplexity", "a unigram model", ",.1f"),
    "classification": Utility("error", "held-out error", "majority_error", "always the most frequent class", ".1%"),
}


def utility_of(run: RunFolder) -> Utility:
    """Return the utility metric of a run; that of next-word prediction if the run names no task."""
    return UTILITIES.get(str(run.setting("task")), UTILITIES["next-word"])
