"""Continue prompts with a next-word model, many texts per batch; tokens are drawn by temperature, top-k and top-p.

Every text has a random stream of its own, keyed by the seed, the number of its prompt and of its sample, so the numbers
that a text is drawn from do not depend on the other texts of its batch. The scores of one text in batches of different
sizes agree up to float32 rounding.

>>> scores = np.array([2.0, 1.0, 0.5, -np.inf])
>>> probabilities(scores, Sampling(temperature=1.0, top_k=2)).round(3).tolist()
[0.731, 0.269, 0.0, 0.0]
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fl_sim.clients.batches import NO_TARGET, Batch, positions_of
from fl_sim.clients.errors import ModelError
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.tasks import NextWord
from fl_sim.strategies.primitives import streams


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw tokens; ModelError for a value out of range.

    Attributes:
        max_tokens: at most so many new tokens per text.
        temperature: divides the scores; 0 takes the most probable token.
        top_k: draws from the k most probable tokens; 0 from all.
        top_p: draws from the fewest tokens whose probabilities add up to at least this.
    """

    max_tokens: int = 40
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ModelError(f"max_tokens is {self.max_tokens}; allowed: an integer of at least 1")
        if not 0 <= self.temperature < math.inf:
            raise ModelError(f"temperature is {self.temperature:g}; allowed: a number of at least 0")
        if self.top_k < 0:
            raise ModelError(f"top_k is {self.top_k}; allowed: an integer of at least 0 (0 draws from all tokens)")
        if not 0 < self.top_p <= 1:
            raise ModelError(f"top_p is {self.top_p:g}; allowed: above 0, at most 1")


def draw(scores: NDArray[np.floating], sampling: Sampling, rng: np.random.Generator) -> int:
    """Return the id of the next token; one number is drawn from ``rng``, whatever the settings.

    ``scores`` (V,) are -inf for tokens that may not come.

    Raises:
        ModelError: a score is NaN or +inf.
    """
    position = rng.random()
    if np.isnan(scores).any() or np.isposinf(scores).any():
        raise ModelError("the model's scores of a text are not finite; allowed: a model that has not diverged")
    if sampling.temperature == 0:
        return int(scores.argmax())
    cumulative = np.cumsum(probabilities(scores, sampling))
    return int(np.searchsorted(cumulative, position * cumulative[-1], side="right"))


def probabilities(scores: NDArray[np.floating], sampling: Sampling) -> NDArray[np.float64]:
    """Return the probability of every token, float64 (V,); the temperature is above 0.

    Tokens of equal probability stand in the order of their ids where ``top_k`` or ``top_p`` ends between them.
    """
    scaled = scores.astype(np.float64)
    with np.errstate(over="ignore"):
        chances = np.exp((scaled - scaled.max()) / sampling.temperature)
    chances /= chances.sum()
    if sampling.top_k == 0 and sampling.top_p == 1:
        return chances
    order = np.argsort(-chances, kind="stable")
    kept = min(sampling.top_k or len(order), len(order))
    if sampling.top_p < 1:
        before = np.cumsum(chances[order]) - chances[order]
        kept = min(kept, max(1, int((before < sampling.top_p * chances.sum()).sum())))
    chosen = np.zeros_like(chances)
    chosen[order[:kept]] = chances[order[:kept]]
    return chosen / chosen.sum()


End = Literal["end", "length", "context"]
"""Why a text stopped: the model ended it, it has ``max_tokens`` new tokens, or the context is full."""

