"""Tell who trained from who did not: user inference, and likelihood ratios of sentences.

* ``users`` (Kandpal, Pillutla, Oprea, Kairouz, Choquette-Choo and Xu 2023, "User Inference Attacks on Large Language
  Models"): the mean over a user's sentences of ln p(s; model) − ln p(s; reference).
* ``sentences`` (Zarifzadeh, Liu and Shokri 2024, RMIA, with few references): ln p(s; model) − ln of the mean of
  p(s; reference). RMIA compares this ratio with those of population sentences; where all sentences have the same
  population, that orders them as the ratio itself does, so the curve is the same.

p is the probability of the sentence's tokens, or of its class for classification. Attacker: sees the released model, a
reference, and the raw text of the unit; knows no other text. The reference is the model with which the run began, or
runs that never saw the attacked text.

What the comparison needs. Members are users of the training split, non-members those of the held-out split. Their
rates estimate TPR and FPR if users are *exchangeable*: every division of the same people into splits of these sizes was
equally likely. A split by time or by source makes an attack look strong that recognises the time or the source. So the
reference scores the same units first: where it already tells the splits apart, nothing is tested. A run that began with
the model of a run on the same text needs a reference that did not see it.

What is tested. Under exchangeability the training corpora that are compared hold equally many users, so they differ by
exchanging users, not by adding one: with the trade-off function F of one user in or out, an attack may reach F∘F.
(Example: one of two users trains, each with probability ½, and the sum of the values +1 and −1 is released with noise
1. The score value·sum has mean 1 for the member and −1 for the other, twice the distance that in or out allows.) The
test pairs members with non-members and takes F∘F; the bound that is shown beside the rates is F, that of one user in or
out. Scores of one model depend on each other, so counting them as independent could contradict a proof that holds; the
test does not (:func:`~fl_sim.auditing.leakage.rates.judge_pairs`).

A split by users puts all sentences of a user on one side. Whether a sentence trained is then whether its user did, with
all of the user's sentences: the bound of the attack on sentences is that of their user. (Example: a user who writes one
sentence a hundred times.) Only where most held-out users also have sentences in the training split, so that sentences
were divided, it is that of one sentence; the sentences attacked are those of users on both sides, and users cannot be
attacked. F is that of the largest contribution among the attacked users, on either side: F grows with the contribution
and is concave, so it also bounds the mean over units.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from fl_sim.auditing.leakage.attacked_run import (
    AttackedRun,
    NotApplicableError,
    Options,
    OtherRun,
    Side,
    keep_array,
    kept_array,
)
from fl_sim.auditing.leakage.rates import (
    FALSE_POSITIVE_RATES,
    ProvenRates,
    Rates,
    Scored,
    Verdict,
    are_exchangeable,
    differ_before_training,
    is_above,
    judge_pairs,
)
from fl_sim.clients.frozen_states import Observer, sentence_features
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.models.losses import held_out
from fl_sim.config import ConfigError
from fl_sim.data_prep.canaries import read_canaries
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.strategies.primitives import streams

AT_ONCE = 256
_TELLING_WORDS = 4  # shorter sentences are anybody's: "see you later"
_SHARED = 0.5  # share of a user's telling sentences in a reference's text from which it was trained on that user

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Sample:
    """Hold the n attacked sentences of one side, user by user, in a random order within each user.

    Attributes:
        side: the side.
        ids: int64 (n,), of the sentences.
        users: int64 (n,), of their users.
    """

    side: Side
    ids: NDArray[np.int64]
    users: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Samples:
    """Hold the attacked sentences of both sides.

    Attributes:
        members: of the training split.
        non_members: of the held-out split.
        by_user: whether users were divided into the splits, not sentences.
    """

    members: Sample
    non_members: Sample
    by_user: bool

    @property
    def is_member(self) -> NDArray[np.bool_]:
        """Return of which side each sentence is, bool (n,), members first."""
        return np.repeat([True, False], [len(self.members.ids), len(self.non_members.ids)])

    @property
    def users(self) -> NDArray[np.int64]:
        """Return the user of each sentence, int64 (n,)."""
        return np.concatenate([self.members.users, self.non_members.users])


def sample(run: AttackedRun, options: Options) -> Samples:
    """Return the attacked sentences of a run.

    Raises:
        ConfigError: a side has no user with a sentence.
    """
    shared = set(run.members.users) & set(run.non_members.users)
    by_user = 2 * len(shared) <= len(run.non_members.users)
    attacked = set(run.members.users) ^ set(run.non_members.users) if by_user else shared
    attacked -= canary_users(run.corpus)
    members, others = (_sample(side, attacked, options) for side in (run.members, run.non_members))
    for drawn in (members, others):
        if not len(drawn.ids):
            raise ConfigError(f"split {drawn.side.split} has no user to attack; allowed: a split with sentences")
    return Samples(members, others, by_user)


def canary_users(corpus: Corpus) -> frozenset[str]:
    """Return the users of planted canaries, who are in the training split alone and so give themselves away."""
    return read_canaries(corpus).users if corpus.has_canaries else frozenset()


def _sample(side: Side, attacked: set[str], options: Options) -> Sample:
    rng = streams.generator(options.seed, f"leak-{side.split}")
    ids: list[NDArray[np.int64]] = []
    users: list[int] = []
    for user in rng.permutation(len(side.users)).tolist():
        own = side.sentences_of(user) if side.users[user] in attacked else np.empty(0, dtype=np.int64)
        if len(own):
            ids.append(rng.permutation(own)[: options.sentences_per_user])
            users.append(user)
        if len(users) == options.max_users:
            break
    counts = [len(one) for one in ids]
    return Sample(side, np.concatenate([np.empty(0, dtype=np.int64), *ids]), np.repeat(users, counts).astype(np.int64))


def log_likelihoods(model: LanguageModel, samples: Samples, observer: Observer = lambda done, total: None) -> Floats:
    """Return ln p of each attacked sentence under a model, float64 (n,), members first.

    Args:
        model: the model.
        samples: the sentences.
        observer: called with the number of sentences that are done, and of all.
    """
    sides = (samples.members, samples.non_members)
    total, parts = sum(len(one.ids) for one in sides), [np.empty(0)]
    for one in sides:
        for start in range(0, len(one.ids), AT_ONCE):
            parts.append(_of_sentences(model, one.side, one.ids[start : start + AT_ONCE]))
            observer(sum(map(len, parts)), total)
    return np.concatenate(parts)


def _of_sentences(model: LanguageModel, side: Side, ids: NDArray[np.int64]) -> Floats:
    examples = model.encode(side.read(ids), None if side.targets is None else side.targets[ids].tolist())
    if model.reads_features:
        states = sentence_features(model, examples)
        examples = [replace(example, features=state) for example, state in zip(examples, states, strict=True)]
    return -held_out(model, examples).nats


@dataclass(frozen=True, eq=False)
class Likelihoods:
    """Hold ln p of the attacked sentences, each float64 (n,).

    Attributes:
        samples: the sentences.
        model: of the run's model.
        references: of each reference; the model with which the run began if none is given.
    """

    samples: Samples
    model: Floats
    references: tuple[Floats, ...]

    @property
    def before(self) -> Floats:
        """Return the mean over the references, which saw neither side, float64 (n,)."""
        return np.asarray(np.mean(self.references, axis=0))

    @classmethod
    def of(cls, run: AttackedRun, options: Options, observer: Observer = lambda done, total: None) -> Likelihoods:
        """Compute the likelihoods of a run.

        Raises:
            ConfigError: a reference was trained on attacked text, or for another task.
            ResultsError: a reference has no model, or its corpus has changed.
        """
        samples = sample(run, options)
        references = [_reference(name, run, samples) for name in options.references]
        count = 1 + max(len(references), 1)

        def part(number: int) -> Observer:
            return lambda done, total: observer(number * total + done, count * total)

        own = log_likelihoods(run.model, samples, part(0))
        if not references:
            settings = (options.seed, options.max_users, options.sentences_per_user)
            initial = run.of_initial.get(
                ("likelihoods", *settings), lambda: log_likelihoods(run.initial, samples, part(1))
            )
            return cls(samples, own, (initial,))
        others = [log_likelihoods(one, samples, part(number)) for number, one in enumerate(references, start=1)]
        return cls(samples, own, tuple(others))


def _reference(name: str, run: AttackedRun, samples: Samples) -> LanguageModel:
    """Return the model of a reference run; raise ConfigError if it was trained on an attacked user."""
    other = OtherRun.open(name, run, "reference")
    _check_apart(name, other, samples)
    return other.model


def _check_apart(name: str, other: OtherRun, samples: Samples) -> None:
    """Raise ConfigError if a run was trained on text of attacked users."""
    texts = other.texts()
    for one in (samples.members, samples.non_members):
        count = users_in(texts, one)
        if count:
            raise ConfigError(
                f"reference is {name}, which was trained on the text of {count} attacked users of split "
                f"{one.side.split}; allowed: runs on other users' text"
            )


def users_in(texts: Set[str], one: Sample) -> int:
    """Return how many attacked users of a side have more than half of their telling sentences among ``texts``."""
    own = one.side.read(one.ids)
    telling = np.array([len(text.split()) >= _TELLING_WORDS for text in own])
    shared = np.array([text in texts for text in own]) & telling
    size = int(one.users.max()) + 1
    counts = np.maximum(np.bincount(one.users[telling], minlength=size), 1)
    return int((np.bincount(one.users[shared], minlength=size) / counts > _SHARED).sum())


def user_scores(likelihoods: Likelihoods) -> Scored:
    """Return the mean log-likelihood ratio of each user's sentences."""
    of_sentences = _scored(likelihoods, likelihoods.model - likelihoods.before)
    return _mean_by_user(of_sentences)


