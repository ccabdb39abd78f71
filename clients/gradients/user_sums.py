"""Each user's Σ_s m_s·Π_c(g_s) and its norm, to be shortened by whoever asked for it before it is added to anything.

Users of about as many sentences share a forward and a backward pass: a user is to
`fl_sim.clients.ghost_norms` one long sentence,
made of its own side by side. So its norm is a ghost norm as well, and none of these sums is ever stored. A user who
does not fit into a micro-batch, whose norm is not known well enough, or of whom anything is not finite, gets a buffer
of its own, and so do those in the same pass; so does everybody where the model is not covered.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

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
    """Sums of some users, none of them shortened yet.

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
    """Σ_s m_s·Π_c(-∇ l(θ, s)) of every user, in an order of its own; each to be used before the next is asked for.

    Args:
        users: the sentences of each, read as they are needed.
        clip_norm: c > 0; ``math.inf`` for no clipping.
        mask_seed: of the dropout masks, where the model has dropout; ``None`` switches it off.
        weights: m_s > 0 of each user's sentences; 1 if left out.

    Raises:
        ModelError: see `GradientSum.add`.
    """
    clipped_sums.check_clip_norm(clip_norm)
    at_once, buffer = batch_tokens(None, model.device), None
    for window in _windows(model, users, _WINDOW * at_once):
        places = list(window)
        for group in user_groups([_shape(model, user) for user in window.values()], at_once):
            of_group = {places[i]: window[places[i]] for i in group}
            told_of = None if weights is None else {place: weights[place] for place in of_group}
            if (found := _together(model, of_group, clip_norm, mask_seed, told_of)) is not None:
                yield found
                found.forget()
                continue
            buffer = buffer or GradientSum(model, mask_seed)
            for place, user in of_group.items():
                yield _Alone(place, user, clip_norm, buffer, None if weights is None else weights[place])
        window.clear()  # else it would live on until the next one is whole


class _Alone(UserSums):
    """One user, in a buffer that the next one takes over."""

    def __init__(
        self, place: int, user: Sequence[Example], clip_norm: float, buffer: GradientSum, weights: Floats | None
    ) -> None:
        buffer.reset()
        if weights is None:
            buffer.add(user, clip_norm)
        else:
            _add_weighted(buffer, user, clip_norm, weights)
        self.users, self.tallies = [place], [buffer.tally]
        self.lengths = [float(torch.linalg.vector_norm(buffer.flat, dtype=torch.float64))]
        self._sum = buffer.flat

    def add(self, shares: Sequence[float], total: torch.Tensor) -> None:
        if shares[0] != 0:
            total.add_(self._sum, alpha=shares[0])


def _add_weighted(buffer: GradientSum, user: Sequence[Example], clip_norm: float, weights: Floats) -> None:
    """Σ_s m_s·Π_c(g_s) of one user from an empty buffer: those of a weight m after what was there is divided by m."""
    for weight in np.unique(weights):
        buffer.flat /= float(weight)
        buffer.add([example for example, own in zip(user, weights, strict=True) if own == weight], clip_norm)
        buffer.flat *= float(weight)


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


def _together(
    model: LanguageModel,
    users: Mapping[int, Sequence[Example]],
    clip_norm: float,
    mask_seed: int | None,
    weights: Mapping[int, Floats] | None,
) -> _Together | None:
    """The sums from one pass; ``None`` if it cannot be had, or not well enough."""
    to_tell = [told(model, user) for user in users.values()]
    sentences, longest = map(max, zip(*(_shape(model, user) for user in to_tell), strict=True))
    layers = clipped_sums.covered_layers(model)
    if layers is None or not 0 < sentences * longest <= _LONGEST:
        return None
    try:
        with clipped_sums.full_precision():
            seen = ghost_pass(model, layers, _rectangle(model, to_tell, mask_seed))
            factors, clipped = _sentence_clips(seen, clip_norm)
            if weights is not None:
                by_row = _weight_rows(model, users, weights).to(seen.losses)
                factors = by_row if factors is None else factors * by_row
            contributions = seen.of_users(len(users), factors)
            lengths = clipped_sums.sure_norms(contributions, 0.0)
    except NotCovered:
        return None
    tallies = [Tally(loss_sum=loss, clipped=int(count)) for loss, count in _by_user(len(users), seen.losses, clipped)]
    for tally, user in zip(tallies, users.values(), strict=True):
        tally.count(model, user)
    return _Together(model, list(users), lengths, tallies, contributions)


def _rectangle(model: LanguageModel, users: Sequence[Sequence[Example]], mask_seed: int | None) -> Batch:
    """As many rows for each user; those that a user has too few of tell nothing, and have no gradient."""
    most = max(map(len, users))
    rows = [user[i] if i < len(user) else user[0] for user in users for i in range(most)]
    filled = torch.tensor([i >= len(user) for user in users for i in range(most)], device=model.device)
    batch = model.batch(rows, mask_seed)
    return replace(batch, targets=batch.targets.masked_fill(filled.unsqueeze(1), NO_TARGET))


def _weight_rows(
    model: LanguageModel, users: Mapping[int, Sequence[Example]], weights: Mapping[int, Floats]
) -> torch.Tensor:
    """m_s of each row of the rectangle; 1 in those that tell nothing."""
    of_told = [weights[place][[bool(model.task.size(example)) for example in user]] for place, user in users.items()]
    most = max(map(len, of_told))
    return torch.from_numpy(np.concatenate([np.pad(w, (0, most - len(w)), constant_values=1.0) for w in of_told]))


def _sentence_clips(seen: Pass, clip_norm: float) -> tuple[torch.Tensor | None, torch.Tensor]:
    """(B,) the factors by which sentences are shortened, ``None`` where they are not; and which of them are."""
    if math.isinf(clip_norm):
        return None, torch.zeros_like(seen.losses)
    norms = clipped_sums.sure_norms(seen.of_sentences(), clip_norm)
    return clipped_sums.clip_factors(norms, clip_norm), norms > clip_norm


def _by_user(users: int, *of_sentences: torch.Tensor) -> Iterator[tuple[float, ...]]:
    """For each user, the sums over its sentences of (B,) each."""
    return zip(*(v.view(users, -1).sum(dim=1, dtype=torch.float64).tolist() for v in of_sentences), strict=True)


def told(model: LanguageModel, user: Sequence[Example]) -> list[Example]:
    """Those of which there is something to tell."""
    return [example for example in user if model.task.size(example)]


def _shape(model: LanguageModel, user: Sequence[Example]) -> tuple[int, int]:
    """How many sentences with something to tell, and the inputs of the longest."""
    sizes = [size for example in user if (size := model.task.size(example))]
    return len(sizes), max(sizes, default=0)


def _windows(
    model: LanguageModel, users: Iterable[Sequence[Example]], most: int
) -> Iterator[dict[int, Sequence[Example]]]:
    """Users by their places, about ``most`` inputs of them at a time."""
    window: dict[int, Sequence[Example]] = {}
    inputs = 0
    for place, user in enumerate(users):
        model.validate(user)
        window[place] = user
        inputs += sum(model.task.size(example) for example in user)
        if inputs >= most:
            yield window
            window, inputs = {}, 0
    if window:
        yield window
