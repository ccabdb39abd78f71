"""Audit the ledger of a run against the run's record and metrics, and its ε against a simulation.

Every check recomputes a figure of the run folder from others. Together they see a ledger that was changed, releases
with other settings than the record's, a seed or a source of noise that differs, noise that is too small, rates that are
too high, updates that are too long, and an ε that does not follow from the releases, or is too small for the simulated
attack. They trust the numbers that the run measured: a run that falsifies its metrics consistently passes.

*Enforced bounds*: the check counts by another way than any rule that chooses weights: it walks over the mentions, adds
up the weights of every entity and user, and compares them with k, F and m.

*The simulated attack* bounds δ at a claimed ε from below, without any accountant. The pair is that of docs/privacy.md:
every protected sentence pulls one way, with a gradient longer than the clip; where sentences have weights, those of the
pair have weight 1, so that their number is the sum that the bounds allow. A round releases the shift of
:mod:`fl_sim.auditing.real_rounds.canary_audit` plus Gaussian noise. With L the privacy loss of T rounds,
δ(ε) = E[(1 − e^{ε−L})⁺] on the corpus with the protected data; the empirical Bernstein bound (Maurer and Pontil 2009)
limits this mean from below.

>>> audit = LedgerAudit("runs/first", (Check("chain", True, "30 entries"), Check("noise", False, "0.95 of σ")))
>>> audit.holds, audit.record()["refuted"]
(False, ['noise'])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from fl_sim.auditing.audited_rounds import Distribution
from fl_sim.auditing.real_rounds.canary_audit import as_run, log_ratios, shift_distribution
from fl_sim.auditing.worst_case_corpora import Scenario
from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.experiments.plan.lineage import Earlier, earlier_of_record
from fl_sim.experiments.privacy_spent import corpora_of, read_ledgers
from fl_sim.experiments.run_record import Record, recorded_bounds
from fl_sim.formats import format_epsilon, round_down
from fl_sim.storage.checkpoint import Checkpoint
from fl_sim.storage.run_folder import ResultsError, RunFolder
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound
from fl_sim.strategies.accounting.guarantee import ProtectedUnit
from fl_sim.strategies.ledger import Entry, Ledger, LedgerError, ReleaseRecord, epsilon_of_any
from fl_sim.strategies.mechanism import Mechanism
from fl_sim.strategies.primitives import streams

_WEIGHT_ROUNDING = 1e-9  # of a sum of weights, relative
_SHOWN = 10  # violations of each kind


def violations(
    ownership: Ownership,
    weights: NDArray[np.float64],
    *,
    entity_sentences: float | None = None,
    entity_users: int | None = None,
    user_sentences: float | None = None,
) -> list[str]:
    """Return what the weights violate, one line each; at most ten lines of each kind. None is no bound.

    Args:
        weights: w(s), the factor on the probability that a sentence is sampled, float64 (S,); above 0 it is kept.
        entity_sentences: k, the largest weight of an entity's sentences together.
        entity_users: F, the largest number of users with a kept sentence that mentions the entity.
        user_sentences: m, the largest weight of a user's sentences together.
    """
    if weights.shape != (ownership.num_sentences,):
        return [f"weights have shape {weights.shape}; allowed: ({ownership.num_sentences},)"]
    impossible = np.flatnonzero(~((weights >= 0) & (weights <= 1)))  # NaN is neither
    if len(impossible):
        return [f"sentence {s} has weight {weights[s]:g}; allowed: 0 to 1" for s in impossible[:_SHOWN].tolist()]
    owners = ownership.user_of_sentence
    sentence = np.repeat(np.arange(ownership.num_sentences), ownership.entities_per_sentence)
    of_entity = np.bincount(ownership.entity_ids, weights=weights[sentence], minlength=ownership.num_entities)
    is_kept = weights[sentence] > 0
    pairs = np.unique(ownership.entity_ids[is_kept] * np.int64(ownership.num_users) + owners[sentence[is_kept]])
    users = np.bincount(pairs // max(ownership.num_users, 1), minlength=ownership.num_entities)
    of_user = np.bincount(owners, weights=weights, minlength=ownership.num_users)
    return [
        *_above("entity", of_entity, entity_sentences, "has weight {:g} in sentences"),
        *_above("entity", users, entity_users, "has {:g} users"),
        *_above("user", of_user, user_sentences, "has weight {:g} in sentences"),
    ]


def _above(unit: str, totals: NDArray[np.number], limit: float | None, what: str) -> list[str]:
    """Return a line for each of the first units whose total exceeds the limit."""
    if limit is None:
        return []
    beyond = np.flatnonzero(totals > limit * (1 + _WEIGHT_ROUNDING))[:_SHOWN]
    return [f"{unit} {i} {what.format(totals[i])}; allowed: at most {limit:g}" for i in beyond.tolist()]


TRIALS = 400_000
FAILURE = 1e-4
_AT_ONCE = 20_000


def delta_at_least(
    law: Distribution, noise_std: float, rounds: int, epsilon: float, seed: int, trials: int = TRIALS
) -> float:
    """Return a lower bound on δ at ``epsilon`` after so many rounds, wrong with probability 1e-4 at most."""
    rng, weights = streams.generator(seed, "simulated losses"), np.exp(law.log_weights)
    parts = []
    for start in range(0, trials, _AT_ONCE):
        size = (rounds, min(_AT_ONCE, trials - start))
        shifts = rng.choice(law.values, size=size, p=weights / weights.sum())
        losses = log_ratios(law, shifts + noise_std * rng.standard_normal(size), noise_std)
        parts.append(-np.expm1(np.minimum(epsilon - losses, 0.0)))
    excess = np.concatenate(parts)
    spread = math.log(2 / FAILURE)
    slack = math.sqrt(2 * excess.var(ddof=1) * spread / trials) + 7 * spread / (3 * (trials - 1))
    return max(0.0, float(excess.mean()) - slack)


_FAILURE = 1e-6  # of each statistical check
_SAME_EPSILON = 1e-3  # relative; grids of different lengths round differently
_NORM_ROUNDING = 1e-3  # of norms, which are float32
_PLAN_ALONE = ("rounds", "delta")
_SIMULATED = ("uedp", "user_level")
_MOST_SENTENCES = 50  # of an entity that is simulated


@dataclass(frozen=True, slots=True)
class Check:
    """Hold the result of one check, with a line of detail."""

    name: str
    holds: bool
    detail: str


@dataclass(frozen=True, slots=True)
class LedgerAudit:
    """Hold all checks of one run folder."""

    folder: str
    checks: tuple[Check, ...]

    @property
    def holds(self) -> bool:
        """Tell whether every check holds."""
        return all(check.holds for check in self.checks)

    def record(self) -> dict[str, object]:
        """Return the audit as one JSON object."""
        refuted = [check.name for check in self.checks if not check.holds]
        return {**asdict(self), "refuted": refuted, "holds": self.holds}


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """Hold what a run folder says about a run.

    Attributes:
        ledger: its ledger, whose chain holds.
        earlier: the runs that trained its initial model.
        folder: its settings and metrics.
        rows: its metrics after the first round, a row per round.
        result: its result; empty for a run that has not finished.
    """

    ledger: Ledger
    earlier: Earlier
    folder: RunFolder
    mechanism: Mechanism
    rows: pd.DataFrame
    result: Mapping[str, Any]

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Return all releases."""
        return self.ledger.entries

    @property
    def stated(self) -> tuple[Entry, ...]:
        """Return the releases that the result counts; a run that was interrupted and goes on has more."""
        counted = None if self.folder.finished else (self.result.get("ledger") or {}).get("entries")
        return self.entries[:counted]

    @property
    def is_app(self) -> bool:
        """Return whether the run is that of a Flower app, which has no corpus."""
        return "app" in self.folder.config

    @property
    def counted(self) -> pd.DataFrame:
        """Return the rows with what their rounds counted, which an app lacks where it was killed in an evaluation."""
        if not self.is_app:
            return self.rows
        return self.rows[self.rows.reindex(columns=["noise_norm"])["noise_norm"].notna()]


