"""Each user's Σ_s m_s·Π_c(g_s) and its norm, to be bounded by the caller before it is added to anything.

The sentences of users with about as many of them are batched into one forward and one backward pass: a user is to
`fl_sim.clients.ghost_norms` one long sentence, made of its own side by side. So its norm is a ghost norm as
well, and none of these sums is ever stored. A user who does not fit into a micro-batch, whose norm is not known well
enough, or of whom anything is not finite, gets a buffer of its own, and so do those in the same pass; so does every
user where the model is not covered.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fl_sim.clients.batches import NO_TARGET, Batch, batch_tokens, user_groups
from fl_sim.clients.examples import Example
from fl_sim.clients.ghost_norms.layer_gradients import Contribution, NotCovered
from fl_sim.clients.gradients import clipped_sums
from fl_sim.clients.gradients.clipped_sums import GradientSum, Tally
from fl_sim.clients.gradients.ghost_pass import Pass, ghost_pass
from fl_sim.clients.models.language_model import LanguageModel

Floats = npt.NDArray[np.float64]

_LONGEST = 1024  # tokens of a user who shares a pass: the Gram matrices have as many rows and columns
_WINDOW = 32  # micro-batches of users that are sorted at a time


class UserSums(ABC):
    """Sums of some users, none of them bounded yet.

    Attributes:
        users: their places in what was given.
        lengths: the norm of each sum; not finite where the sum is not.
        tallies: what went into each sum.
    """

    users: Sequence[int]
    lengths: Sequence[float]
    tallies: Sequence[Tally]

    @abstractmethod
    def add(self, shares: Sequence[float], total: torch.Tensor) -> None:
        """``total += Σ_u shares[u] · sum_u`` in place, total (d,); a share of 0 leaves a user out."""


def user_sums(
    model: LanguageModel,
    users: Iterable[Sequence[Example]],
    clip_norm: float,
    mask_seed: int | None = None,
    weights: Sequence[Floats] | None = None,
) -> Iterator[UserSums]:
    """Yield Σ_s m_s·Π_c(-∇ l(θ, s)) of every user, in an order of its own; each is to be used before the next.

    Args:
        model: the model, holding θ.
        users: the sentences of each, read as they are needed.
        clip_norm: c > 0; ``math.inf`` for no clipping.
        mask_seed: of the dropout masks, where the model has dropout; ``None`` switches it off.
        weights: m_s > 0 of each user's sentences; 1 if left out.

    Raises:
        ModelError: see `GradientSum.add`.
    """
    clipped_sums.check_clip_norm(clip_norm)
    at_once, buffer = batch_tokens(None, model.device), None
    for window in _windows(model, users, weights, _WINDOW * at_once):
        for group in user_groups([user.shape for user in window], at_once):
            members = [window[place] for place in group]
            if (together := _in_one_pass(model, members, clip_norm, mask_seed)) is not None:
                yield together
                together.forget()
                continue
            buffer = buffer or GradientSum(model, mask_seed)
            for user in members:
                yield _in_buffer(user, clip_norm, buffer)
        window.clear()  # else it would live on until the next one is whole


class _User(NamedTuple):
    """One user of a window.

    Attributes:
        place: its place in what was given.
        given: its sentences.
        sizes: the number of inputs of each; 0 for one without a prediction target.
        weights: m_s of each; None for weights of 1.
    """

    place: int
    given: Sequence[Example]
    sizes: list[int]
    weights: Floats | None

    @property
    def examples(self) -> list[Example]:
        """The sentences with at least one prediction target."""
        return [example for example, size in zip(self.given, self.sizes, strict=True) if size]

    @property
    def shape(self) -> tuple[int, int]:
        """How many sentences have a prediction target, and the inputs of the longest."""
        return sum(map(bool, self.sizes)), max(self.sizes, default=0)


def _windows(
    model: LanguageModel, users: Iterable[Sequence[Example]], weights: Sequence[Floats] | None, most: int
) -> Iterator[list[_User]]:
    """Yield the users, about ``most`` inputs of them at a time."""
    window: list[_User] = []
    inputs = 0
    for place, given in enumerate(users):
        model.validate(given)
        sizes = [model.task.size(example) for example in given]
        window.append(_User(place, given, sizes, None if weights is None else weights[place]))
        inputs += sum(sizes)
        if inputs >= most:
            yield window
            window, inputs = [], 0
    if window:
        yield window


class UserVector(UserSums):
    """One user's sum, or any other vector of it, in a buffer, float32 (d,)."""

    def __init__(self, vector: torch.Tensor, tally: Tally, place: int = 0) -> None:
        self.users, self.tallies = [place], [tally]
        self.lengths = [float(torch.linalg.vector_norm(vector, dtype=torch.float64))]
        self._vector = vector

    def add(self, shares: Sequence[float], total: torch.Tensor) -> None:
        if shares[0] != 0:
            total.add_(self._vector, alpha=shares[0])


