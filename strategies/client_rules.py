"""Define client rules: how a node turns a user's sentences into one client update v_u with ‖v_u‖ ≤ β.

A rule is a small dataclass. A node computes it by the function that :mod:`fl_sim.clients.training` has registered for
its class; the server reads only its clips. A rule is sent as the import path of its class and its fields in JSON
(:mod:`fl_sim.strategies.messages`), so a strategy of another package may define its own.

The guarantee of a mechanism assumes that nodes follow the rule (docs/privacy.md, section 2).

>>> weights_of(np.array([1, 2, 8]), cap=4)
array([0.25, 0.5 , 1.  ])
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypedDict, get_args

import numpy as np
import numpy.typing as npt

from fl_sim.strategies.primitives.adaptive_clip import ClipVote
from fl_sim.strategies.primitives.limits import check_rate, check_stability, require

LocalOptimizer = Literal["sgd", "adam"]


class RuleBounds(TypedDict):
    """Name the fields of :class:`ClientRule` that a mechanism states for every rule."""

    q_e: float
    q_s: float
    user_clip: float
    vote: ClipVote | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRule:
    """Hold the fields of every rule: sampling rates, clips, and the vote on an adaptive clip.

    Attributes:
        q_e: the probability that an entity is active.
        q_s: the probability that a sentence is active.
        user_clip: β, the bound on one user's vector; infinite if users are not clipped.
        sentence_clip: c, the bound on one sentence's gradient; infinite if sentences are not clipped.
        stability: γ > 0 of automatic clipping, c·g/(‖g‖ + γ) for every sentence (Bu, Wang, Zha and Karypis 2022,
            AUTO-S); None for the projection Π_c.
        vote: how items vote on the clip; None for a fixed clip.

    Raises:
        PrivacyError: a value is out of range.
    """

    q_e: float
    q_s: float
    user_clip: float
    sentence_clip: float = math.inf
    stability: float | None = None
    vote: ClipVote | None = None

    def __post_init__(self) -> None:
        check_rate("q_e", self.q_e)
        check_rate("q_s", self.q_s)
        require(self.user_clip > 0, "user_clip", self.user_clip, "above 0")
        require(self.sentence_clip > 0, "sentence_clip", self.sentence_clip, "above 0")
        if self.stability is not None:
            check_stability("stability", self.stability)
            require(math.isfinite(self.sentence_clip), "sentence_clip", self.sentence_clip, "finite with a stability")
            require(self.vote is None, "vote", self.vote, "nothing with a stability, which leaves no norm to vote on")

    @property
    def item_clip(self) -> float:
        """Return the clip of the voting items: sentences, or users if sentences are not clipped."""
        return min(self.sentence_clip, self.user_clip)

    def joint_norm(self, length: float, votes: float) -> float:
        """Return the norm of a client update of norm ``length`` together with the coordinate of its ``votes``."""
        return length if self.vote is None else self.vote.joint_norm(length, votes, self.item_clip)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClippedGradients(ClientRule):
    """Sum clipped per-sentence gradients at the round's model θ: v_u = Π_β( Σ_s Π_c(−∇l(θ, s)) ).

    With a ``stability`` γ the normalised −c·∇l/(‖∇l‖ + γ), which is shorter than c, takes the place of Π_c(−∇l).
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSteps(ClientRule):
    """Send the change of the model after local steps: v_u = Π_β(θ_u − θ), where the steps lead from θ to θ_u.

    Attributes:
        optimizer: the optimizer of the local steps, ``sgd`` or ``adam``.
        epochs: passes over the user's sentences.
        batch_size: sentences per local step.
        learning_rate: step size of the local steps.

    Raises:
        PrivacyError: a value is out of range.
    """

    optimizer: LocalOptimizer = "sgd"
    epochs: int = 1
    batch_size: int = 8
    learning_rate: float = 0.1

    def __post_init__(self) -> None:
        ClientRule.__post_init__(self)  # slots=True replaces the class, so super() without arguments would fail
        require(self.optimizer in get_args(LocalOptimizer), "optimizer", self.optimizer, "sgd, adam")
        require(self.epochs >= 1, "epochs", self.epochs, "an integer of at least 1")
        require(self.batch_size >= 1, "batch_size", self.batch_size, "an integer of at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedGradients(ClientRule):
    """Step along weighted gradients as the paper's algorithm does: v_u = w_u·Π_β(θ_u − θ).

    A step of one pass of SGD leads from θ' to θ' − η·Σ_{s∈b} m_s·∇l(θ', s), for a batch b. With one batch and η = 1
    the update is w_u·Π_β( Σ_s m_s·(−∇l(θ, s)) ).

    Attributes:
        extended: whether sentences without an entity are eligible (f_E+).
        user_weight_cap, entity_weight_cap, extended_weight_cap: ŵ_u, ŵ_e, ŵ_s; None for weights of 1.
        batch_size: B, sentences per local step; None for one step with all of a user's.
        learning_rate: η, the step size.
    """

    extended: bool = True
    user_weight_cap: float | None = None
    entity_weight_cap: float | None = None
    extended_weight_cap: float | None = None
    batch_size: int | None = None
    learning_rate: float = 1.0

    def __post_init__(self) -> None:
        ClientRule.__post_init__(self)
        batch = self.batch_size
        require(batch is None or batch >= 1, "batch_size", batch, "an integer of at least 1, or nothing")


def weights_of(counts: npt.NDArray[np.integer], cap: float | None) -> npt.NDArray[np.float64]:
    """Return the weight w = min(n/ŵ, 1) of each count n, float64 (k,); 1 without a cap ŵ."""
    if cap is None:
        return np.ones(len(counts))
    return np.minimum(counts / cap, 1.0).astype(np.float64)
