"""What an attacker reads from representations: private attributes, by learning on some and guessing for others.

* :func:`attack`: DPNR's attacker, a two-layer MLP of 512 hidden units with ReLU, trained on representations of the
  training texts as they are sent. Empirical privacy is 1 − X (X its accuracy, mean over attributes) or 1 − F (F1 of
  presence over all attributes together).
* :func:`leakage`: accuracy of scikit-learn's MLPClassifier, trained on the validation split, on the test split
  (FEDERATE, appendix D.1).
* :func:`description_length`: minimum description length by online coding (Voita and Titov 2020) at eleven fractions.

All are lower bounds on what leaks: a better attacker may exist. Only ε is an upper bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from fl_sim.research.representations.client.draws import Draw, short_seed
from fl_sim.research.representations.server.group_metrics import f1
from fl_sim.research.representations.server.heads import Mlp
from fl_sim.research.representations.server.solvers import unfinished_is_fine
from fl_sim.strategies.primitives import streams

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

FRACTIONS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1.0)
"""The timesteps of online coding (Voita and Titov 2020)."""

HIDDEN = 512
_BATCH = 256
_RATE = 0.001
_ALPHA = 1.0  # L2 penalty of MLPClassifier, as in FEDERATE's published code
_MOST_ITERATIONS = 1000
_SMALLEST = 1e-15  # a probability of 0 would cost infinitely many bits
_KILOBIT = 1024.0


@dataclass(frozen=True, slots=True)
class Attack:
    """What the two-layer attacker got.

    Attributes:
        accuracy: X, mean over attributes. f1: F, over all attributes together.
        absent, present: accuracy where each attribute is absent or present, a figure each (p).
    """

    accuracy: float
    f1: float
    absent: tuple[float, ...]
    present: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class DescriptionLength:
    """Bits to send the attribute of every example to somebody who has the representations.

    Attributes:
        kilobits: of the online code: each block by the model of all blocks before it (equation 10), in 1024 bits.
        recoded_kilobits: the same models, but each step codes everything from the first example on again, as
            FEDERATE's published code does; about twice as much.
        uniform_kilobits: a bit each, what somebody without the representations needs at most.
    """

    kilobits: float
    recoded_kilobits: float
    uniform_kilobits: float


def attack(
    train: Floats, train_private: Integers, test: Floats, test_private: Integers, seed: int, epochs: int = 20
) -> Attack:
    """Train an attacker for each attribute (n, p) on ``train`` (n, k) and let it guess on ``test``."""
    guesses = np.stack(
        [_guesses(train, column, test, seed, number, epochs) for number, column in enumerate(train_private.T)], axis=1
    )
    right = guesses == test_private
    return Attack(
        accuracy=float(right.mean()),
        f1=f1(guesses, test_private),
        absent=tuple(_mean(right[test_private[:, a] == 0, a]) for a in range(right.shape[1])),
        present=tuple(_mean(right[test_private[:, a] == 1, a]) for a in range(right.shape[1])),
    )


def majority_attack(train_private: Integers, test_private: Integers) -> Attack:
    """What somebody gets who always guesses the commoner value of each attribute."""
    common = (train_private.mean(axis=0) > 0.5).astype(np.int64)
    right = common == test_private
    guesses = np.broadcast_to(common, test_private.shape)
    return Attack(
        accuracy=float(right.mean()),
        f1=f1(guesses, test_private),
        absent=tuple(float(value == 0) for value in common),
        present=tuple(float(value == 1) for value in common),
    )


def leakage(train: Floats, train_private: Integers, test: Floats, test_private: Integers, seed: int) -> float:
    """Accuracy on ``test`` of an MLPClassifier trained on standardised ``train``; one attribute (n,)."""
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), _classifier(seed, "leakage"))
    with unfinished_is_fine():
        model.fit(train, train_private)
    return float(model.score(test, test_private))


def description_length(vectors: Floats, private: Integers, seed: int) -> DescriptionLength:
    """The online code of one attribute (n,) of two values, in an order drawn by ``seed``."""
    order = streams.generator(seed, "mdl order").permutation(len(private))
    vectors, private = vectors[order], private[order]
    ends = [max(int(fraction * len(private)), 1) for fraction in FRACTIONS]
    online = recoded = float(ends[0])  # a bit each for two values
    for step, (seen, end) in enumerate(pairwise(ends)):
        costs = _bits(vectors[:end], private[:end], seen, seed, step)
        online += float(costs[seen:].sum())
        recoded += float(costs.sum())
    return DescriptionLength(online / _KILOBIT, recoded / _KILOBIT, len(private) / _KILOBIT)


def _bits(vectors: Floats, private: Integers, seen: int, seed: int, step: int) -> NDArray[np.float64]:
    """−log₂ p of every example, p by a model of the first ``seen``."""
    values = np.unique(private[:seen])
    if len(values) < 2:  # nothing to learn from yet: Laplace's rule of succession
        likely = (seen + 1) / (seen + 2)
        return np.asarray(-np.log2(np.where(private == values[0], likely, 1 - likely)))
    model = _classifier(seed, f"mdl {step}")
    with unfinished_is_fine():
        model.fit(vectors[:seen], private[:seen])
    chances = model.predict_proba(vectors)[np.arange(len(private)), private]
    return np.asarray(-np.log2(np.maximum(chances, _SMALLEST)))


def _classifier(seed: int, purpose: str):  # type: ignore[no-untyped-def]
    from sklearn.neural_network import MLPClassifier

    return MLPClassifier(alpha=_ALPHA, max_iter=_MOST_ITERATIONS, random_state=short_seed(seed, purpose, bits=32))


def _guesses(train: Floats, target: Integers, test: Floats, seed: int, number: int, epochs: int) -> Integers:
    attacker_seed = short_seed(seed, "attacker", number)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(attacker_seed)
        model = Mlp([train.shape[1], HIDDEN, 2], 0.0, "attacker")
    optimizer = torch.optim.Adam(model.parameters(), lr=_RATE)
    mean, deviation = train.mean(axis=0), train.std(axis=0)
    deviation = np.where(deviation > 0, deviation, 1).astype(np.float32)
    inputs = torch.from_numpy((train - mean) / deviation)
    wanted = torch.from_numpy(target)
    for epoch in range(epochs):
        order = Draw.whole(attacker_seed, len(target)).uniform(f"order {epoch}", 1)[:, 0].argsort()
        for rows in order.split(_BATCH):
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs[rows]), wanted[rows]).backward()
            optimizer.step()
    with torch.no_grad():
        scores = model(torch.from_numpy((test - mean) / deviation))
    return np.asarray(scores.argmax(dim=1).numpy(), dtype=np.int64)


def _mean(right: NDArray[np.bool_]) -> float:
    return float(right.mean()) if len(right) else float("nan")