def sentence_scores(likelihoods: Likelihoods) -> Scored:
    """Return the log-likelihood ratio of each sentence to the mean likelihood under the references."""
    mean = logsumexp(likelihoods.references, axis=0) - np.log(len(likelihoods.references))
    return _scored(likelihoods, likelihoods.model - mean)


def _scored(likelihoods: Likelihoods, scores: Floats) -> Scored:
    return Scored(scores, likelihoods.samples.is_member, likelihoods.samples.users)


def _mean_by_user(scored: Scored) -> Scored:
    keys = np.stack([~scored.is_member, scored.users], axis=1).astype(np.int64)
    units, index, counts = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    means = np.bincount(index.ravel(), scored.scores) / counts
    return Scored(means, units[:, 0] == 0, units[:, 1])


def attack_users(
    run: AttackedRun, rng: np.random.Generator, options: Options, observer: Observer = lambda done, total: None
) -> dict[str, Any]:
    """Attack users; return the record.

    Args:
        run: the run.
        rng: draws resamples and pairs.
        options: of the attack.
        observer: called with the number of sentences that are scored, and of all.

    Raises:
        NotApplicableError: most held-out users also train.
        ConfigError: a reference was trained on an attacked user.
    """
    likelihoods = likelihoods_of(run, options, observer)
    if not likelihoods.samples.by_user:
        raise NotApplicableError(
            f"most users of split {run.non_members.split} also train; allowed: users on one side, to attack users"
        )
    scored, before = user_scores(likelihoods), _mean_by_user(_scored(likelihoods, likelihoods.before))
    facts = _record(scored, scored, before, _proven_user(run, likelihoods.samples), options, rng)
    return facts | ({"most_exposed": _named(run, scored)} if options.show_names else {})


