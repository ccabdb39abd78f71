"""One experiment: one system, one corpus and one seed to a record with ε, utility, fairness and attacks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from fl_sim.research.representations.client.client_workspace import Workspace, open_data, word_dropout
from fl_sim.research.representations.client.feed_forward import short_seed
from fl_sim.research.representations.config import ExperimentConfig
from fl_sim.research.representations.corpora.labelled import TEST, TRAIN, VALIDATION, LabelledData, LabelledSplit
from fl_sim.research.representations.evaluation import attacks
from fl_sim.research.representations.experiment_record import (
    AttackRow,
    ExperimentRecord,
    GroupFigures,
    GuaranteeRow,
    Metrics,
    PrivacyRow,
    ReleaseRow,
    Utility,
)
from fl_sim.research.representations.local_privacy import NO_DROPOUT, LocalGuarantee, guarantee_of
from fl_sim.research.representations.server.adversarial_training import Clients, EpochRow, train
from fl_sim.research.representations.server.group_metrics import (
    accuracy,
    grms,
    group_accuracies,
    sampling_errors,
    tpr_gap,
)
from fl_sim.research.representations.server.heads import Server
from fl_sim.research.representations.server.inlp import fit_quietly, null_space_projection
from fl_sim.research.representations.trained_run import guarantee_of_run
from fl_sim.storage.environment import Environment, describe
from fl_sim.strategies.primitives import streams

RECORD_FORMAT = 2
"""Version of the record; raised when a reader of an older one would be misled."""

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TrainedSystem:
    """A trained system and its releases.

    Attributes:
        epochs: validation metrics after each epoch.
        sent: the clients' vectors by split, float32 (n, k) each.
        released: the attackers' input by split, float32 (n, h) each: the sent vectors, or their projection by INLP.
        predict: sent vectors, float32 (n, k), to classes, int64 (n,).
        releases: vectors and guarantee of each other release of the test split, in the configuration's order.
    """

    epochs: list[EpochRow]
    sent: dict[str, Floats]
    released: dict[str, Floats]
    predict: Callable[[Floats], Integers]
    releases: tuple[tuple[Floats, LocalGuarantee], ...] = ()


def run(
    config: ExperimentConfig,
    observe: Callable[[EpochRow], None] = lambda row: None,
    *,
    environment: Environment | None = None,
    keep: Callable[[TrainedSystem], None] = lambda trained: None,
) -> ExperimentRecord:
    """Run an experiment and return its record, JSON-ready but for infinities (`fl_sim.storage.run_folder.encode`).

    ``observe`` is called with the row of every epoch, ``keep`` with the system, if the method has one, and its
    releases; ``environment`` is that of :func:`describe_environment`, which a grid describes once.
    """
    started, used = time.perf_counter(), time.process_time()
    torch.set_num_threads(1)
    # First: a run without a valid ledger cannot be an encoder.
    training_guarantee = None if config.encoder.run is None else guarantee_of_run(Path(config.encoder.run).expanduser())
    data = open_data(config.data, config.seed)
    trained = _train(config, data, observe) if config.system.trains else None
    record: ExperimentRecord = {
        "format": RECORD_FORMAT,
        "config": config.model_dump(mode="json"),
        "seed": config.seed,
        "data": {
            "name": data.name,
            "fingerprint": data.fingerprint,
            "train": len(data.train),
            "validation": len(data.validation),
            "test": len(data.test),
        },
        "privacy": {"note": "nothing of the text is sent"},
        "epochs": [],
        "metrics": _baseline(config, data) if trained is None else _metrics(config, data, trained),
        "seconds": 0.0,
        "cpu_seconds": 0.0,
    }
    if data.counts:
        record["data"]["counts"] = dict(data.counts)
    if environment is not None:
        record["environment"] = environment
    if trained is not None:
        keep(trained)
        width = trained.sent[TEST].shape[1]
        record["dimensions"] = width
        record["privacy"] = _privacy(config, width)
        if training_guarantee is not None:
            record["privacy_of_training"] = training_guarantee
        record["epochs"] = [asdict(row) for row in trained.epochs]
        if config.releases:
            record["releases"] = _releases(config, data, trained)
    record["seconds"] = round(time.perf_counter() - started, 3)
    record["cpu_seconds"] = round(time.process_time() - used, 3)
    return record


def describe_environment() -> Environment:
    """Return the environment of a run, with the versions of the attackers' libraries."""
    return describe(("scikit-learn", "gensim"))


