"""The record of an experiment, as its JSON has it (infinities are encoded there), and its summary as text.

>>> group = {"tpr_gap": 0.1, "tpr_gap_error": 0.02, "grms": 0.08, "grms_error": 0.01}
>>> group |= {"accuracy_without": 0.9, "accuracy_with": 0.8}
>>> record = {
...     "config": {"method": "unconstrained"}, "data": {"name": "adult", "test": 20}, "seed": 0, "seconds": 1.0,
...     "privacy": {"layer": "none"}, "cpu_seconds": 1.0,
...     "metrics": {"test": {"accuracy": 0.85, "groups": {"sex": group}}, "attacks": {}},
... }
>>> print(summary(record).splitlines()[2])
Accuracy    0.8500 on 20 test examples
"""

from __future__ import annotations

import math
from typing import Any, NotRequired, TypedDict

from fl_sim.formats import format_epsilon
from fl_sim.research.representations.server.group_metrics import GroupAccuracies
from fl_sim.storage.environment import Environment


class GuaranteeRow(TypedDict):
    """ε of one release: proven for any two texts, proven for one word, claimed, and as configured."""

    epsilon_any_text: float
    epsilon_corrected: float
    epsilon_claimed: float
    epsilon: float


class PrivacyRow(TypedDict, total=False):
    """The guarantee of the release, and the layer's L1 sensitivity, noise and grid; a ``note`` if nothing is sent."""

    layer: str
    epsilon_any_text: float
    epsilon_corrected: float
    epsilon_claimed: float
    epsilon: float
    sensitivity_l1: float
    noise_scale: float
    grid_width: float
    note: str


class GroupFigures(GroupAccuracies):
    """The classifier's figures of a private attribute, shares of 1, with their sampling errors."""

    tpr_gap: float
    tpr_gap_error: float
    grms: float
    grms_error: float


class Utility(TypedDict):
    accuracy: float
    groups: dict[str, GroupFigures]


class AttackRow(TypedDict, total=False):
    """What is read of an attribute (leakage, MDL in 1024 bits), or DPNR's attacker reads of all of them."""

    leakage: float
    mdl: dict[str, float]
    accuracy: float
    f1: float
    absent: tuple[float, ...]
    present: tuple[float, ...]
    empirical_privacy_x: float
    empirical_privacy_f: float


class Metrics(TypedDict):
    """Utility by split, and the attacks by attribute and attacker."""

    validation: Utility
    test: Utility
    attacks: dict[str, AttackRow]


class ReleaseRow(TypedDict):
    """Another release of the test texts, its ε, and the classifier's utility on it."""

    word_dropout: float
    privacy: GuaranteeRow
    test: Utility


class EntityGuarantee(TypedDict):
    """ε of a user and an entity at a contribution bound, and without relying on its detection."""

    reach: dict[str, float]
    epsilon: float
    epsilon_robust: float


class TrainingGuarantee(TypedDict):
    """ε of all releases in a run's ledger.

    ``epsilon_user`` is for a user with at most ``user_sentences`` sentences, ``epsilon_user_unbounded`` for any user;
    ``entities`` has ε at the median, 95th percentile and maximum of the run's contribution bounds, ``warnings`` what
    the run's report says that ε does not cover.
    """

    covers: str
    run: str
    strategy: str
    corpus: str
    releases: int
    noiseless_releases: int
    delta: float
    user_sentences: float
    epsilon_user: float
    epsilon_user_unbounded: float
    entities: dict[str, EntityGuarantee]
    warnings: list[str]


class DataFacts(TypedDict):
    """The corpus with the sizes of its splits; ``counts`` says what was left out or filled in."""

    name: str
    fingerprint: str
    train: int
    validation: int
    test: int
    counts: NotRequired[dict[str, int]]


class ExperimentRecord(TypedDict):
    """The record of an experiment.

    Attributes:
        config: the complete configuration.
        dimensions: k, of a method that sends vectors.
        epochs: validation figures after each epoch.
    """

    format: int
    config: dict[str, Any]
    seed: int
    data: DataFacts
    environment: NotRequired[Environment]
    dimensions: NotRequired[int]
    privacy: PrivacyRow
    privacy_of_training: NotRequired[TrainingGuarantee]
    epochs: list[dict[str, float]]
    metrics: Metrics
    releases: NotRequired[list[ReleaseRow]]
    seconds: float
    cpu_seconds: float


