"""Compute the sum of bounded client updates from a model, eligible sentences and a client rule; no Flower here.

:func:`bounded_sum` is the whole algorithm. The function that :func:`add_client_updates` has registered for the class of
the rule defines a client update:

``ClippedGradients``: v_u = Π_β( Σ_s Π_c(−∇l(θ, s)) ), or c·g/(‖g‖ + γ) in place of Π_c(g). If a user has at most ŵ =
β/c eligible sentences, the outer projection cannot act, so the sentences of such users are batched together; other sums
are bounded one by one.
``LocalSteps``: v_u = Π_β(θ_u − θ) after one or several local steps from θ.
``WeightedGradients``: v_u = w_u·Π_β(θ_u − θ) after steps along Σ_s m_s·(−∇l(θ, s)), the UeDP paper's weights.

A strategy of another package registers a function for its own rule (docs/extending.md).

Guarantee: every client update in the sum satisfies ‖v_u‖ ≤ β; a value that is not finite counts as zero. The proofs
rely on it (docs/privacy.md, section 2).

>>> [_share(norm, radius=2.0) for norm in (1.0, 4.0, math.nan)]  # the factor of the projection
[1.0, 0.5, 0.0]
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from fl_sim.clients.batches import Example, Examples
from fl_sim.clients.gradients.clipped_sums import GradientSum, Tally
from fl_sim.clients.gradients.ghost_pass import GradientPath, gradient_path
from fl_sim.clients.gradients.user_sums import UserSums, user_sums
from fl_sim.clients.local_steps import is_one_step, local_updates, single_steps
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.selection import Selection, WeightedSelection
from fl_sim.strategies.client_rules import ClientRule, ClippedGradients, LocalSteps, WeightedGradients
from fl_sim.strategies.messages import MessageError, TrainReply, rule_from_json, rule_to_json
from fl_sim.strategies.primitives import streams
from fl_sim.strategies.primitives.clipping import factor_of

Mask = npt.NDArray[np.bool_]
WhenDone = Callable[[int], None]

_READ_AT_ONCE = 4096  # sentences
_FLOAT32 = 1 << 17  # sentences that are added in float32; of four millions, rounding would move a sum by more than c


def bounded_sum(
    model: LanguageModel,
    examples: Examples,
    selection: Selection,
    rule: ClientRule,
    round_seed: int,
    when_done: WhenDone = lambda sentences: None,
) -> TrainReply:
    """Return Σ_u v_u over the sampled users of ``selection``, with ‖v_u‖ ≤ ``rule.user_clip`` for each user.

    Args:
        model: holds the parameters θ of the round before and after the call.
        examples: the sentences of the split.
        selection, rule: the sampled users, their eligible sentences, and what is done with them.
        round_seed: the seed of the round's local draws (dropout masks, the order of local batches).
        when_done: called with the number of sentences that were just done.
    """
    cohort = Cohort(model, examples, selection.nonempty(), round_seed)
    total = BoundedSum(model, rule, cohort.mask_seed, when_done)
    add_client_updates(rule, total, cohort)
    return total.reply(selection)


@dataclass(frozen=True, slots=True)
class Cohort:
    """Hold the sampled users with an eligible sentence, and the inputs of their client updates; the model has θ."""

    model: LanguageModel
    examples: Examples
    selection: Selection
    round_seed: int

    @property
    def mask_seed(self) -> int:
        """Return the seed of the round's dropout masks."""
        return streams.derived_seed(self.round_seed, "masks")

    def users(self, chosen: Mask | None = None) -> Iterator[tuple[int, list[Example]]]:
        """Yield the id and the sentences of each user, or of those of the mask ``chosen``, bool (U,).

        Users are read one by one, because a cohort may have a million users.
        """
        end = 0
        for index, (user, count) in enumerate(zip(self.selection.users, self.selection.counts, strict=True)):
            end += int(count)
            if chosen is None or chosen[index]:
                yield int(user), self.examples.read(self.selection.sentences[end - int(count) : end])

    def sentences(self, chosen: Mask) -> Iterator[list[Example]]:
        """Yield the sentences of the users of the mask ``chosen``, bool (U,), in lists of at most ``_READ_AT_ONCE``."""
        pooled = self.selection.sentences[np.repeat(chosen, self.selection.counts)]
        for start in range(0, len(pooled), _READ_AT_ONCE):
            yield self.examples.read(pooled[start : start + _READ_AT_ONCE])


