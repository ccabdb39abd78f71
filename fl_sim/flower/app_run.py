"""Keep the run folder of a Flower app: ledger, metrics, checkpoint and result, for ``fl-sim report`` and ``account``.

A run continues exactly where its last round ended: the checkpoint holds the model and the server's state, and the
ledger says what was released.

Every run keeps a digest of each model that it released, from before anybody sees the model: also of one whose round was
lost in a stop, and of which the metrics know nothing. A run whose initial model is one of them, in the same folder of
runs, composes the releases of both, as a run on a corpus does with the lineage of its model
(:mod:`fl_sim.experiments.plan.lineage`). A model that was changed on the way, or is of a run elsewhere, is not known.

>>> settings = PrivateSettings(population=1000, sampling_rate=0.05, clip_norm=1.0, target_epsilon=2.0)
>>> plan = settings.plan(rounds=50)
>>> round(plan.mechanism.noise_multiplier, 2), plan.mechanism.denominator
(1.15, 50.0)
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fl_sim.experiments.plan.lineage import Earlier, run_of_seed
from fl_sim.files import naming, owner_only
from fl_sim.storage import model_files
from fl_sim.storage.model_files import Ancestor, Lineage
from fl_sim.storage.open_run import OpenRun, ReleaseParts
from fl_sim.storage.run_claim import RunClaim
from fl_sim.storage.run_folder import ResultsError, Row, RunFolder, rows_of
from fl_sim.strategies.accounting.adjacency import Adjacency
from fl_sim.strategies.accounting.guarantee import ProtectedUnit
from fl_sim.strategies.aggregation import RoundTally
from fl_sim.strategies.ledger import Ledger, ReleaseRecord, has_repeated_sums
from fl_sim.strategies.mechanism import PrivacyPlan
from fl_sim.strategies.messages import REJECTIONS
from fl_sim.strategies.primitives.limits import SMALLEST_NOISE, PrivacyError, check_delta, check_rate, require
from fl_sim.strategies.user_level import UserLevelDP

USER = Adjacency()
"""The protected unit: one user, with any number of examples."""

USER_METRIC, USER_UNIT = "user", ProtectedUnit(USER, robust=False)
"""The same unit, with the name of its ε, for releases of several runs together."""


_LARGEST = 1e30  # far from where a sum in float32, or the noise on it, overflows


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateSettings:
    """Hold the privacy settings of a Flower app: the arguments of the same names of its strategy.

    Raises:
        PrivacyError: a value is out of range.
    """

    population: int
    sampling_rate: float
    clip_norm: float
    noise_multiplier: float | None = None
    target_epsilon: float | None = None
    delta: float = 1e-5
    epsilon_budget: float | None = None
    seed: int | None = None
    forward_metrics: bool = False

    def __post_init__(self) -> None:
        for name in ("sampling_rate", "clip_norm", "noise_multiplier", "target_epsilon", "delta", "epsilon_budget"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            require(value is None or number, name, repr(value), "a number")
        require(type(self.population) is int and self.population >= 1, "population", self.population, "an integer ≥ 1")
        check_rate("sampling_rate", self.sampling_rate)
        require(0 < self.clip_norm <= _LARGEST, "clip_norm", self.clip_norm, f"a number above 0, at most {_LARGEST:g}")
        one = (self.noise_multiplier is None) != (self.target_epsilon is None)
        given = "missing" if self.noise_multiplier is None else "given with target_epsilon"
        require(one, "noise_multiplier", given, "one of noise_multiplier and target_epsilon")
        if self.noise_multiplier is not None:
            z, allowed = self.noise_multiplier, f"from {SMALLEST_NOISE:g} to {_LARGEST:g}"
            require(SMALLEST_NOISE <= z <= _LARGEST, "noise_multiplier", z, allowed)
        for name in ("target_epsilon", "epsilon_budget"):
            value = getattr(self, name)
            require(value is None or 0 < value < math.inf, name, value, "a number above 0")
        check_delta(self.delta)
        seeded = type(self.seed) is int and self.seed >= 0
        require(self.seed is None or seeded, "seed", self.seed, "an integer of at least 0, or None")

    @property
    def secure_noise(self) -> bool:
        """Return whether noise and samples come from the operating system."""
        return self.seed is None

    def plan(self, rounds: int, earlier: Earlier | None = None) -> PrivacyPlan:
        """Return the plan of a training; a target includes the ``earlier`` releases, on which the initial model rests.

        Raises:
            PrivacyError: no noise meets the target, or ``rounds`` is impossible.
        """
        mechanism = UserLevelDP(
            population=self.population,
            q_u=float(self.sampling_rate),
            q_e=1.0,
            q_s=1.0,
            clip_norm=float(self.clip_norm),
            user_cap=1.0,
            noise_multiplier=float(self.noise_multiplier or 1.0),
        )
        plan = PrivacyPlan(mechanism=mechanism, rounds=rounds, delta=self.delta)
        if self.target_epsilon is None:
            return plan
        return plan.with_noise((earlier or Earlier()).noise_for(plan, self.target_epsilon, USER_METRIC, USER_UNIT))

    def warnings(self) -> list[str]:
        """Return what the owner of a run should know of its settings, one sentence each."""
        found = []
        if self.delta >= 1 / self.population:
            found.append(
                f"δ is {self.delta:g}, not below 1/N = {1 / self.population:.3g}: a mechanism that publishes one user's"
                " data would satisfy it."
            )
        if not self.secure_noise:
            found.append(
                "Samples and noise follow from the seed: whoever knows it can subtract the noise. Leave seed out where "
                "the data are real."
            )
        if self.forward_metrics:
            found.append("Metrics of the app leave the nodes unprotected (forward_metrics); no ε covers them.")
        return found


RELEASED_MODELS = "released_models.txt"
"""The file in a run's folder with the digests of the models that it released, a line each."""


