"""The earlier releases on which a run's initial model rests, and ε of them together with the run's own rounds.

A run that starts from a privately trained model releases more about its corpus than its own rounds: the product of the
dominating pairs of both trainings dominates them together (docs/privacy-accounting.md, section 9). So every ε of the
run composes the earlier releases, each within the contribution bounds of its own run, with the run's rounds.

Guarantee: an ε that is stated under a metric holds for a user and an entity that are within the bound of that metric in
every run that is composed, whether the corpora of the runs are equal, overlap or differ. So ε of any entity is that of
one that the tagger of every run found: the sentences of a name that one of them never marks have no limit there. Runs
on corpora that share no user and no entity with this one, as their owner stated (``privacy.initial_model =
"disjoint"``), are left out: adjacent corpora of this run agree on theirs.
A model that fl_sim never trained on a corpus is public by assumption.

>>> earlier_of(RunConfig(), fingerprint="0a1b").composed  # the model that ships is public
()
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fl_sim.clients.models.architectures.model_source import is_registered
from fl_sim.clients.models.hub import folder_of
from fl_sim.config import ConfigError, RunConfig
from fl_sim.formats import format_epsilon
from fl_sim.storage import model_files
from fl_sim.storage.model_files import Ancestor, Lineage, LineageError
from fl_sim.storage.run_folder import ResultsError
from fl_sim.strategies.accounting import accountant, calibration
from fl_sim.strategies.accounting.accountant import Part
from fl_sim.strategies.accounting.adjacency import PrivacyError
from fl_sim.strategies.accounting.guarantee import KNOWN, Guarantee, ProtectedUnit, most_known
from fl_sim.strategies.ledger import (
    Entry,
    Ledger,
    LedgerError,
    LedgerHead,
    ReleaseRecord,
    parts_of,
    unit_choices,
)
from fl_sim.strategies.mechanism import PrivacyPlan

DISJOINT = "disjoint"

PUBLIC = Lineage()
"""The lineage of a public model."""

_MOST_COUNTS = 250
"""ε after earlier releases is computed for at most this many numbers of rounds; between two the later, larger holds."""
_LEAST_Z, _MOST_Z = 1e-2, 1e5  # range of the noise multiplier in the search for a target


@dataclass(frozen=True, slots=True)
class Earlier:
    """Hold the lineage of a run's initial model, and which of its runs ε of this run composes.

    Attributes:
        disjoint: whether the owner stated that the lineage's corpora share no user and no entity with this one.
        states: all fingerprints of this run's corpus, as `fl_sim.data_prep.store.corpus.Corpus.fingerprints` has them.
    """

    lineage: Lineage = PUBLIC
    fingerprint: str = ""
    disjoint: bool = False
    states: frozenset[str] = frozenset()

    @property
    def composed(self) -> tuple[Ancestor, ...]:
        """Return the runs whose releases count in every ε of this run."""
        if self.disjoint:
            return ()
        return tuple(a for a in self.lineage.ancestors if self.fingerprint not in a.apart_from)

    @property
    def heads(self) -> list[LedgerHead]:
        """Return the heads of the composed runs' ledgers, which this run's own ledger names."""
        return [ancestor.ledger.head for ancestor in self.composed]

    def epsilon_curve(
        self, plan: PrivacyPlan, metric: str, unit: ProtectedUnit, rounds: Sequence[int]
    ) -> npt.NDArray[np.float64]:
        """Return ε of the earlier releases and each number of rounds of ``plan``, float64 (len(rounds),)."""
        if not self.composed:
            return plan.epsilon_curve(unit.adjacency, rounds, robust=unit.robust)
        event, choices = plan.mechanism.event(), self._releases(metric)
        if event is None or choices is None:
            return np.full(len(rounds), math.inf)
        adjacency = plan.mechanism.exposed(unit.adjacency)
        curves = [
            accountant.continued_epsilon_curve(
                releases, event.robust() if unit.robust or missed else event, adjacency, rounds, plan.delta
            )
            for releases, missed in choices
        ]
        return np.asarray(np.max(curves, axis=0))

    def epsilon_before(self, metric: str, delta: float) -> float:
        """Return ε of the earlier releases alone under ``metric``."""
        choices = self._releases(metric)
        return math.inf if choices is None else max(accountant.composed_epsilon(one, delta) for one, _ in choices)

    def epsilon_of(self, entries: Sequence[Entry], metric: str, unit: ProtectedUnit, delta: float) -> float:
        """Return ε at ``delta`` of the earlier releases and ``entries`` of this run together, for a metric's unit."""
        found = list[float]()
        for releases, missed in self._releases(metric) or ():
            own = _parts(entries, unit, missed=missed)
            found.append(math.inf if own is None else accountant.composed_epsilon([*releases, *own], delta))
        return max(found, default=math.inf)

    def counts(self, last: int, most: int) -> npt.NDArray[np.int64]:
        """Return at most ``most`` numbers of rounds from 1 to ``last`` at which ε is computed, ascending."""
        number = min(last, min(most, _MOST_COUNTS) if self.composed else most)
        return np.unique(np.linspace(1, last, number).round().astype(np.int64))

    def noise_for(self, plan: PrivacyPlan, target: float, metric: str, unit: ProtectedUnit) -> float:
        """Return the smallest noise multiplier z for which ε of everything is at most ``target`` after all rounds.

        Raises:
            PrivacyError: no z suffices, as where the earlier releases alone exceed the target.
        """
        if not self.composed:
            return plan.noise_for(target, unit.adjacency, robust=unit.robust)

        def epsilon_at(z: float) -> float:
            return float(self.epsilon_curve(plan.with_noise(z), metric, unit, [plan.rounds])[0])

        before = self.epsilon_before(metric, plan.delta)
        if before >= target:
            raise PrivacyError(f"the earlier releases of the initial model alone have ε {format_epsilon(before)}")
        return calibration.bisect_value(epsilon_at, "noise_multiplier", _MOST_Z, _LEAST_Z, target)

    def check_guarantee(self, guarantee: Guarantee) -> None:
        """Refuse to compose releases into figures that take less as known, or protect other names, than they do.

        Raises:
            ConfigError: an earlier run selected its sentences by what may not be known in this one, had a list of
                public names that is not this one's, or stated less of an entity than this one does.
        """
        before = [entry.terms.guarantee for a in self.composed for entry in a.ledger.entries]
        if any(one.public_names not in ("", guarantee.public_names) for one in before):
            raise ConfigError(
                "privacy.public_names is not the list of the runs on which the initial model rests, which set no limit "
                "for the names on it; allowed: their list"
            )
        earlier = most_known(before)
        if KNOWN.index(guarantee.known) < KNOWN.index(earlier):
            raise ConfigError(
                f"privacy.known is {guarantee.known}, but the initial model rests on releases that take the {earlier} "
                f"as known; allowed: {earlier}"
            )
        for name in _stated_by(guarantee):
            own, least = _most(guarantee, name), min((_most(one, name) for one in before), default=math.inf)
            if own > least:
                stated = "nothing" if own == math.inf else f"{own:g}"
                raise ConfigError(
                    f"privacy.{name} is {stated}, but the initial model rests on releases whose ε hold for {least:g}; "
                    f"allowed: at most {least:g}"
                )

    def warnings(self) -> list[str]:
        """Return what the owner of this run should know of its initial model, one sentence each."""
        if self.composed:
            count = len(self.composed)
            runs = "one earlier run" if count == 1 else f"{count} earlier runs"
            releases = sum(len(ancestor.ledger.entries) for ancestor in self.composed)
            same = all(ancestor.corpus == self.fingerprint for ancestor in self.composed)
            corpus = "this corpus" if same else "other states of this corpus, or on other corpora"
            return [
                f"the initial model rests on {releases} releases of {runs} on {corpus}: "
                "every ε is that of all of them together with this run."
            ]
        if self.lineage != PUBLIC:
            return [
                "the initial model was trained on other text that shares no user and no entity with this corpus, as "
                "its owner stated (privacy.initial_model): no ε covers what it released before."
            ]
        return []

    def record(self) -> dict[str, object]:
        """Return the lineage for the run's result, under the key ``initial_model``; nothing for a public model."""
        if self.lineage == PUBLIC:
            return {}
        left_out = len(self.lineage.ancestors) - len(self.composed)
        return {"initial_model": {"composed": self.heads, "left_out": left_out, "disjoint": self.disjoint}}

    def check_ledger(self, ledger: Ledger) -> None:
        """Check that a resumed run's ledger names the composed runs.

        Raises:
            LedgerError: it does not.
        """
        if list(ledger.ancestors) != self.heads:
            raise LedgerError(f"{ledger.file}: names other ancestors than the run's own copy of them")

    def check_model(self, config: RunConfig) -> None:
        """Check that the initial model, once it is read, still rests on these releases.

        Raises:
            ResultsError: another model has taken its place since the run began.
        """
        now = earlier_of(config, self.fingerprint, self.states).lineage
        heads, known = ([a.ledger.head for a in lineage.ancestors] for lineage in (now, self.lineage))
        if heads != known or now.lost != self.lineage.lost:  # lost: a model of the hub that was not here before
            raise ResultsError(
                f"{config.model.name}: rests on other releases than when the run began; allowed: the model as it was, "
                "or a new run"
            )

    def lineage_with(self, ledger: Ledger, units: Mapping[str, ProtectedUnit]) -> Lineage:
        """Return the lineage of the model that this run trained, with its ledger and the units of its metrics."""
        apart = (self.fingerprint,) if self.disjoint else ()
        before = (replace(a, apart_from=(*a.apart_from, *apart)) for a in self.lineage.ancestors)
        own = Ancestor(ledger, self.fingerprint, units, self.states)
        lost_apart = (*self.lineage.lost_apart_from, *apart) if self.lineage.lost else ()
        return Lineage((*before, own), self.lineage.lost, tuple(dict.fromkeys(lost_apart)))

    def _releases(self, metric: str) -> list[tuple[list[Part], bool]] | None:
        """Return the earlier releases under ``metric`` for every choice of units, and whether entities count as missed.

        None if one of the releases has no guarantee, or none under the metric.
        """
        name, several, own = metric.partition(", unit ")
        choices: list[tuple[list[Part], bool]] = []
        for units, missed in unit_choices({self.fingerprint, *(a.corpus for a in self.composed)} if several else ()):
            if not missed and units and units[self.fingerprint] != int(own):
                continue
            releases: list[Part] = []
            for ancestor in self.composed:
                unit = ancestor.units.get(f"{name}, unit {units[ancestor.corpus]}" if several else metric)
                parts = None if unit is None else _parts(ancestor.ledger.entries, unit, missed=missed)
                if parts is None:
                    return None
                releases += parts
            choices.append((releases, missed))
        return choices


