"""What a run will cost, said before its first round: sentences and seconds a round, memory and disk.

Sentences are expected values of the run's own sampling. Seconds are measured on one small batch of held-out sentences,
by plain gradients, and scaled; memory and disk follow from the numbers of parameters. All but the sentences are rough,
within a factor of two or so. Like the run's notes the forecast is for the corpus's owner; it is not recorded.

>>> cost = Forecast(sentences=840.2, seconds=2.4, rounds=3000, memory=2.2 * 2**30, disk=30 * 2**20)
>>> cost.in_words()
'840 sentences and about 2.4 s a round, about 2.0 h in all; about 2.2 GiB of memory, 30 MiB on disk'
"""

from __future__ import annotations

import math
import os
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from fl_sim.clients.batches import Example
from fl_sim.clients.frozen_states import bytes_of_token
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.models.losses import loss_gradients
from fl_sim.config import EngineConfig, RunConfig
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.experiments.placement import Machine, cores_here
from fl_sim.experiments.plan.run_plan import Planned, plan_run
from fl_sim.experiments.run_inputs import build_model, check_text, declared, task_of
from fl_sim.formats import duration
from fl_sim.strategies.client_rules import LocalSteps

_LONG = 3600.0
"""Seconds from which on a run gets a note."""

CLIPPING = 1.3
"""Time of clipped gradients of a batch, as a multiple of its plain gradient."""

_TRIED = 16  # sentences of the measured batch
_TRIAL_SECONDS = 0.2
_LOCAL = 2.2  # the same multiple of local steps, in which users share no batch
_EVALUATION = 0.35  # the same of losses alone
_LIBRARIES = 600 * 2**20  # bytes of a process before its model
_BYTES_OF_PARAMETER = 4
_SERVER_BYTES = 36  # of a trainable parameter in the server's model, sum, optimizer and averages
_WORKER_BYTES = 12
_DISK_BYTES = 28  # of a trainable parameter in two checkpoints and a model
_SERVER_SECONDS = 8e-8  # of a trainable parameter and round
_BATCH_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Forecast:
    """The expected cost of a run.

    Attributes:
        sentences: whose gradients a round computes, on average, with repetitions in local steps.
        seconds: of a round; NaN if the workers compute on a device that the server has not.
        rounds: that are left.
        memory: bytes of all processes of the run.
        disk: bytes of its folder.
        notes: what the machine lacks, and that a run takes hours; each a sentence.
    """

    sentences: float
    seconds: float
    rounds: int
    memory: float
    disk: float
    notes: tuple[str, ...] = ()

    def in_words(self) -> str:
        """Return the forecast in one line."""
        time_taken = (
            " a round"
            if math.isnan(self.seconds)
            else f" and about {duration(self.seconds)} a round, about {duration(self.seconds * self.rounds)} in all"
        )
        return (
            f"{self.sentences:,.0f} sentences{time_taken}; about {size(self.memory)} of memory, "
            f"{size(self.disk)} on disk"
        )


@dataclass(frozen=True, slots=True)
class Pace:
    """The seconds that parts of a round take on this machine.

    Attributes:
        sentence: of a plain gradient of a sentence of mean length.
        server: of the server's step.
        tokens: the mean tokens of a sentence, with those at its ends.
    """

    sentence: float
    server: float
    evaluation: float
    tokens: float

    @classmethod
    def of(cls, model: LanguageModel, sample: list[Example], threads: int = 1) -> Pace:
        """Return the pace of a model, with evaluations of as many sentences as the sample has."""
        sentence = seconds_per_sentence(model, sample, threads)
        tokens = sum(len(example.tokens) for example in sample) / max(1, len(sample))
        return cls(sentence, model.num_parameters * _SERVER_SECONDS, len(sample) * sentence * _EVALUATION, tokens)

    def at_length(self, tokens: float) -> Pace:
        """Return the pace with sentences of so many tokens."""
        longer = tokens / self.tokens
        return replace(self, sentence=longer * self.sentence, evaluation=longer * self.evaluation, tokens=tokens)

    def seconds(self, sentences: float, workers: int = 1, every: int = 1, factor: float = CLIPPING) -> float:
        """Return the seconds of a round of so many sentences, with an evaluation after ``every`` rounds."""
        return sentences * self.sentence * factor / workers + self.server + self.evaluation / every

    def sentences(self, seconds: float, workers: int = 1, every: int = 1) -> float:
        """Return how many sentences a round of so many seconds has; below 0 if the rest takes longer."""
        return (seconds - self.seconds(0, workers, every)) / (self.sentence * CLIPPING / workers)


def forecast(
    config: RunConfig, planned: Planned, ownership: Ownership, model: LanguageModel, sample: list[Example], where: Path
) -> Forecast:
    """Return the cost of a run that is about to begin with this plan, on this training split.

    Args:
        where: a folder on the disk of the run's folder.
    """
    sentences = expected_sentences(planned, ownership)
    engine = config.placed_engine
    workers_here = config.model.device.partition(":")[0] == model.device.type
    pace = Pace.of(model, sample, threads_of(engine)) if workers_here else Pace(math.nan, 0.0, 0.0, 0.0)
    trainable, whole = model.num_parameters, sum(p.numel() for p in model.module.parameters())
    workers = workers_of(engine)
    rule = planned.plan.mechanism.client_rule(planned.plan.mechanism.clip_norm)
    factor = _LOCAL if isinstance(rule, LocalSteps) else CLIPPING
    seconds = pace.seconds(sentences, workers_at_once(engine), config.evaluation.every, factor)
    scores = 3 * _BYTES_OF_PARAMETER * _BATCH_TOKENS * model.vocabulary_size
    process = whole * _BYTES_OF_PARAMETER + scores
    server = _LIBRARIES + process + trainable * _SERVER_BYTES
    nodes = process if config.engine.name == "inline" else workers * (_LIBRARIES + process + trainable * _WORKER_BYTES)
    mean = sum(map(len, sample)) / len(sample) if sample else 0.0
    tokens = ownership.num_sentences * mean * (_BYTES_OF_PARAMETER + bytes_of_token(model))
    cost = Forecast(sentences, seconds, planned.rounds, server + nodes, trainable * _DISK_BYTES + tokens)
    return replace(cost, notes=_notes(cost, where))


