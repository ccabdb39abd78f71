"""Tell users who trained from users who did not, by the likelihood of their sentences.

The score of a user is the mean over the user's sentences of ln p(s; model) − ln p(s; reference) (Kandpal, Pillutla,
Oprea, Kairouz, Choquette-Choo and Xu 2023, "User Inference Attacks on Large Language Models"). p is the probability of
the sentence's tokens, or of its class for classification. The reference is the model with which the run began.
Attacker: sees both models and the raw text of the user; knows no other text.

Users of the training split are compared with users of the held-out split, as if every division of the same people into
splits of these sizes had been equally likely. So the reference scores the same users first: where it already tells the
splits apart, nothing is tested. The training corpora of two divisions differ by *exchanging* users, so with the
trade-off function F of one user in or out an attack may reach F∘F, which the test of pairs takes; the bound that is
shown beside the rates is F (docs/audit.md has the reasons). F is that of the largest contribution among the attacked
users, on either side: F grows with the contribution and is concave, so it also bounds the mean over users.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fl_sim.auditing.leakage.attacked_run import AttackedRun, NotApplicableError, Options, Side
from fl_sim.auditing.leakage.proven_rates import FALSE_POSITIVE_RATES, ProvenRates
from fl_sim.auditing.leakage.rates import (
    SAME_BEFORE,
    Rates,
    Scores,
    Verdict,
    differ_before_training,
    is_above,
    judge_pairs,
)
from fl_sim.clients.frozen_states import Observer, sentence_features
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.models.losses import held_out
from fl_sim.data_prep.canaries import read_canaries
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.reporting.bootstrap import Figure
from fl_sim.strategies.primitives import streams

AT_ONCE = 256
_EXPOSED = 5  # users who are named where names are shown

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Sample:
    """Hold the n attacked sentences of one side, user by user, in a random order within each user.

    ``ids`` are those of the sentences and ``users`` those of their users, int64 (n,).
    """

    side: Side
    ids: Ids
    users: Ids

    def mean_by_user(self, values: Floats) -> tuple[Ids, Floats]:
        """Return the attacked users, int64 (U,), and the mean of their sentences' values, float64 (U,)."""
        users, index = np.unique(self.users, return_inverse=True)
        return users, np.bincount(index, values) / np.bincount(index)


@dataclass(frozen=True, eq=False)
class UserAttack:
    """Hold what the attack on users found.

    Attributes:
        rates: how well members are told from non-members.
        before_training: the area under the curve of the reference, which saw neither side.
        p_value: that the reference scores both sides alike.
        bound: what the ledger proves for a user with the largest contribution of any attacked user.
        verdict: whether the attack contradicts the bound.
        most_exposed: the members with the highest scores, where names are shown.
    """

    rates: Rates
    before_training: Figure
    p_value: float
    bound: ProvenRates
    verdict: Verdict
    most_exposed: tuple[tuple[str, float], ...] = ()

    def record(self) -> dict[str, object]:
        """Return the attack as a JSON object."""
        exposed = [{"user": user, "score": score} for user, score in self.most_exposed]
        return {
            **self.rates.record(),
            "before_training": {"auc": self.before_training.record(), "p_value": self.p_value},
            "bound": self.bound.record(),
            "verdict": self.verdict.record(),
        } | ({"most_exposed": exposed} if exposed else {})


def attack_users(run: AttackedRun, options: Options, observer: Observer = lambda done, total: None) -> UserAttack:
    """Attack users; the observer is called with the number of sentences that are scored, and of all, over all models.

    Raises:
        NotApplicableError: most held-out users also train, or a side has no user to attack.
    """
    samples = sample_users(run, options)
    rng = streams.generator(options.seed, "leak-users")
    total, begun = 2 * sum(len(side.ids) for side in samples), 0
    ln_p: list[list[Floats]] = [[], []]
    for of_model, model in zip(ln_p, (run.model, run.before.model), strict=True):
        for side in samples:
            report = partial(lambda before, done, of: observer(before + done, total), begun)
            of_model.append(log_likelihoods(model, side, report))
            begun += len(side.ids)
    own, before = ln_p
    users, member_scores = samples[0].mean_by_user(own[0] - before[0])
    scores = Scores(member_scores, samples[1].mean_by_user(own[1] - before[1])[1])
    untrained = Scores(*(side.mean_by_user(values)[1] for side, values in zip(samples, before, strict=True)))
    proven, p_value = proven_user(run, *samples), differ_before_training(untrained)
    exposed: list[tuple[str, float]] = []
    if options.show_names:
        order = np.argsort(-member_scores, kind="stable")[:_EXPOSED]
        exposed = [(run.members.users[int(users[i])], float(member_scores[i])) for i in order]
    return UserAttack(
        rates=Rates.of(scores, rng, FALSE_POSITIVE_RATES),
        before_training=Rates.of(untrained, rng).area,
        p_value=p_value,
        bound=proven,
        verdict=judge_users(scores, proven, p_value, options.failure, rng),
        most_exposed=tuple(exposed),
    )


