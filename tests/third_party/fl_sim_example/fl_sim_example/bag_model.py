"""A language model that predicts the next word from the mean of the words before it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fl_sim.clients.models import Architecture


class Bag(nn.Module):
    """The mean of the word vectors up to each word."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.output = nn.Linear(width, vocabulary)

    def forward(self, batch: Any) -> torch.Tensor:
        """Return the scores of the next word, float32 (B, T, V)."""
        sums = self.embedding(batch.inputs).cumsum(dim=1)
        return self.output(torch.tanh(sums / (batch.positions + 1).unsqueeze(-1)))


class BagOfWords(Architecture):
    """Builds a :class:`Bag`; for the next word alone."""

    settings = frozenset({"hidden"})

    def build(self, spec: Any, vocabulary: Any, *, output_layer: bool) -> nn.Module:
        """Return the model."""
        return Bag(vocabulary.size, spec.hidden or 16)
