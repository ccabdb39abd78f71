"""The settings of trackers (``[tracking]``): TensorBoard, Weights & Biases, MLflow and CSV as observers of a run.

>>> TrackingConfig().wandb_mode is None, TrackingConfig().timeout
(True, 60.0)
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

_Text = Annotated[str, Field(min_length=1)]


class TrackingConfig(BaseModel):
    """Where the trackers among ``observers`` write."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    project: _Text = Field("fl_sim", description="the project of Weights & Biases and the experiment of MLflow")
    folder: _Text | None = Field(
        None,
        description="the folder in which each run has one of its name for what trackers write; default: the run's own",
    )
    mlflow_uri: _Text | None = Field(
        None,
        description="MLflow's tracking URI, such as `sqlite:///mlflow.db` or `https://…`; default: MLFLOW_TRACKING_URI "
        "if it is set, else a database in the run's folder",
    )
    wandb_mode: Literal["offline", "online"] | None = Field(
        None,
        description="whether Weights & Biases sends figures to its server; default: WANDB_MODE if it is set, else "
        "`offline`",
    )
    timeout: float = Field(
        60.0,
        gt=0,
        le=3600,
        description="seconds that a run waits for a tracker at its end; one that takes longer is left behind",
    )
