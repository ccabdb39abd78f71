"""Open a finished run to attack it: its model, the model it began with, its corpus by side, what its ledger proves.

An attacked *side* is a split: the training split holds the members, the held-out split the non-members. A run on a
de-identified corpus is attacked with its raw text: the corpus that it was made from has the same sentences under the
same ids.

>>> Options(max_users=0)
Traceback (most recent call last):
fl_sim.config.ConfigError: max_users is 0; allowed: an integer of at least 1
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fl_sim.auditing.leakage.proven_rates import LedgerProof
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.config import ConfigError, RunConfig
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.experiments.plan.guarantees import EnforcedBounds
from fl_sim.experiments.released_model import initial_digest, initial_model, released_model
from fl_sim.experiments.run_inputs import check_text, held_out_split
from fl_sim.experiments.run_record import Record, recorded_bounds
from fl_sim.storage.run_folder import RunFolder
from fl_sim.strategies.ledger import Ledger

_T = TypeVar("_T")
_RAW = "the corpus from which fl-sim corpus deidentify made that of the run"
_LEAST = {"seed": 0, "max_users": 1, "sentences_per_user": 1, "secrets": 2, "entities": 1, "candidates": 2}


@dataclass(frozen=True, slots=True)
class Options:
    """State what is attacked, and with which sizes; equal for all runs, so that they compare.

    Attributes:
        seed: seed of the attacked units.
        max_users: most users of each side, a seeded sample.
        sentences_per_user: most sentences of a user, or of the named entity, a seeded sample.
        secrets: secrets that are drawn beside each canary's.
        entities: most attacked entities, a seeded sample.
        candidates: names that are ranked for each, the true one included.
        entity: the name of the one entity to attack; None for a sample of all.
        failure: the probability that an attack says ``beyond`` of a run whose proof holds.
        show_names: whether records name entities and users.

    Raises:
        ConfigError: a value is out of range.
    """

    seed: int = 0
    max_users: int = 500
    sentences_per_user: int = 20
    secrets: int = 1000
    entities: int = 200
    candidates: int = 50
    entity: str | None = None
    failure: float = 1e-3
    show_names: bool = False

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}; allowed: an integer of at least {least}")
        if not 0 < self.failure < 1:
            raise ConfigError(f"failure is {self.failure:g}; allowed: a number between 0 and 1")

    @classmethod
    def quick(cls) -> Self:
        """Return sizes that take a third of the time: intervals are wider, and an exposure is at most 7.7 bits."""
        return cls(secrets=200, entities=100, candidates=25)

    def record(self) -> dict[str, object]:
        """Return the options as a JSON object; the name is left out unless names are shown."""
        hidden = {} if self.show_names or self.entity is None else {"entity": "(hidden)"}
        return asdict(self) | hidden


class NotApplicableError(ConfigError):
    """Report that an attack makes no sense for a run; one line that says why."""


@dataclass(frozen=True, eq=False)
class Side:
    """Hold a split as the attacker reads it, with the keys of its users in the order of their ids.

    ``targets`` are the classes of its sentences, int32 (S,); None for the next word.
    """

    split: str
    ownership: Ownership
    texts: pa.ChunkedArray
    targets: NDArray[np.int32] | None
    users: tuple[str, ...]

    @classmethod
    def of(cls, corpus: Corpus, split: str, *, needs_targets: bool) -> Self:
        """Return a split of a corpus."""
        targets = corpus.targets(split) if needs_targets else None
        users = tuple(map(str, corpus.users(split)["user"].tolist()))
        return cls(split, corpus.ownership(split), corpus.texts(split), targets, users)

    def sentences_of(self, user: int) -> NDArray[np.int64]:
        """Return the sentences of a user that have a class, where the task needs one, int64 (k,)."""
        ids, _ = self.ownership.sentences_of(np.array([user]))
        return ids if self.targets is None else ids[self.targets[ids] >= 0]

    def read(self, ids: NDArray[np.int64]) -> list[str]:
        """Return the texts of sentences."""
        return [str(text) for text in self.texts.take(pa.array(ids)).to_pylist()]


@dataclass(frozen=True, eq=False)
class BeforeTraining:
    """Hold the model with which runs began, and what was found with it, which is the same for all of them."""

    model: LanguageModel
    _found: dict[Hashable, Any] = field(default_factory=dict)

    def once(self, key: Hashable, find: Callable[[], _T]) -> _T:
        """Return what ``find`` finds with the model, from the first call with this key."""
        if key not in self._found:
            self._found[key] = find()
        found: _T = self._found[key]
        return found


_LAST: dict[tuple[str | None, ModelSpec, str], BeforeTraining] = {}
"""Of the run that was attacked last, under the digest of the model's weights, its settings and the task."""


