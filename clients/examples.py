"""What a model learns from: one sentence, and what is to be told of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # it reads Parquet, which the arithmetic does not need
    from fl_sim.data_prep.store.encode import EncodedSplit

NO_CLASS = -1


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """One sentence.

    Attributes:
        tokens: token ids (k,), boundary tokens included; unread where ``features`` is given.
        target: the sentence's class, ``NO_CLASS`` where it has none.
        number: the sentence's id in its split, which keys its dropout masks.
        features: what a frozen encoder made of the sentence, float32 (h,).
    """

    tokens: NDArray[np.integer]
    target: int = NO_CLASS
    number: int = 0
    features: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, eq=False)
class Examples:
    """The sentences of a split as examples, read when they are needed.

    Attributes:
        encoded: the tokens of every sentence.
        targets: int32 (S,), the class of every sentence; ``None`` where nobody asks for classes.
        features: float32 (S, h), what a frozen encoder made of every sentence; ``None`` where the model reads tokens.
    """

    encoded: EncodedSplit
    targets: NDArray[np.int32] | None = None
    features: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.encoded.offsets) - 1

    def read(self, ids: Iterable[int] | NDArray[np.int64]) -> list[Example]:
        """The examples of these sentence ids."""
        numbers = np.fromiter(ids, dtype=np.int64)
        targets = np.full(len(numbers), NO_CLASS) if self.targets is None else self.targets[numbers]
        features = [None] * len(numbers) if self.features is None else list(np.asarray(self.features[numbers]))
        return [
            Example(self.encoded.sentence(number), target, number, feature)
            for number, target, feature in zip(numbers.tolist(), targets.tolist(), features, strict=True)
        ]
