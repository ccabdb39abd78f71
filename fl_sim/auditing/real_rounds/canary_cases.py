"""Define the mechanisms and models that are audited by random canaries, and their table.

>>> sorted(CASES)
['adaptive', 'awd-lstm', 'local-steps', 'lora', 'nothing-sampled', 'uedp', 'user-level']
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fl_sim.auditing.lower_bounds import CURVE_DELTAS, check_confidence
from fl_sim.auditing.real_rounds.canary_audit import (
    CanaryAudit,
    CanaryClaim,
    as_run,
    bound_canaries,
    mean_shift,
    shift_distribution,
)
from fl_sim.auditing.real_rounds.canary_federation import canary_model, release_along_canaries
from fl_sim.auditing.worst_case_corpora import Scenario, build
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.formats import aligned, round_down, round_up
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound, PrivacyError
from fl_sim.strategies.mechanism import LocalTrainingConfig, Mechanism, PrivacyPlan
from fl_sim.strategies.primitives import streams
from fl_sim.strategies.primitives.adaptive_clip import AdaptiveClip
from fl_sim.strategies.uedp import UserEntityDP
from fl_sim.strategies.user_level import UserLevelDP

BYSTANDERS = 30
CANARIES, ROUNDS, DELTA = 256, 30, 1e-5
_MOST_CANARIES = 4096

GPT2 = ModelSpec(name="small-gpt2", hidden=8, layers=1, heads=2, max_tokens=32)
LORA = GPT2.model_copy(update={"lora_rank": 2})
AWD_LSTM = ModelSpec(name="awd-lstm", hidden=8, layers=2, embedding=8, max_tokens=32, dropout=1.0)
_BOUNDED = Scenario(entity_users=10, entity_sentences=1, user_sentences=32)
_USER = Scenario(user_sentences=4)


@dataclass(frozen=True)
class CanaryCase:
    """Name a mechanism for any population, a real model, and the sentences of each canary unit."""

    mechanism: Mechanism
    scenario: Scenario
    model: ModelSpec = GPT2

    @property
    def adjacency(self) -> Adjacency:
        """Return the protected unit of the scenario."""
        scenario = self.scenario
        return Adjacency(scenario.user_sentences, ContributionBound(scenario.entity_users, scenario.entity_sentences))

    def with_population(self, population: int, noise_multiplier: float | None = None) -> Mechanism:
        """Return the mechanism for N users, with another z if one is given."""
        z = self.mechanism.noise_multiplier if noise_multiplier is None else noise_multiplier
        return replace(self.mechanism, population=population, noise_multiplier=z)


UNSAMPLED = UserEntityDP(population=1, q_u=1.0, q_e=1.0, q_s=1.0, clip_norm=1.0, user_cap=2.0, noise_multiplier=4.0)
USER_LEVEL = UserLevelDP(
    population=1,
    q_u=0.2,
    q_e=1.0,
    q_s=1.0,
    clip_norm=1.0,
    user_cap=1.0,
    noise_multiplier=1.0,
    local=LocalTrainingConfig(update="gradients"),
)
LOCAL_STEPS = LocalTrainingConfig(update="steps", epochs=2, batch_size=2)
_UEDP = replace(UNSAMPLED, q_e=0.5, q_s=0.1)
_ADAPTIVE = AdaptiveClip(quantile=0.5, learning_rate=0.2, count_noise=5.0)

CASES = {
    "uedp": CanaryCase(_UEDP, _BOUNDED),
    "nothing-sampled": CanaryCase(UNSAMPLED, Scenario(user_sentences=2)),
    "user-level": CanaryCase(USER_LEVEL, _USER),
    "local-steps": CanaryCase(replace(USER_LEVEL, local=LOCAL_STEPS), _USER),
    "adaptive": CanaryCase(replace(_UEDP, adaptive=_ADAPTIVE), _BOUNDED),
    "lora": CanaryCase(_UEDP, _BOUNDED, LORA),
    "awd-lstm": CanaryCase(_UEDP, _BOUNDED, AWD_LSTM),
}
"""The audited mechanisms. ``uedp`` is the default of a run, at an entity bound of 10 and 32 sentences per user."""


def audit_case(
    name: str,
    *,
    canaries: int = CANARIES,
    rounds: int = ROUNDS,
    delta: float = DELTA,
    noise_multiplier: float | None = None,
    seed: int = 0,
    confidence: float = 0.95,
    progress: Callable[[int], None] = lambda server_round: None,
) -> CanaryAudit:
    """Train once with canaries, each included with probability ½, and bound what its releases show together.

    Raises:
        PrivacyError: a value is impossible.
    """
    if name not in CASES:
        raise PrivacyError(f"case is {name!r}; allowed: {', '.join(CASES)}")
    if not 2 <= canaries <= _MOST_CANARIES:
        raise PrivacyError(f"canaries is {canaries}; allowed: an integer of 2 to {_MOST_CANARIES}")
    check_confidence(confidence)
    case = CASES[name]
    texts = Corpus.open("bundled").texts("train")[:BYSTANDERS].to_pylist()
    corpus = build(case.scenario, canaries, bystanders=len(texts))
    mechanism = case.with_population(corpus.ownership.num_users, noise_multiplier)
    plan = PrivacyPlan(mechanism=mechanism, rounds=rounds, delta=delta)
    included = streams.generator(seed, "random canaries").random(canaries) < 0.5
    along = release_along_canaries(
        canary_model(case.model, seed, math.isqrt(canaries - 1) + 1),
        corpus,
        texts,
        included,
        plan,
        streams.derived_seed(seed, "rounds with random canaries"),
        lambda release: progress(release.server_round),
    )
    return bound_canaries(_claim(name, case, plan), included, along, confidence)


def _claim(name: str, case: CanaryCase, plan: PrivacyPlan) -> CanaryClaim:
    """Return what is claimed of a training: the event's curve, the mechanism's noise, the theorem's shift."""
    mechanism, event = plan.mechanism, plan.mechanism.event()
    if event is None:
        raise PrivacyError(f"{name} has no guarantee; allowed: a mechanism with an event")
    plans = [replace(plan, delta=delta) for delta in (plan.delta, *CURVE_DELTAS)]
    proven = [(p.delta, float(p.epsilon_curve(case.adjacency, [p.rounds])[0])) for p in plans]
    law = shift_distribution(as_run(mechanism, event), case.scenario)
    return CanaryClaim(name, law, mechanism.noise_per_clip, mechanism.noise_multiplier, proven, plan.rounds)


def table_of(audits: Sequence[CanaryAudit]) -> str:
    """Return the audits as a table for a terminal, a line each; every bound is rounded to its safe side."""

    def shown(value: float, rounded: Callable[[float, int], str]) -> str:
        return rounded(value, 3) if math.isfinite(value) else "–"

    head = ["case", "proven ε", "ε ≥", "fitted ε ≥", "noise z", "z ≤", "shift", "shift ≥", "refuted"]
    rows = [
        [
            audit.claim.name,
            shown(audit.claim.proven[0][1], round_up),
            shown(audit.epsilon_lower, round_down),
            shown(audit.epsilon_fitted, round_down) + ("" if audit.claim.is_fixed else "*"),
            shown(audit.claim.noise_multiplier, round_up),
            shown(audit.noise_at_most, round_up),
            f"{mean_shift(audit.claim.law):.3g}",
            shown(audit.shift_at_least, round_down),
            ", ".join(audit.refuted) or "–",
        ]
        for audit in audits
    ]
    return "\n".join([*aligned([head, *rows]), "* an estimate: something is sampled"]) + "\n"