def attack_sentences(
    run: AttackedRun, rng: np.random.Generator, options: Options, observer: Observer = lambda done, total: None
) -> dict[str, Any]:
    """Attack sentences; return the record. One sentence of each user is tested. Arguments as for users.

    Raises:
        ConfigError: a reference was trained on an attacked user.
    """
    likelihoods = likelihoods_of(run, options, observer)
    samples, scored = likelihoods.samples, sentence_scores(likelihoods)
    proven = _proven_user(run, samples) if samples.by_user else run.proof.of_sentence()
    before = _scored(likelihoods, likelihoods.before).one_per_user()
    facts = _record(scored, scored.one_per_user(), before, proven, options, rng)
    return facts | {"divided_by": "users" if samples.by_user else "sentences"}


def likelihoods_of(run: AttackedRun, options: Options, observer: Observer = lambda done, total: None) -> Likelihoods:
    """Return the likelihoods of a run, computed once for all attacks with the same options."""
    settings = {name: getattr(options, name) for name in ("seed", "max_users", "sentences_per_user", "references")}
    key = ("likelihoods", *settings.values())
    if key not in run.computed:
        file = run.file_of({"likelihoods": settings}, ".npy", options.references)
        known = kept_array(file)
        if known is None:
            run.computed[key] = Likelihoods.of(run, options, observer)
            keep_array(file, np.stack([run.computed[key].model, *run.computed[key].references]))
        else:
            run.computed[key] = Likelihoods(sample(run, options), known[0], tuple(known[1:]))
    likelihoods: Likelihoods = run.computed[key]
    return likelihoods


