"""Open a finished run to attack it: its model, the model it began with, its corpus by side, what its ledger proves.

An attacked *side* is a split: the training split holds the members, the held-out split the non-members. A run on a
de-identified corpus is attacked with its raw text: the corpus that it was made from has the same sentences under the
same ids.

Before it the options of all attacks, and results that several runs share; after it the runs that stand beside it
(references, and runs without the attacked user or entity), and files with results, for their owner alone, so that a
stopped command goes on where it was.

>>> Options(max_users=5).sentences_per_user
20
>>> Options(max_users=0)
Traceback (most recent call last):
fl_sim.config.ConfigError: max_users is 0; allowed: an integer of at least 1

>>> known = KnownResults()
>>> known.get("answer", lambda: 42), known.get("answer", lambda: 43)
(42, 42)
>>> known.within("another model").get("answer", lambda: 43)
43

>>> AttackedRun.open("no/such/run")
Traceback (most recent call last):
fl_sim.storage.run_folder.ResultsError: no/such/run: there is no such folder

>>> kept_record(None) is None
True
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fl_sim.auditing.leakage.rates import LedgerProof
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.config import ConfigError, RunConfig
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.experiments.plan.guarantees import EnforcedBounds
from fl_sim.experiments.released_model import initial_model, released_model
from fl_sim.experiments.run_inputs import declared_names, held_out_split
from fl_sim.experiments.run_record import Record, read_order
from fl_sim.experiments.training_text import check_text
from fl_sim.files import owner_only, read_bytes
from fl_sim.storage import model_files
from fl_sim.storage.ledger_check import digest_of
from fl_sim.storage.run_folder import ResultsError, RunFolder, decode, encode, replace_file

_LEAST = {
    "seed": 0, "max_users": 1, "sentences_per_user": 1, "secrets": 2, "entities": 1, "candidates": 2, "texts": 1
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Options:
    """What all attacks are given.

    Attributes:
        seed: of the units that are attacked; equal for all runs, so that they compare.
        max_users: at most so many users of each side, a seeded sample.
        sentences_per_user: at most so many sentences of a user, a seeded sample.
        references: run folders whose models are the reference; none for the model with which the run began.
        secrets: secrets that are drawn beside each canary's.
        entities: at most so many entities are attacked, a seeded sample.
        candidates: names that are ranked for each.
        texts: that are sampled from a model to find names in them.
        entity: the name of one entity that is attacked; None for none.
        user: one user that is attacked; None for none.
        without: run folders whose models stand beside, trained on the same text without that entity or user.
        failure: the probability that an attack says ``beyond`` of a run whose proof holds.
        show_names: whether records name entities and users, and quote text.

    Raises:
        ConfigError: a value is out of range.
    """

    seed: int = 0
    max_users: int = 500
    sentences_per_user: int = 20
    references: tuple[str, ...] = ()
    secrets: int = 1000
    entities: int = 200
    candidates: int = 50
    texts: int = 1000
    entity: str | None = None
    user: str | None = None
    without: tuple[str, ...] = ()
    failure: float = 1e-3
    show_names: bool = False

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}; allowed: an integer of at least {least}")
        if self.without and self.entity is None and self.user is None:
            raise ConfigError("without is given without entity or user; allowed: with one of them")
        if not 0 < self.failure < 1:
            raise ConfigError(f"failure is {self.failure:g}; allowed: a number between 0 and 1")

    def record(self) -> dict[str, Any]:
        """Return the options as a JSON object; names are left out unless they are shown."""
        hidden = {} if self.show_names else {name: "(hidden)" for name in ("entity", "user") if getattr(self, name)}
        return asdict(self) | hidden


Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class KnownResults:
    """Hold results by key within a scope.

    Attributes:
        results: of all scopes.
        scope: of this view on them.
    """

    results: dict[Hashable, Any] = field(default_factory=dict)
    scope: Hashable = None

    def within(self, scope: Hashable) -> KnownResults:
        """Return a view in which the same keys mean other results, within the scope of this one."""
        return KnownResults(self.results, (self.scope, scope))

    def get(self, key: Hashable, compute: Callable[[], Result]) -> Result:
        """Return the result under a key, computed where it is not known."""
        whole = (self.scope, key)
        if whole not in self.results:
            self.results[whole] = compute()
        found: Result = self.results[whole]
        return found


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


@dataclass(frozen=True, eq=False)
class OtherRun:
    """Hold a finished run of the same task as an attacked one.

    Attributes:
        config: of the run.
        model: the model that it released last.
        corpus: on which it was trained.
    """

    config: RunConfig
    model: LanguageModel
    corpus: Corpus

    @classmethod
    def open(cls, path: str, run: AttackedRun, what: str) -> Self:
        """Open a run folder.

        Args:
            path: the folder.
            run: the attacked run.
            what: the name of the option that gave ``path``, for messages.

        Raises:
            ConfigError: the run has another task than the attacked one.
            ResultsError: it has no model, or its corpus has changed.
        """
        folder = RunFolder.open(path)
        model = released_model(folder)
        if model.task.name != run.model.task.name or model.task.classes != run.model.task.classes:
            raise ConfigError(
                f"{what} is {path}, whose task is another; allowed: {run.model.task.name}, with its classes"
            )
        record = Record.read(folder)
        return cls(record.config, model, record.open_corpus(folder))

    @property
    def split(self) -> str:
        """Return the name of the training split."""
        return self.config.corpus.train_split

    def texts(self) -> set[str]:
        """Return the texts of the training split."""
        return {str(text) for text in self.corpus.texts(self.split).to_pylist()}


def kept_record(file: Path | None) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if there is none, or the file was cut off."""
    try:
        record = None if file is None else decode(json.loads(read_bytes(file)))
    except (FileNotFoundError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def keep_record(file: Path | None, record: Mapping[str, Any]) -> None:
    """Write a JSON object; nothing without a file."""
    _write(file, json.dumps(encode(record)).encode())


def kept_array(file: Path | None) -> NDArray[np.float64] | None:
    """Return the array in a file, float64; None if there is none, or the file was cut off."""
    try:
        return None if file is None else np.asarray(np.load(file, allow_pickle=False), dtype=np.float64)
    except (FileNotFoundError, ValueError, EOFError):
        return None


def keep_array(file: Path | None, values: NDArray[np.float64]) -> None:
    """Write an array; nothing without a file."""
    content = io.BytesIO()
    np.save(content, values)
    _write(file, content.getvalue())


def _write(file: Path | None, content: bytes) -> None:
    if file is not None:
        with owner_only():
            file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(file, content)