def forecast_of(config: RunConfig) -> Forecast:
    """Return the cost of a run that has not begun, on this machine; nothing is written.

    Seconds are those of the lengths of its own training sentences: they are for the corpus's owner, and may set nothing
    that a run releases.

    Raises:
        ConfigError, CorpusError, ModelError, PrivacyError: for what cannot run.
    """
    corpus, split, engine = Corpus.open(config.corpus.path), config.corpus.train_split, config.placed_engine
    check_text(corpus)
    ownership = corpus.ownership(split)
    planned = plan_run(config, ownership, declared=declared(config, corpus))
    model = build_model(config, task_of(config, corpus), engine.server_device or "cpu")
    sample = sentences_of(corpus, split, model, config.evaluation.max_sentences)
    return forecast(config, planned, ownership, model, sample, Path.cwd())


def sentences_of(corpus: Corpus, split: str, model: LanguageModel, most: int) -> list[Example]:
    """Return sentences of a split, evenly spaced, as a next-word model reads them."""
    texts = corpus.texts(split)
    chosen = np.unique(np.linspace(0, len(texts) - 1, min(most, len(texts))).round().astype(np.int64))
    return model.encode([str(text) for text in texts.take(pa.array(chosen)).to_pylist()])


def expected_sentences(planned: Planned, ownership: Ownership) -> float:
    """Return the expected number of sentences whose gradients a round computes, repeated in every local pass."""
    rule = planned.plan.mechanism.client_rule(planned.plan.mechanism.clip_norm)
    passes = rule.epochs if isinstance(rule, LocalSteps) else 1
    return expected_selection(planned, ownership) * passes


def expected_selection(planned: Planned, ownership: Ownership) -> float:
    """Return the expected number of sentences that a round selects, q_u·q_s·Σ_s w(s)·q_e^(entities of s)."""
    mechanism = planned.plan.mechanism
    rule = mechanism.client_rule(mechanism.clip_norm)
    active = planned.bounds.weights * np.power(rule.q_e, ownership.entities_per_sentence)
    return float(mechanism.expected_cohort / mechanism.population * rule.q_s * active.sum())


def seconds_per_sentence(model: LanguageModel, sample: list[Example], threads: int = 1) -> float:
    """Return the seconds that a plain gradient takes for a sentence of mean length; 0 without a sentence.

    The model is not changed; a worker computes with so many threads.

    One small batch is measured, of sentences of about median length, which need little padding, as those of a round do.
    """
    asked = sorted((example for example in sample if model.task.size(example)), key=model.task.size)
    if not asked:
        return 0.0
    first = max(0, (len(asked) - _TRIED) // 2)
    chosen = asked[first : first + _TRIED]
    torch.set_num_threads(threads)
    fastest, spent = math.inf, 0.0
    while spent < _TRIAL_SECONDS:  # the first pass of a small model is mostly what is set up on first use
        began = time.perf_counter()
        loss_gradients(model, model.batch(chosen))
        taken = time.perf_counter() - began
        fastest, spent = min(fastest, taken), spent + taken
    inputs = sum(map(model.task.size, asked)) / len(sample)
    return fastest * inputs / sum(map(model.task.size, chosen))


def size(count: float) -> str:
    """Return a number of bytes as people write it.

    >>> size(2.5 * 2**30), size(10)
    ('2.5 GiB', '1 MiB')
    """
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{max(count / 2**20, 1):.0f} MiB"


def workers_of(engine: EngineConfig) -> int:
    """Return how many workers there are, as far as this machine tells (``RunConfig.placed_engine``)."""
    if engine.name == "inline":
        return 1
    share = engine.gpus_per_node or 0
    gpus = (torch.cuda.device_count() if engine.num_gpus is None else engine.num_gpus) if share else 0
    here = Machine("here", _cores(engine), gpus, _cores(engine), gpus)
    slots = max(1, here.room_for(engine.cpus_per_node, share))
    return min(slots, engine.nodes or slots)


def workers_at_once(engine: EngineConfig) -> int:
    """Return how many workers compute at the same time: those that share a core take turns."""
    return min(workers_of(engine), _cores(engine))


def _cores(engine: EngineConfig) -> int:
    return engine.num_cpus or cores_here()


def threads_of(engine: EngineConfig) -> int:
    """Return with how many threads a worker computes."""
    return 1 if engine.name == "inline" else engine.threads_per_node


def _notes(cost: Forecast, where: Path) -> tuple[str, ...]:
    """Return what the machine lacks, and how long a run of hours takes."""
    notes = []
    memory, free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), shutil.disk_usage(where).free
    if cost.memory > memory:
        notes.append(
            f"The run may need more memory than the {size(memory)} of this machine; model.lora_rank or model.tune = "
            "'head' needs less."
        )
    if cost.disk > free:
        notes.append(f"The run may need more disk than the {size(free)} that are free in {where}.")
    if cost.seconds * cost.rounds > _LONG:
        notes.append(
            f"The run may take {duration(cost.seconds * cost.rounds)}. Fewer rounds or a lower rate take less; a value "
            "that is chosen for this corpus is not covered by ε (privacy.settings_from_corpus)."
        )
    return tuple(notes)