def _proven_user(run: AttackedRun, samples: Samples) -> ProvenRates:
    """Return what is proven for a user with the largest contribution of any attacked user, of either side."""
    members = [run.contribution_of(user) for user in np.unique(samples.members.users).tolist()]
    others = [run.largest_contribution_of(user) for user in np.unique(samples.non_members.users).tolist()]
    most = max(*members, *others)
    if ("user", most) not in run.computed:
        run.computed["user", most] = run.proof.of_user(float(most))
    proven: ProvenRates = run.computed["user", most]
    return proven


def _record(
    scored: Scored, tested: Scored, before: Scored, proven: ProvenRates, options: Options, rng: np.random.Generator
) -> dict[str, Any]:
    """Return rates, bound and verdict of an attack.

    Args:
        scored: all scores.
        tested: one per user.
        before: of the reference, one per user.
        proven: the bound.
        options: of the attack.
        rng: draws resamples and pairs.
    """
    p_value = differ_before_training(before)
    return {
        **Rates.of(scored, rng).record(),
        "before_training": {"auc": Rates.of(before, rng, rates=()).area.record(), "p_value": p_value},
        "bound": proven.record(FALSE_POSITIVE_RATES),
        "verdict": _verdict(tested, proven, p_value, options.failure, rng).record(),
    }


def _verdict(scored: Scored, proven: ProvenRates, p_value: float, failure: float, rng: np.random.Generator) -> Verdict:
    if not proven.is_proven:
        return Verdict("not tested", 0, failure, f"no bound: {proven.reason}")
    if not are_exchangeable(p_value):
        return Verdict("not tested", 0, failure, "the splits differ before training, so they are not exchangeable")
    verdict = judge_pairs(scored, proven.exchanged(), failure, rng)
    above = verdict.state == "within" and is_above(scored, proven.largest_after_exchange, failure)
    return replace(verdict, state="above") if above else verdict


def _named(run: AttackedRun, scored: Scored, most: int = 5) -> list[dict[str, Any]]:
    """Return the names and scores of the members with the highest scores."""
    users, scores = scored.users[scored.is_member], scored.scores[scored.is_member]
    order: Sequence[int] = np.argsort(-scores, kind="stable")[:most].tolist()
    return [{"user": run.members.users[int(users[i])], "score": float(scores[i])} for i in order]
