"""Load the corpus, examples and model of a worker process once, and keep them open between rounds."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from fl_sim.clients.batches import Examples
from fl_sim.clients.frozen_states import SentenceStates, open_features
from fl_sim.clients.gradients.clipped_sums import fit_batches, is_tried
from fl_sim.clients.models.language_model import LanguageModel, load_model
from fl_sim.clients.models.model_names import TaskName
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.clients.tasks import Task, make_task
from fl_sim.clients.worker.round_progress import FOLDER as PROGRESS_FOLDER
from fl_sim.clients.worker_resources import check_reserved, reserved_cores
from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.encode import open_encoded
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.files import sha256_of

TOKEN_FILE = "token"
"""The file beside the tokens that holds :attr:`WorkspaceSpec.token`."""


class WorkspaceSpec(BaseModel):
    """Name what a worker opens; small enough to send with every request.

    Attributes:
        corpus: the prepared corpus, a folder or the name of one that ships.
        fingerprint: that of the corpus when the run began; later additions are ignored, any other change is refused.
        split: the split whose users train.
        encoded: the folder with that split's tokens, readable by every worker.
        features: the file with every sentence's state in a frozen encoder; ``None`` if the model reads tokens.
        states: the file with what enters the model's first trainable layer, for sentences that were read; ``None`` if
            the model starts from tokens.
        weights: the file with every sentence's weight; ``None`` if all weights are 1.
        weights_digest: SHA-256 of that file, whose weights keep the bounds that ε rests on.
        entity_draws: the file with the number by which each entity is sampled; ``None`` if it is the entity's id.
        draws_digest: SHA-256 of that file.
        public_entities: the ids of entities that are declared public, which are sampled in every round.
        task: what the model predicts.
        model: the model to build or load.
        seed: the seed of the model's initial weights.
        token: random text that the run wrote beside ``encoded``, by which a worker knows that it sees the run's own
            files; empty if nobody checks.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    corpus: str
    fingerprint: str
    split: str
    encoded: str
    features: str | None
    states: str | None = None
    weights: str | None = None
    weights_digest: str = ""
    entity_draws: str | None = None
    draws_digest: str = ""
    public_entities: tuple[int, ...] = ()
    task: TaskName
    model: ModelSpec
    seed: int
    token: str = ""


@dataclass(frozen=True, eq=False)
class Workspace:
    """Hold the open corpus and the model of one worker process.

    ``weights`` has the weight of every sentence, float64 (S,), None if all are 1; ``progress`` is the folder of the
    nodes' counts of a round, None if nobody watches.
    """

    ownership: Ownership
    weights: NDArray[np.float64] | None
    model: LanguageModel
    examples: Examples
    progress: Path | None

    @classmethod
    def of(cls, spec: WorkspaceSpec) -> Workspace:
        """Open what a specification names.

        Raises:
            CorpusError: the corpus is damaged, or has changed since the run began.
            ModelError: the model cannot be loaded.
        """
        corpus = Corpus.open(spec.corpus, fingerprint=spec.fingerprint)
        task = make_task(spec.task, corpus.classes)
        ownership = corpus.ownership(spec.split).without_entities(spec.public_entities)
        if spec.entity_draws is not None:
            ownership = replace(ownership, entity_draws=_open_array(spec.entity_draws, spec.draws_digest), check=False)
        weights = None if spec.weights is None else _open_array(spec.weights, spec.weights_digest)
        model = ready_model(spec.model, spec.seed, task)
        encoded = open_encoded(Path(spec.encoded))
        examples = Examples(
            encoded=encoded,
            targets=corpus.targets(spec.split) if task.needs_targets else None,
            features=None if spec.features is None else open_features(Path(spec.features)),
            states=None if spec.states is None else SentenceStates(model, encoded, Path(spec.states)),
        )
        if len(examples) != ownership.num_sentences:
            raise CorpusError(f"{spec.corpus}: the corpus has changed since the run began")
        return cls(ownership, weights, model, examples, Path(spec.encoded).parent / PROGRESS_FOLDER)


def ready_model(spec: ModelSpec, seed: int, task: Task) -> LanguageModel:
    """Return a model on its device, with micro-batches that fit into its memory; ModelError if it cannot be loaded."""
    model = load_model(spec, seed, task)
    if is_tried(model):
        fit_batches(model)
    return model


def use_reserved(device: str) -> None:
    """Compute with as many threads as cores are reserved for this worker, one by default.

    Threads of several processes that compete for cores slow each other down. ModelError without a GPU for a model on
    one.
    """
    check_reserved(device)
    torch.set_num_threads(reserved_cores())


def _open_array(path: str, digest: str) -> NDArray[Any]:
    """Return the array in a file that the server wrote; raise CorpusError if it is not as the server wrote it."""
    if sha256_of(Path(path)) != digest:
        raise CorpusError(f"{path}: was changed since the run began")
    return np.asarray(np.load(path, mmap_mode="r"))


_local: dict[str, str] = {}  # specifications of files that were sent to this machine, by those of the server


def use_local_files(spec: str, local: str) -> None:
    """Let :func:`open_workspace` of this process open ``local`` where the server names ``spec``, both JSON."""
    _local[spec] = local


@functools.lru_cache(maxsize=1)
def open_workspace(spec: str) -> Workspace:
    """Return the workspace of a :class:`WorkspaceSpec` in JSON; the last workspace stays open in this process.

    Raises:
        CorpusError: the corpus is absent, damaged, or has changed since the run began.
        ModelError: the model cannot be loaded, or no GPU is reserved for a model on a GPU.
    """
    opened = WorkspaceSpec.model_validate_json(_local.get(spec, spec))
    use_reserved(opened.model.device)
    return Workspace.of(opened)
