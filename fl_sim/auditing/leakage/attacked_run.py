"""Open a finished run to attack it: its model, the model it began with, its corpus by side, and what its ledger proves.

An attacked *side* is a split: the training split holds the members, the held-out split the non-members. A run on a
de-identified corpus is attacked with its raw text: the corpus that it was made from has the same sentences under the
same ids.

>>> AttackedRun.open("no/such/run")
Traceback (most recent call last):
fl_sim.storage.run_folder.ResultsError: no/such/run: there is no such folder
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fl_sim.auditing.leakage.known_results import KnownResults
from fl_sim.auditing.leakage.proven_rates import LedgerProof
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.config import ConfigError, RunConfig
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.experiments.plan.enforced_bounds import EnforcedBounds
from fl_sim.experiments.released_model import initial_model, released_model
from fl_sim.experiments.run_inputs import declared_names, held_out_split
from fl_sim.experiments.run_record import Record, read_order
from fl_sim.experiments.training_text import check_text
from fl_sim.storage import model_files
from fl_sim.storage.computation import digest_of
from fl_sim.storage.run_folder import ResultsError, RunFolder, encode

Ids = NDArray[np.int64]


class NotApplicableError(ConfigError):
    """Report that an attack makes no sense for a run; one line that says why."""


@dataclass(frozen=True, eq=False)
class Side:
    """Hold a split as the attacker reads it.

    Attributes:
        split: the name of the split.
        ownership: its users, sentences and entities.
        texts: of its sentences.
        targets: int32 (S,), the class of each sentence; None for the next word.
        users: the keys of its users, in the order of their ids.
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

    def sentences_of(self, user: int) -> Ids:
        """Return the sentences of a user that have a class, where the task needs one, int64 (k,)."""
        ids, _ = self.ownership.sentences_of(np.array([user]))
        return ids if self.targets is None else ids[self.targets[ids] >= 0]

    def read(self, ids: Ids) -> list[str]:
        """Return the texts of sentences."""
        return [str(text) for text in self.texts.take(pa.array(ids)).to_pylist()]


@dataclass(frozen=True, eq=False)
class AttackedRun:
    """Hold a finished run and what an attack on it needs.

    Attributes:
        folder: of the run.
        config: of the run.
        corpus: with which it is attacked.
        model: the model that it released last.
        proof: what its ledger proves.
        bounds: on contributions, with the weights of the training split's sentences.
        members: the training split.
        non_members: the held-out split.
        has_raw_text: whether the text is that of another corpus, from which the run's corpus was made.
        kept: a folder in which results are kept; None for none.
        computed: what attacks on the run share, by name; they fill it.
        known: what attacks on several runs share; they fill it.
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
    kept: Path | None = None
    computed: dict[Any, Any] = field(default_factory=dict)
    known: KnownResults = field(default_factory=KnownResults)

    @classmethod
    def open(
        cls,
        path: Path | str,
        raw: Path | str | None = None,
        kept: Path | None = None,
        known: KnownResults | None = None,
    ) -> Self:
        """Open a run folder; every checksum of model, corpus and ledger is verified.

        Args:
            path: the run folder.
            raw: a corpus with the same sentences under the same ids, whose texts are attacked instead.
            kept: a folder in which results are kept.
            known: what attacks on other runs have found.

        Raises:
            ResultsError: the folder is no run, has no model, or its corpus has changed.
            LedgerError: its ledger cannot be trusted.
            CorpusError: the corpus cannot be read.
            ConfigError: ``raw`` has other users or sentences.
            ModelError: the model cannot be loaded.
        """
        if not Path(path).is_dir():
            raise ResultsError(f"{path}: {'is not a folder' if Path(path).exists() else 'there is no such folder'}")
        folder = RunFolder.open(path)
        model = released_model(folder)
        record = Record.read(folder)
        config, proof = record.config, LedgerProof.of(folder)
        own = record.open_corpus(folder)
        check_text(own)
        train, held_out = config.corpus.train_split, held_out_split(config, own)
        names, order = declared_names(config, own), read_order(folder)
        bounds = EnforcedBounds.of(config.privacy, own.ownership(train), config.seed, names, order)
        corpus = own if raw is None else _raw_corpus(own, raw, (train, held_out))
        members, others = (
            Side.of(corpus, split, needs_targets=model.task.needs_targets) for split in (train, held_out)
        )
        return cls(
            folder=folder,
            config=config,
            corpus=corpus,
            model=model,
            proof=proof,
            bounds=bounds,
            members=members,
            non_members=others,
            has_raw_text=raw is not None,
            kept=kept,
            known=known or KnownResults(),
        )

    @functools.cached_property
    def initial(self) -> LanguageModel:
        """Return the model with which the run began."""
        return initial_model(self.folder, self.config)

    @functools.cached_property
    def of_initial(self) -> KnownResults:
        """Return what is known of the initial model on this text; runs that began with equal models share it."""
        weights = digest_of(self.initial.weights())
        model = self.config.model.model_dump_json()
        return self.known.within((weights, model, self.corpus.fingerprint, self.members.split, self.non_members.split))

    def file_of(self, key: Mapping[str, Any], ending: str, references: Sequence[str] = ()) -> Path | None:
        """Return the file of a result, named after all that it depends on; None if no folder keeps results.

        Args:
            key: what was computed, and its settings.
            ending: of the file's name.
            references: run folders whose models it depends on.
        """
        if self.kept is None:
            return None
        result = self.folder.result or {}
        parts = {
            **key,
            "model": result.get(model_files.KEY),
            "ledger": result.get("ledger"),
            "releases": [(entry.run, entry.round, entry.sum, entry.terms.record()) for entry in self.proof.entries],
            "corpus": self.corpus.fingerprint,
            "splits": (self.members.split, self.non_members.split),
            "references": [(RunFolder.open(folder).result or {}).get(model_files.KEY) for folder in references],
        }
        digest = hashlib.sha256(json.dumps(encode(parts), sort_keys=True).encode()).hexdigest()
        return self.kept / f"{self.folder.path.name}-{digest[:16]}{ending}"

    def entity_of(self, key: str) -> int | None:
        """Return the id of an entity of the training split; None if the run's own text does not mark it."""
        known = None if self.has_raw_text else self.corpus.known_ids(self.members.split)
        return None if known is None else known.entities.get(key)

    def contribution_of(self, user: int) -> int:
        """Return the number of a member's sentences that take part under the run's bounds."""
        ids, _ = self.bounds.ownership.sentences_of(np.array([user]))
        return int((self.bounds.weights[ids] > 0).sum())

    def largest_contribution_of(self, non_member: int) -> int:
        """Return the number of a non-member's sentences that would at most take part."""
        ids, _ = self.non_members.ownership.sentences_of(np.array([non_member]))
        return int(min(len(ids), self.bounds.guarantee.user.user_sentences))


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


_RAW = "the corpus from which fl-sim deidentify made that of the run"
