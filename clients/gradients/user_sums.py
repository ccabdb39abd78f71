"""Compute each user's sum Σ_s m_s·Π_c(g_s) and its norm; the caller bounds the sum before adding it to others.

The sentences of users with similar numbers of them are batched into one pass, in which a user is one long sentence, so
that the norm of the sum is a ghost norm too, and no sum is ever stored. The slow path computes each user's sum in a
buffer: if the model is not covered, and for all users of a pass in which a user does not fit, has a norm that is not
precise enough, or has a value that is not finite. The bound β of docs/privacy.md, section 2, relies on ``lengths``,
which are never smaller than the true norms.

>>> total, user = torch.zeros(2), UserVector(torch.tensor([3.0, 4.0]), Tally(sentences=1))
>>> user.add([1.0 / user.lengths[0]], total)  # bound the norm by 1
>>> total
tensor([0.6000, 0.8000])
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fl_sim.clients.batches import NO_TARGET, Batch, Example, user_groups
from fl_sim.clients.device import attempt, full_precision, halves
from fl_sim.clients.ghost_norms import Contribution, NotCovered
from fl_sim.clients.gradients import clipped_sums
from fl_sim.clients.gradients.clipped_sums import GradientSum, Tally
from fl_sim.clients.gradients.ghost_pass import Pass, ghost_pass
from fl_sim.clients.models.language_model import LanguageModel

Floats = npt.NDArray[np.float64]

_LONGEST = 1024  # tokens of a user in a joint pass: the Gram matrices have as many rows and columns
_WINDOW = 32  # micro-batches of users that are sorted at a time


class UserSums(ABC):
    """Hold the sums of k users, not bounded yet.

    Attributes:
        users: the index of each user in the caller's order (k,).
        lengths: the norm of each sum (k,); not finite if the sum is not.
        tallies: the counts of each sum (k,).
    """

    users: Sequence[int]
    lengths: Sequence[float]
    tallies: Sequence[Tally]

    @abstractmethod
    def add(self, shares: Sequence[float], total: torch.Tensor) -> None:
        """Add Σ_u shares[u] · sum_u to ``total``, float32 (d,), in place.

        A share of 0 omits the user, also one whose sum is not finite.
        """


def user_sums(
    model: LanguageModel,
    users: Iterable[Sequence[Example]],
    clip_norm: float,
    mask_seed: int | None = None,
    weights: Sequence[Floats] | None = None,
    stability: float | None = None,
) -> Iterator[UserSums]:
    """Yield Σ_s m_s·Π_c(-∇ l(θ, s)) of every user, in any order; use each result before requesting the next.

    Args:
        model: holds θ.
        users: the sentences of each user, read when they are needed.
        clip_norm: c > 0; ``math.inf`` for no clipping.
        mask_seed: the seed of the dropout masks, if the model has dropout; None switches dropout off.
        weights: m_s > 0, for each user float64 (sentences,); None for 1.
        stability: γ of automatic clipping; None for Π_c.

    Raises:
        ModelError: see `GradientSum.add`.
    """
    clipped_sums.check_clip_norm(clip_norm)
    summing = _Summing(model, clip_norm, mask_seed, stability)
    for window in _windows(model, users, weights):
        groups = [[window[i] for i in g] for g in user_groups([user.shape for user in window], model.batch_tokens)]
        groups.reverse()
        while groups:
            members = groups.pop()
            joint = attempt(functools.partial(summing.together, members), model.device)
            if joint:
                yield joint
                joint.forget()
            elif joint is None and len(members) > 1:
                sentences, longest = map(max, zip(*(user.shape for user in members), strict=True))
                groups += reversed(halves(model, members, len(members) * sentences * longest))
            else:
                yield from map(summing.alone, members)
        window.clear()  # frees the sentences before the next window is read


class _User(NamedTuple):
    """Hold one user of a window.

    Attributes:
        position: the user's index in the caller's order.
        sentences: the user's sentences.
        sizes: the number of inputs of each sentence; 0 for one without a prediction target.
        weights: m_s of each sentence, float64 (sentences,); None for weights of 1.
    """

    position: int
    sentences: Sequence[Example]
    sizes: list[int]
    weights: Floats | None

    @property
    def examples(self) -> list[Example]:
        """Return the sentences with at least one prediction target."""
        return [example for example, size in zip(self.sentences, self.sizes, strict=True) if size]

    @property
    def shape(self) -> tuple[int, int]:
        """Return the number of sentences with a prediction target, and the inputs of the longest."""
        return sum(map(bool, self.sizes)), max(self.sizes, default=0)


def _windows(
    model: LanguageModel, users: Iterable[Sequence[Example]], weights: Sequence[Floats] | None
) -> Iterator[list[_User]]:
    """Yield the users in lists of about ``_WINDOW`` micro-batches."""
    window: list[_User] = []
    inputs = 0
    for position, sentences in enumerate(users):
        model.validate(sentences)
        sizes = [model.task.size(example) for example in sentences]
        window.append(_User(position, sentences, sizes, None if weights is None else weights[position]))
        inputs += sum(sizes)
        if inputs >= _WINDOW * model.batch_tokens:
            yield window
            window, inputs = [], 0
    if window:
        yield window


class UserVector(UserSums):
    """Hold one user's vector, float32 (d,), in a buffer; ``place`` is the user's index in the caller's order."""

    def __init__(
        self, vector: torch.Tensor, tally: Tally, place: int = 0, views: Mapping[str, torch.Tensor] | None = None
    ) -> None:
        self.users, self.tallies = [place], [tally]
        self.lengths = [float(torch.linalg.vector_norm(vector, dtype=torch.float64))]
        self._vector = vector
        self._views = views or {}

    def add(self, shares: Sequence[float], total: torch.Tensor) -> None:
        if shares[0] != 0:
            total.add_(self._vector, alpha=shares[0])

    def add_to(self, views: Mapping[str, torch.Tensor], share: float) -> None:
        """Add the share of the sum to some parameters, by name."""
        for name, view in views.items():
            view.add_(self._views[name], alpha=share)