@owner_only()
def keep_digest(folder: Path, digest: str) -> None:
    """Keep the digest of a model that a run is about to show; it is on disk when this returns."""
    path = folder / RELEASED_MODELS
    with naming(path), path.open("ab") as file:
        file.write(f"{digest}\n".encode())
        file.flush()
        os.fsync(file.fileno())


def earlier_of(folder: Path, digest: str, seed: int | None) -> Earlier:
    """Return the earlier releases on which the initial model of a new run rests; none if no run beside it released it.

    ``seed`` is None for secure noise.

    Raises:
        LedgerError, LineageError: the earlier run's ledger, or that of one before it, cannot be trusted.
        PrivacyError: the run would have the samples of one of them.
    """
    lineage = Lineage()
    for file in sorted(folder.parent.glob(f"*/{RELEASED_MODELS}")):
        if file.parent != folder and digest.encode() in file.read_bytes():
            before = model_files.read_ancestors(file.parent)
            last = Ancestor(Ledger.read(file.parent), "", {USER_METRIC: USER_UNIT})
            lineage = model_files.merged(lineage, replace(before, ancestors=(*before.ancestors, last)))
    if taken := run_of_seed(seed, [ancestor.ledger for ancestor in lineage.ancestors]):
        raise PrivacyError(
            f"seed is {seed}, which the run {taken.folder} that trained the initial model also has, so both would have "
            "the same samples; allowed: another seed, or none"
        )
    return Earlier(lineage)


Floats = npt.NDArray[np.floating]

APP = "flower"
"""The value of ``app`` in config.json and result.json of these runs."""

_ROW = {"round", "releases", "epsilon_user", "seconds", *RoundTally(cohort_users=0).metrics()} - {"train_loss"}
_RESULT = {
    "format", "app", "stopped", "rounds", "plan", "ledger", "user_sentences", "enrolled", "measured", "failed_nodes",
    "warnings", "strategy", "guarantee", "initial_model", "attacker", "reach", "reach_coverage", "corpus", "held_out",
    "gradients", "kept", "most_mentions", "public_entities", "settings_from_corpus", "model_files", "signal", "task",
    "options",
}  # fmt: skip


def is_taken(name: str) -> bool:
    """Return whether a figure of that name is one of the run's own in a row, its result or its settings.

    >>> [is_taken(name) for name in ("releases", "epsilon_any", "delta", "accuracy")]
    [True, True, True, False]
    """
    settings = {each.name for each in fields(PrivateSettings)} | {each.name for each in fields(UserLevelDP)}
    return name in _ROW | _RESULT | settings or name.startswith(("failed_", "epsilon"))


