"""Names of tasks, poolings and the models that ship; a configuration reads them without torch.

>>> SMALL_GPT2_PUBLIC
'small-gpt2-public'
"""

from __future__ import annotations

from typing import Literal

SMALL_GPT2 = "small-gpt2"
SMALL_GPT2_PUBLIC = "small-gpt2-public"
AWD_LSTM = "awd-lstm"
SMALL_AWD_LSTM_PUBLIC = "small-awd-lstm-public"
MINILM = "minilm"
SMOLLM2 = "smollm2"

POOLER = "pooler"

TaskName = Literal["next-word", "classification"]
"""What a model predicts (`fl_sim.clients.tasks`)."""

Pooling = Literal["mean", "cls", "last", "pooler"]
"""The state of a sentence that a classification head reads; ``pooler`` is tanh(W · first state + b), BERT's own."""
