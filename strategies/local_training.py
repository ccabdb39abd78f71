"""How a sampled user trains where the strategy lets it take several steps."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class LocalTrainingConfig(BaseModel):
    """The settings of local training."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    update: Literal["gradients", "steps"] | None = Field(
        None,
        description="what a user sends under user_level and noiseless: the sum of its sentences' gradients (FedSGD), "
        "or the way its local steps went (FedAvg); default: steps in user_level, gradients in noiseless",
    )
    optimizer: Literal["sgd", "adam"] = Field(
        "sgd", description="of the local steps; Adam begins anew for every user and round"
    )
    epochs: int = Field(1, ge=1, description="passes over the user's sentences")
    batch_size: int = Field(8, ge=1, description="sentences per local step")
    learning_rate: float = Field(0.5, gt=0, description="step size of the local steps")
