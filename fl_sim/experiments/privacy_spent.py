"""The privacy that a run has spent: ε of the releases in its ledger, by the names of the metrics.

A round that is released twice with different noise counts twice, so ε follows from releases, not from rounds. Two sums
of one round under seeded noise have the same samples: their ε is computed from the ledger, not by the plan's curve.

>>> import tempfile, numpy as np
>>> from pathlib import Path
>>> from fl_sim.data_prep.store.ownership import Ownership
>>> from fl_sim.experiments.plan.run_plan import plan_run
>>> config = RunConfig.from_mapping({"privacy.strategy": "user_level", "rounds": 3})
>>> two_users = Ownership(np.array([0, 1, 2]), np.zeros(3, np.int64), np.empty(0, np.int32), num_entities=0)
>>> with tempfile.TemporaryDirectory() as folder:
...     spent = PrivacySpent(Ledger.create(Path(folder)), config, plan_run(config, two_users))
...     stream = spent.before_release(1)
...     spent.total()["releases"]
1
"""

from __future__ import annotations

import functools
import math
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fl_sim.config import RunConfig
from fl_sim.experiments.plan.guarantees import Guarantees, unit_names
from fl_sim.experiments.plan.run_plan import Planned
from fl_sim.storage.anchor import NO_FILE, Anchor
from fl_sim.storage.model_lineage import Lineage
from fl_sim.storage.run_folder import ResultsError
from fl_sim.strategies.accounting.attack_success import FALSE_POSITIVE_RATES, largest_true_positive_rate
from fl_sim.strategies.ledger import Ledger, ReleaseRecord, has_repeated_sums


class PrivacySpent:
    """The ledger of a run under one plan, and ε of its releases."""

    def __init__(self, ledger: Ledger, config: RunConfig, planned: Planned, anchor: Anchor = NO_FILE) -> None:
        self._ledger = ledger
        self._anchor = anchor
        self._secure = config.privacy.secure_noise
        self._budget = config.privacy.epsilon_budget
        self._release = ReleaseRecord.of(
            planned.plan.mechanism, None if self._secure else config.seed, planned.bounds.guarantee
        )
        self._planned = planned
        self._guarantees = planned.guarantees
        # Secure noise needs fresh samples, too: ε of two releases of a round assumes two independent cohorts.
        self.sampling_seed = secrets.randbits(128) if self._secure else config.seed

    def before_release(self, server_round: int, total: str = "") -> str:
        """Record a release before its noise is drawn; return the name of the noise's stream.

        Args:
            server_round: the round, from 1.
            total: a keyed hash of the sum; empty for secure noise.

        Raises:
            LedgerError: the release must not be recorded, or another copy of the run's folder went on.
            ResultsError: the run has a budget, and the round was released with another sum before a crash.
        """
        if self._budget is not None and not self._secure and self._ledger.is_repeated(server_round, total):
            raise ResultsError(
                f"{self._ledger.folder}: round {server_round} has another sum than the one released before the run "
                "stopped (a node failed, or their number changed); allowed under privacy.epsilon_budget: the same sum"
            )
        self._anchor.check(self._ledger)
        stream = self._ledger.record_release(self._release, server_round, total)
        self._anchor.write(self._ledger)
        return stream

    def check_nothing_released(self) -> None:
        """Check that a run without a checkpoint has released nothing; raise ResultsError if it has."""
        if count := len(self._ledger.entries):
            raise ResultsError(
                f"{self._ledger.folder}: has no checkpoint, but its ledger has {count} releases; allowed: the folder "
                "with its checkpoint, or a new run"
            )

    def go_on_after(self, server_round: int) -> int:
        """Prepare to release the rounds after ``server_round``; return the last round that may be released.

        Secure noise cannot be drawn twice: rounds that were lost in a crash are released again and count again,
        against the budget if there is one.

        Raises:
            ResultsError: the ledger ends before ``server_round``.
        """
        if self._ledger.last_round < server_round:
            raise ResultsError(
                f"{self._ledger.folder}: the checkpoint is of round {server_round}, but the ledger ends at round "
                f"{self._ledger.last_round}; the run folder is corrupt"
            )
        planned = self._planned
        lost = len(self._ledger.entries) - server_round if self._secure else 0
        last = planned.rounds
        if self._budget is not None:
            last = max(server_round, last - lost)
        if last + lost > planned.plan.rounds:
            longer = replace(planned.plan, rounds=last + lost)
            self._guarantees = Guarantees.of(longer, planned.protected, planned.earlier)
        return last

    def after(self, server_round: int) -> dict[str, float]:
        """Return ``releases``, their number up to ``server_round``, and every ε of them."""
        return self._figures(server_round)

    def total(self) -> dict[str, float]:
        """Return the number of all releases and every ε of them."""
        return self._figures(self._ledger.last_round)

    def attacker(self) -> dict[str, Any]:
        """Return the largest true positive rates of a test for the protected unit, after all releases.

        The unit is any user with any entity if its ε is finite, else any user.
        """
        plan, earlier = self._planned.plan, self._planned.earlier
        total = self.total()
        unit = "any" if math.isfinite(total["epsilon_any"]) else "user"
        rounds, units = int(total["releases"]), self._planned.protected.units(plan.mechanism)
        if rounds == 0 or math.isinf(total[f"epsilon_{unit}"]):
            return {}
        named = unit_names({metric: several for metric, several in units.items() if metric == f"epsilon_{unit}"})

        @functools.cache  # all rates ask for the same δ
        def epsilon_at(delta: float) -> float:
            if has_repeated_sums(self._ledger.entries):
                return max(earlier.epsilon_of(self._ledger.entries, name, one, delta) for name, one in named.items())
            at_delta = replace(plan, delta=delta)
            return max(float(earlier.epsilon_curve(at_delta, name, one, [rounds])[0]) for name, one in named.items())

        rates = {f"{rate:g}": largest_true_positive_rate(epsilon_at, rate) for rate in FALSE_POSITIVE_RATES}
        return {"attacker": {"unit": unit, "largest_tpr_at_fpr": rates}}

    def head(self) -> dict[str, Any]:
        """Return the head of the ledger, for the run's result and checkpoints."""
        return self._ledger.head

    def lineage(self) -> Lineage:
        """Return the lineage of the model after all releases of the ledger."""
        units = self._planned.protected.units(self._planned.plan.mechanism)
        return self._planned.earlier.lineage_with(self._ledger, unit_names(units))

    def check_head(self, head: Mapping[str, Any]) -> None:
        """Check that the ledger begins with the releases of ``head``; raise LedgerError if not."""
        self._ledger.check_head(head)

    def _figures(self, up_to: int) -> dict[str, float]:
        """Return the number of releases of the rounds 1 to ``up_to``, and every ε of them."""
        ledger, releases = self._ledger, self._ledger.releases(up_to)
        # All entries are read in rare runs alone: in every round of a long one they would cost more than the round.
        entries = [e for e in ledger.entries if e.round <= up_to] if ledger.may_repeat_sums(up_to) else []
        if not has_repeated_sums(entries):
            return {"releases": releases, **self._guarantees.after(releases)}
        plan, earlier = self._planned.plan, self._planned.earlier
        figures = self._guarantees.after(min(releases, plan.rounds))  # the claims among them
        for metric, units in self._planned.protected.units(plan.mechanism).items():
            named = unit_names({metric: units})
            figures[metric] = max(earlier.epsilon_of(entries, name, unit, plan.delta) for name, unit in named.items())
        return {"releases": releases, **figures}
