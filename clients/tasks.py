"""What a model is to tell of a sentence: its next words, or its class.

Both are cross-entropy over a sentence's *predictions*, so that one loss, one clipped gradient and one evaluation
serve both (`fl_sim.clients.models.losses`, `fl_sim.clients.gradients.clipped_sums`, `fl_sim.clients.training`). A task
says which predictions an example has, how examples become a batch, and what the held-out figures mean.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from fl_sim.clients.batches import NO_TARGET, Batch, padded, positions_of
from fl_sim.clients.errors import ModelError
from fl_sim.clients.examples import NO_CLASS, Example
from fl_sim.clients.models.model_names import TaskName


@dataclass(frozen=True, eq=False)
class HeldOut:
    """What a model made of n held-out sentences, one entry each.

    Attributes:
        losses: mean cross-entropy of the sentence's predictions in nats, float64 (n,); 0 without any prediction.
        predictions: how many there are, int64 (n,).
        wrong: how many the highest score missed, int64 (n,).
    """

    losses: NDArray[np.float64]
    predictions: NDArray[np.int64]
    wrong: NDArray[np.int64]

    @property
    def nats(self) -> NDArray[np.float64]:
        """Total cross-entropy of each sentence (n,)."""
        return self.losses * self.predictions


class Task(ABC):
    """What is to be told of an example. A sentence of which there is nothing to tell has loss and gradient zero."""

    name: ClassVar[TaskName]
    needs_targets: ClassVar[bool]
    """Whether an example must have a class."""
    classes: tuple[str, ...] = ()
    """The classes to choose from; empty for the next word."""

    @abstractmethod
    def size(self, example: Example) -> int:
        """How many inputs the model has to read for this example; 0 where there is nothing to tell."""

    @abstractmethod
    def predictions(self, example: Example) -> int:
        """How many things are to be told of it."""

    @abstractmethod
    def longest(self, max_tokens: int) -> int:
        """The longest sentence, in tokens, that a model of this context length takes."""

    @abstractmethod
    def collate(self, examples: Sequence[Example], device: torch.device) -> Batch:
        """Pad examples of which there is something to tell."""

    @abstractmethod
    def metrics(self, found: HeldOut, words: NDArray[np.int64]) -> dict[str, float]:
        """The held-out figures by name.

        Args:
            found: what the model made of the sentences.
            words: the words of each sentence with its end counted as one more, int64 (n,); 0 for a sentence that was
                cut to the context, of which nobody knows how many of its words were told.
        """


class NextWord(Task):
    """Every token from those before it: all but the last are inputs, all but the first are targets."""

    name = "next-word"
    needs_targets = False

    def size(self, example: Example) -> int:
        return max(len(example) - 1, 0)

    def predictions(self, example: Example) -> int:
        return self.size(example)

    def longest(self, max_tokens: int) -> int:
        return max_tokens + 1

    def collate(self, examples: Sequence[Example], device: torch.device) -> Batch:
        lengths = np.array([len(example) for example in examples])
        tokens = padded([example.tokens for example in examples])
        ended = np.arange(1, tokens.shape[1])[None, :] >= lengths[:, None]
        targets = np.where(ended, NO_TARGET, tokens[:, 1:])
        return Batch(
            inputs=torch.from_numpy(tokens[:, :-1].copy()).to(device),
            targets=torch.from_numpy(targets).to(device),
            positions=torch.from_numpy(positions_of(tokens[:, 1:])).to(device),
            predictions=torch.from_numpy((lengths - 1).astype(np.float32)).to(device),
            lengths=torch.from_numpy(lengths - 1).to(device),
        )

    def metrics(self, found: HeldOut, words: NDArray[np.int64]) -> dict[str, float]:
        """``perplexity`` is per token, exp(nats / predicted tokens); ``perplexity_per_word`` is exp(nats / words),
        which compares models whatever their tokenizers are."""
        whole = words > 0
        loss = _ratio(found.nats.sum(), found.predictions.sum())
        per_word = _ratio(found.nats[whole].sum(), words[whole].sum())
        return {"perplexity": _exp(loss), "perplexity_per_word": _exp(per_word), "loss": loss}


class Classification(Task):
    """The sentence's class, one of ``classes``; all tokens are inputs."""

    name = "classification"
    needs_targets = True

    def __init__(self, classes: Sequence[str]) -> None:
        if len(classes) < 2:
            raise ModelError(f"there are {len(classes)} classes; allowed for classification: at least 2")
        self.classes = tuple(classes)

    def size(self, example: Example) -> int:
        if example.target == NO_CLASS:
            return 0
        return 1 if example.features is not None else len(example)

    def predictions(self, example: Example) -> int:
        return int(example.target != NO_CLASS)

    def longest(self, max_tokens: int) -> int:
        return max_tokens

    def collate(self, examples: Sequence[Example], device: torch.device) -> Batch:
        wrong = [e.target for e in examples if not 0 <= e.target < len(self.classes)]
        if wrong:
            raise ModelError(f"a sentence's class is {wrong[0]}; allowed: 0 to {len(self.classes) - 1}")
        features = [example.features for example in examples if example.features is not None]
        if features and len(features) < len(examples):
            raise ModelError("some sentences of a batch have features and some have not; allowed: all or none")
        nothing = np.empty(0, dtype=np.int64)
        tokens = padded([nothing if features else example.tokens for example in examples])
        lengths = np.array([0 if features else len(example) for example in examples])
        return Batch(
            inputs=torch.from_numpy(tokens).to(device),
            targets=torch.tensor([[example.target] for example in examples], device=device),
            positions=torch.from_numpy(positions_of(tokens)).to(device),
            predictions=torch.ones(len(examples), device=device),
            lengths=torch.from_numpy(lengths).to(device),
            features=torch.from_numpy(np.stack(features)).unsqueeze(1).to(device) if features else None,
        )

    def metrics(self, found: HeldOut, words: NDArray[np.int64]) -> dict[str, float]:
        """``error`` is the share of the sentences with a class whose highest score is another class's."""
        asked = found.predictions.sum()
        return {"error": _ratio(found.wrong.sum(), asked), "loss": _ratio(found.nats.sum(), asked)}


def make_task(name: TaskName, classes: Sequence[str]) -> Task:
    """The task of that name on a corpus with these classes."""
    return NextWord() if name == "next-word" else Classification(classes)


def _ratio(total: float, count: float) -> float:
    return float(total / count) if count else math.nan


def _exp(loss: float) -> float:
    """exp(loss); infinite instead of an overflow."""
    return math.exp(loss) if not loss >= 700 else math.inf