def audit_ledger(folder: Path | str, *, seed: int = 0) -> LedgerAudit:
    """Check the ledger of a run folder; the seed is that of the simulation.

    Raises:
        ResultsError: the folder is no run folder, or a file other than the ledger is corrupt.
    """
    path = Path(folder)
    run_folder = RunFolder.open(path)
    if not {"run", "plan"} <= run_folder.config.keys():
        raise ResultsError(f"{run_folder.config_file}: is corrupt ('run' and 'plan' are expected)")
    try:
        ledger, earlier = read_ledgers([path])[-1], _earlier(run_folder)
        earlier.check_ledger(ledger)
    except LedgerError as error:
        return LedgerAudit(str(path), (Check("chain", False, str(error)),))
    chain = Check("chain", True, f"{len(ledger.entries)} entries")
    if not ledger.entries:
        return LedgerAudit(str(path), (chain,))
    metrics = run_folder.metrics()
    rows = metrics[metrics["round"] > 0] if len(metrics) else metrics
    run = RecordedRun(ledger, earlier, run_folder, ledger.entries[0].terms.mechanism, rows, run_folder.result or {})
    checks = [check for make in _CHECKS for check in make(run)]
    return LedgerAudit(str(path), (chain, *checks, *_simulated(run, seed)))


def _earlier(run: RunFolder) -> Earlier:
    """Return the runs that trained the initial model, as the folder keeps them; a Flower app's has no corpus."""
    initial_model = run.section("run", "privacy").get("initial_model")
    return earlier_of_record(run.path, run.fingerprint or "", initial_model)


