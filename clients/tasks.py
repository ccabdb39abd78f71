"""Define what a model predicts for a sentence: every next word, or the sentence's class.

Both tasks are cross-entropy over a sentence's *prediction targets*, so one loss, one clipped gradient and one
evaluation serve both. A task defines the targets of an example, how examples form a batch, and the held-out figures.

>>> NextWord().predictions(Example(np.array([0, 7, 8, 1])))
3
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

from fl_sim.clients.batches import NO_CLASS, NO_TARGET, Batch, Example, padded, padded_states, positions_of
from fl_sim.clients.errors import ModelError
from fl_sim.clients.models.model_names import TaskName


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Hold a model's losses and errors on n held-out sentences.

    Attributes:
        losses: float64 (n,), mean cross-entropy over each sentence's targets in nats; 0 without a target.
        predictions: int64 (n,), the number of each sentence's targets.
        wrong: int64 (n,), how many of them do not have the highest score.
        target_nats: float32 (total targets,), the cross-entropy of every target, sentence by sentence; None where only
            the means are known.
    """

    losses: NDArray[np.float64]
    predictions: NDArray[np.int64]
    wrong: NDArray[np.int64]
    target_nats: NDArray[np.float32] | None = None

    @property
    def nats(self) -> NDArray[np.float64]:
        """Return the total cross-entropy of each sentence in nats, float64 (n,)."""
        return self.losses * self.predictions


@dataclass(frozen=True, eq=False)
class TextSizes:
    """Hold the sizes of n sentences as text, by which models with different tokenizers compare.

    A sentence that was cut to the context has sizes 0, because the text that its tokens cover is unknown.

    Attributes:
        words: int64 (n,), white-space separated words of each sentence, plus one for its end.
        bytes: int64 (n,), bytes of each sentence in UTF-8, plus one for its end.
    """

    words: NDArray[np.int64]
    bytes: NDArray[np.int64]

    @classmethod
    def of(cls, texts: Sequence[str], whole: NDArray[np.bool_]) -> TextSizes:
        """Return the sizes of texts; ``whole`` (n,) is false for those that were cut."""
        words = np.array([len(text.split()) + 1 for text in texts], dtype=np.int64)
        size = np.array([len(text.encode()) + 1 for text in texts], dtype=np.int64)
        return cls(np.where(whole, words, 0), np.where(whole, size, 0))

    @property
    def whole(self) -> NDArray[np.bool_]:
        """Return which sentences were not cut, bool (n,)."""
        return self.bytes > 0


class Task(ABC):
    """Define the targets of an example; a sentence without a prediction target has loss and gradient zero."""

    name: ClassVar[TaskName]
    needs_targets: ClassVar[bool]
    """Whether an example must have a class."""
    classes: tuple[str, ...] = ()
    """The classes to choose from; empty for the next word."""

    @abstractmethod
    def size(self, example: Example) -> int:
        """Return the number of inputs that the model reads for an example; 0 without a prediction target."""

    @abstractmethod
    def predictions(self, example: Example) -> int:
        """Return the number of an example's prediction targets."""

    @abstractmethod
    def longest(self, max_tokens: int) -> int:
        """Return the tokens of the longest sentence that a model of context length ``max_tokens`` takes."""

    @abstractmethod
    def collate(self, examples: Sequence[Example], device: torch.device) -> Batch:
        """Pad examples with at least one prediction target to a batch on ``device``."""

    @abstractmethod
    def metrics(self, held_out: HeldOut, sizes: TextSizes) -> dict[str, float]:
        """Return the held-out figures by name."""


class NextWord(Task):
    """Predict every token from those before it: all but the last are inputs, all but the first are targets."""

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
            states=_on(padded_states(examples, tokens.shape[1] - 1), device),
        )

    def metrics(self, held_out: HeldOut, sizes: TextSizes) -> dict[str, float]:
        """Return perplexities, losses and the share of right guesses.

        Returns:
            ``perplexity`` = exp(nats / tokens); ``perplexity_per_word`` = exp(nats / words) and ``bits_per_byte`` =
            nats / (bytes · ln 2), which compare models with different tokenizers; ``loss`` = nats / tokens;
            ``accuracy``, the share of tokens that had the highest score.
        """
        targets = held_out.predictions.sum()
        loss = _ratio(held_out.nats.sum(), targets)
        nats = held_out.nats[sizes.whole].sum()
        return {
            "perplexity": _exp(loss),
            "perplexity_per_word": _exp(_ratio(nats, sizes.words.sum())),
            "bits_per_byte": _ratio(nats / math.log(2), sizes.bytes.sum()),
            "accuracy": _ratio(targets - held_out.wrong.sum(), targets),
            "loss": loss,
        }


class Classification(Task):
    """Predict the sentence's class, one of ``classes``; all tokens are inputs."""

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
            states=_on(padded_states(examples, tokens.shape[1]), device),
        )

    def metrics(self, held_out: HeldOut, sizes: TextSizes) -> dict[str, float]:
        """Return ``error``, the share of sentences whose highest score is another class's, and ``loss``.

        Only sentences with a class count.
        """
        targets = held_out.predictions.sum()
        return {"error": _ratio(held_out.wrong.sum(), targets), "loss": _ratio(held_out.nats.sum(), targets)}


def make_task(name: TaskName, classes: Sequence[str]) -> Task:
    """Return the task ``name`` on a corpus with ``classes``; ModelError for classification with fewer than two."""
    return NextWord() if name == "next-word" else Classification(classes)


def _on(tensor: torch.Tensor | None, device: torch.device) -> torch.Tensor | None:
    return None if tensor is None else tensor.to(device)


def _ratio(total: float, count: float) -> float:
    return float(total / count) if count else math.nan


def _exp(loss: float) -> float:
    """Return exp(loss), infinite instead of an overflow."""
    return math.exp(loss) if not loss >= 700 else math.inf