class _JointSums(UserSums):
    """Represent the sums of the users of one pass by the contributions of its layers, without storing them."""

    def __init__(
        self,
        model: LanguageModel,
        users: Sequence[_User],
        lengths: torch.Tensor,
        tallies: Sequence[Tally],
        contributions: Sequence[Contribution],
        alone: Callable[[_User], UserVector],
    ) -> None:
        self.users, self.lengths, self.tallies = [user.position for user in users], lengths.tolist(), tallies
        self._model = model
        self._members = users
        self._contributions: Sequence[Contribution] | None = contributions
        self._alone = alone

    def forget(self) -> None:
        """Free the memory of the contributions before the next pass."""
        self._contributions = None

    def add(self, shares: Sequence[float], total: torch.Tensor) -> None:
        if self._contributions is None:
            raise RuntimeError("these sums are gone: the next ones have been asked for")
        pending = self._model.parameters.views(total)
        if attempt(lambda: self._add_together(shares, pending), total.device):
            return
        self.forget()  # memory does not suffice: one user at a time, to the parameters that lack the sums
        for share, user in zip(shares, self._members, strict=True):
            if share != 0:
                self._alone(user).add_to(pending, share)

    def _add_together(self, shares: Sequence[float], pending: dict[str, torch.Tensor]) -> bool:
        """Add the sums; a parameter leaves ``pending`` with its addition."""
        factors = -torch.tensor(shares, dtype=torch.float32, device=self._model.device)
        with full_precision():
            for contribution in self._contributions or ():
                contribution.add(factors, pending[contribution.name])
                del pending[contribution.name]
        return True