def sample_users(run: AttackedRun, options: Options) -> tuple[Sample, Sample]:
    """Return the attacked sentences of members and of non-members.

    Raises:
        NotApplicableError: most held-out users also train, or a side has no user to attack.
    """
    members, others = set(run.members.users), set(run.non_members.users)
    if 2 * len(members & others) > len(run.non_members.users):
        raise NotApplicableError(
            f"most users of split {run.non_members.split} also train; allowed: users on one side, to attack users"
        )
    attacked = (members ^ others) - canary_users(run.corpus)
    return _sample(run.members, attacked, options), _sample(run.non_members, attacked, options)


def canary_users(corpus: Corpus) -> frozenset[str]:
    """Return the users of planted canaries, who are in the training split alone and so give themselves away."""
    return read_canaries(corpus).users if corpus.has_canaries else frozenset()


def _sample(side: Side, attacked: set[str], options: Options) -> Sample:
    rng = streams.generator(options.seed, f"leak-{side.split}")
    ids: list[Ids] = []
    users: list[int] = []
    for user in rng.permutation(len(side.users)).tolist():
        own = side.sentences_of(user) if side.users[user] in attacked else np.empty(0, dtype=np.int64)
        if len(own):
            ids.append(rng.permutation(own)[: options.sentences_per_user])
            users.append(user)
        if len(users) == options.max_users:
            break
    if not ids:
        raise NotApplicableError(
            f"split {side.split} has no user to attack; allowed: users on one side who are not canaries'"
        )
    return Sample(side, np.concatenate(ids), np.repeat(users, [len(own) for own in ids]).astype(np.int64))


def log_likelihoods(model: LanguageModel, drawn: Sample, observer: Observer = lambda done, total: None) -> Floats:
    """Return ln p of each attacked sentence of a side under a model, float64 (n,)."""
    parts = [np.empty(0)]
    for start in range(0, len(drawn.ids), AT_ONCE):
        ids, targets = drawn.ids[start : start + AT_ONCE], drawn.side.targets
        examples = model.encode(drawn.side.read(ids), None if targets is None else targets[ids].tolist())
        if model.reads_features:
            states = sentence_features(model, examples)
            examples = [replace(example, features=state) for example, state in zip(examples, states, strict=True)]
        parts.append(-held_out(model, examples).nats)
        observer(sum(map(len, parts)), len(drawn.ids))
    return np.concatenate(parts)


def proven_user(run: AttackedRun, members: Sample, non_members: Sample) -> ProvenRates:
    """Return what is proven for a user with the largest contribution of any attacked user, of either side."""
    own = [run.bounds.contribution_of(user) for user in np.unique(members.users).tolist()]
    sentences = run.non_members.ownership.sentences_per_user[non_members.users].max()
    others = int(min(sentences, run.bounds.guarantee.user.user_sentences))  # that would at most take part
    return run.proof.of_user(float(max(*own, others)))


def judge_users(
    scores: Scores, proven: ProvenRates, p_value: float, failure: float, rng: np.random.Generator
) -> Verdict:
    """Test scores of users against what is proven for one of them.

    Args:
        proven: the bound of one user in or out.
        p_value: that a model which saw neither side scores both alike.
        failure: the largest probability of ``beyond``, and of ``above``, if the bound holds.
    """
    if not proven.is_proven:
        return Verdict("not tested", 0, failure, f"no bound: {proven.reason}")
    if p_value < SAME_BEFORE:
        return Verdict("not tested", 0, failure, "the splits differ before training, so they are not exchangeable")
    verdict = judge_pairs(scores, proven.exchanged(), failure, rng)
    above = verdict.state == "within" and is_above(scores, proven.largest_after_exchange, failure)
    return replace(verdict, state="above") if above else verdict