class BoundedSum:
    """Accumulate Σ_u w_u·Π_β(x_u) and the votes on an adaptive clip.

    Every clipped item (a sentence, or a user if sentences are not clipped) votes whether its norm is within the clip.
    The votes are one more coordinate of the client update and are bounded with it (docs/privacy-proofs.md, section 12).
    The sum is float32, kept in float64 after every ``_FLOAT32`` sentences.
    """

    def __init__(
        self, model: LanguageModel, rule: ClientRule, mask_seed: int, when_done: WhenDone = lambda sentences: None
    ) -> None:
        self._rule = rule
        self._when_done = when_done
        self._total = GradientSum(model, mask_seed, rule.stability, when_done)
        self._before: torch.Tensor | None = None  # the sum of earlier sentences, float64 (d,), if there are so many
        self._sentences_before = 0
        self._votes = 0.0

    def add_sentences(self, batches: Iterable[list[Example]]) -> None:
        """Add Σ_s Π_c(−∇l(θ, s)) of users with so few sentences that their sums lie within β for any gradients."""
        for sentences in batches:
            self._total.add(sentences, self._rule.sentence_clip)
            self._carry(_FLOAT32)
        self._votes += _sentence_votes(self._total.tally, self._rule)

    def add_users(self, sums: Iterable[UserSums], weights: npt.NDArray[np.float64] | None = None) -> None:
        """Add Σ_u w_u·Π_β(sum_u), with ``weights`` w_u cut to [-1, 1], float64 (U,); None for 1."""
        for group in sums:
            bounded = [
                _bound(norm, tally, self._rule) for norm, tally in zip(group.lengths, group.tallies, strict=True)
            ]
            w = np.ones(len(bounded)) if weights is None else np.clip(weights[list(group.users)], -1.0, 1.0)
            group.add([float(w_u) * user.share for w_u, user in zip(w, bounded, strict=True)], self._total.flat)
            for user, tally in zip(bounded, group.tallies, strict=True):
                self._total.tally.add(replace(tally, clipped=user.clipped, nonfinite=user.nonfinite))
                self._votes += user.votes
            self._carry(_FLOAT32)
            self._when_done(sum(tally.sentences for tally in group.tallies))

    def reply(self, selection: Selection) -> TrainReply:
        """Return the sum as a node's reply for ``selection``."""
        tally = self._total.tally
        if self._before is not None:
            self._carry(0)
            self._total.flat.copy_(self._before)
        return TrainReply(
            vector=self._total.flat.cpu().numpy(),
            users=len(selection.users),
            sentences=len(selection.sentences),
            clipped=tally.clipped,
            nonfinite=tally.nonfinite,
            loss_sum=tally.loss_sum,
            votes=self._votes,
        )

    def _carry(self, least: int) -> None:
        """Go on from zero if ``least`` sentences were added since this was done last, and keep their sum in float64."""
        if self._total.tally.sentences - self._sentences_before < least:
            return
        self._sentences_before = self._total.tally.sentences
        self._before = self._total.flat.double() if self._before is None else self._before.add_(self._total.flat)
        self._total.flat.zero_()


@functools.singledispatch
def add_client_updates(rule: ClientRule, total: BoundedSum, cohort: Cohort) -> None:
    """Add the client updates of ``cohort`` to ``total``, by the function registered for the class of ``rule``.

    Raises:
        TypeError: no function is registered for the class.
    """
    raise TypeError(f"client rule is a {type(rule).__name__}; allowed: one that is registered with add_client_updates")


def check_client_rule(rule: ClientRule) -> None:
    """Check that nodes can rebuild and compute a client rule.

    Raises:
        MessageError: the class cannot be imported by its path, a field has no JSON form, or no function is registered
            for the class.
    """
    try:
        text = rule_to_json(rule)
    except TypeError as error:
        raise MessageError(
            f"client rule {type(rule).__name__} cannot be sent ({error}); allowed: plain fields"
        ) from error
    if rule_from_json(text) != rule:
        raise MessageError(f"client rule {type(rule).__name__} is another after it was sent; allowed: plain fields")
    if add_client_updates.dispatch(type(rule)) is add_client_updates.dispatch(object):
        raise MessageError(f"client rule is a {type(rule).__name__}; allowed: one registered with add_client_updates")


