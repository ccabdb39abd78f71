"""Compute each user's sum Σ_s m_s·Π_c(g_s) and its norm; the caller bounds the sum before adding it to others.

The sentences of many users are batched by their length. No sum of a user with few tokens is stored: its squared norm
is f'Kf, with K the inner products of the gradients of its sentences and f_s = m_s·min(1, c/‖g_s‖), and it is added with
the sums of all others, one product per parameter and pass. Products of all pairs of tokens cost more than one vector
from some number of tokens on; then the user's sum is computed in a buffer, from the same passes. So is a sum whose
norm is not precise enough. A user is computed apart from the others if the model is not covered, a value is not finite,
or the user has too many tokens. The bound β of docs/privacy.md, section 2, relies on ``lengths``, which are never
smaller than the true norms.

>>> total, user = torch.zeros(2), UserVector(torch.tensor([3.0, 4.0]), Tally(sentences=1))
>>> user.add([1.0 / user.lengths[0]], total)  # bound the norm by 1
>>> total
tensor([0.6000, 0.8000])
"""

from __future__ import annotations

import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fl_sim.clients.batches import Example, micro_batches
from fl_sim.clients.device import attempt, does_not_fit, full_precision, halves
from fl_sim.clients.ghost_norms import Contribution, NotCovered
from fl_sim.clients.gradients import clipped_sums
from fl_sim.clients.gradients.clipped_sums import GradientSum, Tally
from fl_sim.clients.gradients.ghost_pass import each_gradient
from fl_sim.clients.models.language_model import LanguageModel

Floats = npt.NDArray[np.float64]

_WINDOW = 32  # micro-batches of users that are sorted at a time
_HELD = 1 << 26  # numbers that are recorded of the passes of users who are computed together, on a CPU
_VECTOR = 25  # a vector of all parameters is written, measured and added in the time of training on so many tokens


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
        groups = list(summing.groups(window))
        groups.reverse()
        while groups:
            members = groups.pop()
            passed = attempt(functools.partial(summing.together, members), model.device)
            if passed:
                yield from summing.sums(passed)
            elif passed is None and len(members) > 1:
                padded = sum(len(user.sizes) for user in members) * max(max(user.sizes, default=0) for user in members)
                groups += reversed(halves(model, members, min(padded, model.batch_tokens)))
            else:
                yield from map(summing.alone, members)
            del passed
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

    def __init__(self, vector: torch.Tensor, tally: Tally, place: int = 0) -> None:
        self.users, self.tallies = [place], [tally]
        self.lengths = [float(torch.linalg.vector_norm(vector, dtype=torch.float64))]
        self._vector = vector

    def add(self, shares: Sequence[float], total: torch.Tensor) -> None:
        if shares[0] != 0:
            total.add_(self._vector, alpha=shares[0])


@dataclass(frozen=True)
class _Pass:
    """Hold the gradients of the B sentences of one pass.

    Attributes:
        owners: the user of each sentence, an index into the group, int64 (B,).
        factors: f_s, float32 (B,).
        longest: the inputs of the longest sentence.
        gradients: by parameter name.
    """

    owners: torch.Tensor
    factors: torch.Tensor
    longest: int
    gradients: dict[str, Contribution]

    def add(self, shares: torch.Tensor, model: LanguageModel, total: torch.Tensor) -> None:
        """Subtract Σ_s shares[u_s]·f_s·∇l(θ, s) from ``total``, for ``shares`` of the group's users, float32 (U,).

        The sentences of users with a share of 0 are left out: 0 times what is not finite would be no zero.
        """
        of_sentences = shares[self.owners]
        (rows,) = torch.nonzero(of_sentences, as_tuple=True)
        if len(rows) == 0:
            return
        views = model.parameters.views(total)
        factors = -self.factors[rows] * of_sentences[rows]
        for name, gradients in self.gradients.items():
            chosen = gradients if len(rows) == gradients.rows else gradients.only(rows)
            self._add_in_parts(chosen, factors, views[name])

    def _add_in_parts(self, gradients: Contribution, factors: torch.Tensor, total: torch.Tensor) -> None:
        """Add to one parameter, in halves of the sentences where memory does not suffice."""

        def add() -> bool:
            gradients.add(factors, total)
            return True

        if attempt(add, total.device):
            return
        if len(factors) == 1:
            if attempt(add, total.device):  # the first one freed what was left of the passes
                return
            raise does_not_fit(total.device, self.longest)
        middle = len(factors) // 2
        for rows in (slice(0, middle), slice(middle, None)):
            self._add_in_parts(gradients.only(rows), factors[rows], total)


@dataclass(frozen=True)
class _Passed:
    """Hold the passes of a group of users, with the users' counts."""

    users: Sequence[_User]
    passes: Sequence[_Pass]
    tallies: Sequence[Tally]


