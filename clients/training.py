"""From (model, eligible sentences, rule) to the sum of bounded user vectors; no Flower here.

``gradients``: v_u = Π_β( Σ_s Π_c(−∇l(θ, s)) ). Where a user has at most ŵ = β/c eligible sentences the outer
projection cannot act, so the sentences of all such users share batches; the others' sums are bounded one by one.
``steps``: v_u = Π_β(θ_u − θ) after one or several local steps from θ.
``published``: v_u = w_u·Π_β( Σ_s m_s·(−∇l(θ, s)) ), the UeDP paper's weights.

All are the same for every task: what an example is, and its loss l, is the model's affair.

Where a clip adapts, every item with a vote (a sentence, or a user where sentences are not clipped) says whether the
clip left it as it was. The votes are one more coordinate of the user's vector and bounded with it (docs/privacy.md,
section 12).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fl_sim.clients.examples import Example, Examples
from fl_sim.clients.gradients.clipped_sums import GradientSum, Tally
from fl_sim.clients.gradients.user_sums import UserSums, told, user_sums
from fl_sim.clients.local_steps import is_one_step, local_updates, single_steps
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.selection import Selection
from fl_sim.clients.weighted_selection import WeightedSelection
from fl_sim.strategies.messages import LocalRule, TrainReply
from fl_sim.strategies.primitives import streams

_READ_AT_ONCE = 4096  # sentences


def bounded_sum(
    model: LanguageModel, examples: Examples, selection: Selection, rule: LocalRule, round_seed: int
) -> TrainReply:
    """Σ_u v_u over the sampled users of ``selection``, each ‖v_u‖ ≤ ``rule.user_clip``.

    Args:
        model: the model, holding the round's θ; it holds θ again afterwards.
        examples: the sentences of the split.
        selection: the sampled users and their eligible sentences.
        rule: the local rule.
        round_seed: the seed of the round's local draws (dropout masks, the order of local batches).
    """
    mask_seed = streams.derived_seed(round_seed, "masks")
    if rule.update == "gradients":
        return _sum_of_gradients(model, examples, selection, rule, mask_seed)
    if isinstance(selection, WeightedSelection):
        return _published_sum(model, examples, selection, rule, mask_seed)
    return _sum_of_local_training(model, examples, selection, rule, round_seed)


@dataclass(frozen=True, slots=True)
class _Bounded:
    """What becomes of one user's sum.

    Attributes:
        share: what it is multiplied by before it is added, so that it lies within β.
        clipped: how many of its sentences were clipped, on their own or as a part of it.
        nonfinite: how many contributions were not finite, and count as zero.
        votes: what the user votes, bounded together with its sum.
    """

    share: float
    clipped: int
    nonfinite: int
    votes: float = 0.0


def _sum_of_gradients(
    model: LanguageModel, examples: Examples, selection: Selection, rule: LocalRule, mask_seed: int
) -> TrainReply:
    those = selection.nonempty()
    total = GradientSum(model, mask_seed)
    shared = _cannot_reach(those.counts, rule)
    pooled = those.sentences[np.repeat(shared, those.counts)]
    for start in range(0, len(pooled), _READ_AT_ONCE):  # many at a time: those of a length share batches
        total.add(examples.read(pooled[start : start + _READ_AT_ONCE]), rule.sentence_clip)
    votes = _sentence_votes(total.tally, rule)
    apart = (examples.read(part) for part, alike in zip(_by_user(those), shared, strict=True) if not alike)
    sums = user_sums(model, apart, rule.sentence_clip, mask_seed)
    votes += _add_bounded(total, sums, lambda length, tally: _bound_user(length, tally, rule))
    return _reply(total, selection, votes)


def _add_bounded(
    total: GradientSum,
    sums: Iterable[UserSums],
    bound: Callable[[float, Tally], _Bounded],
    weights: npt.NDArray[np.float64] | None = None,
) -> float:
    """Add Σ_u w_u·Π_β(sum_u), w_u 1 without ``weights``; ``bound`` is given the norm of a user's sum and what went into
    it. Returns the votes."""
    votes = 0.0
    for found in sums:
        users = [bound(length, tally) for length, tally in zip(found.lengths, found.tallies, strict=True)]
        w = np.ones(len(users)) if weights is None else weights[list(found.users)]
        found.add([float(w_u) * user.share for w_u, user in zip(w, users, strict=True)], total.flat)
        for user, tally in zip(users, found.tallies, strict=True):
            total.tally.add(replace(tally, clipped=user.clipped, nonfinite=user.nonfinite))
            votes += user.votes
    return votes


def _reply(total: GradientSum, selection: Selection, votes: float) -> TrainReply:
    return TrainReply(
        vector=total.flat.cpu().numpy(),
        users=len(selection.users),
        sentences=len(selection.sentences),
        clipped=total.tally.clipped,
        nonfinite=total.tally.nonfinite,
        loss_sum=total.tally.loss_sum,
        votes=votes,
    )


def _bound_user(length: float, tally: Tally, rule: LocalRule) -> _Bounded:
    """Π_β of a user's sum of clipped gradients, of the given length; the votes of its sentences are a coordinate of
    it."""
    if math.isinf(rule.sentence_clip):
        return _bound_update(length, tally, rule, tally.nonfinite)
    votes = _sentence_votes(tally, rule)
    share = _share(rule.joint_norm(length, votes), rule.user_clip)
    return _Bounded(share, tally.clipped, tally.nonfinite, share * votes)


def _bound_update(length: float, tally: Tally, rule: LocalRule, nonfinite: int = 0) -> _Bounded:
    """Π_β of an update of the given length, that of a user whose sentences are not clipped one by one."""
    if not math.isfinite(length):
        return _Bounded(0.0, 0, nonfinite + 1)
    clipped = tally.sentences if length > rule.user_clip else 0
    return _Bounded(_share(length, rule.user_clip), clipped, nonfinite, _user_vote(length, rule))


def _share(length: float, radius: float) -> float:
    """min(1, r/‖x‖), by which Π_r multiplies x; 0 for an x that is not finite."""
    if not math.isfinite(length):
        return 0.0
    return radius / length if length > radius else 1.0


def _sentence_votes(total: Tally, rule: LocalRule) -> float:
    """Σ(b − γ) over the sentences of a sum, b = 1 if the clip left the sentence's gradient as it was."""
    if rule.vote_weight == 0 or math.isinf(rule.sentence_clip):
        return 0.0
    counted = total.sentences - total.nonfinite
    return counted - total.clipped - rule.quantile * counted


