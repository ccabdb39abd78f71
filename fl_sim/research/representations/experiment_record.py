"""The record of an experiment, as its JSON has it (infinities are encoded there).

>>> metrics = Metrics(validation={"accuracy": 0.7, "groups": {}}, test={"accuracy": 0.8, "groups": {}}, attacks={})
>>> metrics["test"]["accuracy"]
0.8
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

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
    ``entities`` has ε at the median, 95th percentile and maximum of the run's contribution bounds.
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