class _Summing:
    """Compute sums of users: of several in one pass, or of one in a buffer."""

    def __init__(self, model: LanguageModel, clip_norm: float, mask_seed: int | None, stability: float | None) -> None:
        self._model = model
        self._clip_norm = clip_norm
        self._mask_seed = mask_seed
        self._stability = stability
        self._buffer: GradientSum | None = None

    def alone(self, user: _User) -> UserVector:
        """Return the sum of one user in a buffer, which the next user overwrites.

        ``GradientSum`` adds with weight 1. To add sentences of weight m, divide by m, add, and multiply by m.
        """
        if self._buffer is None:
            self._buffer = GradientSum(self._model, self._mask_seed, self._stability)
        buffer = self._buffer
        buffer.reset()
        if user.weights is None:
            buffer.add(user.sentences, self._clip_norm)
        else:
            for weight in np.unique(user.weights):
                buffer.flat /= float(weight)
                chosen = [e for e, own in zip(user.sentences, user.weights, strict=True) if own == weight]
                buffer.add(chosen, self._clip_norm)
                buffer.flat *= float(weight)
        return UserVector(buffer.flat, buffer.tally, user.position, buffer.views)

    def together(self, users: Sequence[_User]) -> _JointSums | Literal[False]:
        """Return the sums of users from one pass; False if it is not covered, too large or not precise enough.

        Their records would be kept until all users are bounded, which ``model.checkpointing`` forbids.
        """
        model = self._model
        sentences, longest = map(max, zip(*(user.shape for user in users), strict=True))
        layers = clipped_sums.covered_layers(model)
        if layers is None or model.recomputed or not 0 < sentences * longest <= min(_LONGEST, model.batch_tokens):
            return False
        try:
            with full_precision():
                batch = _rectangle(model, [user.examples for user in users], self._mask_seed)
                recorded = ghost_pass(model, layers, batch)
                factors, clipped = _sentence_clips(recorded, self._clip_norm, self._stability)
                if users[0].weights is not None:
                    weights = [user.weights[np.array(user.sizes) > 0] for user in users if user.weights is not None]
                    padded = [np.pad(w, (0, sentences - len(w)), constant_values=1.0) for w in weights]
                    by_row = torch.from_numpy(np.concatenate(padded)).to(recorded.losses)  # 1 in filling rows
                    factors = by_row if factors is None else factors * by_row
                contributions = recorded.of_users(len(users), factors, last=True)
                lengths = clipped_sums.sure_norms(contributions, 0.0)
        except NotCovered:
            return False
        of_users = (v.view(len(users), -1).sum(dim=1, dtype=torch.float64) for v in (recorded.losses, clipped))
        by_user = zip(users, *(v.tolist() for v in of_users), strict=True)
        tallies = [Tally(len(user.sentences), clipped=int(n), loss_sum=loss) for user, loss, n in by_user]
        return _JointSums(model, users, lengths, tallies, contributions, self.alone)


def _rectangle(model: LanguageModel, users: Sequence[Sequence[Example]], mask_seed: int | None) -> Batch:
    """Return a batch with the same number of rows per user; filling rows have no target and so no gradient."""
    most = max(map(len, users))
    rows = [user[i] if i < len(user) else user[0] for user in users for i in range(most)]
    is_filling = torch.tensor([i >= len(user) for user in users for i in range(most)], device=model.device)
    batch = model.batch(rows, mask_seed)
    return replace(batch, targets=batch.targets.masked_fill(is_filling.unsqueeze(1), NO_TARGET))


def _sentence_clips(
    recorded: Pass, clip_norm: float, stability: float | None
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Return the clip factor of each sentence, float32 (B,), None without a clip; and which are clipped, (B,)."""
    if math.isinf(clip_norm):
        return None, torch.zeros_like(recorded.losses)
    norms = clipped_sums.sure_norms(recorded.of_sentences(), clip_norm if stability is None else stability)
    return clipped_sums.clip_factors(norms, clip_norm, stability), norms > clip_norm


def with_targets(model: LanguageModel, user: Sequence[Example]) -> list[Example]:
    """Return the examples with at least one prediction target."""
    return [example for example in user if model.task.size(example)]