def train_and_release(config: ExperimentConfig) -> TrainedSystem:
    """Train the system and return it with its releases, for pictures and further attacks."""
    return _train(config, open_data(config.data, config.seed), lambda row: None)


def _train(config: ExperimentConfig, data: LabelledData, observe: Callable[[EpochRow], None]) -> TrainedSystem:
    workspace = Workspace(config)
    style = config.system.style if data.attributes else "none"
    seed = short_seed(config.seed, "server")
    server = Server(workspace.encoder.width, len(data.classes), len(data.attributes), config.server, style, seed)
    epochs = train(Clients(workspace), server, data, config, observe)
    noise_seed = None if config.privacy.secure_noise else config.seed
    splits = [VALIDATION, TEST]
    if _attackers(config, data) or config.system.projects:
        splits.append(TRAIN)
    sent = {split: workspace.release(split, noise_seed) for split in splits}
    server.eval()
    if config.system.projects:
        trained = _project(config, data, server, epochs, sent)
    else:
        trained = TrainedSystem(epochs, sent, sent, lambda z: server.predictions(torch.from_numpy(z)).numpy())
    others = [workspace.release_with(TEST, r.epsilon, r.word_dropout, noise_seed) for r in config.releases]
    return replace(trained, releases=tuple(others))


def _project(
    config: ExperimentConfig, data: LabelledData, server: Server, epochs: list[EpochRow], sent: dict[str, Floats]
) -> TrainedSystem:
    """Return the system after INLP: a new linear classifier on the projected inputs of the last layer."""
    from sklearn.linear_model import LogisticRegression

    def hidden(vectors: Floats) -> Floats:
        return server.last_hidden(torch.from_numpy(vectors)).numpy()

    states = hidden(sent[TRAIN]).astype(np.float64)
    projection = np.eye(states.shape[1])
    for number, column in enumerate(data.train.private.T):
        rng = streams.generator(config.seed, "inlp", number)
        projection = projection @ null_space_projection(states @ projection, column, config.training.inlp_rounds, rng)

    def project(vectors: Floats) -> Floats:
        return np.asarray(hidden(vectors) @ projection, dtype=np.float32)

    released = {split: project(vectors) for split, vectors in sent.items()}
    model = fit_quietly(LogisticRegression(max_iter=500), released[TRAIN], data.train.labels)

    def predict(vectors: Floats) -> Integers:
        return np.asarray(model.predict(project(vectors)), dtype=np.int64)

    return TrainedSystem(epochs, sent, released, predict)


def _privacy(config: ExperimentConfig, width: int) -> PrivacyRow:
    mechanism = config.mechanism(width)
    guarantee = guarantee_of(mechanism, word_dropout(config) if mechanism else NO_DROPOUT)
    return {
        "layer": config.layer,
        **_guarantee_row(guarantee),
        "sensitivity_l1": math.inf if mechanism is None else mechanism.sensitivity,
        "noise_scale": 0.0 if mechanism is None else mechanism.noise_scale,
        "grid_width": 0.0 if mechanism is None else mechanism.grid_width,
    }


def _metrics(config: ExperimentConfig, data: LabelledData, trained: TrainedSystem) -> Metrics:
    return {
        "validation": _utility(trained.predict(trained.sent[VALIDATION]), data.validation, data, config.seed),
        "test": _utility(trained.predict(trained.sent[TEST]), data.test, data, config.seed),
        "attacks": _attacks(config, data, trained.released),
    }


def _releases(config: ExperimentConfig, data: LabelledData, trained: TrainedSystem) -> list[ReleaseRow]:
    """Return the classifier's utility on each other release, with its ε as claimed and as proven."""
    rows: list[ReleaseRow] = []
    for section, (sent, guarantee) in zip(config.releases, trained.releases, strict=True):
        utility = _utility(trained.predict(sent), data.test, data, config.seed)
        rows.append({"word_dropout": section.word_dropout, "privacy": _guarantee_row(guarantee), "test": utility})
    return rows


