"""Attacks on representations: classifiers that predict private attributes.

* :func:`attack`: DPNR's attacker, a two-layer MLP with ReLU, trained on the sent representations of the training texts;
  ours (:data:`OURS`), or that of its published code (:data:`PUBLISHED`). Empirical privacy is 1 − X (X: accuracy, mean
  over attributes) or 1 − F (F: F1 of presence over all attributes together).
* :func:`leakage`: test accuracy of scikit-learn's MLPClassifier, trained on the validation split (FEDERATE, appendix
  D.1).
* :func:`description_length`: minimum description length by online coding (Voita and Titov 2020) at eleven fractions.

All are lower bounds on the leakage: a better attacker may exist. Only ε is an upper bound.

>>> train, test = np.array([[0], [0], [1]]), np.array([[0], [1]])
>>> majority_attack(train, test).accuracy
0.5
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from fl_sim.research.representations.client.feed_forward import Draw, FeedForward, short_seed
from fl_sim.research.representations.server.group_metrics import accuracy, f1
from fl_sim.research.representations.server.inlp import fit_quietly
from fl_sim.strategies.primitives import streams

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

FRACTIONS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1.0)
"""The timesteps of online coding (Voita and Titov 2020)."""

_RATE = 0.001
_ALPHA = 1.0  # L2 penalty of MLPClassifier, as in FEDERATE's published code
_MOST_ITERATIONS = 1000
_SMALLEST = 1e-15  # a probability of 0 would cost infinitely many bits
_KILOBIT = 1024.0


InputName = Literal["standardised", "unit"]


@dataclass(frozen=True, slots=True)
class Attacker:
    """Size, training and inputs of DPNR's attacker.

    Attributes:
        hidden: ReLU units.
        epochs: of its training.
        batch: examples of a step.
        inputs: ``standardised``: each coordinate to mean 0 and deviation 1 over the training texts; ``unit``: each
            vector to [0, 1], by its own smallest and largest coordinate.
    """

    hidden: int = 512
    epochs: int = 20
    batch: int = 256
    inputs: InputName = "standardised"


OURS = Attacker()
PUBLISHED = Attacker(hidden=256, epochs=4, batch=64, inputs="unit")
"""That of DPNR's published code."""


@dataclass(frozen=True, slots=True)
class Attack:
    """Metrics of an attacker.

    Attributes:
        accuracy: X, mean over attributes.
        f1: F, over all attributes together.
        absent: accuracy where an attribute is absent, per attribute (p).
        present: accuracy where it is present, per attribute (p).
    """

    accuracy: float
    f1: float
    absent: tuple[float, ...]
    present: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class DescriptionLength:
    """Code length of an attribute of all examples, given their representations, in 1024 bits.

    Attributes:
        kilobits: of the online code: each block by the model of all blocks before it (equation 10).
        recoded_kilobits: with the same models, but each step codes all examples from the first on again, as in
            FEDERATE's published code; about twice as much.
        uniform_kilobits: one bit per example, the upper bound without representations.
    """

    kilobits: float
    recoded_kilobits: float
    uniform_kilobits: float


def attack(
    train: Floats,
    train_private: Integers,
    test: Floats,
    test_private: Integers,
    seed: int,
    attacker: Attacker = OURS,
) -> Attack:
    """Train an attacker per attribute on ``train`` and return its metrics on ``test``.

    Representations are float32 (n, k) and (m, k), their attributes 0 or 1, int64 (n, p) and (m, p).
    """
    own, others = _scaled(train, test, attacker.inputs)
    columns = enumerate(train_private.T)
    guesses = np.stack([_guesses(own, column, others, seed, number, attacker) for number, column in columns], axis=1)
    return _attack_of(guesses, test_private)


def majority_attack(train_private: Integers, test_private: Integers) -> Attack:
    """Return the metrics of always guessing each attribute's more frequent value; 0 or 1, int64 (n, p) and (m, p)."""
    common = (train_private.mean(axis=0) > 0.5).astype(np.int64)
    return _attack_of(np.broadcast_to(common, test_private.shape), test_private)


def _attack_of(guesses: Integers, truth: Integers) -> Attack:
    """Return the metrics of guesses, int64 (m, p)."""
    absent, present = (
        tuple(accuracy(guesses[held, a], truth[held, a]) for a, held in enumerate((truth == value).T))
        for value in (0, 1)
    )
    return Attack(float((guesses == truth).mean()), f1(guesses, truth), absent, present)


