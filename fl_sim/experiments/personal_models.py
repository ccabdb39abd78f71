"""The run's model beside models trained on one user alone: whom it helps, and what a user's own text adds to it.

Each of a few held-out users has their sentences cut into halves, in the order of the corpus. On the second half are
measured:

* ``start``: the model with which the run began;
* ``run``: the model of the run;
* ``alone``: ``start``, trained on the user's first half, with the parameters that the run trains;
* ``continued``: ``run``, trained on the user's first half, with the same parameters;
* ``personal``: ``run`` with adapters of low rank, or the part that :func:`personal_changes` names, trained on the
  user's first half. It is left out where the run trains that part itself, because ``continued`` is the same.

Training is a fixed number of Adam steps on the whole first half, without noise. No ε covers these models: they stand
for models that never leave their user's device, and the figures are for the corpus's owner.

>>> PersonalSettings(users=3).steps
20
>>> PersonalSettings(users=0)
Traceback (most recent call last):
fl_sim.config.ConfigError: users is 0; allowed: an integer of at least 1
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fl_sim.clients.frozen_states import sentence_features
from fl_sim.clients.local_steps import local_steps
from fl_sim.clients.models.architectures.architecture import Architecture
from fl_sim.clients.models.architectures.model_source import source_of
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.models.model_spec import MOST_RANK
from fl_sim.clients.models.tuning import check_peft
from fl_sim.clients.tasks import TextSizes
from fl_sim.config import ConfigError, RunConfig
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.experiments.evaluation import HeldOutSentences, measure
from fl_sim.experiments.released_model import initial_model, released_model
from fl_sim.experiments.run_inputs import held_out_split
from fl_sim.experiments.run_record import Record
from fl_sim.experiments.user_utility import Ratio, task_ratios
from fl_sim.reporting.bootstrap import METHOD, RESAMPLES, intervals
from fl_sim.reporting.held_out import PersonalFigures
from fl_sim.storage import model_files
from fl_sim.storage.run_folder import ResultsError, RunFolder
from fl_sim.strategies.client_rules import LocalSteps
from fl_sim.strategies.primitives import streams

_FROM_RUN = ("alone", "continued", "personal")
"""The models that are compared with the run's."""

_LARGEST_RATE = 1e6  # beyond it a step of Adam leaves float32

Ids = NDArray[np.int64]
Observer = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class PersonalSettings:
    """How many users are measured, and how their models are trained.

    Attributes:
        users: at most so many, a seeded sample of those with at least two sentences.
        steps: of Adam on the user's first half.
        learning_rate: of Adam; None for 3e-4 where all parameters train, and 1e-3 for adapters, biases and heads.
        rank: of a user's adapters; not used where the run trains adapters of its own.
        most_sentences: of a user's sentences, the first so many are used.
        seed: of the sample, of new adapters and of the intervals.

    Raises:
        ConfigError: a value is out of range.
    """

    users: int = 20
    steps: int = 20
    learning_rate: float | None = None
    rank: int = 4
    most_sentences: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in {"users": 1, "steps": 1, "rank": 1, "most_sentences": 2, "seed": 0}.items():
            value = getattr(self, name)
            if value < least:
                raise ConfigError(f"{name} is {value}; allowed: an integer of at least {least}")
        if self.rank > MOST_RANK:
            raise ConfigError(f"rank is {self.rank}; allowed: an integer from 1 to {MOST_RANK}")
        if self.learning_rate is not None and not 0 < self.learning_rate <= _LARGEST_RATE:
            raise ConfigError(
                f"learning_rate is {self.learning_rate:g}; allowed: a number above 0, at most {_LARGEST_RATE:g}"
            )

    def rate_of(self, config: RunConfig, changes: Mapping[str, Any]) -> float:
        """Return the learning rate of the run's model with ``changes`` of ``[model]``."""
        model = config.model.model_copy(update=changes)
        usual = 3e-4 if model.tune == "full" and not model.lora_rank else 1e-3
        return usual if self.learning_rate is None else self.learning_rate


