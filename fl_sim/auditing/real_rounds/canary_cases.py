"""Define the mechanisms and models that are audited by random canaries, and their table.

>>> sorted(CASES)
['adaptive', 'awd-lstm', 'local-steps', 'lora', 'nothing-sampled', 'uedp', 'user-level']
>>> CASES["uedp"].mechanism(population=100).noise_multiplier
4.0
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fl_sim.auditing.real_rounds.canary_audit import CanaryAudit, CanaryClaim, bound_canaries, shift_distribution
from fl_sim.auditing.real_rounds.canary_federation import CanaryUnits, canary_model, release_along_canaries
from fl_sim.auditing.worst_case_corpora import Scenario
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound, PrivacyError
from fl_sim.strategies.mechanism import LocalTrainingConfig, Mechanism, PrivacyPlan
from fl_sim.strategies.primitives import streams
from fl_sim.strategies.primitives.adaptive_clip import AdaptiveClip
from fl_sim.strategies.registry import load_strategy

BYSTANDERS = 30
CANARIES, ROUNDS, DELTA = 256, 30, 1e-5
_CURVE_DELTAS = (1e-3, 0.01, 0.1, 0.2, 0.5)

GPT2 = ModelSpec(name="small-gpt2", hidden=8, layers=1, heads=2, max_tokens=32)
LORA = ModelSpec(name="small-gpt2", hidden=8, layers=1, heads=2, max_tokens=32, lora_rank=2)
AWD_LSTM = ModelSpec(name="awd-lstm", hidden=8, layers=2, embedding=8, max_tokens=32, dropout=1.0)
_DEFAULT = {"q_e": 0.5, "q_s": 0.1, "user_cap": 2.0, "noise_multiplier": 4.0}
_BOUNDED = Scenario(entity_users=10, entity_sentences=1, user_sentences=32)
_USER = Scenario(user_sentences=4)


@dataclass(frozen=True)
class CanaryCase:
    """Name a mechanism, a model, and the sentences of each canary unit.

    Attributes:
        strategy: ``uedp`` or ``user_level``.
        settings: rates, clips and noise, of which those not named are 1, and the way of clipping.
        scenario: the protected user and entity.
        model: the real model.
        local: the local steps of ``user_level``.
        adaptive: how the clip adapts.
    """

    strategy: str
    settings: dict[str, Any]
    scenario: Scenario
    model: ModelSpec = GPT2
    local: LocalTrainingConfig | None = None
    adaptive: AdaptiveClip | None = None

    @property
    def adjacency(self) -> Adjacency:
        """Return the protected unit of the scenario."""
        scenario = self.scenario
        return Adjacency(scenario.user_sentences, ContributionBound(scenario.entity_users, scenario.entity_sentences))

    def mechanism(self, population: int, noise_multiplier: float | None = None) -> Mechanism:
        """Return the mechanism.

        Args:
            population: N.
            noise_multiplier: z; None for that of the case.
        """
        own: dict[str, Any] = {} if self.local is None else {"local": self.local}
        rates: dict[str, Any] = {"q_u": 1.0, "q_e": 1.0, "q_s": 1.0, "clip_norm": 1.0, "user_cap": 1.0} | self.settings
        if noise_multiplier is not None:
            rates["noise_multiplier"] = noise_multiplier
        return load_strategy(self.strategy)(
            strategy=self.strategy, population=population, adaptive=self.adaptive, **rates, **own
        )


CASES = {
    "uedp": CanaryCase("uedp", _DEFAULT, _BOUNDED),
    "nothing-sampled": CanaryCase("uedp", {"user_cap": 2.0, "noise_multiplier": 4.0}, Scenario(user_sentences=2)),
    "user-level": CanaryCase(
        "user_level", {"q_u": 0.2, "noise_multiplier": 1.0}, _USER, local=LocalTrainingConfig(update="gradients")
    ),
    "local-steps": CanaryCase(
        "user_level",
        {"q_u": 0.2, "noise_multiplier": 1.0},
        _USER,
        local=LocalTrainingConfig(update="steps", epochs=2, batch_size=2),
    ),
    "adaptive": CanaryCase(
        "uedp", _DEFAULT, _BOUNDED, adaptive=AdaptiveClip(quantile=0.5, learning_rate=0.2, count_noise=5.0)
    ),
    "lora": CanaryCase("uedp", _DEFAULT, _BOUNDED, model=LORA),
    "awd-lstm": CanaryCase("uedp", _DEFAULT, _BOUNDED, model=AWD_LSTM),
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
    """Train once with canaries and bound what its releases show.

    Args:
        name: a key of :data:`CASES`.
        canaries: m, at least 2; each is included with probability ½.
        rounds: T.
        delta: δ.
        noise_multiplier: z; None for that of the case.
        seed: of the model, the canaries, their inclusion and the rounds.
        confidence: with which all bounds hold together.
        progress: called with every round.

    Raises:
        PrivacyError: a value is impossible.
    """
    _check(name, canaries, confidence)
    case = CASES[name]
    texts = Corpus.open("bundled").texts("train")[:BYSTANDERS].to_pylist()
    units = CanaryUnits.of(case.scenario, canaries, texts)
    mechanism = case.mechanism(units.ownership.num_users, noise_multiplier)
    plan = PrivacyPlan(mechanism=mechanism, rounds=rounds, delta=delta)
    model = canary_model(case.model, seed, math.isqrt(canaries - 1) + 1)
    included = streams.generator(seed, "random canaries").random(canaries) < 0.5
    claim = _claim(name, case, plan)
    run_seed = streams.derived_seed(seed, "rounds with random canaries")
    releases = release_along_canaries(model, units, included, plan, run_seed, progress)
    return bound_canaries(claim, included, releases.along, confidence)


def _check(name: str, canaries: int, confidence: float) -> None:
    if name not in CASES:
        raise PrivacyError(f"case is {name!r}; allowed: {', '.join(CASES)}")
    if not 2 <= canaries <= _MOST_CANARIES:
        raise PrivacyError(f"canaries is {canaries}; allowed: an integer of 2 to {_MOST_CANARIES}")
    if not 0 < confidence < 1:
        raise PrivacyError(f"confidence is {confidence}; allowed: between 0 and 1, both excluded")


_MOST_CANARIES = 4096


def _claim(name: str, case: CanaryCase, plan: PrivacyPlan) -> CanaryClaim:
    """Return what is claimed of a training: the event's curve, the mechanism's noise, the theorem's shift."""
    mechanism, event = plan.mechanism, plan.mechanism.event()
    if event is None:
        raise PrivacyError(f"{name} has no guarantee; allowed: a mechanism with an event")
    described = RoundEvent(
        event.strategy, mechanism.noise_multiplier, mechanism.q_u, mechanism.q_e, mechanism.q_s, mechanism.user_cap
    )
    plans = [replace(plan, delta=delta) for delta in (plan.delta, *_CURVE_DELTAS)]
    proven = [(p.delta, float(p.epsilon_curve(case.adjacency, [p.rounds])[0])) for p in plans]
    return CanaryClaim(
        name,
        shift_distribution(described, case.scenario),
        mechanism.noise_per_clip,
        mechanism.noise_multiplier,
        proven,
        plan.rounds,
    )


def markdown(audits: Sequence[CanaryAudit]) -> str:
    """Return the audits as a Markdown table."""
    head = [
        "case", "proven ε", "ε ≥", "f-DP, if Gaussian ε ≥", "fitted ε ≥", "noise z", "z ≤", "mean shift", "shift ≥",
        "refuted",
    ]  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for audit in audits:
        record = audit.record()
        applies = "" if audit.claim.is_fixed else " (estimate)"
        cells = [
            audit.claim.name,
            _number(audit.claim.proven[0][1]),
            _number(audit.epsilon_lower),
            _number(audit.epsilon_f_dp_gaussian) + applies,
            _number(audit.epsilon_fitted) + applies,
            _number(audit.claim.noise_multiplier),
            _number(audit.noise_at_most),
            _number(record["shift"]),
            _number(audit.shift_at_least),
            ", ".join(audit.refuted) or "–",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return "–" if not np.isfinite(value) else f"{value:.3g}"
