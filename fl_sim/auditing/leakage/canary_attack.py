"""Attack planted canaries, and test what they say against what the ledger proves.

Every canary was included with probability ½, independently. The corpora with it and without it are neighbours that
differ by the canary's user or entity, and many canaries in one training are the game for which the number of right
guesses has a valid bound (:mod:`fl_sim.auditing.one_run.f_dp_bounds`). Canaries of one owner and one number of
repetitions contribute alike: they are tested together against the bound of that contribution, and all canaries of an
owner against that of the largest.

Assumptions: those of the run's ε, and N as ``PlantedCanaries.population`` has it; another N depends on which
canaries are included, and nothing is tested.

>>> from fl_sim.strategies.accounting.guarantee import Guarantee
>>> entity_contribution(Guarantee(mention_graph="public", entity_bound=3), repetitions=8).profile
array([1, 1, 1])
>>> user_contribution(Guarantee(user_sentences=32), repetitions=64)
32.0
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from fl_sim.auditing.leakage.attacked_run import AttackedRun, NotApplicableError
from fl_sim.auditing.leakage.canary_exposure import CanaryExposures, canary_exposures, figure_record
from fl_sim.auditing.leakage.kept_files import keep_record, kept_record
from fl_sim.auditing.leakage.options import Options
from fl_sim.auditing.leakage.proven_rates import EntityContribution, ProvenRates
from fl_sim.auditing.leakage.rates import FALSE_POSITIVE_RATES, Verdict
from fl_sim.auditing.one_run.f_dp_bounds import refutes_by_ranking
from fl_sim.clients.frozen_states import Observer
from fl_sim.data_prep.canaries import Owner, PlantedCanaries, read_canaries
from fl_sim.strategies.accounting.adjacency import ContributionBound
from fl_sim.strategies.accounting.guarantee import Guarantee

_FEWEST = 2


def attack_canaries(
    run: AttackedRun, rng: np.random.Generator, options: Options, observer: Observer = lambda done, total: None
) -> dict[str, Any]:
    """Measure the exposure of a corpus's canaries, before training and after, and judge it; return the record.

    Args:
        run: the run.
        rng: not used; secrets are drawn from streams of ``options.seed``, so that all runs meet the same ones.
        options: of the attack.
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
    sizes = {"seed": options.seed, "drawn": options.secrets}
    exposures, initial = _exposures(run, planted, sizes, observer)
    proven = {kind: _proven(run, *kind) for kind in _kinds(exposures)}
    return {
        **exposures.record(),
        "groups": [
            group.record() | {"initial_exposure": figure_record(start.exposure)}
            for group, start in zip(exposures.groups(), initial.groups(), strict=True)
        ],
        "bounds": [
            {"owner": owner, "repetitions": repetitions, **rates.record(FALSE_POSITIVE_RATES)}
            for (owner, repetitions), rates in proven.items()
        ],
        "verdict": _verdict(run, planted, exposures, proven, options.failure).record(),
    }


def user_contribution(guarantee: Guarantee, repetitions: int) -> float:
    """Return how many sentences of a user who says a canary so often take part at most."""
    return float(min(repetitions, guarantee.user.user_sentences))


def entity_contribution(guarantee: Guarantee, repetitions: int) -> EntityContribution:
    """Return what an entity contributes at most whose canary is said once by each of so many users."""
    most = min(repetitions, guarantee.entity_bound or repetitions, guarantee.entity_users or repetitions)
    if not guarantee.weighted:
        return EntityContribution.of_profile([1] * most)
    limit = ContributionBound(users=repetitions, sentences_per_user=most, sentences=most, weighted=True)
    return EntityContribution(np.ones(repetitions, dtype=np.int64), limit)


def _exposures(
    run: AttackedRun, planted: PlantedCanaries, sizes: dict[str, int], observer: Observer
) -> tuple[CanaryExposures, CanaryExposures]:
    """Return the exposures under the run's model and under the one with which it began, kept or computed."""
    file = run.file_of({"exposures": sizes}, ".json")
    kept = kept_record(file)
    if kept is not None:
        return CanaryExposures.of_values(kept["model"]), CanaryExposures.of_values(kept["initial"])
    exposures = canary_exposures(run.model, planted, **sizes, observer=partial(_of_both, observer, 0))
    initial = run.of_initial.get(
        ("canaries", *sizes.values()),
        lambda: canary_exposures(run.initial, planted, **sizes, observer=partial(_of_both, observer, 1)),
    )
    keep_record(file, {"model": asdict(exposures), "initial": asdict(initial)})
    return exposures, initial


def _of_both(observer: Observer, number: int, done: int, total: int) -> None:
    """Pass on that ``done`` canaries of model ``number`` are ready, of two models."""
    observer(number * total + done, 2 * total)


def _kinds(exposures: CanaryExposures) -> list[tuple[Owner, int]]:
    return sorted({(canary.owner, canary.repetitions) for canary in exposures.canaries})


def _proven(run: AttackedRun, owner: Owner, repetitions: int) -> ProvenRates:
    """Return what is proven for a canary in or out."""
    guarantee = run.bounds.guarantee
    if owner == "user":
        return run.proof.of_user(user_contribution(guarantee, repetitions))
    return run.proof.of_entity(entity_contribution(guarantee, repetitions))


def _verdict(
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