def _in_buffer(user: _User, clip_norm: float, buffer: GradientSum) -> UserVector:
    """Return the sum of one user in ``buffer``, which the next user takes over.

    Of weights, the sentences of a weight m are added after what was there has been divided by m.
    """
    buffer.reset()
    if user.weights is None:
        buffer.add(user.given, clip_norm)
        return UserVector(buffer.flat, buffer.tally, user.place)
    for weight in np.unique(user.weights):
        buffer.flat /= float(weight)
        buffer.add([e for e, own in zip(user.given, user.weights, strict=True) if own == weight], clip_norm)
        buffer.flat *= float(weight)
    return UserVector(buffer.flat, buffer.tally, user.place)


class _Together(UserSums):
    """Users of one pass, whose sums are nowhere but in what its layers saw."""

    def __init__(
        self,
        model: LanguageModel,
        users: Sequence[int],
        lengths: torch.Tensor,
        tallies: Sequence[Tally],
        contributions: Sequence[Contribution],
    ) -> None:
        self.users, self.lengths, self.tallies = users, lengths.tolist(), tallies
        self._model = model
        self._contributions: Sequence[Contribution] | None = contributions

    def forget(self) -> None:
        """Make room for the next pass."""
        self._contributions = None

    def add(self, shares: Sequence[float], total: torch.Tensor) -> None:
        if self._contributions is None:
            raise RuntimeError("these sums are gone: the next ones have been asked for")
        views = self._model.parameters.views(total)
        factors = -torch.tensor(shares, dtype=torch.float32, device=total.device)
        with clipped_sums.full_precision():
            for contribution in self._contributions:
                contribution.add(factors, views[contribution.name])


def _in_one_pass(
    model: LanguageModel, users: Sequence[_User], clip_norm: float, mask_seed: int | None
) -> _Together | None:
    """Return the sums of ``users`` from one pass; None if it cannot be had, or not well enough."""
    sentences, longest = map(max, zip(*(user.shape for user in users), strict=True))
    layers = clipped_sums.covered_layers(model)
    if layers is None or not 0 < sentences * longest <= _LONGEST:
        return None
    try:
        with clipped_sums.full_precision():
            seen = ghost_pass(model, layers, _rectangle(model, [user.examples for user in users], mask_seed))
            factors, clipped = _sentence_clips(seen, clip_norm)
            if users[0].weights is not None:
                by_row = _weight_rows(users).to(seen.losses)
                factors = by_row if factors is None else factors * by_row
            contributions = seen.of_users(len(users), factors)
            lengths = clipped_sums.sure_norms(contributions, 0.0)
    except NotCovered:
        return None
    tallies = [Tally(loss_sum=loss, clipped=int(count)) for loss, count in _by_user(len(users), seen.losses, clipped)]
    for tally, user in zip(tallies, users, strict=True):
        tally.count(model, user.given)
    return _Together(model, [user.place for user in users], lengths, tallies, contributions)


def _rectangle(model: LanguageModel, users: Sequence[Sequence[Example]], mask_seed: int | None) -> Batch:
    """Return a batch with as many rows for each user; rows that fill up a user have no target and no gradient."""
    most = max(map(len, users))
    rows = [user[i] if i < len(user) else user[0] for user in users for i in range(most)]
    filled = torch.tensor([i >= len(user) for user in users for i in range(most)], device=model.device)
    batch = model.batch(rows, mask_seed)
    return replace(batch, targets=batch.targets.masked_fill(filled.unsqueeze(1), NO_TARGET))


def _weight_rows(users: Sequence[_User]) -> torch.Tensor:
    """Return m_s of each row of the rectangle, float64 (B,); 1 in the rows without a target."""
    weights = [user.weights[np.array(user.sizes) > 0] for user in users if user.weights is not None]
    most = max(map(len, weights))
    return torch.from_numpy(np.concatenate([np.pad(w, (0, most - len(w)), constant_values=1.0) for w in weights]))


def _sentence_clips(seen: Pass, clip_norm: float) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Return the factors by which sentences are scaled down, float32 (B,), None where they are not; and which are."""
    if math.isinf(clip_norm):
        return None, torch.zeros_like(seen.losses)
    norms = clipped_sums.sure_norms(seen.of_sentences(), clip_norm)
    return clipped_sums.clip_factors(norms, clip_norm), norms > clip_norm


def _by_user(users: int, *of_sentences: torch.Tensor) -> Iterator[tuple[float, ...]]:
    """Return for each user the sums over its sentences of each of ``of_sentences`` (B,)."""
    return zip(*(v.view(users, -1).sum(dim=1, dtype=torch.float64).tolist() for v in of_sentences), strict=True)


def with_targets(model: LanguageModel, user: Sequence[Example]) -> list[Example]:
    """Return the examples with at least one prediction target."""
    return [example for example in user if model.task.size(example)]