class _JointSums(UserSums):
    """Represent the sums of some users of a group by the gradients of the passes, without storing them."""

    def __init__(self, model: LanguageModel, passed: _Passed, chosen: Sequence[int], norms: torch.Tensor) -> None:
        self.users = [passed.users[i].position for i in chosen]
        self.lengths = [float(norms[i]) for i in chosen]
        self.tallies = [passed.tallies[i] for i in chosen]
        self._model = model
        self._chosen = chosen
        self._group = len(passed.users)
        self._passes: Sequence[_Pass] | None = passed.passes

    def forget(self) -> None:
        """Free the memory of the gradients before the next pass."""
        self._passes = None

    def add(self, shares: Sequence[float], total: torch.Tensor) -> None:
        if self._passes is None:
            raise RuntimeError("these sums are gone: the next ones have been asked for")
        of_group = torch.zeros(self._group, device=total.device)
        of_group[list(self._chosen)] = torch.tensor(shares, dtype=torch.float32, device=total.device)
        with full_precision():
            for one in self._passes:
                one.add(of_group, self._model, total)


class _Summing:
    """Compute sums of users: of several from shared passes, or of one in a buffer."""

    def __init__(self, model: LanguageModel, clip_norm: float, mask_seed: int | None, stability: float | None) -> None:
        self._model = model
        self._clip_norm = clip_norm
        self._mask_seed = mask_seed
        self._stability = stability
        self._width = sum(sum(p.shape) for p in model.parameters.tensors.values() if p.dim() == 2)

    @functools.cached_property
    def _buffer(self) -> GradientSum:
        return GradientSum(self._model, self._mask_seed, self._stability)

    @property
    def _room(self) -> int:
        """Return the tokens whose records may be held at a time."""
        tokens = self._model.batch_tokens
        return max(tokens, _HELD // max(self._width, 1)) if self._model.device.type == "cpu" else tokens

    def groups(self, window: Sequence[_User]) -> Iterator[list[_User]]:
        """Yield users whose passes are held at a time, alike in their lengths, and in who needs norms of sentences."""

        def measured(user: _User) -> bool:
            return not math.isinf(self._clip_norm) or self.by_pairs(user)

        ordered = sorted(window, key=lambda user: (measured(user), max(user.sizes, default=0)), reverse=True)
        for _, alike in itertools.groupby(ordered, measured):
            group, inputs = list[_User](), 0
            for user in alike:
                if group and inputs + sum(user.sizes) > self._room:
                    yield group
                    group, inputs = list[_User](), 0
                group.append(user)
                inputs += sum(user.sizes)
            yield group

    def by_pairs(self, user: _User) -> bool:
        """Return whether the norm of a user's sum takes less work by pairs of tokens than from the sum itself."""
        inputs = np.array(user.sizes, dtype=np.float64)
        pairs = inputs.sum() ** 2 / 2
        if not math.isinf(self._clip_norm):  # the norms of sentences are known
            pairs -= np.square(inputs).sum() / 2
        return bool(pairs * self._width <= _VECTOR * self._model.num_parameters)

    def together(self, users: Sequence[_User]) -> _Passed | Literal[False]:
        """Return the passes of users; False if they are not covered, or one user's are too many to hold.

        Their records are kept until all users are bounded, which ``model.checkpointing`` forbids.
        """
        model = self._model
        if clipped_sums.covered_layers(model) is None or model.recomputed:
            return False
        if not 0 < sum(sum(user.sizes) for user in users) <= self._room:
            return False
        rows = [(place, i) for place, user in enumerate(users) for i in range(len(user.sizes))]
        losses, clipped = torch.zeros(2, len(users), dtype=torch.float64, device=model.device)
        passes = []
        try:
            with full_precision():
                for chosen in micro_batches([users[place].sizes[i] for place, i in rows], model.batch_tokens):
                    one, of_rows, above = self._pass(users, [rows[i] for i in chosen])
                    losses.index_add_(0, one.owners, of_rows.double())
                    clipped.index_add_(0, one.owners, above.double())
                    passes.append(one)
        except NotCovered:
            return False
        counts = zip(users, losses.tolist(), clipped.tolist(), strict=True)
        return _Passed(users, passes, [Tally(len(u.sizes), clipped=int(n), loss_sum=loss) for u, loss, n in counts])

    def _pass(
        self, users: Sequence[_User], rows: Sequence[tuple[int, int]]
    ) -> tuple[_Pass, torch.Tensor, torch.Tensor]:
        """Return a pass of some sentences, given as (user, index), their losses (B,), and which are clipped (B,)."""
        model, layers = self._model, clipped_sums.covered_layers(self._model) or []
        batch = model.batch([users[place].sentences[i] for place, i in rows], self._mask_seed)
        kept: list[Contribution] = []
        if math.isinf(self._clip_norm):
            losses = each_gradient(model, layers, batch, kept.append)
            factors, clipped = torch.ones_like(losses), torch.zeros_like(losses)
        else:
            least = self._clip_norm if self._stability is None else self._stability
            losses, norms, kept = clipped_sums.sentence_gradients(model, layers, batch, least)
            factors = clipped_sums.clip_factors(norms, self._clip_norm, self._stability)
            clipped = norms > self._clip_norm
        weights = [1.0 if (w := users[place].weights) is None else w[i] for place, i in rows]
        owners = torch.tensor([place for place, _ in rows], device=model.device)
        longest = max(users[place].sizes[i] for place, i in rows)
        factors = factors * torch.tensor(weights, dtype=torch.float32, device=model.device)
        return _Pass(owners, factors, longest, {c.name: c for c in kept}), losses, clipped

    def sums(self, passed: _Passed) -> Iterator[UserSums]:
        """Yield the sums of a group of users."""
        by_pairs = torch.tensor([self.by_pairs(user) for user in passed.users], device=self._model.device)
        is_sure = torch.zeros_like(by_pairs)
        if bool(by_pairs.any()):
            with full_precision():
                squared, slack = _norms_by_pairs(passed, by_pairs, self._model.batch_tokens)
            norms = clipped_sums.norm_bounds(squared, slack)
            is_sure = by_pairs & norms.isfinite() & ~clipped_sums.is_unsure(squared, slack)
            if sure := torch.nonzero(is_sure).flatten().tolist():
                joint = _JointSums(self._model, passed, sure, norms)
                yield joint
                joint.forget()
        for place in torch.nonzero(~is_sure).flatten().tolist():
            yield self._apart(passed, place)

    def _apart(self, passed: _Passed, place: int) -> UserVector:
        """Return the sum of one user of a group, computed from the passes in the buffer."""
        buffer = self._buffer
        buffer.reset()
        alone = torch.zeros(len(passed.users), device=buffer.flat.device)
        alone[place] = 1.0
        with full_precision():
            for one in passed.passes:
                one.add(alone, self._model, buffer.flat)
        found = UserVector(buffer.flat, passed.tallies[place], passed.users[place].position)
        return found if math.isfinite(found.lengths[0]) else self.alone(passed.users[place])

    def alone(self, user: _User) -> UserVector:
        """Return the sum of one user in the buffer, which the next user overwrites.

        ``GradientSum`` adds with weight 1. To add sentences of weight m, divide by m, add, and multiply by m.
        """
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
        return UserVector(buffer.flat, buffer.tally, user.position)


def _norms_by_pairs(passed: _Passed, chosen: torch.Tensor, tokens_at_once: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the squared norm f'Kf of the sum of each user of ``chosen``, bool (U,), and a bound on its rounding error.

    Both are float64 (U,). K holds the inner products of the gradients of the user's sentences; see
    ``Contribution.inner_slack``.
    """
    passes = passed.passes
    squared, slack = torch.zeros(2, len(passed.users), dtype=torch.float64, device=passes[0].factors.device)
    for name in passes[0].gradients:
        roots = torch.zeros_like(slack)
        for one in passes:
            gradients, f = one.gradients[name], one.factors.double()
            squared.index_add_(0, one.owners, f.square() * gradients.squared)
            roots.index_add_(0, one.owners, f.abs() * gradients.inner_slack.sqrt())
        slack += roots.square()
    for (first, second), pairs in _pairs(passes, chosen.tolist()).items():
        one, other = passes[first], passes[second]
        for some in torch.tensor(pairs, device=squared.device).split(max(1, tokens_at_once // one.longest)):
            rows, others = some.unbind(dim=1)
            f = 2 * one.factors[rows].double() * other.factors[others].double()
            for name, gradients in one.gradients.items():
                inner = gradients.only(rows).inner(other.gradients[name].only(others))
                squared.index_add_(0, one.owners[rows], f * inner)
    return squared.clamp_min(0), slack


def _pairs(passes: Sequence[_Pass], chosen: Sequence[bool]) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Return the pairs of rows that belong to the same one of the ``chosen`` users, by the two passes they are in."""
    rows_of: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for number, one in enumerate(passes):
        for row, owner in enumerate(one.owners.tolist()):
            if chosen[owner]:
                rows_of[owner].append((number, row))
    pairs: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for rows in rows_of.values():
        for (first, row), (second, other) in itertools.combinations(rows, 2):
            pairs[first, second].append((row, other))
    return pairs


def with_targets(model: LanguageModel, user: Sequence[Example]) -> list[Example]:
    """Return the examples with at least one prediction target."""
    return [example for example in user if model.task.size(example)]
