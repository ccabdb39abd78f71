"""What a run has spent: its ledger, in the figures that metrics and results use.

A round that is released again with fresh noise spends as much again, so ε follows from releases, not from rounds.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fl_sim.config import RunConfig
from fl_sim.experiments.guarantees import Guarantees
from fl_sim.experiments.run_plan import Planned
from fl_sim.storage.run_folder import ResultsError
from fl_sim.strategies.ledger import Ledger, ReleaseRecord


class PrivacySpent:
    """The ledger of a run under one plan, and ε of what it says."""

    def __init__(self, ledger: Ledger, config: RunConfig, planned: Planned) -> None:
        self._ledger = ledger
        self._secure = config.privacy.secure_noise
        self._budget = config.privacy.epsilon_budget
        self._terms = ReleaseRecord.of(planned.plan.mechanism, None if self._secure else config.seed)
        self._planned = planned
        self._guarantees = planned.guarantees
        # Secure noise needs coins that are as fresh: ε of two releases of a round counts on two independent cohorts.
        self.sampling_seed = secrets.randbits(128) if self._secure else config.seed

    @property
    def before_release(self) -> Callable[[int], None]:
        """What the strategy calls before it draws a round's noise."""
        return self._ledger.recorder(self._terms)

    def go_on_after(self, server_round: int) -> int:
        """Get ready to release the rounds after ``server_round``; returns the last round that may be released.

        Secure noise cannot be drawn twice: rounds that a crash made the run forget are paid for again, from the
        budget if there is one.

        Raises:
            ResultsError: the ledger does not know ``server_round``.
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
            self._guarantees = Guarantees.of(replace(planned.plan, rounds=last + lost), planned.protected)
        return last

    def after(self, server_round: int) -> dict[str, float]:
        """``releases`` of the rounds up to ``server_round``, and their ε of every kind."""
        return self._figures(self._ledger.releases(up_to=server_round))

    def altogether(self) -> dict[str, float]:
        """The same of everything that was released."""
        return self._figures(len(self._ledger.entries))

    def head(self) -> dict[str, str | int]:
        """For the run's result and its checkpoints: a copy of the ledger's head."""
        return self._ledger.head

    def check_head(self, head: Mapping[str, Any]) -> None:
        """See that the ledger still begins with what was sealed; :class:`LedgerError` if it does not."""
        self._ledger.check_head(head)

    def _figures(self, releases: int) -> dict[str, float]:
        return {"releases": releases, **self._guarantees.after(releases)}
