"""Client rules: how a node turns a user's sentences into one bounded vector.

Each rule is a small dataclass of its own. A node computes it by the function that is registered for its class in
:mod:`fl_sim.clients.training`; the server only reads its clips. A rule travels as the import path of its class with its
fields as JSON (:mod:`fl_sim.strategies.messages`), so that a strategy may bring a rule of its own.

>>> rule = ClippedGradients(q_e=0.5, q_s=0.1, sentence_clip=1.0, user_clip=2.0)
>>> rule.item_clip
1.0
>>> ClippedGradients(q_e=0.5, q_s=1.1, user_clip=2.0)
Traceback (most recent call last):
fl_sim.strategies.primitives.limits.PrivacyError: q_s is 1.1; allowed: in (0, 1]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from fl_sim.strategies.adaptive_clip import ClipVote
from fl_sim.strategies.primitives.limits import check_rate, require

LocalOptimizer = Literal["sgd", "adam"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRule:
    """What all rules have: rates, clips, and how items vote on a clip that adapts.

    Attributes:
        q_e: the probability that an entity is active.
        q_s: the probability that a sentence is active.
        user_clip: β, the bound on one user's vector; infinite where users are not clipped.
        sentence_clip: c, the bound on one sentence's gradient; infinite where sentences are not clipped.
        vote: how items vote on the clip; None for a fixed clip.

    Raises:
        PrivacyError: a value is impossible.
    """

    q_e: float
    q_s: float
    user_clip: float
    sentence_clip: float = math.inf
    vote: ClipVote | None = None

    def __post_init__(self) -> None:
        check_rate("q_e", self.q_e)
        check_rate("q_s", self.q_s)
        require(self.user_clip > 0, "user_clip", self.user_clip, "above 0")
        require(self.sentence_clip > 0, "sentence_clip", self.sentence_clip, "above 0")

    @property
    def item_clip(self) -> float:
        """The clip of what votes: a sentence, or a user where sentences are not clipped."""
        return min(self.sentence_clip, self.user_clip)

    def joint_norm(self, length: float, votes: float) -> float:
        """Return the norm of a vector of norm ``length`` together with the coordinate that its ``votes`` are."""
        return length if self.vote is None else self.vote.joint_norm(length, votes, self.item_clip)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClippedGradients(ClientRule):
    """v_u = Π_β( Σ_s Π_c(−∇l(θ, s)) ): the sum of clipped per-sentence gradients at the round's model θ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSteps(ClientRule):
    """v_u = Π_β(θ_u − θ), where θ_u is what one or several local steps from θ make of the model.

    Attributes:
        optimizer: of the local steps.
        epochs: passes over the user's sentences.
        batch_size: sentences per local step.
        learning_rate: step size of the local steps.
    """

    optimizer: LocalOptimizer = "sgd"
    epochs: int = 1
    batch_size: int = 8
    learning_rate: float = 0.1

    def __post_init__(self) -> None:
        ClientRule.__post_init__(self)  # a class with slots is made anew, which the short super() does not know
        require(self.optimizer in get_args(LocalOptimizer), "optimizer", self.optimizer, "sgd, adam")
        require(self.epochs >= 1, "epochs", self.epochs, "an integer of at least 1")
        require(self.batch_size >= 1, "batch_size", self.batch_size, "an integer of at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedGradients(ClientRule):
    """v_u = w_u·Π_β( Σ_s m_s·(−∇l(θ, s)) ): the weighted sum of the paper's algorithm.

    Attributes:
        extended: whether sentences without an entity may take part (f_E+).
        user_weight_cap, entity_weight_cap, extended_weight_cap: ŵ_u, ŵ_e, ŵ_s; None for weights of 1.
    """

    extended: bool = True
    user_weight_cap: float | None = None
    entity_weight_cap: float | None = None
    extended_weight_cap: float | None = None


def weights_of(counts: npt.NDArray[np.integer], cap: float | None) -> npt.NDArray[np.float64]:
    """Return w = min(n/ŵ, 1) for each of ``counts``, float64 of the same shape; 1 without a cap."""
    if cap is None:
        return np.ones(len(counts))
    return np.minimum(counts / cap, 1.0).astype(np.float64)