BATCH = 16
"""Texts that are continued together."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """A continuation of a prompt; ``number`` and ``sample`` count from 0, ``tokens`` leaves out the end."""

    number: int
    sample: int
    prompt: str
    text: str
    tokens: int
    stopped: End

    @property
    def whole(self) -> str:
        """Return the prompt with its continuation."""
        return self.prompt + self.text


@dataclass(eq=False)
class _Text:
    """A text in the making: tokens of its prompt and, without the end, of its continuation."""

    number: int
    sample: int
    given: list[int]
    rng: np.random.Generator
    new: list[int] = field(default_factory=list)
    stopped: End | None = None


def generate(
    model: LanguageModel,
    prompts: Sequence[str],
    sampling: Sampling,
    *,
    samples: int = 1,
    seed: int = 0,
    batch_size: int = BATCH,
    observer: Callable[[int, int], None] = lambda done, total: None,
) -> list[Continuation]:
    """Return the continuations of every prompt, in the order of prompts and samples.

    Args:
        model: a next-word model.
        prompts: public texts; an empty one lets the model begin.
        sampling, samples: how to draw, and how many continuations per prompt.
        seed: of all random streams.
        batch_size: texts that are continued together.
        observer: called after every batch with the number of texts that are done, and that of all.

    Raises:
        ModelError: the model predicts classes, a number is out of range, or a prompt is no text or fills the context.
    """
    if not isinstance(model.task, NextWord):
        raise ModelError("the model predicts classes; allowed: a model whose task is next-word")
    for name, value in {"samples": samples, "batch_size": batch_size}.items():
        if value < 1:
            raise ModelError(f"{name} is {value}; allowed: an integer of at least 1")
    prepared = [_encoded(model, number, prompt) for number, prompt in enumerate(prompts)]
    texts = [
        _Text(number, sample, tokens, streams.generator(seed, "generate", number, sample))
        for number, tokens in enumerate(prepared)
        for sample in range(samples)
    ]
    by_length: dict[int, list[_Text]] = {}  # texts whose prompts have one length need no padding
    for text in texts:
        by_length.setdefault(len(text.given), []).append(text)
    excluded = _excluded(model)
    done = 0
    for group in by_length.values():
        for start in range(0, len(group), batch_size):
            batch = group[start : start + batch_size]
            _continue(model, batch, sampling, excluded)
            done += len(batch)
            observer(done, len(texts))
    return [_decoded(model, prompts[text.number], text) for text in texts]


def _encoded(model: LanguageModel, number: int, prompt: str) -> list[int]:
    """Return the tokens of a prompt after the one at its beginning; a special token spelt out in it is plain text."""
    try:
        prompt.encode()
    except UnicodeEncodeError as error:  # of bytes that are no UTF-8, on the command line
        raise ModelError(
            f"prompt {number + 1} has the character {prompt[error.start]!a} at place {error.start + 1}, half of a pair "
            "or a byte that is no UTF-8; allowed: text"
        ) from error
    ids = model.tokenizer([prompt], add_special_tokens=False, split_special_tokens=True)["input_ids"][0]
    if len(ids) >= model.max_tokens:
        raise ModelError(
            f"prompt {number + 1} has {len(ids)} tokens; allowed: at most {model.max_tokens - 1}, the model's context"
        )
    return [model.bos_id, *ids]


def _excluded(model: LanguageModel) -> NDArray[np.bool_]:
    """Return the tokens that may not come, bool (V,): special ones but the end, and ids without a token."""
    excluded = np.arange(model.vocabulary_size) >= len(model.tokenizer)
    excluded[[i for i in model.tokenizer.all_special_ids if i < model.vocabulary_size]] = True
    excluded[model.eos_id] = False
    return excluded


def _continue(model: LanguageModel, texts: list[_Text], sampling: Sampling, excluded: NDArray[np.bool_]) -> None:
    """Continue texts of one length until each has stopped."""
    rows = np.array([text.given for text in texts], dtype=np.int64)
    cache: Any = None
    while any(text.stopped is None for text in texts):
        with torch.no_grad(), model.exact():
            batch = _batch(model, rows if cache is None else rows[:, -1:], rows.shape[1])
            scores, cache = model.architecture.continued_scores(model.module, batch, cache)
        last = scores[:, -1].float().cpu().numpy()
        following = np.full(len(texts), model.eos_id)  # of texts that have stopped: it keeps the batch rectangular
        for index, text in enumerate(texts):
            if text.stopped is not None:
                continue
            following[index] = token = draw(np.where(excluded, -np.inf, last[index]), sampling, text.rng)
            if token == model.eos_id:
                text.stopped = "end"
                continue
            text.new.append(token)
            if len(text.new) >= sampling.max_tokens:
                text.stopped = "length"
            elif len(text.given) + len(text.new) > model.max_tokens:
                text.stopped = "context"
        rows = np.concatenate([rows, following[:, None]], axis=1)


def _batch(model: LanguageModel, inputs: NDArray[np.int64], length: int) -> Batch:
    """Return the last tokens of texts of ``length`` tokens as a batch without targets."""
    rows, columns = inputs.shape
    return Batch(
        inputs=torch.from_numpy(inputs.copy()).to(model.device),
        targets=torch.full((rows, columns), NO_TARGET, device=model.device),
        positions=torch.from_numpy(positions_of(inputs) + (length - columns)).to(model.device),
        predictions=torch.ones(rows, device=model.device),
        lengths=torch.full((rows,), columns, device=model.device),
    )


def _decoded(model: LanguageModel, prompt: str, text: _Text) -> Continuation:
    """Return a finished text; a tokenizer may write the first word of a text without the space before it."""
    decode = functools.partial(model.tokenizer.decode, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    before, whole = decode(text.given), decode([*text.given, *text.new])
    new = whole[len(before) :] if whole.startswith(before) else decode(text.new)
    return Continuation(text.number, text.sample, prompt, new, len(text.new), text.stopped or "length")
