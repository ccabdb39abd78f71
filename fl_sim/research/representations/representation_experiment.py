"""One experiment: one system, one corpus, one seed → a record with ε, utility, fairness and what attackers read."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fl_sim.research.representations.client.client_workspace import Workspace, open_data
from fl_sim.research.representations.client.draws import short_seed
from fl_sim.research.representations.client.local_privacy import NO_DROPOUT, LocalGuarantee, guarantee_of
from fl_sim.research.representations.config import ExperimentConfig
from fl_sim.research.representations.corpora.labelled import TEST, TRAIN, VALIDATION, LabelledData
from fl_sim.research.representations.evaluation import attacks
from fl_sim.research.representations.server.adversarial_training import EpochRow, train
from fl_sim.research.representations.server.group_metrics import accuracy, grms, group_accuracies, tpr_gap
from fl_sim.research.representations.server.heads import Server
from fl_sim.research.representations.server.inlp import null_space_projection
from fl_sim.research.representations.server.parties import Clients, LocalClients
from fl_sim.research.representations.server.solvers import unfinished_is_fine
from fl_sim.research.representations.trained_run import guarantee_of_run
from fl_sim.storage import environment as environment_module
from fl_sim.strategies.primitives import streams

RECORD_FORMAT = 1
"""Version of the record; raised when a reader of an older one would be misled."""

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Trained:
    """A system that is done.

    Attributes:
        epochs: what validation said after each.
        sent: what clients send of each split, (n, k) each.
        released: what attackers read of each split: what is sent, or what INLP leaves of it.
        predict: from what is sent to classes.
        releases: what else was sent of the test split, in the configuration's order, and what that promises.
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
    environment: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The record of an experiment, JSON-ready but for infinities (`fl_sim.storage.run_folder.encode`).

    Args:
        config: checked.
        observe: called after every epoch.
        environment: of :func:`describe_environment`; None leaves it out (a grid describes it once).
    """
    started, used = time.perf_counter(), time.process_time()
    torch.set_num_threads(1)
    # First, for a run whose ledger does not say what it released is no encoder.
    covered = None if config.encoder.run is None else guarantee_of_run(Path(config.encoder.run).expanduser())
    data = open_data(config.data, config.seed)
    record: dict[str, Any] = {
        "format": RECORD_FORMAT,
        "config": config.model_dump(mode="json"),
        "seed": config.seed,
        "data": {"name": data.name, "fingerprint": data.fingerprint, **{n: len(s) for n, s in data.splits.items()}},
    }
    if environment is not None:
        record["environment"] = environment
    if config.system.trains:
        trained, width = _train(config, data, observe)
        record["dimensions"] = width
        record["privacy"] = _privacy(config, width)
        if covered is not None:
            record["privacy_of_training"] = covered
        record["epochs"] = [asdict(row) for row in trained.epochs]
        record["metrics"] = _figures(config, data, trained)
        if config.releases:
            record["releases"] = _releases(config, data, trained)
    else:
        record["privacy"] = {"note": "nothing of the text is sent"}
        record["epochs"] = []
        record["metrics"] = _baseline(config, data)
    record["seconds"] = round(time.perf_counter() - started, 3)
    record["cpu_seconds"] = round(time.process_time() - used, 3)
    return record


def describe_environment() -> dict[str, Any]:
    """What an experiment runs on: that of a run, with the libraries that attack."""
    return environment_module.describe(("scikit-learn", "gensim"))


def released_by(config: ExperimentConfig) -> Trained:
    """Train the system and return what is sent, for pictures and attacks of one's own."""
    return _train(config, open_data(config.data, config.seed), lambda row: None)[0]


def _train(config: ExperimentConfig, data: LabelledData, observe: Callable[[EpochRow], None]) -> tuple[Trained, int]:
    """The trained system and k; as a Flower run where the configuration has nodes."""
    if config.nodes == 0:
        workspace = Workspace(config.client)
        trained, width = _train_with(LocalClients(workspace, config.optimizer), config, data, observe)
        seed = None if config.privacy.secure_noise else config.seed
        others = [workspace.released_otherwise(TEST, r.epsilon, r.word_dropout, seed) for r in config.releases]
        return replace(trained, releases=tuple(others)), width
    from fl_sim.engines.engine import run_inline
    from fl_sim.research.representations.client.representation_app import app
    from fl_sim.research.representations.server.federated import make_server_app

    found: list[tuple[Trained, int]] = []
    server = make_server_app(
        config.client,
        config.optimizer,
        lambda clients: found.append(_train_with(clients, config, data, observe)),
    )
    run_inline(server, app, config.nodes)
    return found[0]


def _train_with(
    clients: Clients, config: ExperimentConfig, data: LabelledData, observe: Callable[[EpochRow], None]
) -> tuple[Trained, int]:
    server = Server(
        clients.width,
        len(data.classes),
        len(data.attributes),
        classifier=list(config.server.classifier),
        adversary=list(config.server.adversary),
        dropout=config.server.dropout,
        adversary_dropout=config.server.dropout_of_adversaries,
        style=config.system.style if data.attributes else "none",
        weighed=config.server.weighed,
        seed=short_seed(config.seed, "server"),
    )
    epochs = train(clients, server, config.optimizer, data.train, data.validation, config.plan(clients.width), observe)
    seed = None if config.privacy.secure_noise else config.seed
    wanted = [VALIDATION, TEST]
    if config.attacks.attacker or config.system.projects:
        wanted.append(TRAIN)
    sent = {split: clients.released(split, seed) for split in wanted}
    server.eval()
    if config.system.projects:
        return _projected(config, data, server, epochs, sent), clients.width
    return Trained(epochs, sent, sent, lambda z: server.predictions(torch.from_numpy(z)).numpy()), clients.width


