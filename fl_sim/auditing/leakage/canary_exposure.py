"""Exposure of canaries: how far a model prefers a planted secret to secrets of the same distribution that it never saw.

Carlini, Liu, Erlingsson, Kos, Song 2019 ("The Secret Sharer", arXiv 1802.08232). The attacker knows a canary's public
words, the distribution of its secret, and the model, and ranks the possible secrets by the log-perplexity of the whole
sentence. The exposure of a canary (definition 5 there) is

    exposure = log₂|R| − log₂ rank,

the bits by which the model shortens the search for the secret. The rank is estimated among n secrets drawn from the
others (equation 3 there): exposure = log₂(n + 1) − log₂ rank, at most log₂(n + 1). Where |R| is so small that all
others are taken, it is exact.

*Left-out canaries are the control.* No two canaries have the same secret, and none is drawn again. So a secret that
was left out and the n drawn ones are exchangeable, whatever the model is: the rank is uniform on 1, …, n + 1 (ties
count against the canary). Canaries share the drawn secrets where they share the public words; the interval of their
mean, a bootstrap over canaries, takes the drawn secrets as given. It is too narrow for a few canaries: whether a model
knows them is decided by what the mean exposure of so many left-out secrets stays below (``most_by_chance``).

*The test against the ledger.* Every canary was included with probability ½, independently: a game of many canaries in
one training, for which the number of right guesses has a valid bound (:mod:`fl_sim.auditing.lower_bounds`). A score is
the distance of a canary's log-perplexity from the mean of the drawn secrets', in their standard deviations. Canaries of
one owner and one number of repetitions contribute alike: they are tested together against the bound of that
contribution, and all canaries of an owner against that of the largest. N must be what ``PlantedCanaries.population``
has; another N depends on which canaries are included, and nothing is tested.

>>> round(uniform_exposure(1000), 3)
1.436
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from scipy import special, stats

from fl_sim.auditing.leakage.attacked_run import AttackedRun, NotApplicableError, Options
from fl_sim.auditing.leakage.proven_rates import NOT_MARKED, EntityContribution, ProvenRates
from fl_sim.auditing.leakage.rates import Verdict
from fl_sim.auditing.lower_bounds import Bools, Floats, refutes_by_ranking
from fl_sim.clients.errors import ModelError
from fl_sim.clients.frozen_states import Observer
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.models.losses import held_out
from fl_sim.data_prep.canaries import Canary, Owner, PlantedCanaries, read_canaries
from fl_sim.reporting.bootstrap import Figure, intervals
from fl_sim.strategies.accounting.adjacency import ContributionBound
from fl_sim.strategies.accounting.guarantee import Guarantee
from fl_sim.strategies.primitives import streams

_FEWEST = 2
METHOD = "percentile bootstrap over canaries, 95 %"

Group = tuple[Owner | None, int | None, bool]
"""Canaries of one owner and number of repetitions (None for any) that are all included, or all left out."""


@dataclass(frozen=True, slots=True)
class CanaryExposure:
    """The exposure of one canary.

    Attributes:
        number, owner, repetitions, included: those of the canary.
        rank: among the drawn secrets and its own, from 1.
        exposure: in bits, from the rank.
        score: for the test against the ledger; high means included.
    """

    number: int
    owner: Owner
    repetitions: int
    included: bool
    rank: int
    exposure: float
    score: float


def most_by_chance(canaries: int) -> float:
    """Return the mean exposure that so many secrets which a model never saw stay below with probability 97.5 %.

    Each has a uniform rank, so its exposure is at most −log₂ of a uniform number. The sum of m of these, taken as
    independent, has a gamma distribution. The bootstrap over a few canaries is too narrow to tell them from chance.
    """
    return float(stats.gamma.ppf(0.975, canaries) / (canaries * math.log(2)))


@dataclass(frozen=True, slots=True)
class CanaryExposures:
    """The exposures of all canaries of a corpus under one model.

    Attributes:
        canaries: in the order of their numbers.
        drawn: n, the secrets drawn beside each.
        possible: |R|.
        seed: of the drawn secrets and of the bootstrap.
    """

    canaries: tuple[CanaryExposure, ...]
    drawn: int
    possible: int
    seed: int

    def means(self) -> dict[Group, tuple[int, Figure]]:
        """Return how many canaries a group has, and their mean exposure in bits: of all, by owner, by repetitions."""
        kinds: list[tuple[Owner | None, int | None]] = [(None, None)]
        kinds += [(owner, None) for owner in dict.fromkeys(c.owner for c in self.canaries)]
        kinds += sorted(
            {(c.owner, c.repetitions) for c in self.canaries}, key=lambda kind: (kind[0] != "user", kind[1])
        )
        means = dict[Group, tuple[int, Figure]]()
        for owner, repetitions in kinds:
            for included in (True, False):
                chosen = [c.exposure for c in self._chosen(owner, repetitions) if c.included == included]
                if chosen:
                    rng = streams.generator(self.seed, "leak-exposure-bootstrap")
                    (mean,) = intervals(np.stack([chosen, np.ones(len(chosen))], axis=1), rng)
                    means[owner, repetitions, included] = len(chosen), mean
        return means

    def audit_arrays(self, owner: Owner | None = None, repetitions: int | None = None) -> tuple[Bools, Floats]:
        """Return which canaries are included, bool (m,), and their scores, float64 (m,).

        Args:
            owner: of the canaries; None for any.
            repetitions: of the canaries; None for any. One number means one contribution, so one bound.
        """
        chosen = self._chosen(owner, repetitions)
        return np.array([c.included for c in chosen], dtype=bool), np.array([c.score for c in chosen], dtype=np.float64)

    def _chosen(self, owner: Owner | None, repetitions: int | None) -> list[CanaryExposure]:
        return [c for c in self.canaries if owner in (None, c.owner) and repetitions in (None, c.repetitions)]


def canary_exposures(
    model: LanguageModel,
    planted: PlantedCanaries,
    *,
    seed: int,
    drawn: int,
    observer: Observer = lambda done, total: None,
) -> CanaryExposures:
    """Return the exposure of every canary under a next-word model.

    Args:
        planted: the canaries as they stand in the attacked text.
        seed: of the drawn secrets and of the bootstrap.
        drawn: n, secrets that are drawn beside a canary's; all others where there are fewer.

    Raises:
        ModelError: the model's context is too short for a canary.
    """
    secrets = {canary.secret for canary in planted.canaries}
    drawn = min(drawn, planted.law.size - len(secrets))
    by_public_words: dict[str, list[Canary]] = defaultdict(list)
    for canary in planted.canaries:
        by_public_words[canary.before].append(canary)
    exposures: list[CanaryExposure] = []
    for number, canaries in enumerate(by_public_words.values()):
        rng = streams.generator(seed, "leak-exposure-secrets", number)
        others = planted.law.draw(rng, drawn, without=secrets).tolist()
        texts = [canaries[0].text(planted.law, secret) for secret in others]
        nats = sentence_nats(model, [*(canary.text(planted.law) for canary in canaries), *texts])
        drawn_nats = nats[len(canaries) :]
        exposures += [exposure_of(canary, own, drawn_nats) for canary, own in zip(canaries, nats, strict=False)]
        observer(len(exposures), len(planted.canaries))
    exposures.sort(key=lambda exposure: exposure.number)
    return CanaryExposures(tuple(exposures), drawn, planted.law.size, seed)


def exposure_of(canary: Canary, own: float, drawn: Floats) -> CanaryExposure:
    """Return the exposure of a canary.

    Args:
        own: its log-perplexity.
        drawn: those of the drawn secrets, float64 (n,).
    """
    rank, spread = 1 + int((drawn <= own).sum()), float(drawn.std())
    return CanaryExposure(
        number=canary.number,
        owner=canary.owner,
        repetitions=canary.repetitions,
        included=canary.included,
        rank=rank,
        exposure=math.log2((len(drawn) + 1) / rank),
        score=(float(drawn.mean()) - own) / spread if spread else 0.0,
    )


def sentence_nats(model: LanguageModel, texts: Sequence[str]) -> Floats:
    """Return the log-perplexity of whole texts, the sum over their words and their end in nats, float64 (n,).

    Raises:
        ModelError: a text does not fit into the model's context.
    """
    examples = model.encode(texts)
    for example in examples:
        if int(example.tokens[-1]) != model.eos_id:
            raise ModelError(
                f"an attacked text has more than {model.max_tokens} tokens; allowed: at most that, the model's context"
            )
    return held_out(model, examples).nats


def uniform_exposure(drawn: int) -> float:
    """Return the mean of log₂(n + 1) − log₂ k over k = 1, …, n + 1, for n drawn secrets."""
    return math.log2(drawn + 1) - float(special.gammaln(drawn + 2)) / math.log(2) / (drawn + 1)


@dataclass(frozen=True, slots=True)
class CanaryGroup:
    """Hold the mean exposure of a group of canaries, in bits.

    Attributes:
        owner, repetitions, included: those of its canaries; None for any.
        canaries: how many it has.
        exposure: under the model that the run released last.
        most_by_chance: what the mean of so many secrets that a model never saw stays below.
        initial_exposure: under the model with which the run began.
    """

    owner: Owner | None
    repetitions: int | None
    included: bool
    canaries: int
    exposure: Figure
    most_by_chance: float
    initial_exposure: Figure

    def record(self) -> dict[str, object]:
        """Return the group as a JSON object."""
        figures = {"exposure": self.exposure.record(), "initial_exposure": self.initial_exposure.record()}
        return asdict(self) | figures


def are_known(groups: Sequence[CanaryGroup]) -> bool:
    """Return whether a model knows more of the canaries that were said most than chance and its start explain."""
    most = max((group.repetitions or 0 for group in groups), default=0)
    return any(
        group.exposure.value > max(group.most_by_chance, group.initial_exposure.value)  # NaN is no exposure
        for group in groups
        if group.repetitions == most and group.included
    )


@dataclass(frozen=True, eq=False)
class CanaryAttack:
    """Hold what the attack on canaries found.

    Attributes:
        exposures: under the model that the run released last.
        groups: the means, those of all canaries first, then by owner, and by repetitions.
        bounds: what the ledger proves for a canary in or out, by owner and repetitions.
        verdict: whether the attack contradicts a bound.
    """

    exposures: CanaryExposures
    groups: tuple[CanaryGroup, ...]
    bounds: dict[tuple[Owner, int], ProvenRates]
    verdict: Verdict

    def record(self) -> dict[str, object]:
        """Return the attack as a JSON object, without texts."""
        exposures = self.exposures
        return {
            "canaries": len(exposures.canaries),
            "included": sum(canary.included for canary in exposures.canaries),
            "drawn_secrets": exposures.drawn,
            "possible_secrets": exposures.possible,
            "largest_exposure": math.log2(exposures.drawn + 1),
            "exposure_of_left_out": uniform_exposure(exposures.drawn),
            "intervals": METHOD,
            "seed": exposures.seed,
            "groups": [group.record() for group in self.groups],
            "bounds": [
                {"owner": owner, "repetitions": repetitions, **rates.record()}
                for (owner, repetitions), rates in self.bounds.items()
            ],
            "verdict": self.verdict.record(),
        }


def attack_canaries(run: AttackedRun, options: Options, observer: Observer = lambda done, total: None) -> CanaryAttack:
    """Measure the exposure of a corpus's canaries, before training and after, and judge it.

    Args:
        options: of the attack; secrets are drawn from streams of its seed, so that all runs meet the same ones.
        observer: called with the number of canaries that are done, and of all, over both models.

    Raises:
        NotApplicableError: the corpus has no canaries, or the model predicts classes.
    """
    if not run.corpus.has_canaries:
        raise NotApplicableError(
            f"{run.corpus.path} has no canaries; allowed: a corpus of fl-sim prepare … --canaries N"
        )
    if run.model.task.classes:
        raise NotApplicableError("the model predicts classes; allowed: next-word models, to attack canaries")
    planted = read_canaries(run.corpus)

    def exposures_under(model: LanguageModel, models_before: int) -> CanaryExposures:
        return canary_exposures(
            model,
            planted,
            seed=options.seed,
            drawn=options.secrets,
            observer=lambda done, total: observer(models_before * total + done, 2 * total),
        )

    exposures = exposures_under(run.model, 0)
    key = (planted, options.seed, options.secrets)
    initial = run.before.once(key, lambda: exposures_under(run.before.model, 1))
    guarantee = run.bounds.guarantee
    is_marked = not run.has_raw_text and all(c.name is not None for c in planted.canaries if c.owner == "entity")
    bounds: dict[tuple[Owner, int], ProvenRates] = {}
    for owner, repetitions in sorted({(canary.owner, canary.repetitions) for canary in exposures.canaries}):
        if owner == "user":
            proven = run.proof.of_user(float(min(repetitions, guarantee.user.user_sentences)))
        elif is_marked:
            proven = run.proof.of_entity(entity_contribution(guarantee, repetitions))
        else:
            proven = ProvenRates(f"an entity in {repetitions:,} sentences", (), NOT_MARKED)
        bounds[owner, repetitions] = proven
    starts = initial.means()
    groups = tuple(
        CanaryGroup(*group, count, mean, most_by_chance(count), starts[group][1])
        for group, (count, mean) in exposures.means().items()
    )
    return CanaryAttack(exposures, groups, bounds, judge_canaries(run, planted, exposures, bounds, options.failure))


def entity_contribution(guarantee: Guarantee, repetitions: int) -> EntityContribution:
    """Return what an entity contributes at most whose canary is said once by each of so many users."""
    most = repetitions
    if guarantee.covers_any_entity:  # else bounds are stated and not enforced
        most = min(most, guarantee.entity_bound or most, guarantee.entity_users or most)
    if not guarantee.weighted:
        return EntityContribution.of_profile([1] * most)
    limit = ContributionBound(users=repetitions, sentences_per_user=most, sentences=most, weighted=True)
    return EntityContribution(np.ones(repetitions, dtype=np.int64), limit)


def judge_canaries(
    run: AttackedRun,
    planted: PlantedCanaries,
    exposures: CanaryExposures,
    proven: dict[tuple[Owner, int], ProvenRates],
    failure: float,
) -> Verdict:
    """Test the canaries of every owner, by repetitions and together; the tests share the failure probability."""
    unproven = [rates.reason for rates in proven.values() if not rates.is_proven]
    if len(unproven) == len(proven):
        return Verdict("not tested", 0, failure, f"no bound: {unproven[0]}")
    population, released = planted.population(run.corpus), run.proof.entries[-1].terms.mechanism.population
    if released != population:
        reason = f"privacy.population is {released:,}; allowed: {population:,}, which no canary decides"
        return Verdict("not tested", 0, failure, reason)
    largest = {owner: max(r for other, r in proven if other == owner) for owner, _ in proven}
    tests = [(kind, kind) for kind in proven] + [((owner, None), (owner, r)) for owner, r in largest.items()]
    tested, refuted = 0, False
    for (owner, repetitions), bound in tests:
        included, scores = exposures.audit_arrays(owner, repetitions)
        if len(scores) < _FEWEST or not proven[bound].is_proven:
            continue
        tested += len(scores) if repetitions is not None else 0
        confidence = 1 - failure / len(tests)
        refuted = refuted or refutes_by_ranking(proven[bound].trade_off(), included, scores, confidence)
    return Verdict("beyond" if refuted else "within", tested, failure)
