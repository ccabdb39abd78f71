"""The record of a run at its start (config.json), and the check that this installation can resume the run.

>>> from pathlib import Path
>>> tree = {"run": {"rounds": 5}, "plan": {"noise_multiplier": 4.0}, "corpus": {"fingerprint": "0a1b"}}
>>> record = Record.read(RunFolder(Path("runs/first"), config=tree, environment={}))
>>> record.config.rounds, record.noise_multiplier, record.fingerprint
(5, 4.0, '0a1b')
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

import numpy as np

from fl_sim.config import ConfigError, RunConfig
from fl_sim.data_prep.records import ChangedCorpusError, CorpusError
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.manifest import plugin_record
from fl_sim.experiments.plan.guarantees import EnforcedBounds
from fl_sim.experiments.plan.lineage import earlier_of_record
from fl_sim.experiments.plan.run_plan import Planned, plan_run
from fl_sim.experiments.run_inputs import declared, open_corpus
from fl_sim.storage import environment
from fl_sim.storage.open_run import (
    COMPUTATION_FILE,
    RELEASE_FORMAT,
    Computation,
    OpenRun,
    ReleaseParts,
    digest_of,
    noise_digest,
    released_settings,
)
from fl_sim.storage.run_claim import RunClaim
from fl_sim.storage.run_folder import ResultsError, RunFolder
from fl_sim.strategies.ledger import Ledger
from fl_sim.strategies.registry import STRATEGIES

log = logging.getLogger(__name__)

_SAME_EPSILON = 1e-6  # rounding differences between machines


@dataclass(frozen=True, slots=True)
class Record:
    """The state of a run when it began.

    Attributes:
        plan: fields of its plan, with the noise calibrated for a target.
        strategy_origin: origin of the strategy's code; empty for a built-in strategy.
    """

    config: RunConfig
    plan: dict[str, object]
    fingerprint: str
    strategy_origin: dict[str, object]

    @classmethod
    def read(cls, folder: RunFolder) -> Record:
        """Return the record of ``folder``; raise ResultsError if it is not a run on a corpus, of this version."""
        if "app" in folder.config:
            raise ResultsError(
                f"{folder.path}: is a run of a Flower app, without a corpus; allowed: a run on a corpus (an app goes "
                "on with resume=True)"
            )
        run, plan, corpus = (folder.config.get(name) for name in ("run", "plan", "corpus"))
        if not (isinstance(run, dict) and isinstance(plan, dict) and isinstance(corpus, dict)):
            raise ResultsError(f"{folder.config_file}: is corrupt ('run', 'plan' and 'corpus' are expected)")
        try:
            config = RunConfig.from_mapping(run)
            return cls(config, plan, str(corpus.get("fingerprint")), dict(folder.section("strategy_origin")))
        except ConfigError as error:
            raise ResultsError(f"{folder.config_file}: {error}") from error

    @property
    def noise_multiplier(self) -> float | None:
        """Return z, configured or calibrated for a target; None if the record has no number for it."""
        z = self.plan.get("noise_multiplier")
        return float(z) if isinstance(z, int | float) else None

    def open_corpus(self, folder: RunFolder) -> Corpus:
        """Return the corpus as it was when the run began, without sentences appended since.

        Raises:
            ResultsError: the corpus has changed in another way.
        """
        try:
            corpus = open_corpus(self.config, self.fingerprint)
        except ChangedCorpusError as error:
            path = self.config.corpus.path
            raise ResultsError(f"{folder.path}: the corpus {path} has changed since the run began") from error
        if Corpus.open(corpus.path).fingerprint != self.fingerprint:
            log.warning("%s has grown; the run goes on with the corpus as it was when it began", corpus.path)
        return corpus

    def plan_again(self, folder: RunFolder, corpus: Corpus) -> Planned:
        """Return the plan of the run, whose figures and code must be those of the record.

        Raises:
            ResultsError: plan, ε or the strategy's code differ, so the remaining rounds would not belong to the same
                run.
            LineageError, LedgerError: the earlier releases, or the initial model, were changed.
        """
        config = self.config
        planned = plan_run(
            config,
            corpus.ownership(config.corpus.train_split),
            noise_multiplier=self.noise_multiplier,
            declared=declared(config, corpus),
            earlier=earlier_of_record(
                folder.path, corpus.fingerprint, config.privacy.initial_model, corpus.fingerprints
            ),
        )
        strategy = self.config.privacy.strategy
        if _strategy_origin(strategy) != self.strategy_origin:
            raise ResultsError(
                f"{folder.path}: the code of privacy.strategy {strategy} has changed since the run began; "
                "resume it with the version that began it"
            )
        if planned.plan.record() != self.plan:
            raise ResultsError(
                f"{folder.path}: the plan of the run can no longer be reproduced; "
                "resume it with the version of fl-sim that began it"
            )
        _check_epsilon(folder, planned)
        return planned


def begin(claim: RunClaim, config: RunConfig, planned: Planned, corpus: Corpus) -> OpenRun:
    """Begin the record of a new run in the folder of ``claim``."""
    described, earlier = describe(config, planned, corpus), planned.earlier
    return OpenRun.begin(claim, described, earlier.lineage, earlier.heads, config.anchor, config.privacy.secure_noise)


def describe(config: RunConfig, planned: Planned, corpus: Corpus) -> dict[str, object]:
    """Return the record of a new run, as :meth:`Record.read` reads it, with what its ε does not hold for."""
    origin = _strategy_origin(config.privacy.strategy)
    return {
        "run": config.model_dump(mode="json"),
        "plan": planned.plan.record(),
        "guarantee": planned.bounds.guarantee.record(),
        "corpus": {"fingerprint": corpus.fingerprint},
        **({"strategy_origin": origin} if origin else {}),
        **planned.earlier.record(),
        **planned.bounds.of_public_names(),
        "warnings": [*planned.warnings, *corpus.warnings],
    }


def computed_from(config: RunConfig, planned: Planned, text: ReleaseParts, initial_model: str) -> ReleaseParts:
    """Return what the releases of a run are computed from: settings, plan, digests of training text and weights.

    The engine and the number of nodes and workers are left out: the run is the same on any.
    """
    return {
        "settings": released_settings(config),
        "plan": planned.plan.record(),
        "guarantee": _guarantee(planned.bounds, config),
        **_selection(planned.bounds, config),
        "code": {
            "fl_sim": environment.version("fl-sim"),
            "releases": RELEASE_FORMAT,
            "noise": noise_digest(),
            "strategy": _strategy_origin(config.privacy.strategy),
        },
        **text,
        "initial_model": initial_model,
    }


def recorded_bounds(folder: RunFolder, record: Record, corpus: Corpus, ledger: Ledger) -> EnforcedBounds:
    """Return the bounds under which a run released, with the weights of the sentences that took part.

    They are enforced anew on the corpus. Bounds that the ledger does not state, or weights that its releases were not
    computed from, are refused: no ε of them is that of the run.

    Raises:
        ResultsError: config.json, the corpus or the weights are not what the ledger stands for.
    """
    parts, config = Computation.of_ledger(ledger).parts, record.config
    ownership = corpus.ownership(config.corpus.train_split)
    try:
        bounds = EnforcedBounds.of(config.privacy, ownership, declared(config, corpus))
    except (ConfigError, CorpusError) as error:
        raise ResultsError(f"{folder.config_file}: {error}") from error
    if any(entry.terms.guarantee != bounds.guarantee for entry in ledger.entries):
        raise ResultsError(f"{folder.config_file}: states other bounds than the ledger; allowed: those of its releases")
    if "tokens" in parts and parts.get("corpus") != record.fingerprint:  # else a digest of the text under a secret key
        raise ResultsError(f"{folder.config_file}: names another corpus than the one that the releases are from")
    if any(parts.get(name) != digest for name, digest in _selection(bounds, config).items()):
        raise ResultsError(
            f"{ledger.folder}: its releases are not from the sentences that its bounds keep (selection in "
            f"{COMPUTATION_FILE})"
        )
    return bounds


def _guarantee(bounds: EnforcedBounds, config: RunConfig) -> dict[str, object]:
    """Return the configured guarantee with a digest of whose counts they are, which the ledger must not tell.

    It is part of the key of seeded noise: weights of other people's counts have other noise.
    """
    whose = bounds.counts.digest_of_whose(by_name=_by_name(bounds, config)) if bounds.guarantee.counts else ""
    return bounds.configured.record() | {"counts": whose}


def _selection(bounds: EnforcedBounds, config: RunConfig) -> ReleaseParts:
    """Return digests of the sentences' weights and of the entities that are declared public.

    Weights by counts are a formula of the text, of public weights and of what the guarantee states. Where entities are
    sampled by name the formula stands for them in the key of the noise, so that a server that knows counts alone has
    the same. Whoever has the text then states a digest of the weights besides, so that an audit sees whether they were
    enforced. With text on nodes nobody can: a node refuses counts below its own, and computes its weights itself.
    """
    declared = bounds.declared
    by_formula = _by_name(bounds, config) and config.privacy.known == "counts"
    weights = declared.weights if by_formula else bounds.weights
    public = np.array(declared.public, dtype=np.int64)
    selection: ReleaseParts = {"selection": digest_of([*([] if weights is None else [weights]), public])}
    if by_formula and not declared.counts_alone:
        selection["weights"] = digest_of([bounds.weights])
    return selection


def _by_name(bounds: EnforcedBounds, config: RunConfig) -> bool:
    """Return whether entities are sampled by their names, so that their numbering decides nothing."""
    return config.privacy.entity_key is not None or bounds.declared.counts_alone


def _strategy_origin(strategy: str) -> dict[str, str]:
    """Return the origin of a strategy's code with its checksum; empty for a built-in strategy."""
    return {} if strategy in STRATEGIES.built_in else plugin_record(STRATEGIES, strategy)


def _check_epsilon(folder: RunFolder, planned: Planned) -> None:
    """Check that the last recorded ε equals the ε computed now: one run has one accountant."""
    metrics = folder.metrics()
    if not len(metrics) or int(metrics["round"].iloc[-1]) > planned.rounds:
        return
    last = metrics.iloc[-1]
    if last.get("releases", last["round"]) != last["round"]:  # rounds released twice: the plan's curve is too short
        return
    for name, epsilon in planned.guarantees.after(int(last["round"])).items():
        recorded = last.get(name, math.nan)
        if not math.isclose(recorded, epsilon, rel_tol=_SAME_EPSILON, abs_tol=_SAME_EPSILON):
            raise ResultsError(
                f"{folder.path}: {name} of round {last['round']:g} was recorded as {float(recorded)!r} and is "
                f"{epsilon!r} now; resume it with the version of fl-sim that began it"
            )
