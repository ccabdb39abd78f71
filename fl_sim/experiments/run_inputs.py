"""The inputs of a run, opened and checked: its corpus, its task and its model.

>>> corpus = open_corpus(RunConfig())
>>> held_out_split(RunConfig(), corpus), task_of(RunConfig(), corpus).name
('validation', 'next-word')
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fl_sim.clients.errors import ModelError
from fl_sim.clients.models.architectures.model_source import is_registered
from fl_sim.clients.models.tokenizers import BUNDLED as BUNDLED_TOKENIZER
from fl_sim.config import ConfigError, RunConfig
from fl_sim.data_prep import SHIPPED_CORPORA
from fl_sim.data_prep.declared_counts import CountsOfNodes, read_counts
from fl_sim.data_prep.public_names import SHIPPED, PublicNames, counted_on, entity_weights
from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.experiments.plan.guarantees import Declared
from fl_sim.settings_origin import MOST_SHARED, found_in
from fl_sim.storage.model_files import pretraining_sample
from fl_sim.storage.open_run import NO_ANCHOR
from fl_sim.storage.run_folder import MODEL_FOLDER
from fl_sim.strategies.mechanism import Mechanism
from fl_sim.strategies.registry import mechanism_from_record

if TYPE_CHECKING:  # what reports and checks need of this module does without torch, which takes seconds to import
    from fl_sim.clients.models.language_model import LanguageModel
    from fl_sim.clients.tasks import Task
    from fl_sim.data_prep.store.ownership import Ownership
    from fl_sim.experiments.plan.run_plan import Planned

_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class RunInputs:
    """What a run trains on, and by which plan."""

    config: RunConfig
    corpus: Corpus
    planned: Planned

    @property
    def split(self) -> str:
        """Return the name of the split that trains."""
        return self.config.corpus.train_split

    @property
    def ownership(self) -> Ownership:
        """Return the incidence of the split that trains."""
        return self.corpus.ownership(self.split)


def check_rule_of(mechanism: Mechanism) -> None:
    """Check that nodes can compute a strategy's client rule, and that rule, rates, noise and record bear its event out.

    Raises:
        ConfigError: every node would fail in every round; or ε, which follows from the event alone, may be too small.
    """
    from fl_sim.clients.training import check_client_rule
    from fl_sim.strategies.messages import MessageError

    clip, event = mechanism.clip_norm, mechanism.event()
    rule, adaptive = mechanism.client_rule(clip), mechanism.adaptive
    try:
        check_client_rule(rule)
    except MessageError as error:
        raise ConfigError(f"privacy.strategy is {mechanism.strategy}, but its {error}") from error
    if event is None:
        return
    if mechanism_from_record(mechanism.record()).event() != event:
        raise ConfigError(
            f"privacy.strategy is {mechanism.strategy}, whose record has another event; allowed: an event of numbers "
            "and keys of [privacy] alone"
        )
    room = 1.0 if adaptive is None else adaptive.update_weight  # what votes leave of β to an update
    within_sentences = rule.user_clip / event.user_cap if event.clips_sentences else math.inf
    stated = {
        "client rule has user_clip": (rule.user_clip, room * mechanism.noise_std(clip) / event.noise_multiplier),
        "client rule has sentence_clip": (rule.sentence_clip, within_sentences),
        "client rule has q_e": (rule.q_e, event.q_e),
        "client rule has q_s": (rule.q_s, event.q_s),
        "cohorts have q_u": (mechanism.q_u, event.q_u),
        "users vote as": (1.0 if rule.vote is None else rule.user_clip / rule.item_clip, mechanism.items_per_user),
    }
    for what, (value, most) in stated.items():
        if value > most * (1 + _ROUNDING):
            raise ConfigError(
                f"privacy.strategy is {mechanism.strategy}, but its {what} {value:g}; allowed by its event and noise: "
                f"at most {most:g}"
            )


def open_corpus(config: RunConfig, fingerprint: str | None = None) -> Corpus:
    """Open the corpus of a run with the splits that it needs; every checksum is verified, because ε depends on it.

    Args:
        fingerprint: of the corpus when the run began; sentences appended since are left out.

    Raises:
        CorpusError: the folder is no prepared corpus, or has changed since.
        ConfigError: the corpus lacks a split, or one split would both train and be held out.
    """
    corpus = Corpus.open(config.corpus.path, verify=True, fingerprint=fingerprint)
    check_splits(config, corpus)
    return corpus


def check_text(corpus: Corpus) -> None:
    """Check that the training text of a corpus is here.

    Raises:
        CorpusError: nodes hold it.
    """
    if not corpus.has_text:
        raise CorpusError(
            f"{corpus.path}: has counts alone, of text that nodes hold; allowed: a corpus with text (a run on nodes "
            "goes on with flwr run, docs/flower.md)"
        )


def check_splits(config: RunConfig, corpus: Corpus) -> None:
    """Check that a corpus has the split that trains and another one that is held out.

    Raises:
        ConfigError: it lacks one, or they are the same.
    """
    train, held_out = config.corpus.train_split, held_out_split(config, corpus)
    for key, split in {"train_split": train, "held_out_split": held_out}.items():
        if split not in corpus.splits:
            raise ConfigError(f"corpus.{key} is '{split}'; allowed: {', '.join(corpus.splits)}")
    if train == held_out:
        raise ConfigError(f"corpus.held_out_split is '{held_out}'; allowed: another split than the one that trains")


def check_origin(config: RunConfig, corpus: Corpus) -> None:
    """Check that a model and settings that were made on public text, and public weights, are not from the run's corpus.

    Raises:
        ConfigError: the corpus is the one that they are from, or has several of its sentences. The configuration may
            state that its settings are from this corpus, but an initial model of it releases it before the first round.
    """
    privacy, split, origin = config.privacy, config.corpus.train_split, config.tuned_on
    pretrained_on = pretraining_sample(Path(config.model.name))
    if pretrained_on and (shared := found_in(pretrained_on, map(str, corpus.texts(split)))) > MOST_SHARED:
        raise ConfigError(
            f"model.name is {config.model.name}, and {shared} of the {len(pretrained_on)} sentences sampled from the "
            "text that it was pretrained on are in the training split of this run; allowed: a model of other text"
        )
    if privacy.settings_from_corpus:
        return
    allowed = "allowed: what is from other, public text, or privacy.settings_from_corpus = true"
    if privacy.public_weights is not None and counted_on(privacy.public_weights, corpus, split):
        raise ConfigError(
            f"privacy.public_weights is {privacy.public_weights}, counted on the corpus of this run, or on one that is "
            f"made of the same or has several of its sentences; {allowed}"
        )
    if origin is None:
        return
    if corpus.fingerprints & {origin.fingerprint, *origin.made_of}:
        raise ConfigError(
            f"origin.corpus is {origin.corpus}, which is the corpus of this run, or is made of the same; {allowed}"
        )
    shared = found_in(origin.sentence_sample, map(str, corpus.texts(split)))
    if shared > MOST_SHARED:
        raise ConfigError(
            f"origin.corpus is {origin.corpus}, and {shared} of the {len(origin.sentence_sample)} sentences sampled "
            f"from it are in the training split of this run; {allowed}"
        )


def declared(config: RunConfig, corpus: Corpus) -> Declared:
    """Return what the configuration declares about the names and counts of the training split, from its files.

    The counts of text that nodes hold are those that the nodes told.

    Raises:
        ConfigError, CorpusError: a file cannot be read, or is not of its format.
    """
    privacy, split = config.privacy, config.corpus.train_split
    public = PublicNames()
    weights = None
    try:
        if privacy.public_names is not None:
            public = PublicNames.read(corpus, split, privacy.public_names)
        if privacy.public_weights is not None:
            weights = entity_weights(corpus, split, privacy.public_weights)
        counts = None if privacy.counts is None else read_counts(corpus, split, privacy.counts)
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be read ({error.strerror or error}); allowed: a file") from error
    if not corpus.has_text:
        counts = CountsOfNodes.read(corpus).declared(corpus.ownership(split).sentences_per_user)
    return Declared(public.entities, public.digest, weights, counts, counts_alone=not corpus.has_text)


def held_out_split(config: RunConfig, corpus: Corpus) -> str:
    """Return the split on which utility is measured: the configured one, else the corpus's own."""
    return config.corpus.held_out_split or corpus.held_out_split