def _terms(run: RecordedRun) -> Iterator[Check]:
    """Check that every release was made with the plan of the record."""
    plan = {name: value for name, value in run.folder.section("plan").items() if name not in _PLAN_ALONE}
    recorded = [entry.terms.mechanism.record() for entry in run.entries]
    differing = sorted({name for record in recorded for name in plan if record.get(name) != plan[name]})
    detail = f"{', '.join(differing)} differ from config.json" if differing else "as in config.json"
    yield Check("terms", not differing, detail)


def _seed(run: RecordedRun) -> Iterator[Check]:
    """Check the source of the noise, and that seeded noise is that of the run's seed."""
    settings: Any = run.folder.config["run"]
    secure = settings["seed"] is None if run.is_app else bool(settings["privacy"].get("secure_noise"))
    expected = ReleaseRecord.of(run.mechanism, None if secure else settings["seed"])
    same = all((e.terms.noise, e.terms.stream) == (expected.noise, expected.stream) for e in run.entries)
    yield Check("seed", same, f"{expected.noise} noise{' of the seed of the run' if not secure and same else ''}")


def _rounds(run: RecordedRun) -> Iterator[Check]:
    """Check that every round of the metrics is in the ledger, and was counted."""
    last: Any = run.folder.section("plan")["rounds"]
    released, numbers = sorted({entry.round for entry in run.entries}), run.rows["round"].astype(int)
    missing = set(range(1, len(released) + 1)) ^ set(released) | set(numbers) - set(released)
    counts = zip(numbers, run.rows["releases"].astype(int), strict=True) if "releases" in run.rows else ()
    counted = all(releases == run.ledger.releases(number) for number, releases in counts)
    holds = not missing and counted and released[-1] <= last
    yield Check("rounds", holds, f"{len(run.entries)} releases of {len(released)} of {last} planned rounds")


def _epsilon(run: RecordedRun) -> Iterator[Check]:
    """Check every ε of the result: recomputed from the ledger, it must not be larger."""
    lower, units = list[str](), list(_units(run))
    for name, unit in units:
        metric = name.removeprefix("epsilon_") if run.is_app else name  # as the lineage names it
        epsilon = run.earlier.epsilon_of(run.stated, metric, unit, _delta(run))
        if epsilon > run.result[name] * (1 + _SAME_EPSILON):
            lower.append(f"{name} {format_epsilon(run.result[name])}, recomputed {format_epsilon(epsilon)}")
    yield Check("epsilon", not lower, "; ".join(lower) or f"{len(units)} figures of result.json recomputed")


