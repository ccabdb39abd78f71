"""Read a model's examples, the tokens of one sentence with its class or features, and group them into padded batches.

>>> list(micro_batches([3, 0, 9, 4], max_batch_tokens=9))
[[2], [3, 0]]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fl_sim.clients.errors import ModelError

if TYPE_CHECKING:
    from fl_sim.data_prep.store.encode import EncodedSplit

NO_CLASS = -1


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """Hold one sentence.

    Attributes:
        tokens: integers (k,), token ids with the boundary tokens; not read if ``features`` is given.
        target: the sentence's class, ``NO_CLASS`` if it has none.
        number: the sentence's id in its split, which keys its dropout masks.
        features: float32 (h,), the sentence's state in a frozen encoder.
        states: float16 (inputs, h), what enters the first layer that trains, if all below it is frozen.
    """

    tokens: NDArray[np.integer]
    target: int = NO_CLASS
    number: int = 0
    features: NDArray[np.float32] | None = None
    states: NDArray[np.float16] | None = None

    def __len__(self) -> int:
        return len(self.tokens)


StateReader = Callable[[NDArray[np.int64]], Sequence[NDArray[np.float16]]]
"""Return the states of sentences, given their ids (`fl_sim.clients.frozen_states`)."""


@dataclass(frozen=True, eq=False)
class Examples:
    """Hold the S sentences of a split, and read them as examples when they are needed.

    Attributes:
        encoded: the tokens of every sentence.
        targets: int32 (S,), the class of every sentence; ``None`` if the task has no classes.
        features: float32 (S, h), every sentence's state in a frozen encoder; ``None`` if the model reads tokens.
        states: reads what enters a model's first trainable layer; ``None`` if the model starts from tokens.
    """

    encoded: EncodedSplit
    targets: NDArray[np.int32] | None = None
    features: NDArray[np.float32] | None = None
    states: StateReader | None = None

    def __len__(self) -> int:
        return len(self.encoded.offsets) - 1

    def read(self, ids: Iterable[int] | NDArray[np.int64]) -> list[Example]:
        """Return the examples of the sentence ids ``ids``, in their order."""
        numbers = np.fromiter(ids, dtype=np.int64)
        targets = np.full(len(numbers), NO_CLASS) if self.targets is None else self.targets[numbers]
        features = [None] * len(numbers) if self.features is None else list(np.asarray(self.features[numbers]))
        states = [None] * len(numbers) if self.states is None else self.states(numbers)
        return [
            Example(self.encoded.sentence(number), target, number, feature, state)
            for number, target, feature, state in zip(numbers.tolist(), targets.tolist(), features, states, strict=True)
        ]


NO_TARGET = -100  # what torch's cross-entropy ignores


@dataclass(frozen=True)
class Batch:
    """Hold B sentences, padded on the right to T inputs and P prediction targets.

    Attributes:
        inputs: int64 (B, T), token ids; T is 0 if there are features instead.
        targets: int64 (B, P), token ids or classes, ``NO_TARGET`` after a sentence's end.
        positions: int64 (B, T), 0 … T-1 in each row; every sentence has a row of its own, so that the gradient of a
            position table stays per sentence.
        predictions: float32 (B,), the number of targets of each sentence, at least 1.
        lengths: int64 (B,), the number of inputs of each sentence without padding.
        features: float32 (B, 1, h), each sentence's state in a frozen encoder.
        states: float32 (B, T, h), what enters the first layer that trains; ``None`` if the model starts from tokens.
        masks: the dropout masks of these sentences, as the model draws them; ``None`` without dropout.
    """

    inputs: torch.Tensor
    targets: torch.Tensor
    positions: torch.Tensor
    predictions: torch.Tensor
    lengths: torch.Tensor
    features: torch.Tensor | None = None
    states: torch.Tensor | None = None
    masks: Any = None

    @property
    def is_token(self) -> torch.Tensor:
        """Return a mask, bool (B, T), true for inputs that are not padding."""
        return self.positions < self.lengths.unsqueeze(1)


def padded(sentences: Sequence[NDArray[np.integer]]) -> NDArray[np.int64]:
    """Return token arrays as rows, int64 (B, T), with token 0 after a sentence's end; no token attends to it."""
    tokens = np.zeros((len(sentences), max(map(len, sentences))), dtype=np.int64)
    for row, sentence in zip(tokens, sentences, strict=True):
        row[: len(sentence)] = sentence
    return tokens


def padded_states(examples: Sequence[Example], inputs: int) -> torch.Tensor | None:
    """Return states as rows, float32 (B, inputs, h), zero after a sentence's end; None if no example has any."""
    states = [example.states for example in examples if example.states is not None]
    if not states:
        return None
    if len(states) < len(examples):
        raise ModelError("some sentences of a batch have states and some have not; allowed: all or none")
    rows = np.zeros((len(states), inputs, states[0].shape[1]), dtype=np.float32)
    for row, of_sentence in zip(rows, states, strict=True):
        row[: len(of_sentence)] = of_sentence[:inputs]
    return torch.from_numpy(rows)


def positions_of(tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return 0 … T-1 in each row, int64 (B, T)."""
    return np.tile(np.arange(tokens.shape[1]), (len(tokens), 1))


def batch_tokens(requested: int | Literal["auto"] | None, device: torch.device) -> int:
    """Return the padded size of a micro-batch: as requested, else a size that is fast for a million parameters.

    On a CPU the scores of a micro-batch (tokens × vocabulary) should fit into the cache; a GPU needs more rows.
    """
    if requested is None or requested == "auto":
        return 1024 if device.type == "cpu" else 8192
    return requested


def micro_batches(sizes: Sequence[int], max_batch_tokens: int) -> Iterator[list[int]]:
    """Yield the indices of sentences with a prediction target, grouped by their number of inputs.

    Args:
        sizes: the number of inputs of each sentence; 0 for one without a prediction target, which is left out.
        max_batch_tokens: the largest padded size (rows × longest) of a group; a longer sentence is a group of its own.
    """
    order = sorted((i for i, n in enumerate(sizes) if n > 0), key=lambda i: -sizes[i])
    group: list[int] = []
    for index in order:
        if group and (len(group) + 1) * sizes[group[0]] > max_batch_tokens:
            yield group
            group = []
        group.append(index)
    if group:
        yield group
