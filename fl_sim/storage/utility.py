"""How a task's utility is called, in metrics, result, report and plots; lower is better in all of them."""

from __future__ import annotations

from dataclasses import dataclass

from fl_sim.storage.run_folder import RunFolder


@dataclass(frozen=True, slots=True)
class Utility:
    """One task's figure.

    Attributes:
        column: its name in a metrics row and in the result (``initial_<column>`` is the starting model's).
        words: for people.
        reference: the result's name of what one gets without a model.
        reference_words: for people.
        form: how it is printed.
    """

    column: str
    words: str
    reference: str
    reference_words: str
    form: str

    def show(self, value: float) -> str:
        """The figure as text."""
        return format(value, self.form)


UTILITIES = {
    "next-word": Utility("perplexity", "held-out perplexity", "unigram_perplexity", "a unigram model", ",.1f"),
    "classification": Utility("error", "held-out error", "majority_error", "always the most frequent class", ".1%"),
}


def utility_of(run: RunFolder) -> Utility:
    """The figure by which ``run`` is judged; runs that do not say their task told the next word."""
    return UTILITIES.get(str(run.setting("task")), UTILITIES["next-word"])