def _epsilon_any(run: RecordedRun) -> Iterator[Check]:
    """Check the headline: recomputed from the bounds in the ledger, it must not be larger."""
    stated = run.result.get("epsilon_any")
    if stated is None:
        return
    before = [entry for ancestor in run.earlier.composed for entry in ancestor.ledger.entries]
    epsilon = epsilon_of_any([*before, *run.stated], _delta(run), corpora_of([run.ledger]))
    detail = f"any user with any entity: {format_epsilon(stated)}, recomputed {format_epsilon(epsilon)}"
    yield Check("epsilon_any", stated >= epsilon / (1 + _SAME_EPSILON), detail)


def _bounds(run: RecordedRun) -> Iterator[Check]:
    """Check that the sentences that took part are those of the record's bounds, and that they keep the bounds.

    The bounds are enforced anew; a run that enforced others has another selection in its computation.json.
    """
    if run.is_app:
        return
    record = Record.read(run.folder)
    try:
        corpus = record.open_corpus(run.folder)
    except (CorpusError, ResultsError):
        return  # the corpus is elsewhere, or has changed
    try:
        bounds = recorded_bounds(run.folder, record, corpus, run.ledger)
    except ResultsError as error:
        yield Check("bounds", False, str(error))
        return
    guarantee = bounds.guarantee
    enforced = guarantee.covers_any_entity
    broken = violations(
        bounds.ownership,
        bounds.weights,
        entity_sentences=guarantee.entity_bound if enforced else None,
        entity_users=guarantee.entity_users if enforced else None,
        user_sentences=guarantee.user_sentences,
    )
    kept = "entity and user of the corpus" if corpus.has_text else "user; nodes weight the sentences of entities"
    yield Check("bounds", not broken, "; ".join(broken[:3]) or f"kept by every {kept}")


def _noise(run: RecordedRun) -> Iterator[Check]:
    """Check that the recorded noise is not smaller than the terms say."""
    checkpoint = Checkpoint.read(run.folder.checkpoint_dir)
    if checkpoint is None or not len(run.counted):
        return
    stds = np.array([run.mechanism.noise_std(clip) for clip in _clips(run)])
    if not stds.all():
        return
    norms = run.counted["noise_norm"].to_numpy() * run.mechanism.denominator
    freedom = len(checkpoint.vector) * len(norms)
    total = float(((norms / stds) ** 2).sum())
    yield Check("noise", bool(total >= stats.chi2.ppf(_FAILURE, freedom)), f"{math.sqrt(total / freedom):.4f} of σ")


def _updates(run: RecordedRun) -> Iterator[Check]:
    """Check that no sum is longer than its clipped parts allow."""
    if not len(run.counted):
        return
    betas = np.array([run.mechanism.user_clip(clip) for clip in _clips(run)])
    norms = run.counted["update_norm"].to_numpy() * run.mechanism.denominator
    allowed = run.counted["cohort_users"].to_numpy() * betas
    event = run.mechanism.event()
    if event is not None and event.clips_sentences:
        allowed = np.minimum(allowed, run.counted["cohort_sentences"].to_numpy() * np.array(_clips(run)))
    share = float((norms / np.maximum(allowed, 1e-300)).max())
    yield Check("updates", share <= 1 + _NORM_ROUNDING, f"at most {share:.3g} of the bound")


def _rates(run: RecordedRun) -> Iterator[Check]:
    """Check that users, and sentences if all users are sampled, took part no more often than their rates allow."""
    mechanism, rows = run.mechanism, run.counted
    corpus = run.result.get("corpus") or {}
    trials_of = {unit: int(corpus[unit]) * len(rows) for unit in ("users", "sentences") if unit in corpus}
    if "enrolled" in rows:  # an app's nodes come and go
        trials_of["users"] = int(rows["enrolled"].sum())
    counts = {"users": ("cohort_users", mechanism.q_u)}
    if mechanism.q_u == 1:  # sampled entities only remove sentences
        counts["sentences"] = ("cohort_sentences", mechanism.q_s)
    for unit, (column, rate) in counts.items():
        if unit not in trials_of or column not in rows:
            continue
        total, trials = int(rows[column].sum()), trials_of[unit]
        holds = total <= trials and stats.binom.sf(total - 1, trials, rate) >= _FAILURE
        yield Check(f"rate of {unit}", bool(holds), f"{total / max(trials, 1):.4g} took part, allowed {rate:.4g}")


