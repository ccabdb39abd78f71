"""Read a model's examples: the tokens of one sentence with its class or features.

>>> import numpy as np
>>> example = Example(np.array([0, 17, 4, 1]), target=2, number=5)
>>> len(example), example.target
(4, 2)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # it reads Parquet, which the arithmetic does not need
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
"""Return the states of sentences, given their ids (`fl_sim.clients.layer_states`)."""


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