def _user_vote(length: float, rule: LocalRule) -> float:
    """b − γ of a user whose update had the norm ``length`` before its clip; 0 if that is not finite."""
    if rule.vote_weight == 0 or not math.isfinite(length):
        return 0.0
    return float(length <= rule.user_clip) - rule.quantile


def _published_sum(
    model: LanguageModel, examples: Examples, selection: WeightedSelection, rule: LocalRule, mask_seed: int
) -> TrainReply:
    """Σ_u w_u·Π_β(Σ_s m_s·(−∇l(θ, s))), m_s the weight of the sampled entities that the sentence mentions."""
    those = selection.nonempty()
    weights = np.split(those.weights, np.cumsum(those.counts)[:-1])
    total = GradientSum(model, mask_seed)
    sums = user_sums(model, map(examples.read, _by_user(those)), math.inf, mask_seed, weights)
    _add_bounded(total, sums, lambda length, tally: _bound_user(length, tally, rule), those.user_weights)
    return _reply(total, selection, 0.0)


def _cannot_reach(sentences: npt.NDArray[np.int64], rule: LocalRule) -> npt.NDArray[np.bool_]:
    """Whether the sum of that many clipped gradients, at least one, lies within β whatever they are."""
    return sentences * rule.sentence_clip <= rule.user_clip


def _sum_of_local_training(
    model: LanguageModel, examples: Examples, selection: Selection, rule: LocalRule, round_seed: int
) -> TrainReply:
    those = selection.nonempty()

    def users(one_step: bool) -> Iterator[tuple[int, list[Example]]]:
        for user, part in zip(those.users, _by_user(those), strict=True):
            if is_one_step(len(part), rule) == one_step:
                yield int(user), told(model, examples.read(part))

    total = GradientSum(model)
    steps = single_steps(model, users(one_step=True), round_seed)
    votes = _add_bounded(total, steps, lambda length, tally: _bound_step(length, tally, rule))
    updates = local_updates(model, users(one_step=False), rule, round_seed)
    votes += _add_bounded(total, updates, lambda length, tally: _bound_update(length, tally, rule))
    return _reply(total, selection, votes)


def _bound_step(length: float, tally: Tally, rule: LocalRule) -> _Bounded:
    """Π_β of a step of SGD along the mean of gradients whose sum has the given length."""
    rate = rule.learning_rate / max(tally.sentences, 1)
    bounded = _bound_update(math.nan if tally.nonfinite else rate * length, tally, rule)
    return replace(bounded, share=rate * bounded.share)


def _by_user(selection: Selection) -> Iterator[npt.NDArray[np.int64]]:
    """The eligible sentences of each sampled user, one user after the other: a cohort of a million has no million
    arrays."""
    end = 0
    for count in selection.counts:
        end += int(count)
        yield selection.sentences[end - int(count) : end]