_CHECKS: tuple[Callable[[RecordedRun], Iterator[Check]], ...] = (
    _terms, _seed, _rounds, _epsilon, _epsilon_any, _bounds, _noise, _updates, _rates,
)  # fmt: skip


def _simulated(run: RecordedRun, seed: int) -> Iterator[Check]:
    """Check that the simulated attack does not exceed δ at the recorded ε."""
    event, distinct = run.mechanism.event(), {entry.terms.mechanism for entry in run.entries}
    if event is None or event.epoch_rounds is not None or len(distinct) > 1 or run.mechanism.strategy not in _SIMULATED:
        return
    guarantee, clips = run.entries[0].terms.guarantee, event.clips_sentences
    headline = guarantee.units(clips_sentences=clips, population=run.mechanism.population)[:1]
    units = [(name, unit.adjacency) for name, unit in _units(run) if not unit.robust]
    units += [
        ("epsilon_any", unit.adjacency) for unit in headline if isinstance(run.result.get("epsilon_any"), int | float)
    ]
    finite = [(name, unit) for name, unit in units if run.result[name] < math.inf]
    chosen = [(name, scenario) for name, unit in finite if (scenario := _scenario(unit)) is not None]
    for name, scenario in dict([*chosen[:1], *chosen[-2:]]).items():
        law = shift_distribution(as_run(run.mechanism, event), scenario)
        least = delta_at_least(law, event.noise_multiplier, len(run.stated), run.result[name], seed)
        yield Check(
            f"simulated {name}",
            least <= _delta(run),
            f"δ ≥ {round_down(least, 2)} at ε {format_epsilon(run.result[name])}",
        )


def _scenario(adjacency: Adjacency) -> Scenario | None:
    """Return sentences within the bounds of an adjacency, of weight 1; None if there are none, or too many to simulate.

    A bound k on a sum of weights allows k sentences of weight 1, in k users if so many may mention the entity.
    """
    bound, user = adjacency.entity_bound, adjacency.user_sentences
    each = bound.sentences_per_user
    total = int(bound.total_weight) if bound.weighted else bound.total
    if bound.weighted and total and bound.users:
        each = min(each, total // min(bound.users, total))
    users = min(bound.users, total // each) if each else 0
    if math.isinf(user) or users * each > _MOST_SENTENCES or not (user or users):
        return None
    return Scenario(entity_users=users, entity_sentences=each if users else 0, user_sentences=int(user))


def _units(run: RecordedRun) -> Iterator[tuple[str, ProtectedUnit]]:
    """Yield every ε of the result: its name, and what it protects."""
    user = run.result.get("user_sentences")
    if user is None:
        return
    alone = {"epsilon_user": Adjacency(user), "epsilon_user_unbounded": Adjacency()}
    units = {name: ProtectedUnit(adjacency, robust=False) for name, adjacency in alone.items()}
    for name, bound in (run.result.get("reach") or {}).items():
        both = Adjacency(user, ContributionBound(**bound))
        units[f"epsilon_user_entity_{name}"] = ProtectedUnit(both, robust=False)
        units[f"epsilon_user_entity_robust_{name}"] = ProtectedUnit(both, robust=True)
    yield from ((name, unit) for name, unit in units.items() if isinstance(run.result.get(name), int | float))


def _delta(run: RecordedRun) -> float:
    return float(run.folder.setting("delta"))


def _clips(run: RecordedRun) -> list[float]:
    """Return c of every row."""
    if "clip_norm" in run.counted:
        return [float(clip) for clip in run.counted["clip_norm"]]
    return [run.mechanism.clip_norm] * len(run.counted)
