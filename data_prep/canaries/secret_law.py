"""The distribution of a canary's secret: words drawn uniformly and independently from a public list.

The list ships in this module, so the number of possible secrets |R| is known. Its words are lower-case letters, which
no preprocessing changes. A secret is named by its number in [0, |R|), so that distinct secrets are cheap to draw.

>>> law = SecretLaw(words=("red", "blue"), length=2)
>>> [law.secret(number) for number in range(law.size)]
['red red', 'blue red', 'red blue', 'blue blue']
>>> law.draw(np.random.default_rng(0), 2, without={0, 3}).tolist()
[1, 2]
>>> SecretLaw().size
262144
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, field_validator

from fl_sim.data_prep.records import CorpusError

_WORD_LIST = """
apple arrow basket beach bell bird boat bottle bread bridge button candle castle chair cheese cloud coat copper corn
cotton desert door dragon drum eagle engine feather field fish flag flower forest garden gate glass gold grass hammer
horse island jacket kettle ladder lamp lemon lion mirror moon mountain ocean orange paper pencil piano pillow pocket
river rocket salt silver spoon tiger tower window
"""

WORDS = tuple(_WORD_LIST.split())
"""The public list: 64 words."""

SECRET_WORDS = 3


class SecretLaw(BaseModel):
    """The uniform distribution over sequences of words.

    Attributes:
        words: the list, without repetition.
        length: words of a secret.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    words: tuple[str, ...] = Field(WORDS, min_length=2)
    length: int = Field(SECRET_WORDS, ge=1, le=12)

    @field_validator("words")
    @classmethod
    def _distinct(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(words)) < len(words):
            raise ValueError("a word is there twice")
        return words

    @property
    def size(self) -> int:
        """|R|, the number of possible secrets."""
        return len(self.words) ** self.length

    def secret(self, number: int) -> str:
        """Return the secret with this number in [0, |R|)."""
        words = []
        for _ in range(self.length):
            number, position = divmod(number, len(self.words))
            words.append(self.words[position])
        return " ".join(words)

    def draw(self, rng: np.random.Generator, count: int, without: Collection[int] = ()) -> NDArray[np.int64]:
        """Return distinct secrets, drawn uniformly, int64 (count,), in random order.

        Args:
            rng: draws them.
            count: how many.
            without: numbers that are not drawn.

        Raises:
            CorpusError: there are not so many secrets.
        """
        excluded = set(without)
        if count > self.size - len(excluded):
            raise CorpusError(f"{count} secrets are to be drawn; allowed: at most {self.size - len(excluded)}")
        if self.size <= 4 * (count + len(excluded)):
            allowed = np.array(sorted(set(range(self.size)) - excluded), dtype=np.int64)
            return rng.permutation(allowed)[:count]
        drawn: dict[int, None] = {}
        while len(drawn) < count:
            number = int(rng.integers(self.size))
            if number not in excluded:
                drawn[number] = None
        return np.fromiter(drawn, dtype=np.int64, count=count)