def gradient_path_of(model: LanguageModel, rule: ClientRule) -> GradientPath | None:
    """Return how a rule's gradients of single sentences or users are computed; None if it needs none of them."""
    if isinstance(rule, LocalSteps):
        needed = rule.optimizer == "sgd" and rule.epochs == 1
    else:
        needed = not (math.isinf(rule.sentence_clip) and math.isinf(rule.user_clip))
    return gradient_path(model) if needed else None


@add_client_updates.register
def add_clipped_gradients(rule: ClippedGradients, total: BoundedSum, cohort: Cohort) -> None:
    """Add Π_β( Σ_s Π_c(−∇l(θ, s)) ) of every user."""
    within = cohort.selection.counts * rule.sentence_clip <= rule.user_clip  # for any gradients
    total.add_sentences(cohort.sentences(within))
    apart = (sentences for _, sentences in cohort.users(~within))
    total.add_users(user_sums(cohort.model, apart, rule.sentence_clip, cohort.mask_seed, stability=rule.stability))


@add_client_updates.register
def add_weighted_gradients(rule: WeightedGradients, total: BoundedSum, cohort: Cohort) -> None:
    """Add w_u·Π_β(θ_u − θ) of every user; a user with a single step has the scaled sum of its gradients at θ."""
    selection = cohort.selection
    if not isinstance(selection, WeightedSelection):
        raise TypeError("the selection has no weights; allowed: that of select_for")
    batch = rule.batch_size or max(selection.counts, default=1)
    single = selection.counts <= batch
    weights = np.split(selection.weights, np.cumsum(selection.counts)[:-1])
    scaled = [rule.learning_rate * weights[user] for user in np.flatnonzero(single)]
    sentences_of_users = (sentences for _, sentences in cohort.users(single))
    sums = user_sums(cohort.model, sentences_of_users, math.inf, cohort.mask_seed, scaled)
    total.add_users(sums, selection.user_weights[single])
    sgd = LocalSteps(q_e=1.0, q_s=1.0, user_clip=rule.user_clip, batch_size=batch, learning_rate=rule.learning_rate)
    own = [weights[user] for user in np.flatnonzero(~single)]
    stepped = local_updates(cohort.model, cohort.users(~single), sgd, cohort.round_seed, own)
    total.add_users(stepped, selection.user_weights[~single])


@add_client_updates.register
def add_local_steps(rule: LocalSteps, total: BoundedSum, cohort: Cohort) -> None:
    """Add Π_β(θ_u − θ) of every user; users with a single step of SGD are batched at θ."""
    single = is_one_step(cohort.selection.counts, rule)
    total.add_users(single_steps(cohort.model, cohort.users(single), rule, cohort.round_seed))
    total.add_users(local_updates(cohort.model, cohort.users(~single), rule, cohort.round_seed))


@dataclass(frozen=True, slots=True)
class _Bounded:
    """Describe how one user's sum is bounded.

    Attributes:
        share: the factor that scales the sum to within β.
        clipped: the number of sentences that were clipped, one by one or as part of the sum.
        nonfinite: the number of contributions that were not finite and count as zero.
        votes: the user's votes, bounded together with the sum.
    """

    share: float
    clipped: int
    nonfinite: int
    votes: float = 0.0


def _bound(norm: float, tally: Tally, rule: ClientRule) -> _Bounded:
    """Return how Π_β scales a sum of this ``norm``; if sentences vote, the votes are one of its coordinates."""
    if not math.isinf(rule.sentence_clip):
        votes = _sentence_votes(tally, rule)
        share = _share(rule.joint_norm(norm, votes), rule.user_clip)
        return _Bounded(share, tally.clipped, tally.nonfinite, share * votes)
    if not math.isfinite(norm):
        return _Bounded(0.0, 0, tally.nonfinite + 1)
    within = norm <= rule.user_clip
    vote = 0.0 if rule.vote is None else rule.vote.of_one(within)
    return _Bounded(_share(norm, rule.user_clip), 0 if within else tally.sentences, tally.nonfinite, vote)


def _share(norm: float, radius: float) -> float:
    """Return the factor of Π_r, for r = ``radius``; 0 for an x that is not finite."""
    return factor_of(norm, radius) if math.isfinite(norm) else 0.0


def _sentence_votes(tally: Tally, rule: ClientRule) -> float:
    """Return Σ(b − γ) over the sentences of a sum; 0 if sentences do not vote."""
    if rule.vote is None or math.isinf(rule.sentence_clip):
        return 0.0
    return rule.vote.of_items(tally.sentences - tally.nonfinite, tally.clipped)