def task_of(config: RunConfig, corpus: Corpus) -> Task:
    """Return the task of a run; raise ConfigError for classification on a corpus without classes."""
    from fl_sim.clients.tasks import make_task

    if config.task == "classification" and len(corpus.classes) < 2:
        reason = (
            f"its sentences have {len(corpus.classes)} classes" if corpus.classes else "its sentences have no class"
        )
        raise ConfigError(
            f"task is 'classification' and corpus.path is '{config.corpus.path}'; allowed: a corpus with at least two "
            f"classes ({reason})"
        )
    return make_task(config.task, corpus.classes)


def build_model(config: RunConfig, task: Task, device: str | None = None) -> LanguageModel:
    """Build the model of a run for a task, on ``device`` or that of the configuration.

    Raises:
        ModelError: it cannot be loaded, does not fit into memory, cannot do the task, or is not finite.
    """
    from fl_sim.clients.models.frozen_head import has_finite_scores
    from fl_sim.clients.models.language_model import load_model

    try:
        spec = config.model if device is None else config.model.model_copy(update={"device": device})
        model = load_model(spec, config.seed, task)
    except (RuntimeError, MemoryError, OverflowError) as error:  # sizes that torch cannot allocate
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(f"model '{config.model.name}' cannot be built: {reason}") from error
    if not has_finite_scores(model):
        raise ModelError(
            f"model.name is '{config.model.name}', whose parameters or scores are not finite; "
            "allowed: a model that has not diverged"
        )
    return model