def summary(record: ExperimentRecord) -> str:
    """Return the summary of a record, some ten lines; proven ε stands first, claimed ε beside it."""
    metrics = record["metrics"]
    lines = [
        f"System      {record['config']['method']} on {record['data']['name']}, seed {record['seed']}",
        *_counts(record["data"].get("counts", {})),
        *_privacy(record),
        *_training_lines(record),
        f"Accuracy    {metrics['test']['accuracy']:.4f} on {record['data']['test']:,} test examples",
    ]
    for name, group in metrics["test"]["groups"].items():
        lines.append(
            f"{name:<12}TPR-gap {group['tpr_gap']:+.4f} ± {group['tpr_gap_error']:.4f}, GRMS {group['grms']:.4f} ± "
            f"{group['grms_error']:.4f} (standard errors of {record['data']['test']:,} rows), accuracy "
            f"{group['accuracy_without']:.4f} without, {group['accuracy_with']:.4f} with it"
        )
    lines += [_attack(name, row) for name, row in metrics["attacks"].items() if row]
    return "\n".join([*lines, f"Time        {record['seconds']:.1f} s, {record['cpu_seconds']:.1f} s of one core"])


def _counts(counts: dict[str, int]) -> list[str]:
    """Return what was left out of the data or filled in; nothing if nothing was."""
    return [f"Data        {'; '.join(f'{subject}: {count:,}' for subject, count in counts.items())}"] if counts else []


def _privacy(record: ExperimentRecord) -> list[str]:
    privacy, config = record["privacy"], record["config"]
    if "layer" not in privacy:
        return [f"Privacy     {privacy['note']}"]
    if privacy["layer"] == "none":
        return ["Privacy     none: no noise is added, ε = ∞"]
    masked_bag = (config["privacy"]["dropped_words"], config["encoder"]["kind"]) == ("masked", "bag")
    word = "number, mark or run of letters, as a bag splits words" if masked_bag else "word"
    return [
        f"Privacy     layer {privacy['layer']}, k {record['dimensions']}, Laplace noise of scale "
        f"{privacy['noise_scale']:.4g}, L1 sensitivity {privacy['sensitivity_l1']:.4g}",
        f"ε proven    {format_epsilon(privacy['epsilon_any_text'])} for any two texts, "
        f"{format_epsilon(privacy['epsilon_corrected'])} for two that differ in one {word}",
        f"ε claimed   {format_epsilon(privacy['epsilon_claimed'])} by the method's authors",
    ]


def _training_lines(record: ExperimentRecord) -> list[str]:
    """Return the guarantee of the encoder's own run, which protects other people's data."""
    training = record.get("privacy_of_training")
    if training is None:
        return []
    with_entity = training["entities"]["p95"]
    user, anybody = (format_epsilon(training[name]) for name in ("epsilon_user", "epsilon_user_unbounded"))
    both, robust = (format_epsilon(with_entity[name]) for name in ("epsilon", "epsilon_robust"))
    releases = f"{training['strategy']}, {training['corpus']}, {training['releases']} releases in its ledger"
    run = f"Training    the encoder's run ({releases})"
    if math.isinf(training["epsilon_user"]):
        return [f"{run} guarantees nothing for its own training data"]
    sentences = training["user_sentences"]
    within = "" if math.isinf(sentences) else f" with ≤ {sentences:g} sentences, {anybody} with any number"
    return [
        f"{run} protects its own training data, at δ = {training['delta']:g}:",
        f"            ε {user} of a user{within}; with an entity at the 95th percentile of contribution bounds {both}, "
        f"robust {robust}",
        *(f"            Warning: {warning}" for warning in training["warnings"]),
    ]


def _attack(name: str, row: AttackRow) -> str:
    if "accuracy" in row:
        whose = "of DPNR's code: " if name == "published_attacker" else ""
        figures = f"accuracy {row['accuracy']:.4f}, F1 {row['f1']:.4f}, 1−X {row['empirical_privacy_x']:.4f}"
        return f"Attacker    {whose}{figures}"
    parts = []
    if "leakage" in row:
        parts.append(f"leakage {row['leakage']:.4f}")
    if "mdl" in row:
        parts.append(f"MDL {row['mdl']['kilobits']:.2f} kbit of {row['mdl']['uniform_kilobits']:.2f}")
    return f"Attack      {name}: {', '.join(parts)}"