def _projected(
    config: ExperimentConfig, data: LabelledData, server: Server, epochs: list[EpochRow], sent: dict[str, Floats]
) -> Trained:
    """INLP: what the classifier's last layer reads is projected, and a linear classifier learns anew from it."""
    from sklearn.linear_model import LogisticRegression

    def read(vectors: Floats) -> Floats:
        return server.last_hidden(torch.from_numpy(vectors)).numpy()

    seen = read(sent[TRAIN]).astype(np.float64)
    projection = np.eye(seen.shape[1])
    for number, column in enumerate(data.train.private.T):
        rng = streams.generator(config.seed, "inlp", number)
        found, _ = null_space_projection(seen @ projection, column, config.training.inlp_rounds, rng)
        projection = projection @ found

    def left(vectors: Floats) -> Floats:
        return np.asarray(read(vectors) @ projection, dtype=np.float32)

    released = {split: left(vectors) for split, vectors in sent.items()}
    with unfinished_is_fine():
        model = LogisticRegression(max_iter=500).fit(released[TRAIN], data.train.labels)
    return Trained(epochs, sent, released, lambda vectors: np.asarray(model.predict(left(vectors)), dtype=np.int64))


def _privacy(config: ExperimentConfig, width: int) -> dict[str, Any]:
    mechanism = config.mechanism(width)
    promise = guarantee_of(mechanism, config.client.dropout if mechanism else NO_DROPOUT)
    return {
        "layer": config.layer,
        **_promised(promise),
        "sensitivity_l1": math.inf if mechanism is None else mechanism.sensitivity,
        "noise_scale": 0.0 if mechanism is None else mechanism.noise_scale,
        "grid_width": 0.0 if mechanism is None else mechanism.grid_width,
    }


def _figures(config: ExperimentConfig, data: LabelledData, trained: Trained) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for split in (VALIDATION, TEST):
        truth = data.splits[split]
        predicted = trained.predict(trained.sent[split])
        figures[split] = _utility(predicted, truth.labels, truth.private, data.attributes)
    figures["attacks"] = _attacks(config, data, trained.released)
    return figures


def _releases(config: ExperimentConfig, data: LabelledData, trained: Trained) -> list[dict[str, Any]]:
    """What the classifier makes of each other release; ε as claimed and as proven."""
    rows = []
    for asked, (sent, promise) in zip(config.releases, trained.releases, strict=True):
        utility = _utility(trained.predict(sent), data.test.labels, data.test.private, data.attributes)
        rows.append({"word_dropout": asked.word_dropout, "privacy": _promised(promise), "test": utility})
    return rows


def _promised(promise: LocalGuarantee) -> dict[str, float]:
    return {
        "epsilon": promise.parameter,
        "epsilon_claimed": promise.claimed,
        "epsilon_corrected": promise.one_word,
        "epsilon_any_text": promise.any_text,
    }


def _utility(predicted: Integers, labels: Integers, private: Integers, attributes: tuple[str, ...]) -> dict[str, Any]:
    groups = {
        name: {
            "tpr_gap": tpr_gap(predicted, labels, group),
            "grms": grms(predicted, labels, group),
            **group_accuracies(predicted, labels, group),
        }
        for name, group in zip(attributes, private.T, strict=True)
    }
    return {"accuracy": accuracy(predicted, labels), "groups": groups}


def _attacks(config: ExperimentConfig, data: LabelledData, released: dict[str, Floats]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, name in enumerate(data.attributes):
        seed = short_seed(config.seed, "attacks", number)
        validation, test = (data.splits[split].private[:, number] for split in (VALIDATION, TEST))
        row: dict[str, Any] = {}
        if config.attacks.leakage:
            row["leakage"] = attacks.leakage(released[VALIDATION], validation, released[TEST], test, seed)
        if config.attacks.mdl:
            both = np.vstack([released[VALIDATION], released[TEST]])
            row["mdl"] = asdict(attacks.description_length(both, np.concatenate([validation, test]), seed))
        found[name] = row
    if config.attacks.attacker and data.attributes:
        result = attacks.attack(
            released[TRAIN],
            data.train.private,
            released[TEST],
            data.test.private,
            config.seed,
            config.attacks.attacker_epochs,
        )
        found["attacker"] = _attacker_row(result)
    return found


def _attacker_row(result: attacks.Attack) -> dict[str, Any]:
    return {**asdict(result), "empirical_privacy_x": 1 - result.accuracy, "empirical_privacy_f": 1 - result.f1}


def _baseline(config: ExperimentConfig, data: LabelledData) -> dict[str, Any]:
    """Random and majority: no text is read, so an attacker has nothing but the attribute's frequency."""
    figures: dict[str, Any] = {}
    for number, split in enumerate((VALIDATION, TEST)):
        truth = data.splits[split]
        if config.method == "random":
            rng = streams.generator(config.seed, "random class", number)
            predicted = rng.integers(0, len(data.classes), len(truth))
        else:
            predicted = np.full(len(truth), np.bincount(data.train.labels).argmax())
        figures[split] = _utility(predicted, truth.labels, truth.private, data.attributes)
    figures["attacks"] = {}
    if data.attributes:
        guess = attacks.majority_attack(data.train.private, data.test.private)
        figures["attacks"]["attacker"] = _attacker_row(guess)
    if config.attacks.mdl:
        noise = {
            split: streams.generator(config.seed, "random vectors", number)
            .normal(size=(len(data.splits[split]), config.encoder.width))
            .astype(np.float32)
            for number, split in enumerate((VALIDATION, TEST))
        }
        # What an attacker reads from vectors that have nothing to do with the text: the most that can be.
        for name, row in _attacks(config.with_values({"attacks.attacker": False}), data, noise).items():
            figures["attacks"][name] = row
    return figures
