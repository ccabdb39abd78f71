"""Define the settings of local training: a user sends gradients, or the change after several local steps.

>>> local = LocalTrainingConfig(update="steps", epochs=2)
>>> rule = gradients_or_steps("steps", local, {"q_e": 1.0, "q_s": 1.0, "user_clip": 0.5})
>>> type(rule).__name__, rule.epochs, rule.batch_size
('LocalSteps', 2, 8)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from fl_sim.strategies.client_rules import ClientRule, ClippedGradients, LocalOptimizer, LocalSteps

LOCAL_STEPS = ("optimizer", "epochs", "batch_size", "learning_rate")
"""The keys of ``[local]`` that are read only if users take local steps."""


class LocalTrainingConfig(BaseModel):
    """Hold the section ``[local]`` of a configuration."""

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
    """Return the client rule for the sum of gradients (FedSGD), or for the change after local steps (FedAvg).

    Args:
        update: ``gradients`` or ``steps``.
        local: the settings of the local steps.
        bounds: the fields of :class:`ClientRule`.

    Raises:
        PrivacyError: a rate or a bound is out of range.
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
