"""The privacy that a run has spent: ε of the releases in its ledger, by the names of the metrics.

A round that is released twice with different noise counts twice, so ε follows from releases, not from rounds. Two sums
of one round under seeded noise have the same samples: their ε is computed from the ledger, not by the plan's curve.

>>> account = account_for([], Adjacency(12), Adjacency(12), delta=1e-5, joined_at=None)
>>> account["releases"], account["epsilon_user"]
(0, 0.0)
"""

from __future__ import annotations

import functools
import math
import secrets
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from fl_sim.config import RunConfig
from fl_sim.experiments.plan.guarantees import EpsilonCurves
from fl_sim.experiments.plan.run_plan import Planned, rounds_within_budget
from fl_sim.storage import model_files
from fl_sim.storage.checkpoint import heads_of
from fl_sim.storage.model_files import Lineage
from fl_sim.storage.open_run import OpenRun
from fl_sim.storage.run_folder import CHECKPOINT_FOLDER, ResultsError, RunFolder, check_is_folder
from fl_sim.strategies.accounting.adjacency import Adjacency
from fl_sim.strategies.accounting.attack_success import FALSE_POSITIVE_RATES, largest_true_positive_rate
from fl_sim.strategies.accounting.guarantee import Known, most_known, public_lists
from fl_sim.strategies.ledger import (
    Ledger,
    LedgerError,
    ReleaseRecord,
    epsilon_of,
    epsilon_of_any,
    has_repeated_sums,
    longest,
    since,
    together,
)


def read_ledgers(folders: Sequence[str | Path]) -> list[Ledger]:
    """Return the ledgers of run folders and of their ancestors, those that started first in front.

    Ledgers are checked, also against the heads in checkpoint and result. The last is that of the last
    folder. Of copies of one run only the longest are returned: one, or one per copy that went on separately. A run
    that went on after another one had started from its model counts with all of its releases.

    Raises:
        LedgerError: a ledger is missing, changed, cut off or reordered.
        ResultsError: there is no such folder, or the run's result or checkpoint is corrupt.
    """
    ledgers: list[Ledger] = []
    for folder in map(Path, folders):
        check_is_folder(folder)
        heads = heads_of(folder / CHECKPOINT_FOLDER)  # before the ledger, which a run at work goes on with
        ledger = Ledger.read(folder)
        if heads is not None:
            ledger.check_head(heads.ledger)
        if (folder / "result.json").exists():
            ledger.check_head((RunFolder.open(folder).result or {}).get("ledger") or {})
        ledgers.append(ledger)
    ancestors = [ancestor for ledger in ledgers for ancestor in model_files.ancestor_ledgers(ledger)]
    given = {ledger.run for ledger in ledgers}
    kept = longest([*ledgers, *(ancestor for ancestor in ancestors if ancestor.run in given)])
    others = longest([ancestor for ancestor in ancestors if ancestor.run not in given])
    return [*others, *sorted(kept, key=lambda ledger: ledger in ledgers)]


def corpora_of(ledgers: Sequence[Ledger]) -> dict[str, str]:
    """Return the fingerprint of each run's corpus, by the run's identity, as far as the folders of ledgers tell."""
    corpora: dict[str, str] = {}
    for folder, run in ((ledger.folder, ledger.run) for ledger in ledgers):
        with suppress(ResultsError):
            corpora[run] = RunFolder.open(folder).fingerprint or run
        with suppress(ResultsError):
            corpora |= {a.ledger.run: a.corpus for a in model_files.read_ancestors(folder).ancestors}
    return corpora


def are_of_apps(folders: Sequence[str | Path]) -> bool:
    """Return whether all folders are of runs of Flower apps, as far as they tell: a ledger alone does not."""
    settings = [Path(folder) / "config.json" for folder in folders]
    return all(file.is_file() and "app" in RunFolder.open(file.parent).config for file in settings)


def are_covered(ledgers: Sequence[Ledger], finished: Sequence[RunFolder], others: Sequence[RunFolder] = ()) -> bool:
    """Return whether what ``finished`` runs tell of the contributions to their corpus holds for all releases.

    It does for releases under the bounds of one of them on the same corpus, of ``others`` or of runs on whose models
    any of them rest (``ledgers`` are those of all). On another corpus, or under other bounds, a user or an entity may
    contribute more.
    """
    paths, runs = {run.path for run in finished}, [*finished, *others]
    known = {entry.terms.guarantee for ledger in ledgers if ledger.folder in paths for entry in ledger.entries}
    within = all(entry.terms.guarantee in known for ledger in ledgers for entry in ledger.entries)
    corpora = {ancestor.corpus for run in runs for ancestor in model_files.read_ancestors(run.path).ancestors}
    return within and corpora <= {run.fingerprint for run in runs}


class Account(TypedDict, total=False):
    """ε of all releases of some ledgers, as :func:`account_for` computes it.

    Attributes:
        releases, noiseless_releases: their numbers; ``releases_robust`` is that of all, where the others count since a
            round.
        forks: copies of a run that went on separately; absent without any.
        known: what ``epsilon_any`` takes as known: the most that any release does.
        public_names: how many lists of names that are not protected the runs have; absent without any. ``epsilon_any``
            is infinite if there are several.
    """

    releases: int
    forks: int
    noiseless_releases: int
    releases_robust: int
    delta: float
    epsilon_any: float
    known: Known
    public_names: int
    epsilon_user: float
    epsilon_user_entity: float
    epsilon_user_entity_robust: float


