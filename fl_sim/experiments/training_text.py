"""The text that trains, as a run on the server needs it: what its releases are computed from, and who computes them.

Usually the text is a split of the server's own corpus (:class:`OwnText`), which it encodes into the run's folder for
the workers. Nodes may also hold text that the server never sees (:mod:`fl_sim.flower.text`).

>>> Corpus.open("bundled").has_text
True
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fl_sim.clients.batches import Examples
from fl_sim.clients.frozen_states import Observer, SentenceStates, ensure_features, feature_path, state_path
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.worker.workspace import TOKEN_FILE, WorkspaceSpec
from fl_sim.data_prep.digests import content_digests, digest_of_all, named_ownership, read_key
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.encode import encode_once
from fl_sim.data_prep.store.layout import write_array
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.experiments import evaluation as evaluate
from fl_sim.experiments.run_inputs import RunInputs, check_text
from fl_sim.files import sha256_of
from fl_sim.storage.open_run import ReleaseParts, digest_of
from fl_sim.strategies.aggregation import Federation

_TRAIN = "train"


class TrainingText(Protocol):
    """The training split of a run, wherever its text is."""

    def digests(self) -> ReleaseParts:
        """Return digests of the text: what releases are computed from, beside settings and model."""

    def prepare(self, observer: Observer) -> None:
        """Compute what workers need before round 1; ``observer`` is called with the progress."""

    def federation(self, seed: int) -> Federation:
        """Return the users and their nodes, sampled by ``seed``."""

    def reference(self, held_out: evaluate.HeldOutSentences) -> Mapping[str, float]:
        """Return the metrics of a reference that is estimated from the training text alone; empty without text."""

    def resumed_by(self, folder: Path) -> str:
        """Return the command that resumes the run in ``folder``."""


@dataclass(frozen=True, eq=False)
class TextOfRun(RunInputs):
    """What a training text belongs to.

    Attributes:
        folder: for files of the run, which it removes at its end.
    """

    model: LanguageModel
    folder: Path


OpenText = Callable[[TextOfRun], TrainingText]
"""Opens the training text of a run."""


class OwnText:
    """A split of the server's corpus, encoded into the run's folder."""

    def __init__(self, run: TextOfRun) -> None:
        check_text(run.corpus)
        self._run = run
        self._train = encode(run.corpus, run.split, run.model, run.folder / _TRAIN)
        cache = Path(run.config.corpus.feature_cache or run.folder)
        encoded, model = self._train.encoded, run.model
        self._features = feature_path(model, encoded, cache) if model.reads_features else None
        self._states = None if model.lower is None else state_path(model, encoded, cache)

    def digests(self) -> ReleaseParts:
        """Return digests of corpus and tokens; with an entity key, the one that does not depend on who holds what."""
        encoded = self._train.encoded
        if self._named is None:
            tokens = digest_of([encoded.tokens, encoded.offsets])
            return {"corpus": self._run.corpus.fingerprint, "tokens": tokens}
        users = self._run.corpus.users(self._run.split)["user"].tolist()
        digests = content_digests(self._named, encoded, self._train.targets, users, self._key)
        return {"corpus": digest_of_all(digests)}

    def prepare(self, observer: Observer) -> None:
        """Write what a frozen part of the model makes of the text, for the workers to share."""
        if self._features is not None:
            ensure_features(self._run.model, self._train.encoded, self._features, observer)
        if self._states is not None:
            SentenceStates(self._run.model, self._train.encoded, self._states).close()  # makes the file, if it fits

    def federation(self, seed: int) -> Federation:
        """Return the users with the workspace that every worker opens."""
        run = self._run
        bounds = run.planned.bounds
        weights, weights_digest = self._saved("weights", bounds.weights if bounds.enforces else None)
        draws, draws_digest = self._saved("entity_draws", None if self._named is None else self._named.entity_draws)
        workspace = WorkspaceSpec(
            corpus=str(run.corpus.path.absolute()),
            fingerprint=run.corpus.fingerprint,
            split=run.split,
            encoded=str(run.folder / _TRAIN),
            features=None if self._features is None else str(self._features),
            states=None if self._states is None else str(self._states),
            weights=weights,
            weights_digest=weights_digest,
            entity_draws=draws,
            draws_digest=draws_digest,
            public_entities=bounds.declared.public,
            task=run.config.task,
            model=run.config.model,
            seed=run.config.seed,
            token=self._save_token(),
        )
        tokens = bounds.weights * self._train.encoded.lengths  # expected in a round, by the rate of the others
        return Federation(
            workspace=workspace.model_dump_json(),
            sentences_per_user=run.ownership.sentences_per_user,
            seed=seed,
            load=np.bincount(run.ownership.user_of_sentence, tokens, minlength=run.ownership.num_users),
        )

    def reference(self, held_out: evaluate.HeldOutSentences) -> Mapping[str, float]:
        """Return the metrics of a unigram model, or of the most frequent class."""
        return evaluate.reference(self._run.model, self._train, held_out)

    def resumed_by(self, folder: Path) -> str:
        """Return the command that resumes the run in ``folder``."""
        return f"fl-sim resume {folder}"

    @cached_property
    def _key(self) -> bytes:
        path = self._run.config.privacy.entity_key
        return b"" if path is None else read_key(path)

    @cached_property
    def _named(self) -> Ownership | None:
        """The incidence with the digests of the entities' names; None if entities are sampled by their ids."""
        return named_ownership(self._run.corpus, self._run.split, self._key) if self._key else None

    def _saved(self, name: str, array: NDArray[Any] | None) -> tuple[str | None, str]:
        """Write an array for the workers; return its path and SHA-256, of none None and nothing."""
        if array is None:
            return None, ""
        path = self._run.folder / f"{name}.npy"
        write_array(path, np.ascontiguousarray(array))
        return str(path), sha256_of(path)

    def _save_token(self) -> str:
        """Write random text, by which a worker knows that it sees the files of this run."""
        token = secrets.token_hex(16)
        (self._run.folder / TOKEN_FILE).write_text(token, encoding="utf-8")
        return token


def encode(corpus: Corpus, split: str, model: LanguageModel, folder: Path) -> Examples:
    """Return the examples of a split, whose tokens are written to ``folder``."""
    encoded = encode_once(
        corpus, split, model.tokenizer, model.max_tokens, folder, bos_id=model.bos_id, eos_id=model.eos_id
    )
    return Examples(encoded, corpus.targets(split) if model.task.needs_targets else None)