def _stated_by(guarantee: Guarantee) -> tuple[str, ...]:
    """Return the bounds within which an entity is as the owner states, and not because they are enforced."""
    bounds = ("entity_bound", "entity_users")
    bounded = guarantee.known == "nothing" and any(getattr(guarantee, name) is not None for name in bounds)
    return (*(bounds if bounded else ()), *(() if guarantee.missed_mentions is None else ("missed_mentions",)))


def _most(guarantee: Guarantee, name: str) -> float:
    """Return a bound of a guarantee; infinity for none."""
    value = getattr(guarantee, name)
    return math.inf if value is None else float(value)


def _parts(entries: Sequence[Entry], unit: ProtectedUnit, *, missed: bool) -> list[Part] | None:
    """Return what :func:`parts_of` returns for one unit, ``missed`` or not."""
    return parts_of(entries, lambda entry, event: unit.counted(missed=missed))


def earlier_of(config: RunConfig, fingerprint: str, states: frozenset[str] = frozenset()) -> Earlier:
    """Return the earlier releases on which the initial model of a run rests; ``states`` is that of `Earlier`.

    Raises:
        LineageError, LedgerError: the model was trained by fl_sim, and its lineage is missing or was changed, and the
            configuration does not state that the corpora are disjoint.
        ConfigError: the run would have the noise of an earlier run, or states that its own corpus is disjoint.
    """
    folder = None if is_registered(config.model.name) else folder_of(config.model.name)
    if folder is None:
        return Earlier(fingerprint=fingerprint, states=states)
    disjoint = config.privacy.initial_model == DISJOINT
    try:
        lineage = model_files.read_model(folder)
        if lineage.lost and fingerprint not in lineage.lost_apart_from and not disjoint:
            raise LineageError(f"{folder}: rests on an earlier model whose releases are not known")
    except (LineageError, LedgerError) as error:
        if not disjoint:
            raise type(error)(f"{error}; {_ALLOWED}") from error
        lineage = Lineage(lost=True)
    earlier = Earlier(lineage, fingerprint, disjoint and lineage != PUBLIC, states)
    seed = None if config.privacy.secure_noise else config.seed
    if run_of_seed(seed, [*(a.ledger for a in lineage.ancestors), *model_files.readable_ledgers(folder)]):
        raise ConfigError(  # whatever is said of the corpora
            f"seed is {seed}, which a run that trained the initial model {config.model.name} also has, so both would "
            "have the same samples; allowed: another seed, or privacy.secure_noise = true"
        )
    trained_on = {name for ancestor in lineage.ancestors for name in (ancestor.corpus, *ancestor.states)}
    if disjoint and trained_on & {fingerprint, *states}:
        raise ConfigError(
            f"privacy.initial_model is '{DISJOINT}', but {config.model.name} was trained on this very corpus, on its "
            "source, or on what was made of either; allowed: composed"
        )
    return earlier


def run_of_seed(seed: int | None, ledgers: Sequence[Ledger]) -> Ledger | None:
    """Return the ledger of a run whose samples and noise follow from ``seed``; None without one, or for secure noise.

    The difference of a sum of that run and one of another run of the seed may have no noise.
    """
    stream = None if seed is None else ReleaseRecord.stream_of(seed)
    return next((ledger for ledger in ledgers if stream in {entry.terms.stream for entry in ledger.entries}), None)


def earlier_of_record(
    folder: Path, fingerprint: str = "", initial_model: object = None, states: frozenset[str] = frozenset()
) -> Earlier:
    """Return the earlier releases of a run that began before, as its own folder keeps them.

    The run of a Flower app has no ``fingerprint`` of a corpus, and no ``privacy.initial_model``.

    Raises:
        LineageError, LedgerError: they were changed, or the initial model was.
    """
    lineage = model_files.read_ancestors(folder)
    disjoint = initial_model == DISJOINT and lineage != PUBLIC
    return Earlier(lineage, fingerprint, disjoint, states)


_ALLOWED = (
    "allowed: the model's folder as its run wrote it, or privacy.initial_model = 'disjoint' if the model is public or "
    "was trained on text that shares no user and no entity with this corpus"
)
