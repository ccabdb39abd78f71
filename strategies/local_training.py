"""The settings of a user's local training, and the client rule that follows from them.

>>> local = LocalTrainingConfig(epochs=2, learning_rate=0.1)
>>> gradients_or_steps("steps", local, {"q_e": 1.0, "q_s": 1.0, "user_clip": 1.0}).epochs
2
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from fl_sim.strategies.client_rules import ClientRule, ClippedGradients, LocalOptimizer, LocalSteps

LOCAL_STEPS = ("optimizer", "epochs", "batch_size", "learning_rate")
"""The keys of ``[local]`` that mean something only where users take several steps."""


class LocalTrainingConfig(BaseModel):
    """The settings of local training."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    update: Literal["gradients", "steps"] | None = Field(
        None,
        description="what a user sends under user_level and noiseless: the sum of its sentences' gradients (FedSGD), "
        "or the way its local steps went (FedAvg); default: steps in user_level, gradients in noiseless",
    )
    optimizer: LocalOptimizer = Field(
        "sgd", description="of the local steps; Adam begins anew for every user and round"
    )
    epochs: int = Field(1, ge=1, description="passes over the user's sentences")
    batch_size: int = Field(8, ge=1, description="sentences per local step")
    learning_rate: float = Field(0.5, gt=0, description="step size of the local steps")


def gradients_or_steps(
    update: Literal["gradients", "steps"], local: LocalTrainingConfig, bounds: Mapping[str, Any]
) -> ClientRule:
    """Return the rule by which a user sends the sum of its gradients, or the way its local steps went.

    Args:
        update: which of the two.
        local: the settings of the local steps.
        bounds: the fields of :class:`ClientRule`.
    """
    if update == "gradients":
        return ClippedGradients(**bounds)
    return LocalSteps(
        **bounds,
        optimizer=local.optimizer,
        epochs=local.epochs,
        batch_size=local.batch_size,
        learning_rate=local.learning_rate,
    )