def _guarantee_row(guarantee: LocalGuarantee) -> GuaranteeRow:
    return {
        "epsilon_any_text": guarantee.any_text,
        "epsilon_corrected": guarantee.one_word,
        "epsilon_claimed": guarantee.claimed,
        "epsilon": guarantee.parameter,
    }


def _utility(predicted: Integers, truth: LabelledSplit, data: LabelledData, seed: int) -> Utility:
    groups: dict[str, GroupFigures] = {}
    for number, (name, group) in enumerate(zip(data.attributes, truth.private.T, strict=True)):
        errors = sampling_errors(predicted, truth.labels, group, streams.generator(seed, "bootstrap", number))
        groups[name] = {
            "tpr_gap": tpr_gap(predicted, truth.labels, group),
            "tpr_gap_error": errors.tpr_gap,
            "grms": grms(predicted, truth.labels, group),
            "grms_error": errors.grms,
            **group_accuracies(predicted, truth.labels, group),
        }
    return {"accuracy": accuracy(predicted, truth.labels), "groups": groups}


def _attacks(config: ExperimentConfig, data: LabelledData, released: dict[str, Floats]) -> dict[str, AttackRow]:
    rows: dict[str, AttackRow] = {}
    for number, name in enumerate(data.attributes):
        seed = short_seed(config.seed, "attacks", number)
        validation, test = (data.splits[split].private[:, number] for split in (VALIDATION, TEST))
        row: AttackRow = {}
        if config.attacks.leakage:
            row["leakage"] = attacks.leakage(released[VALIDATION], validation, released[TEST], test, seed)
        if config.attacks.mdl:
            both = np.vstack([released[VALIDATION], released[TEST]])
            row["mdl"] = asdict(attacks.description_length(both, np.concatenate([validation, test]), seed))
        rows[name] = row
    for name, attacker in _attackers(config, data).items():
        result = attacks.attack(
            released[TRAIN], data.train.private, released[TEST], data.test.private, config.seed, attacker
        )
        rows[name] = _attacker_row(result)
    return rows


def _attackers(config: ExperimentConfig, data: LabelledData) -> dict[str, attacks.Attacker]:
    """Return DPNR's attackers by their name in the record."""
    chosen = {}
    if config.attacks.attacker:
        chosen["attacker"] = replace(attacks.OURS, epochs=config.attacks.attacker_epochs)
    if config.attacks.published_attacker:
        chosen["published_attacker"] = attacks.PUBLISHED
    return chosen if data.attributes else {}


def _attacker_row(result: attacks.Attack) -> AttackRow:
    empirical = {"empirical_privacy_x": 1 - result.accuracy, "empirical_privacy_f": 1 - result.f1}
    return cast(AttackRow, {**asdict(result), **empirical})


def _baseline(config: ExperimentConfig, data: LabelledData) -> Metrics:
    """Return the metrics of random and majority; an attacker knows the attributes' frequencies alone."""
    utility = []
    for number, truth in enumerate((data.validation, data.test)):
        if config.method == "random":
            rng = streams.generator(config.seed, "random class", number)
            predicted = rng.integers(0, len(data.classes), len(truth))
        else:
            predicted = np.full(len(truth), np.bincount(data.train.labels).argmax())
        utility.append(_utility(predicted, truth, data, config.seed))
    rows: dict[str, AttackRow] = {}
    if data.attributes:
        guess = _attacker_row(attacks.majority_attack(data.train.private, data.test.private))
        rows |= dict.fromkeys(["attacker", *_attackers(config, data)], guess)
    if config.attacks.mdl:
        noise = {
            split: streams.generator(config.seed, "random vectors", number)
            .normal(size=(len(data.splits[split]), config.encoder.width))
            .astype(np.float32)
            for number, split in enumerate((VALIDATION, TEST))
        }
        # Vectors that are independent of the text: the largest possible description length.
        plain = config.with_values({"attacks.attacker": False, "attacks.published_attacker": False})
        rows |= _attacks(plain, data, noise)
    return {"validation": utility[0], "test": utility[1], "attacks": rows}
