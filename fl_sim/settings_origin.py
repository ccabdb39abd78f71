"""Where a run's settings come from: ``[origin]``, which ``fl-sim plan trials`` writes into its file and a run records.

The settings of such a file were chosen on public text. That holds for a run only if its corpus is not that text: a run
on the corpus of the same fingerprint, or on one that has several of its sentences, is refused (docs/settings.md). No
release depends on the origin.

>>> texts = [f"This sentence is the one that has the number {number}." for number in range(200)]
>>> sample = sentence_sample(texts)
>>> len(sample), found_in(sample, texts), found_in(sample, ["Something else altogether, and of some length, too."])
(64, 64, 0)
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Iterator, Mapping

from pydantic import BaseModel, ConfigDict, Field

SAMPLED = 64
"""Number of sentences of a public text whose hashes are kept with what was made on it."""

MOST_SHARED = 3
"""Sampled sentences that two different texts may share: people repeat a few."""

_LEAST_LETTERS = 32  # shorter sentences are said by many
_HASH_BYTES = 8


class Trial(BaseModel):
    """One trial: its settings by key, where it was made, and its score.

    Attributes:
        rung: the round of the search, from 1; later ones train on more sentences.
        sentences: expected sentences a round.
        score: the metric on held-out public users; None if the trial diverged or failed.
        settings: what was tried, by key.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    rung: int = Field(ge=1)
    sentences: float = Field(ge=0)
    score: float | None = None
    settings: dict[str, object]


class Origin(BaseModel):
    """The origin of settings that were chosen on public text.

    Attributes:
        made_by: command and version.
        made_of: fingerprints of what the corpus was before sentences were appended, and of all that it was made of.
        sentence_sample: hashes of some of its sentences.
        users: N of the private run for which it searched, as stated.
        sentences: expected sentences a round of that run, as stated or as on the public corpus.
        epsilon: the target of that run, at ``delta`` for ``unit``; None if it has no noise.
        unit: ``user`` or ``user_entity``.
        metric: the score of trials; lower is better.
        settings: the settings that were chosen, nested as in a configuration.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    made_by: str = Field(min_length=1)
    corpus: str
    fingerprint: str = Field(pattern=r"^[0-9a-f]{64}$")
    made_of: tuple[str, ...] = ()
    sentence_sample: tuple[str, ...] = ()
    seed: int = Field(ge=0)
    users: int = Field(ge=1)
    sentences: float = Field(gt=0)
    epsilon: float | None = Field(None, gt=0)
    unit: str = "user_entity"
    delta: float = Field(gt=0, lt=1)
    metric: str
    settings: dict[str, object]
    trials: tuple[Trial, ...]

    def changed_since(self, config: Mapping[str, object]) -> list[str]:
        """Return the keys of :attr:`settings` that have another value in a configuration, given as nested mappings."""
        now = dict(leaves(config))
        return [key for key, value in leaves(self.settings) if now.get(key) != value]

    def in_words(self, config: Mapping[str, object]) -> str:
        """Return the origin in one sentence, for the report of a run with a configuration of nested mappings."""
        count = len(self.trials)
        trials = f"{count} trial{'' if count == 1 else 's'}, seed {self.seed}"
        from_corpus = dict(leaves(config)).get("privacy.settings_from_corpus")
        text = "text that counts as private" if from_corpus else "public text"
        words = f"tuned on {text}, {self.corpus} ({trials}, {self.made_by}), for {self.users:,} users"
        changed = self.changed_since(config)
        return f"{words}; changed since: {', '.join(changed)}" if changed else words


def sentence_sample(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the hashes of a fixed sample of long sentences: the smallest hashes, in hexadecimal, ascending."""
    return tuple(heapq.nsmallest(SAMPLED, set(_hashes(texts))))


def found_in(sample: Iterable[str], texts: Iterable[str]) -> int:
    """Return how many sentences of a :func:`sentence_sample` are among ``texts``."""
    wanted = frozenset(sample)
    return len({value for value in _hashes(texts) if value in wanted}) if wanted else 0


def _hashes(texts: Iterable[str]) -> Iterator[str]:
    """Yield the hash of the letters and digits of each long text: case and punctuation are another preparation's."""
    for text in texts:
        letters = "".join(filter(str.isalnum, text.casefold()))
        if len(letters) >= _LEAST_LETTERS:
            yield hashlib.blake2b(letters.encode(), digest_size=_HASH_BYTES).hexdigest()


def leaves(tree: Mapping[str, object], section: str = "") -> Iterator[tuple[str, object]]:
    """Yield the values of nested settings, each with its full name, such as ``privacy.q_s``."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{section}{name}.")
        else:
            yield f"{section}{name}", value
