"""What a run folder records at its start (config.json), and whether this installation can still go on from it."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any

from fl_sim.config import ConfigError, RunConfig
from fl_sim.data_prep.records import ChangedCorpusError
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.manifest import plugin_record
from fl_sim.experiments.run_inputs import open_corpus
from fl_sim.experiments.run_plan import Planned
from fl_sim.storage.run_folder import ResultsError, RunFolder
from fl_sim.strategies.registry import STRATEGIES

log = logging.getLogger(__name__)

_SAME_EPSILON = 1e-6  # what different machines may make of one formula


@dataclass(frozen=True, slots=True)
class Record:
    """A run as it was when it began.

    Attributes:
        config: what was asked for.
        plan: the fields of the plan that followed, the noise found for a target among them.
        fingerprint: the checksum of the corpus.
        strategy_origin: where the code of the strategy came from; empty for one that ships.
    """

    config: RunConfig
    plan: dict[str, Any]
    fingerprint: str
    strategy_origin: dict[str, Any]

    @classmethod
    def read(cls, folder: RunFolder) -> Record:
        """What ``folder`` recorded; :class:`ResultsError` if that is no run of this version."""
        run, plan, corpus = (folder.config.get(name) for name in ("run", "plan", "corpus"))
        if not (isinstance(run, dict) and isinstance(plan, dict) and isinstance(corpus, dict)):
            raise ResultsError(f"{folder.config_file}: is corrupt ('run', 'plan' and 'corpus' are expected)")
        try:
            config = RunConfig.from_mapping(run)
            return cls(config, plan, str(corpus.get("fingerprint")), folder.config.get("strategy_origin") or {})
        except ConfigError as error:
            raise ResultsError(f"{folder.config_file}: {error}") from error

    @property
    def noise_multiplier(self) -> float | None:
        """z as it was given, or found for a target; None where the record has no number for it."""
        found = self.plan.get("noise_multiplier")
        return float(found) if isinstance(found, int | float) else None

    def open_corpus(self, folder: RunFolder) -> Corpus:
        """The corpus as it was when the run began: without what was appended to it since.

        Raises:
            ResultsError: it has changed in another way.
        """
        try:
            corpus = open_corpus(self.config, self.fingerprint)
        except ChangedCorpusError as error:
            path = self.config.corpus.path
            raise ResultsError(f"{folder.path}: the corpus {path} has changed since the run began") from error
        if Corpus.open(corpus.path).fingerprint != self.fingerprint:
            log.warning("%s has grown; the run goes on with the corpus as it was when it began", corpus.path)
        return corpus

    def check(self, folder: RunFolder, planned: Planned) -> None:
        """See that plan, ε and the strategy's code are still those of the record.

        Raises:
            ResultsError: one of them is not, so that the rounds to come would not belong to the same run.
        """
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


def describe(config: RunConfig, planned: Planned, corpus: Corpus) -> dict[str, Any]:
    """The record of a run that begins, as :meth:`Record.read` expects it."""
    origin = _strategy_origin(config.privacy.strategy)
    return {
        "run": config.model_dump(mode="json"),
        "plan": planned.plan.record(),
        "corpus": {"fingerprint": corpus.fingerprint},
    } | ({"strategy_origin": origin} if origin else {})


def _strategy_origin(strategy: str) -> dict[str, str]:
    """Return where the code of a strategy comes from, with its checksum; nothing for one that ships."""
    return {} if strategy in STRATEGIES.built_in else plugin_record(STRATEGIES, strategy)


def _check_epsilon(folder: RunFolder, planned: Planned) -> None:
    """One run states ε by one accountant: what the last round recorded must be what is computed now."""
    metrics = folder.metrics()
    if not len(metrics) or int(metrics["round"].iloc[-1]) > planned.rounds:
        return
    last = metrics.iloc[-1]
    if last.get("releases", last["round"]) != last["round"]:  # some were released twice: the plan's curve is shorter
        return
    for name, epsilon in planned.guarantees.after(int(last["round"])).items():
        recorded = last.get(name, math.nan)
        if not math.isclose(recorded, epsilon, rel_tol=_SAME_EPSILON, abs_tol=_SAME_EPSILON):
            raise ResultsError(
                f"{folder.path}: {name} of round {last['round']:g} was recorded as {recorded:g} and is {epsilon:g} "
                "now; resume it with the version of fl-sim that began it"
            )