@dataclass(frozen=True, eq=False)
class AttackedRun:
    """Hold a finished run and what an attack on it needs.

    Attributes:
        model: the model that it released last.
        proof: what its ledger proves.
        bounds: the bounds on contributions, with the weights of the training split's sentences.
        members: the training split.
        non_members: the held-out split.
        has_raw_text: whether the text is that of another corpus, from which the run's corpus was made.
    """

    folder: RunFolder
    config: RunConfig
    corpus: Corpus
    model: LanguageModel
    proof: LedgerProof
    bounds: EnforcedBounds
    members: Side
    non_members: Side
    has_raw_text: bool = False

    @classmethod
    def open(cls, path: Path | str, raw: Path | str | None = None) -> Self:
        """Open a run folder; every checksum of model, corpus and ledger is verified.

        Args:
            path: the run folder.
            raw: a corpus with the same sentences under the same ids, whose texts are attacked instead.

        Raises:
            ResultsError: the folder is no run, has no model, or its corpus has changed.
            LedgerError: its ledger cannot be trusted.
            CorpusError: the corpus cannot be read.
            ConfigError: ``raw`` has other users or sentences.
            ModelError: the model cannot be loaded.
        """
        folder = RunFolder.open(path)
        model = released_model(folder)
        record = Record.read(folder)
        config, proof = record.config, LedgerProof.of(folder)
        own = record.open_corpus(folder)
        check_text(own)
        train, held_out = config.corpus.train_split, held_out_split(config, own)
        bounds = recorded_bounds(folder, record, own, Ledger.read(folder.path))
        corpus = own if raw is None else _raw_corpus(own, raw, (train, held_out))
        members, others = (
            Side.of(corpus, split, needs_targets=model.task.needs_targets) for split in (train, held_out)
        )
        return cls(folder, config, corpus, model, proof, bounds, members, others, has_raw_text=raw is not None)

    @functools.cached_property
    def before(self) -> BeforeTraining:
        """Return the model with which the run began; runs that began alike, one after the other, share it."""
        alike = (initial_digest(self.folder), self.config.model, self.config.task)
        if alike not in _LAST:
            _LAST.clear()
            _LAST[alike] = BeforeTraining(initial_model(self.folder, self.config))
        return _LAST[alike]


def _raw_corpus(own: Corpus, raw: Path | str, splits: tuple[str, ...]) -> Corpus:
    """Open the corpus of the raw text; raise ConfigError if its users or sentences are not those of ``own``."""
    corpus = Corpus.open(raw, verify=True)
    for split in splits:
        if split not in corpus.splits:
            raise ConfigError(f"raw is {corpus.path}, without the split '{split}'; allowed: {_RAW}")
        ours, theirs = own.ownership(split), corpus.ownership(split)
        if not np.array_equal(ours.user_of_sentence, theirs.user_of_sentence) or list(own.users(split)["user"]) != list(
            corpus.users(split)["user"]
        ):
            raise ConfigError(f"raw is {corpus.path}, whose split '{split}' has other users; allowed: {_RAW}")
    return corpus
