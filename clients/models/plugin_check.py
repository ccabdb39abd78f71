"""Check a model of another package or module before it trains.

>>> from fl_sim.clients.models.architectures.model_source import ModelSource
>>> from fl_sim.clients.models.architectures.transformer import PRETRAINED
>>> with plugin_errors("mine:Model", ModelSource(PRETRAINED, "mine:Model", ships=False)):
...     raise RuntimeError("bad shape")
Traceback (most recent call last):
fl_sim.clients.errors.ModelError: model 'mine:Model' fails with RuntimeError: bad shape
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from fl_sim.clients.batches import NO_TARGET, Batch
from fl_sim.clients.errors import ModelError
from fl_sim.clients.examples import Example
from fl_sim.clients.tasks import Task

if TYPE_CHECKING:
    from fl_sim.clients.models.architectures.model_source import ModelSource

_LENGTHS = (3, 5, 8)  # tokens of the sentences that are tried
_TOLERANCE = 1e-4  # of the largest score


class ScoringModel(Protocol):
    """A model that scores batches (`fl_sim.clients.models.language_model.LanguageModel`)."""

    task: Task
    max_tokens: int
    vocabulary_size: int

    def batch(self, examples: Sequence[Example]) -> Batch: ...

    def logits(self, batch: Batch) -> torch.Tensor: ...


@contextmanager
def plugin_errors(name: str, source: ModelSource) -> Iterator[None]:
    """Turn what a plug-in raises within the block into a ModelError of one line; errors of our own models pass."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        if source.ships:
            raise
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"model {name!r} fails with {type(error).__name__}: {reason}") from error


def check_scores(model: ScoringModel, name: str) -> None:
    """Check that scores have the right shape and do not depend on other sentences, on padding or on later words.

    Args:
        model: the model.
        name: its name, for the message.

    Raises:
        ModelError: the scores fail one of these checks; the message names it.
    """
    draws = np.random.default_rng(0)
    lengths = [min(length, model.task.longest(model.max_tokens)) for length in _LENGTHS]
    tokens = [draws.integers(0, model.vocabulary_size, size=length) for length in lengths]
    examples = [Example(sentence, target=0, number=number) for number, sentence in enumerate(tokens)]
    batch = model.batch(examples)
    with torch.no_grad():
        together = model.logits(batch)
        expected = (*batch.targets.shape, len(model.task.classes) or model.vocabulary_size)
        if tuple(together.shape) != expected:
            raise ModelError(f"model {name!r} returns scores of shape {tuple(together.shape)}; allowed: {expected}")
        allowed = _TOLERANCE * float(together.abs().max())
        for row, example in enumerate(examples):
            alone = model.batch([example])
            known = alone.targets[0] != NO_TARGET
            scores = model.logits(alone)[0]
            if not _agree(scores[known], together[row, : len(known)][known], allowed):
                raise ModelError(
                    f"model {name!r} scores a sentence otherwise beside other sentences; allowed: scores that depend "
                    "on the sentence alone (docs/privacy.md, section 2)"
                )
            if model.task.classes:
                continue
            if not _agree(model.logits(_ended_otherwise(alone))[0, :-1], scores[:-1], allowed):
                raise ModelError(f"model {name!r} reads the word that it predicts; allowed: the words before it")


def _agree(scores: torch.Tensor, others: torch.Tensor, allowed: float) -> bool:
    return bool(((scores - others).abs() <= allowed).all())


def _ended_otherwise(batch: Batch) -> Batch:
    """Return a batch of one sentence with another last input."""
    inputs = batch.inputs.clone()
    inputs[:, -1] = torch.where(inputs[:, -1] == 0, 1, 0)
    return replace(batch, inputs=inputs)
