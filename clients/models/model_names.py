"""Names that a configuration may say without torch being loaded: of tasks, and of models that need no folder."""

from __future__ import annotations

from typing import Literal

SMALL_GPT2 = "small-gpt2"
SMALL_GPT2_PUBLIC = "small-gpt2-public"
AWD_LSTM = "awd-lstm"
BUILT = (SMALL_GPT2, AWD_LSTM)
"""Those that are built from sizes, with random initial weights."""

TaskName = Literal["next-word", "classification"]
"""What a model is to tell of a sentence (`fl_sim.clients.tasks`)."""

Pooling = Literal["mean", "cls", "last"]
"""Which state of an encoder a classification head reads."""
