"""Held-out figures by user, as a run records them and as a report writes them.

:class:`HeldOutFigures` is what a run's last evaluation says by user (``held_out`` in result.json). It is computed from
private text without noise, so it is for the corpus's owner, and no ε covers it.

>>> interval(Figure(2.3926, 2.3645, 2.4265), "bits_per_byte")
'2.39 (2.36 to 2.43)'
>>> interval(Figure(0.125, float("nan"), float("nan")), "error")
'12.5%'
>>> figure = Figure(2.5, 2.4, 2.6)
>>> CountClass(4, 7, 9, figure).in_words(), CountClass(64, None, 2, figure).in_words()
('4–7', '64 or more')
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fl_sim.formats import nonzero
from fl_sim.reporting.bootstrap import Figure

_NAMES = {
    "bits_per_byte": ("bits per byte", ",.2f"),
    "perplexity_per_word": ("perplexity per word", ",.1f"),
    "perplexity_per_token": ("perplexity per token", ",.1f"),
    "accuracy": ("tokens guessed right", ".1%"),
    "error": ("error", ".1%"),
}
"""The names of figures in texts, and their form."""

PARTS = {
    "entity_tokens": "entity tokens",
    "other_tokens": "other tokens",
    "with_mention": "sentences with an entity",
    "without_mention": "sentences without",
}
"""The names of the parts of the held-out text."""

_NOTES = {"perplexity_per_token": ", explained by the tokenizer: compare runs of one tokenizer alone"}


@dataclass(frozen=True, slots=True)
class CountClass:
    """A class of users by their number of held-out sentences, or of mentions by how often training mentions the name.

    Attributes:
        lowest, highest: the counts; ``highest`` is None for the largest class.
        members: how many users or mentions are in the class.
        figure: the task's first figure over them.
    """

    lowest: int
    highest: int | None
    members: int
    figure: Figure

    def in_words(self) -> str:
        """Return the counts: "1", "4–7", "64 or more"."""
        if self.highest is None:
            return f"{self.lowest} or more"
        return str(self.lowest) if self.lowest == self.highest else f"{self.lowest}–{self.highest}"


@dataclass(frozen=True, slots=True)
class TextPart:
    """A part of the held-out text, such as the entity tokens: its share of all, and its figures by name."""

    share: float
    figures: Mapping[str, Figure]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutFigures:
    """The last evaluation of a run by user.

    Attributes:
        users, sentences: that were measured.
        cut: the sentences of which a model did not read the end.
        interval, resamples: what the intervals are.
        metric: the task's first figure, which the deciles and the classes have.
        figures: by name, over all users.
        deciles: the nine deciles of users' own figures; empty if no user has one.
        by_sentences: by class of users; classes without users are absent.
        by_mention: by a key of :data:`PARTS`; parts without text are absent, and all are if the places of tokens are
            unknown.
        by_training_mentions: of the entity tokens, by class of their name's mentions in training; empty likewise, for a
            classification, or if nodes hold the text.
    """

    users: int
    sentences: int
    metric: str
    figures: Mapping[str, Figure]
    deciles: list[float]
    by_sentences: list[CountClass]
    by_mention: Mapping[str, TextPart]
    by_training_mentions: list[CountClass]
    cut: int = 0
    interval: str = ""
    resamples: int = 0

    def by_size(self) -> dict[str, Figure]:
        """Return the first figure by class of users, in words."""
        return {row.in_words(): row.figure for row in self.by_sentences}

    def by_name(self) -> dict[str, Figure]:
        """Return the first figure of entity tokens by class of their name's mentions in training, in words."""
        return {row.in_words(): row.figure for row in self.by_training_mentions}

    def by_part(self) -> dict[str, Figure]:
        """Return the first figure by part of the text, in words."""
        return {PARTS[name]: part.figures[self.metric] for name, part in self.by_mention.items()}

    def lines(self) -> list[str]:
        """Return the figures in words, one line per subject."""
        name = metric_words(self.metric)
        figures = [f"{metric_words(key)} {interval(f, key)}{_NOTES.get(key, '')}" for key, f in self.figures.items()]
        sizes = [f"{words}: {interval(figure, self.metric)}" for words, figure in self.by_size().items()]
        parts = [
            f"{PARTS[key]} {interval(part.figures[self.metric], self.metric)} ({nonzero(100 * part.share, '.0f')} % "
            "of all)"
            for key, part in self.by_mention.items()
        ]
        names = [f"{words}: {interval(figure, self.metric)}" for words, figure in self.by_name().items()]
        deciles = " ".join(_shown(value, self.metric) for value in self.deciles)
        return [
            f"{self.sentences:,} held-out sentences of {self.users:,} users; in brackets 95 % intervals "
            "(percentile bootstrap over users)",
            "; ".join(figures),
            *([f"deciles over users, {name}: {deciles}"] if deciles else []),
            f"users by their number of sentences, {name}: {', '.join(sizes)}",
            *([f"{name}: {', '.join(parts)}"] if parts else []),
            *([f"entity tokens by their name's mentions in training, {name}: {', '.join(names)}"] if names else []),
        ]


def metric_words(name: str) -> str:
    """Return the name of a figure in words."""
    return _NAMES[name][0]


def interval(figure: Figure, name: str) -> str:
    """Return the figure of this name with its interval: "2.39 (2.36 to 2.43)"; without it where it is undefined."""
    value = _shown(figure.value, name)
    if math.isnan(figure.low):
        return value
    return f"{value} ({_shown(figure.low, name)} to {_shown(figure.high, name)})"


def _shown(value: float, name: str) -> str:
    return nonzero(value, _NAMES[name][1]) if math.isfinite(value) else "not finite"