_INITIAL = "initial_model"  # of what a run is computed from

_MOST_COUNTS = 2000
"""Numbers of rounds for which ε is computed beforehand; between two of them the later, larger ε holds."""


@dataclass(frozen=True, slots=True)
class AppTraining:
    """What a training of an app is.

    Attributes:
        computed_from: what its releases are computed from, to which the ledger is bound; its ``settings`` are recorded.
        earlier: the releases on which its initial model rests, which every ε counts.
    """

    settings: PrivateSettings
    plan: PrivacyPlan
    computed_from: ReleaseParts
    earlier: Earlier = field(default_factory=Earlier)

    def warnings(self) -> list[str]:
        """Return what the owner of the run should know of its settings and its initial model, one sentence each."""
        found, runs = self.settings.warnings(), self.earlier.composed
        if runs:
            releases = sum(len(ancestor.ledger.entries) for ancestor in runs)
            count = "an earlier run" if len(runs) == 1 else f"{len(runs)} earlier runs"
            found.append(
                f"The initial model is that of {count} in this folder of runs: ε counts its {releases} releases, too."
            )
        return found


class AppRun:
    """Hold the open folder of a run of a Flower app; build it with :meth:`begin` or :meth:`resume`.

    Attributes:
        noise_key: part of the key of its seeded noise.
        warnings: as of its training.
        resumed_from: the checkpoint after which it goes on; None for a run that begins.
    """

    def __init__(self, run: OpenRun, training: AppTraining) -> None:
        self.folder = run.folder
        self.plan = training.plan
        self.noise_key = run.noise_key
        self.resumed_from = run.checkpoint
        self.last_row: Row = {}
        self._run = run
        self._ledger = run.ledger
        self.warnings = training.warnings()
        self._settings = training.settings
        self._earlier = training.earlier
        self._release = ReleaseRecord.of(self.plan.mechanism, self._settings.seed)
        self._counts = self._earlier.counts(self.plan.rounds, _MOST_COUNTS)
        self._curve = self._planned(self._counts.tolist())

    @classmethod
    @owner_only()
    def begin(cls, path: Path, training: AppTraining) -> AppRun:
        """Claim the folder ``path``, new or empty, and start the run's record.

        Raises:
            ResultsError: the folder is not empty, or cannot be written.
        """
        plan, earlier = training.plan, training.earlier
        claim = RunClaim.claim(path)
        try:
            settings = {"strategy": plan.mechanism.strategy, **training.computed_from["settings"]}
            config = {"app": APP, "run": settings, "plan": plan.record(), "warnings": training.warnings()}
            secure = training.settings.secure_noise
            run = OpenRun.begin(claim, config | earlier.record(), earlier.lineage, earlier.heads, None, secure)
            run.bind(training.computed_from)
            return cls(run, training)
        except BaseException:
            claim.discard()
            raise

    @classmethod
    @owner_only()
    def resume(cls, path: Path, training: AppTraining) -> AppRun:
        """Open a stopped run.

        A run with a checkpoint goes on from there, whatever the initial model is now: an app may begin with a random
        one, and the run stays bound to its first.

        Raises:
            ResultsError: it is not such a run, is finished, is at work in another process, or would compute other
                releases; the message names the first setting that differs.
            LedgerError: its ledger cannot be trusted, or another copy of the folder went on.
        """
        folder = RunFolder.open(path)
        if folder.config.get("app") != APP:
            raise ResultsError(f"{path}: is no run of a Flower app; allowed: such a run, or a new folder")
        if folder.finished:
            raise ResultsError(f"{path}: the run is finished ({folder.last_round} rounds); allowed: a new folder")
        claim = RunClaim.hold(path)
        try:
            opened = OpenRun.resume(claim, folder, None, training.settings.secure_noise)
            training.earlier.check_ledger(opened.ledger)
            if not opened.ledger.computation:  # its initial model may be another one now
                raise ResultsError(f"{path}: was killed before it began; allowed: a new folder")
            opened.bind(training.computed_from, as_begun=() if opened.checkpoint is None else (_INITIAL,))
            run = cls(opened, training)
            last = -1 if opened.checkpoint is None else opened.checkpoint.server_round
            folder.truncate_metrics(after_round=last)
            run.last_row = next(reversed(rows_of(path, last)), {})  # of a run that has only its result left to write
            if run.last_row.get("round", last) != last:  # stopped while the model of its last round was evaluated
                run.add_row(last, {})
            return run
        except BaseException:
            claim.release()
            raise

    def before_release(self, server_round: int, total: str) -> str:
        """Record a release before its noise is drawn; return the name of the noise's stream, ``total``.

        Seeded noise is a function of the sum, too: the server knows no digest of the nodes' data, by which two runs of
        one seed would have other noise.

        Raises as :meth:`OpenRun.record_release`.
        """
        one_sum = self._settings.epsilon_budget is not None
        self._run.record_release(self._release, server_round, total, one_sum=one_sum)
        return total

    def epsilon(self) -> float:
        """Return ε of any user after all releases of the ledger, and those on which the initial model rests."""
        return self._epsilon_after(len(self._ledger.entries))

    def exceeds_budget(self, server_round: int) -> bool:
        """Return whether a round would exceed the budget; one of seeded noise that is repeated releases nothing new."""
        budget = self._settings.epsilon_budget
        repeated = not self._settings.secure_noise and server_round <= self._ledger.last_round
        return budget is not None and self._epsilon_after(len(self._ledger.entries) + (not repeated)) > budget

    @owner_only()
    def add_row(self, server_round: int, figures: Row) -> None:
        """Append a round, 0 for the initial model, to the metrics, with the releases so far and their ε."""
        self.last_row = {"round": server_round, **self._spent(), **figures}
        self.folder.append_metrics(self.last_row)

    def checkpoint(self, server_round: int, vector: Floats, state: Mapping[str, Floats]) -> None:
        """Replace the checkpoint, as :meth:`OpenRun.write_checkpoint` does."""
        self._run.write_checkpoint(server_round, vector, state)

    @owner_only()
    def finish(self, stopped: str, measured: list[str], warnings: list[str]) -> None:
        """Write the result: the training ended by ``rounds`` or ``epsilon_budget``, and ``measured`` these figures."""
        last = {name: value for name, value in self.last_row.items() if name != "round"}
        series = {name: self.folder.measured(name) for name in measured}
        failed = {kind: int(sum(self.folder.measured(f"failed_{kind}"))) for kind in REJECTIONS}
        result = {
            "app": APP,
            "stopped": stopped,
            "rounds": self.last_row.get("round", 0),
            "plan": self.plan.record(),
            "ledger": self._ledger.head,
            "user_sentences": math.inf,
            "measured": {name: [values[0], values[-1]] for name, values in series.items()},
            **last,
            **self._spent(),  # of a run that was killed, and had no budget for another round, more than in its last row
            **self._earlier.record(),
            "failed_nodes": {kind: count for kind, count in failed.items() if count},
            "warnings": warnings,
        }
        self.folder.finish(result)
        self.close()

    def close(self) -> None:
        """Unlock the folder."""
        self._run.close()

    def _spent(self) -> Row:
        return {"releases": len(self._ledger.entries), "epsilon_user": self.epsilon()}

    def _epsilon_after(self, releases: int) -> float:
        """Return ε after that many releases, those of the ledger among them, and after those before the run."""
        entries = self._ledger.entries
        if has_repeated_sums(entries):
            own = self._earlier.epsilon_of(entries, USER_METRIC, USER_UNIT, self.plan.delta)
            return own if releases == len(entries) else math.inf
        if releases > self.plan.rounds:  # rounds were lost in a crash, and released again
            return float(self._planned([releases])[0])
        if not releases:
            return self._earlier.epsilon_before(USER_METRIC, self.plan.delta)
        return float(self._curve[np.searchsorted(self._counts, releases)])

    def _planned(self, rounds: list[int]) -> npt.NDArray[np.float64]:
        """Return ε after each number of rounds of the plan, and after those before the run."""
        return self._earlier.epsilon_curve(self.plan, USER_METRIC, USER_UNIT, rounds)