def leakage(train: Floats, train_private: Integers, test: Floats, test_private: Integers, seed: int) -> float:
    """Return the accuracy on ``test`` of an MLPClassifier trained on standardised ``train``.

    Representations are float32 (n, k) and (m, k), the values of one attribute 0 or 1, int64 (n,) and (m,).
    """
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = fit_quietly(make_pipeline(StandardScaler(), _classifier(seed, "leakage")), train, train_private)
    return float(model.score(test, test_private))


def description_length(vectors: Floats, private: Integers, seed: int) -> DescriptionLength:
    """Return the code length of one attribute, 0 or 1, int64 (n,), given vectors, float32 (n, k).

    ``seed`` draws the order of the examples and the classifiers.
    """
    order = streams.generator(seed, "mdl order").permutation(len(private))
    vectors, private = vectors[order], private[order]
    ends = [max(int(fraction * len(private)), 1) for fraction in FRACTIONS]
    online = recoded = float(ends[0])  # one bit per example of the first block
    for step, (seen, end) in enumerate(pairwise(ends)):
        costs = _code_lengths(vectors[:end], private[:end], seen, seed, step)
        online += float(costs[seen:].sum())
        recoded += float(costs.sum())
    return DescriptionLength(online / _KILOBIT, recoded / _KILOBIT, len(private) / _KILOBIT)


def _code_lengths(vectors: Floats, private: Integers, seen: int, seed: int, step: int) -> NDArray[np.float64]:
    """Return −log₂ p of every example, float64 (n,), with p from a model of the first ``seen`` examples."""
    values = np.unique(private[:seen])
    if len(values) < 2:  # a classifier needs two values: Laplace's rule of succession
        likely = (seen + 1) / (seen + 2)
        return np.asarray(-np.log2(np.where(private == values[0], likely, 1 - likely)))
    model = fit_quietly(_classifier(seed, f"mdl {step}"), vectors[:seen], private[:seen])
    probabilities = model.predict_proba(vectors)[np.arange(len(private)), private]
    return np.asarray(-np.log2(np.maximum(probabilities, _SMALLEST)))


def _classifier(seed: int, purpose: str):  # type: ignore[no-untyped-def]
    from sklearn.neural_network import MLPClassifier

    return MLPClassifier(alpha=_ALPHA, max_iter=_MOST_ITERATIONS, random_state=short_seed(seed, purpose, bits=32))


def _scaled(train: Floats, test: Floats, inputs: InputName) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the attacker's inputs, float32 (n, k) and (m, k)."""
    if inputs == "unit":
        return _unit_range(train), _unit_range(test)
    mean, deviation = train.mean(axis=0), train.std(axis=0)
    deviation = np.where(deviation > 0, deviation, 1).astype(np.float32)
    return torch.from_numpy((train - mean) / deviation), torch.from_numpy((test - mean) / deviation)


def _unit_range(vectors: Floats) -> torch.Tensor:
    """Return each vector scaled to [0, 1] by its own extremes; a constant one becomes 0."""
    low = vectors.min(axis=1, keepdims=True)
    width = vectors.max(axis=1, keepdims=True) - low
    return torch.from_numpy(np.divide(vectors - low, width, out=np.zeros_like(vectors), where=width > 0))


def _guesses(
    train: torch.Tensor, target: Integers, test: torch.Tensor, seed: int, number: int, attacker: Attacker
) -> Integers:
    """Return the attacker's guesses of attribute ``number`` on ``test``, int64 (m,)."""
    attacker_seed = short_seed(seed, "attacker", number)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(attacker_seed)
        model = FeedForward([train.shape[1], attacker.hidden, 2], 0.0, "attacker")
    optimizer = torch.optim.Adam(model.parameters(), lr=_RATE)
    labels = torch.from_numpy(target)
    for epoch in range(attacker.epochs):
        order = Draw(attacker_seed, len(target)).uniform(f"order {epoch}", 1)[:, 0].argsort()
        for rows in order.split(attacker.batch):
            optimizer.zero_grad()
            functional.cross_entropy(model(train[rows]), labels[rows]).backward()
            optimizer.step()
    with torch.no_grad():
        scores = model(test)
    return np.asarray(scores.argmax(dim=1).numpy(), dtype=np.int64)