def with_absolute_paths(config: RunConfig) -> RunConfig:
    """Return the configuration with absolute folders and files, so that it holds in every working folder.

    Raises:
        ConfigError: the model is a run that has no model yet.
    """
    corpus, model, privacy, tracking = config.corpus, config.model, config.privacy, config.tracking
    paths: dict[str, str | None] = {
        "corpus.path": None if corpus.path in SHIPPED_CORPORA else corpus.path,
        "corpus.feature_cache": corpus.feature_cache,
        "privacy.entity_key": privacy.entity_key,
        "privacy.counts": privacy.counts,
        "privacy.public_names": None if privacy.public_names == SHIPPED else privacy.public_names,
        "privacy.public_weights": privacy.public_weights,
        "anchor": None if config.anchor == NO_ANCHOR else config.anchor,
    }
    absolute = {key: str(_absolute(path)) for key, path in paths.items() if path is not None}
    scheme, separator, file = (tracking.mlflow_uri or "").partition(":///")
    if scheme == "sqlite" and separator:
        absolute["tracking.mlflow_uri"] = f"{scheme}{separator}{_absolute(file)}"
    for key, name in {"model.name": model.name, "model.tokenizer": model.tokenizer}.items():
        # A name that ships or is installed never means a folder.
        if name and name != BUNDLED_TOKENIZER and not is_registered(name) and (folder := _absolute(name)).is_dir():
            if (folder / "config.json").is_file() and (folder / "metrics.jsonl").is_file():  # a run
                if not (folder / MODEL_FOLDER).is_dir():
                    raise ConfigError(f"model.name is '{folder}', a run without a model; allowed: a run that has ended")
                folder /= MODEL_FOLDER
            absolute[key] = str(folder)
    return config.changed(absolute)


def _absolute(path: str) -> Path:
    return Path(path).expanduser().absolute()