def account_for(
    ledgers: Sequence[Ledger], user: Adjacency, both: Adjacency, delta: float, joined_at: int | None
) -> Account:
    """Return ε of all releases that ``ledgers`` record.

    Args:
        user: the protected user alone.
        both: the user together with an entity within a contribution bound.
        joined_at: the round at which the protected user and entity joined, of a single run; None counts all releases.
            An entity joined in that round only if no earlier sentence mentioned it, detected or not. So the robust ε,
            which also holds if the tagger missed the entity, counts all releases, those of the run's ancestors too.

    Raises:
        LedgerError: the runs are not independent, or ``joined_at`` is not a round.
    """
    entries = everything = together(ledgers)
    if joined_at is not None:
        own = ledgers[-1]
        given = [ledger for ledger in ledgers if ledger.run not in {head["run"] for head in own.ancestors}]
        if len(given) > 1:
            raise LedgerError(f"joined-at is {joined_at}, of {len(given)} runs; allowed: with one run only")
        entries = since(own.entries, joined_at)
    guarantees = [entry.terms.guarantee for entry in everything]
    lists = public_lists(guarantees)
    forks = sum(count for count in Counter(ledger.run for ledger in ledgers).values() if count > 1)
    return {
        "releases": len(entries),
        **({"forks": forks} if forks else {}),
        "noiseless_releases": sum(entry.terms.mechanism.event() is None for entry in entries),
        **({} if joined_at is None else {"releases_robust": len(everything)}),
        "delta": delta,
        "epsilon_any": epsilon_of_any(everything, delta, corpora_of(ledgers)),
        "known": most_known(guarantees),
        **({"public_names": len(lists)} if lists else {}),
        "epsilon_user": epsilon_of(entries, user, delta),
        "epsilon_user_entity": epsilon_of(entries, both, delta),
        "epsilon_user_entity_robust": epsilon_of(everything, both, delta, robust=True),
    }


class PrivacySpent:
    """The releases of a run at work under one plan, and ε of them."""

    def __init__(self, run: OpenRun, config: RunConfig, planned: Planned) -> None:
        self._run = run
        self._ledger = run.ledger
        self._privacy = config.privacy
        seed = None if config.privacy.secure_noise else config.seed
        self._release = ReleaseRecord.of(planned.plan.mechanism, seed, planned.bounds.guarantee)
        self._planned = planned
        self._guarantees = planned.guarantees
        self._units = planned.bounds.units(planned.plan.mechanism)
        # Secure noise needs fresh samples, too: ε of two releases of a round assumes two independent cohorts.
        self.sampling_seed = secrets.randbits(128) if seed is None else seed

    def before_release(self, server_round: int, total: str = "") -> str:
        """Record a release before its noise is drawn; return the name of the noise's stream.

        Raises as :meth:`OpenRun.record_release`.
        """
        return self._run.record_release(
            self._release, server_round, total, one_sum=self._privacy.epsilon_budget is not None
        )

    def go_on_after(self, server_round: int) -> int:
        """Prepare to release the rounds after ``server_round``; return the last round that may be released.

        Secure noise cannot be drawn twice: rounds that were lost in a crash are released again and count again,
        against the budget if there is one.
        """
        planned = self._planned
        lost = len(self._ledger.entries) - server_round if self._privacy.secure_noise else 0
        if lost == 0:
            return planned.rounds
        longer = replace(planned.plan, rounds=planned.plan.rounds + lost)
        self._guarantees = EpsilonCurves.of(longer, self._units, planned.earlier)
        within = rounds_within_budget(self._privacy, longer, planned.bounds, self._guarantees)
        return max(server_round, min(planned.plan.rounds, within - lost))

    def total(self) -> dict[str, float]:
        """Return the number of all releases and every ε of them."""
        return self.after(self._ledger.last_round)

    def attacker(self) -> dict[str, object]:
        """Return the largest true positive rates of a test for the protected unit, after all releases.

        The unit is any user with any entity if its ε is finite, else any user.
        """
        plan, earlier = self._planned.plan, self._planned.earlier
        total = self.total()
        unit = "any" if math.isfinite(total["epsilon_any"]) else "user"
        rounds = int(total["releases"])
        if rounds == 0 or math.isinf(total[f"epsilon_{unit}"]):
            return {}
        named = self._units[f"epsilon_{unit}"]

        @functools.cache  # all rates ask for the same δ
        def epsilon_at(delta: float) -> float:
            if has_repeated_sums(self._ledger.entries):
                return max(earlier.epsilon_of(self._ledger.entries, name, one, delta) for name, one in named.items())
            at_delta = replace(plan, delta=delta)
            return max(float(earlier.epsilon_curve(at_delta, name, one, [rounds])[0]) for name, one in named.items())

        rates = {f"{rate:g}": largest_true_positive_rate(epsilon_at, rate) for rate in FALSE_POSITIVE_RATES}
        return {"attacker": {"unit": unit, "largest_tpr_at_fpr": rates}}

    def lineage(self) -> Lineage:
        """Return the lineage of the model after all releases of the ledger."""
        units = {name: unit for several in self._units.values() for name, unit in several.items()}
        return self._planned.earlier.lineage_with(self._ledger, units)

    def after(self, up_to: int) -> dict[str, float]:
        """Return ``releases``, the number of those of the rounds 1 to ``up_to``, and every ε of them."""
        ledger, releases = self._ledger, self._ledger.releases(up_to)
        # All entries are read in rare runs alone: in every round of a long one they would cost more than the round.
        entries = [e for e in ledger.entries if e.round <= up_to] if ledger.may_repeat_sums(up_to) else []
        if not has_repeated_sums(entries):
            return {"releases": releases, **self._guarantees.after(releases)}
        plan, earlier = self._planned.plan, self._planned.earlier
        figures = self._guarantees.after(min(releases, plan.rounds))  # the claims among them
        for metric, units in self._units.items():
            figures[metric] = max(earlier.epsilon_of(entries, name, unit, plan.delta) for name, unit in units.items())
        return {"releases": releases, **figures}