class _Split:
    """The held-out split of a run: its texts, its classes, and who wrote them."""

    def __init__(self, corpus: Corpus, split: str, needs_targets: bool) -> None:
        self.where = f"{corpus.path}, split {split}"
        self._texts = corpus.texts(split)
        self._targets = corpus.targets(split) if needs_targets else None
        self._ownership = corpus.ownership(split)

    def halves(self, settings: PersonalSettings) -> list[tuple[Ids, Ids]]:
        """Return the sentences of a sample of users: the ids of each user's first and second half.

        A sentence counts if it has a class, where the task needs one. Users with fewer than two are passed over.
        """
        halves: list[tuple[Ids, Ids]] = []
        for user in streams.generator(settings.seed, "personal-users").permutation(self._ownership.num_users):
            ids, _ = self._ownership.sentences_of(np.array([user]))
            known = ids if self._targets is None else ids[self._targets[ids] >= 0]
            used = known[: settings.most_sentences]
            if len(used) >= 2:
                halves.append((used[: len(used) // 2], used[len(used) // 2 :]))
            if len(halves) == settings.users:
                break
        return halves

    def read(self, model: LanguageModel, ids: Ids) -> HeldOutSentences:
        """Return sentences as input of a model, with their states in its body if that is frozen."""
        texts = self._texts.take(pa.array(ids)).to_pylist()
        examples = model.encode(texts, None if self._targets is None else self._targets[ids].tolist())
        if model.reads_features:
            states = sentence_features(model, examples)
            examples = [replace(example, features=state) for example, state in zip(examples, states, strict=True)]
        whole = np.array([int(example.tokens[-1]) == model.eos_id for example in examples], dtype=bool)
        return HeldOutSentences(examples, TextSizes.of(texts, whole), ids)


def compare_personal(
    run: RunFolder, settings: PersonalSettings, observer: Observer = lambda done, total: None
) -> PersonalFigures:
    """Return the figures of the four models on held-out users' own text, for personal.json.

    Args:
        run: a run with a model.
        settings: of the comparison.
        observer: called with the number of trained models, and that of all.

    Raises:
        ConfigError: a user's model diverged.
        ResultsError: the run has no model, its corpus has changed, or no held-out user has two sentences.
        ModelError: a model cannot be loaded, the run's start has changed, or the package for adapters is missing.
    """
    record = Record.read(run)
    config, changes = record.config, personal_changes(record.config, settings.rank)
    if changes.get("lora_rank"):
        check_peft(changes["lora_rank"])  # before anything is trained
    own = released_model(run)  # before the corpus is read: it says what the run lacks
    corpus = record.open_corpus(run)
    split = _Split(corpus, held_out_split(config, corpus), own.task.needs_targets)
    halves = split.halves(settings)
    if not halves:
        raise ResultsError(f"{split.where}: no user has two sentences to compare on; allowed: a split with such a user")
    makers: dict[str, Callable[[], LanguageModel]] = {
        "continued": lambda: own,
        "alone": lambda: initial_model(run, config),
    } | ({"personal": lambda: released_model(run, changes)} if changes else {})
    by_model: dict[str, list[Ratio]] = {}
    for number, (name, make) in enumerate(makers.items()):
        rate = settings.rate_of(config, changes if name == "personal" else {})
        show = _shifted(observer, number * len(halves), len(makers) * len(halves))
        before, by_model[name] = _trained(make(), split, halves, settings, rate, show)
        by_model |= {"start": before} if name == "alone" else {"run": before} if name == "continued" else {}
    rates = {name: settings.rate_of(config, changes if name == "personal" else {}) for name in makers}
    return PersonalFigures(
        users=len(halves),
        steps=settings.steps,
        learning_rate=rates,
        rank=settings.rank,
        most_sentences=settings.most_sentences,
        seed=settings.seed,
        trained_on=sum(len(first) for first, _ in halves),
        measured_on=sum(len(second) for _, second in halves),
        trained={name: _trained_part(config, changes if name == "personal" else {}) for name in makers},
        model_files=(run.result or {}).get(model_files.KEY),
        **_figures(by_model, settings.seed),
    )


def personal_changes(config: RunConfig, rank: int) -> dict[str, Any]:
    """Return the changes of ``[model]`` that choose what a user trains on top of the run's model.

    The adapters of a run with adapters and the head above a frozen body train on. Other transformers get new adapters.
    Architectures without adapters train their biases, and the head of a classifier.
    """
    if config.model.lora_rank or (config.task == "classification" and config.model.tune == "head"):
        return {}
    takes_adapters = type(source_of(config.model.name).architecture).with_adapters is not Architecture.with_adapters
    return {"tune": "full", "lora_rank": rank} if takes_adapters else {"tune": "bias"}


def _trained_part(config: RunConfig, changes: dict[str, Any]) -> str:
    """Return in words which parameters train."""
    model = config.model.model_copy(update=changes)
    if model.lora_rank:
        return f"LoRA of rank {model.lora_rank}"
    return {"full": "all parameters", "head": "the output layer", "bias": "the biases"}[model.tune]


def _shifted(observer: Observer, before: int, total: int) -> Callable[[int], None]:
    """Return an observer of one kind of model, after ``before`` models of other kinds."""
    return lambda done: observer(before + done, total)


def _trained(
    model: LanguageModel,
    split: _Split,
    halves: Sequence[tuple[Ids, Ids]],
    settings: PersonalSettings,
    learning_rate: float,
    observer: Callable[[int], None],
) -> tuple[list[Ratio], list[Ratio]]:
    """Measure a model on every user's second half, before and after it is trained on the first.

    Returns:
        The task's first figure of each user before, and after; the model's parameters are as they were.
    """
    rule = LocalSteps(
        q_e=1.0,
        q_s=1.0,
        user_clip=math.inf,
        optimizer="adam",
        epochs=settings.steps,
        batch_size=settings.most_sentences,
        learning_rate=learning_rate,
    )
    theta = model.get_vector()
    before, after = [], []
    for number, (first, second) in enumerate(halves):
        given, asked = split.read(model, first), split.read(model, second)
        before.append(_measured(model, asked))
        sentences = [example for example in given.examples if model.task.size(example)]
        if sentences:
            local_steps(model, sentences, rule, streams.generator(settings.seed, "personal-steps", number))
        after.append(_measured(model, asked))
        if not math.isfinite(after[-1].above.sum()):
            raise ConfigError(
                f"learning_rate is {learning_rate:g}, with which a user's model is not finite after {settings.steps} "
                "steps; allowed: a lower one"
            )
        model.set_vector(theta)
        observer(number + 1)
    return before, after


def _measured(model: LanguageModel, sentences: HeldOutSentences) -> Ratio:
    return task_ratios(model, measure(model, sentences), sentences.sizes)[0]


def _figures(by_model: Mapping[str, Sequence[Ratio]], seed: int) -> dict[str, Any]:
    """Return the figure of each model over all users, and what a user's own text adds to the run's model.

    Args:
        by_model: for each model the figure of each user.
        seed: of the resamples, which all models share.

    Returns:
        ``metric``; ``figures`` by model; ``differences`` of the trained models from ``run``, negative where they are
        better, with paired intervals; ``better``, the share of users for whom they are; ``by_user``, each
        model's figure of each user.
    """
    names = [name for name in ("start", "run", *_FROM_RUN) if name in by_model]
    above = {name: np.array([ratio.above.sum() for ratio in by_model[name]]) for name in names}
    below = np.array([ratio.below.sum() for ratio in by_model["run"]])
    differences = {name: above[name] - above["run"] for name in _FROM_RUN if name in above}
    columns = [column for values in (*above.values(), *differences.values()) for column in (values, below)]
    found = intervals(np.stack(columns, axis=1), streams.generator(seed, "bootstrap-personal"))
    known = below > 0
    return {
        "metric": by_model["run"][0].name,
        "interval": METHOD,
        "resamples": RESAMPLES,
        "figures": dict(zip(names, found, strict=False)),
        "differences": dict(zip(differences, found[len(names) :], strict=True)),
        "better": {name: float((values[known] < 0).mean()) for name, values in differences.items() if known.any()},
        "by_user": {name: (above[name][known] / below[known]).tolist() for name in names},
    }
