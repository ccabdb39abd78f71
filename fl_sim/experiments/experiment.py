"""One run on the server, from start to end: preparation, every round, and the finished run folder.

An :class:`Experiment` is everything about a run except the engine that computes its rounds:
:mod:`fl_sim.engines.server_app` gives it a Flower grid, which :mod:`fl_sim.engines.engine` chooses.

>>> Experiment.resume("no/such/run")  # doctest: +ELLIPSIS
Traceback (most recent call last):
fl_sim.storage.run_folder.ResultsError: ...no/such/run: ...
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from fl_sim.clients.models.frozen_head import has_finite_scores
from fl_sim.clients.tasks import HeldOut
from fl_sim.clients.training import gradient_path_of
from fl_sim.clients.worker.round_progress import FOLDER as PROGRESS_FOLDER
from fl_sim.clients.worker.round_progress import RoundWatch
from fl_sim.config import EngineConfig, RunConfig
from fl_sim.data_prep.tagger_evaluation import read_coverage
from fl_sim.data_prep.taggers.tagger_registry import unsought_kinds
from fl_sim.experiments import evaluation as evaluate
from fl_sim.experiments import run_record
from fl_sim.experiments.cost import expected_selection, forecast
from fl_sim.experiments.observers import (
    Observer,
    Observers,
    RunStart,
    checked_observers,
    load_observers,
    off_machine,
)
from fl_sim.experiments.plan.lineage import earlier_of
from fl_sim.experiments.plan.run_plan import plan_run
from fl_sim.experiments.privacy_spent import PrivacySpent
from fl_sim.experiments.run_inputs import (
    RunInputs,
    build_model,
    check_origin,
    check_rule_of,
    declared,
    held_out_split,
    open_corpus,
    task_of,
    with_absolute_paths,
)
from fl_sim.experiments.run_record import Record
from fl_sim.experiments.training_text import OpenText, OwnText, TextOfRun, encode
from fl_sim.experiments.user_utility import summarise, sums_by_user
from fl_sim.files import close_to_others, owner_only
from fl_sim.reporting.held_out import HeldOutFigures
from fl_sim.storage import model_files
from fl_sim.storage.checkpoint import Checkpoint
from fl_sim.storage.open_run import NO_ANCHOR, OpenRun, digest_of
from fl_sim.storage.run_claim import ENCODED, RunClaim
from fl_sim.storage.run_folder import DIVERGED, INTERRUPTED, Figure, ResultsError, Row, RunFolder, default_run_path
from fl_sim.strategies.aggregation import BoundedSumStrategy, RoundParts
from fl_sim.strategies.messages import REJECTIONS, arrays_to_vector, vector_to_arrays
from fl_sim.strategies.postprocessing import IterateAverage, build_optimizer

WhenPlanned = Callable[[EngineConfig], str]
"""Start an engine (:attr:`RunConfig.placed_engine`) and return the device of the server's model."""

OpenWorkers = Callable[[str], Callable[[], None]]
"""Let all workers open a workspace, JSON; the returned function waits for them, and raises if one cannot."""

_CHECKPOINTED_A_ROUND = 1 << 29  # bytes, by default; a disk writes them in a few seconds


def serve_as_configured(engine: EngineConfig) -> str:
    """Return the configured device of the server's model, for an engine that others start."""
    return engine.server_device or "cpu"


def expect_workers(spec: str) -> Callable[[], None]:
    """Leave it to the first round to find out whether nodes can work: inline, and on nodes that others start."""
    return lambda: None


class Experiment:
    """A prepared run. Build it with :meth:`create` or :meth:`resume`, then :meth:`execute` it on a grid.

    While it runs, ``encoded/`` in its folder holds the tokens of the corpus, for the workers to share, and the
    features or states of what is frozen in the model. They are as private as the text, so they are removed at the end.
    """

    def __init__(
        self, inputs: RunInputs, run: OpenRun, when_planned: WhenPlanned, observers: Observers, open_text: OpenText
    ) -> None:
        config, corpus, planned = inputs.config, inputs.corpus, inputs.planned
        device = when_planned(config.placed_engine)
        self.config = config
        self.corpus = corpus
        self.folder = run.folder
        self._coverage = read_coverage(corpus)
        self.row_callbacks: list[Callable[[Row], None]] = []
        """Functions called with the row of every round; an exception in one of them ends the run."""
        self.stop_requested = False
        self.stop_signal: str | None = None
        self.in_rounds = False
        """Whether a round is under way, so that a stop waits for its end."""
        self._stopping = self._diverged = False
        self._run = run
        self._ownership = inputs.ownership
        self._observers = observers
        self._privacy_spent = PrivacySpent(run, config, planned)
        shutil.rmtree(self._encoded, ignore_errors=True)  # a killed run could not remove them
        self._model = model = build_model(config, task_of(config, corpus), device)
        self._text = open_text(TextOfRun(config, corpus, planned, model, self._encoded))
        self._held_out = self._held_out_sentences(held_out_split(config, corpus))
        self._cache = Path(config.corpus.feature_cache or self._encoded)
        self._measured: HeldOut | None = None
        mechanism = planned.plan.mechanism
        self._gradients = path = gradient_path_of(model, mechanism.client_rule(mechanism.clip_norm))
        slow = f"Gradients are computed one sentence at a time ({path.reason})." if path and path.name == "slow" else ""
        warnings = (*planned.warnings, *corpus.warnings, *off_machine(config), *([slow] if slow else []))
        self.planned = replace(planned, warnings=warnings)
        self._vector = model.get_vector()
        initial = digest_of(model.weights())  # before a checkpoint replaces them
        if not run.ledger.computation:  # of a new run, or one that was killed before this
            planned.earlier.check_model(config)
        run.bind(run_record.computed_from(config, planned, self._text.digests(), initial))
        self._strategy = self._build_strategy()
        self._checkpoint_every = self._rounds_between_checkpoints()
        self._first_round = 1
        if run.checkpoint is not None:
            self._restore(run.checkpoint)
        self._last_round = self._privacy_spent.go_on_after(self._first_round - 1)
        self._round_began = time.monotonic()
        self._watch: RoundWatch | None = None
        self._announce()

    @classmethod
    @owner_only()
    def create(
        cls,
        config: RunConfig,
        when_planned: WhenPlanned = serve_as_configured,
        observers: Sequence[Observer] = (),
        open_text: OpenText = OwnText,
    ) -> Experiment:
        """Claim the run's folder, check everything that can be checked, and start the run's record.

        Args:
            when_planned: called once ε of the run is known, before the model is built and the corpus is read, so that
                the engine can start meanwhile; returns the device of the server's model.
            observers: called besides those of the configuration.

        Raises:
            ConfigError, PluginError, PrivacyError, CorpusError, ModelError, ResultsError: for anything that cannot
                run. The folder and its parents are then unchanged.
        """
        all_observers = _observers(config, observers)
        path = config.out or default_run_path(strategy=config.privacy.strategy, seed=config.seed)
        claim = RunClaim.claim(Path(path).expanduser().absolute())
        try:
            config = with_absolute_paths(config)
            corpus = open_corpus(config)
            known = declared(config, corpus)
            check_origin(config, corpus)
            ownership, states = corpus.ownership(config.corpus.train_split), corpus.fingerprints
            earlier = earlier_of(config, corpus.fingerprint, states)
            planned = plan_run(config, ownership, declared=known, earlier=earlier)
            check_rule_of(planned.plan.mechanism)
            run = run_record.begin(claim, config, planned, corpus)
            return cls(RunInputs(config, corpus, planned), run, when_planned, all_observers, open_text)
        except BaseException:
            claim.discard()
            raise

    @classmethod
    @owner_only()
    def resume(
        cls,
        path: str | Path,
        when_planned: WhenPlanned = serve_as_configured,
        observers: Sequence[Observer] = (),
        anchor: str | None = None,
        open_text: OpenText = OwnText,
    ) -> Experiment:
        """Open a stopped run, to be continued after its last checkpoint; other arguments as of :meth:`create`.

        Args:
            anchor: the anchor from now on (:mod:`fl_sim.storage.open_run`); None for that of the configuration.

        Raises:
            PluginError: if an observer of its configuration cannot be loaded.
            ResultsError: if it is not a run folder, is finished, is in use by another process, is corrupt, or its
                corpus, plan or ε can no longer be reproduced.
            LedgerError: if its ledger cannot be trusted.
        """
        folder = RunFolder.open(Path(path).absolute())
        claim = RunClaim.hold(folder.path)
        try:
            close_to_others(folder.path)
            if folder.diverged:
                raise ResultsError(f"{folder.path}: the run diverged in round {folder.last_round} and cannot go on")
            if folder.finished:
                raise ResultsError(f"{folder.path}: the run is finished ({folder.last_round} rounds)")
            record = Record.read(folder)
            config, corpus = record.config, record.open_corpus(folder)
            all_observers = _observers(config, observers)
            planned = record.plan_again(folder, corpus)
            kept = config.anchor
            if anchor is not None:
                kept = anchor if anchor == NO_ANCHOR else str(Path(anchor).expanduser().absolute())
            secure = config.privacy.secure_noise
            run = OpenRun.resume(claim, folder, kept, secure, replaced=anchor is not None, rows=False)
            planned.earlier.check_ledger(run.ledger)
            return cls(RunInputs(config, corpus, planned), run, when_planned, all_observers, open_text)
        except BaseException:
            shutil.rmtree(folder.path / ENCODED, ignore_errors=True)
            claim.release()
            raise

    @owner_only()
    def execute(self, grid: Grid, open_workers: OpenWorkers = expect_workers) -> None:
        """Run the remaining rounds and finish the run folder; round 1 waits for workers that ``open_workers`` opens."""
        try:
            self.folder.truncate_metrics(after_round=self._first_round - 1 if self._first_round > 1 else -1)
            on_reading = partial(self._observers.tell, "on_reading")
            self._text.prepare(on_reading)
            wait_for_workers = open_workers(self._strategy.federation.workspace)
            self._held_out = self._held_out.read_by(self._model, self._cache, on_reading)
            self._announce_cost()
            if not self._diverged:
                wait_for_workers()
            self.in_rounds = True
            if not self._diverged:  # a run killed after its model diverged has only its result left to write
                with self._watching() as self._watch:
                    self._begin_round(self._first_round)
                    self._strategy.start(
                        grid,
                        vector_to_arrays(self._vector),
                        num_rounds=self._last_round,
                        timeout=self.config.engine.timeout,
                        evaluate_fn=self._after_round,
                        first_round=self._first_round,
                    )
            self._finish()
        finally:
            self._leave()

    def abandon(self, error: BaseException) -> None:
        """Clean up after ``error``: remove a folder without measurements, and add a note on what is left."""
        self._leave()
        where = self.folder.path
        if self._run.discard_unmeasured():
            error.add_note("no round was run, and no run folder is left")
        elif isinstance(error, OSError) or str(where) not in str(error):
            error.add_note(f"what was done is in {where}; {self._text.resumed_by(where)} goes on")

    def _announce(self) -> None:
        """Announce the start of the run to its observers, and the round after which it is resumed."""
        last_round = self._first_round - 1 if self._first_round > 1 else None
        rounds, warnings = self.planned.rounds, self.planned.warnings
        path = self._gradients.name if self._gradients else None
        self._observers.tell("on_start", RunStart(self.folder.path, self.config, rounds, last_round, warnings, path))

    def _announce_cost(self) -> None:
        """Measure what the rounds that are left cost, if an observer asks for it."""
        left = replace(self.planned, rounds=self._last_round - self._first_round + 1)
        if not self._diverged and left.rounds > 0 and self._observers.ask_for("on_forecast"):
            sample = self._held_out.examples
            cost = forecast(self.config, left, self._ownership, self._model, sample, self.folder.path)
            self._observers.tell("on_forecast", cost)

    def _watching(self) -> AbstractContextManager[RoundWatch | None]:
        """Return a watch of the rounds, if an observer asks for their progress."""
        if not self._observers.ask_for("on_progress"):
            return nullcontext()
        expected = expected_selection(self.planned, self._ownership)
        return RoundWatch(self._encoded / PROGRESS_FOLDER, expected, partial(self._observers.tell, "on_progress"))

    def _begin_round(self, server_round: int) -> None:
        self._round_began = time.monotonic()
        if self._watch is not None:
            self._watch.server_round = server_round

    def _leave(self) -> None:
        shutil.rmtree(self._encoded, ignore_errors=True)
        self._run.close()

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Go on after ``checkpoint``; after that of round 0 the run begins again, and measures the initial model."""
        recorded = self.folder.last_round or 0
        last = min(recorded, self.planned.rounds)
        if not 0 <= checkpoint.server_round <= last:
            raise ResultsError(
                f"{self.folder.path}: the checkpoint is of round {checkpoint.server_round}, but rounds 0 to {last} are "
                "recorded; the run folder is corrupt"
            )
        if not checkpoint.fits(self._model.num_parameters, self._strategy.state()):
            raise ResultsError(f"{self.folder.path}: the checkpoint does not fit the model and optimizer of the run")
        if checkpoint.server_round == 0:
            return
        self._strategy.restore(checkpoint.optimizer)
        self._set_model(checkpoint.vector)
        self._first_round = checkpoint.server_round + 1

    def _set_model(self, vector: npt.NDArray[np.float32]) -> None:
        """Set θ and the model that is evaluated and saved, and notice if one of them has diverged."""
        self._vector = vector
        self._model.set_vector(self._strategy.averaged(vector))
        self._diverged = not (np.isfinite(vector).all() and has_finite_scores(self._model))

    def _after_round(self, server_round: int, arrays: ArrayRecord) -> None:
        """Evaluate the round, record it, and write the checkpoint from which the run can be resumed."""
        # A stop requested from here on lets one more round run, which is then the last.
        self._stopping = self.stop_requested
        self._set_model(arrays_to_vector(arrays))
        last = self._stopping or self._diverged or server_round == self._last_round
        row: dict[str, Figure] = {"round": server_round}
        if last or server_round % self.config.evaluation.every == 0:
            self._measured = evaluate.measure(self._model, self._held_out)
            row |= self._model.task.metrics(self._measured, self._held_out.sizes)
        row |= self._privacy_spent.after(server_round)
        if server_round > 0:
            row |= self._strategy.tally.metrics()
        row["seconds"] = time.monotonic() - self._round_began
        self._begin_round(server_round + 1)
        self.folder.append_metrics(row)
        if last or server_round % self._checkpoint_every == 0:
            self._run.write_checkpoint(server_round, self._vector, self._strategy.state())
        for callback in self.row_callbacks:
            callback(row)
        self._observers.tell("on_round", row)

    def _finish(self) -> None:
        rounds = self.folder.last_round or 0
        self._model.save(self.folder.model_dir)
        model_files.write_model(self.folder.model_dir, self._privacy_spent.lineage())
        gradients = {}
        if self._gradients is not None:
            reason = {"reason": self._gradients.reason} if self._gradients.name == "slow" else {}
            gradients["gradients"] = {"path": self._gradients.name, **reason}
        metrics, failed = self.folder.metrics(), {kind: f"failed_{kind}" for kind in REJECTIONS}
        from fl_sim.reporting.plots import present

        result = {
            "stopped": (stopped := self._why_stopped(rounds)),
            **({"signal": self.stop_signal} if stopped == INTERRUPTED and self.stop_signal else {}),
            "rounds": rounds,
            "plan": self.planned.plan.record(),
            "corpus": {
                "name": self.corpus.manifest.name,
                "users": self._strategy.federation.num_users,
                "sentences": self._ownership.num_sentences,
                "coverage": self._coverage and self._coverage.summary(),
                "not_looked_for": list(unsought_kinds(self.corpus)),
            },
            "task": self.config.task,
            **gradients,
            "failed_nodes": {kind: int(metrics[name].sum()) for kind, name in failed.items() if name in metrics},
            **self._utility(),
            **self._privacy_spent.total(),
            **self._privacy_spent.attacker(),
            "ledger": self._run.ledger.head,
            model_files.KEY: model_files.checksums(self.folder.model_dir),
            **self.planned.earlier.record(),
            **self.planned.bounds.record(self.corpus.entities(self.config.corpus.train_split)["labels"].to_numpy()),
            "settings_from_corpus": self.config.privacy.settings_from_corpus,
            **({"origin": self.config.origin} if self.config.origin else {}),
            "warnings": list(self.planned.warnings),
        }
        self.folder.finish(result, present)
        self._observers.tell("on_end", self.folder.result or {})

    def _utility(self) -> dict[str, object]:
        """Return the task's figures at the start, at the end and by user, and those of a reference without a model."""
        names = ("perplexity", "perplexity_per_word", "bits_per_byte", "accuracy", "error")
        every = {name: self.folder.measured(name) for name in names}
        measured = {name: values for name, values in every.items() if values}
        final = {name: values[-1] for name, values in measured.items()}
        if "perplexity" in final:
            final["perplexity_per_token"] = final["perplexity"]
        initial = {f"initial_{name}": values[0] for name, values in measured.items()}
        return final | initial | dict(self._text.reference(self._held_out)) | {"held_out": self._by_user()}

    def _by_user(self) -> HeldOutFigures | None:
        """Return what the last evaluation says by user; a run that was killed after it evaluates once more."""
        if self._diverged:
            return None
        measured = self._measured or evaluate.measure(self._model, self._held_out)
        split = held_out_split(self.config, self.corpus)
        self.folder.write_held_out_users(sums_by_user(self.corpus.ownership(split), self._held_out.ids, measured))
        return summarise(
            self._model, self.corpus, self.config.corpus.train_split, split, self._held_out, measured, self.config.seed
        )

    def _rounds_between_checkpoints(self) -> int:
        """Return the rounds that a kill may cost at most; they run again for free only if their noise is seeded."""
        if self.config.checkpoint_every is not None or self.config.privacy.secure_noise:
            return self.config.checkpoint_every or 1
        size = self._vector.nbytes + sum(value.nbytes for value in self._strategy.state().values())
        return -(-size // _CHECKPOINTED_A_ROUND)

    def _why_stopped(self, rounds: int) -> str:
        if self._diverged:
            return DIVERGED
        if rounds < self._last_round:
            return INTERRUPTED
        finite = [math.isfinite(loss) for loss in self.folder.measured("loss")]
        if finite and finite[0] and not finite[-1]:  # on some held-out sentence alone
            return DIVERGED
        return "rounds" if self._last_round == self.planned.plan.rounds else "epsilon_budget"

    @property
    def _encoded(self) -> Path:
        return self.folder.path / ENCODED

    def _held_out_sentences(self, split: str) -> evaluate.HeldOutSentences:
        examples = encode(self.corpus, split, self._model, self._encoded / "held_out")
        evaluation = self.config.evaluation
        ids = evaluate.held_out_sample(examples.encoded, evaluation.max_sentences, self.config.seed)
        return evaluate.HeldOutSentences.of(self._model, examples, self.corpus.texts(split), ids)

    def _build_strategy(self) -> BoundedSumStrategy:
        config = self.config
        size, rounds = self._model.num_parameters, self.planned.rounds
        return BoundedSumStrategy(
            RoundParts(
                plan=self.planned.plan,
                federation=self._text.federation(self._privacy_spent.sampling_seed),
                optimizer=build_optimizer(config.server, size, rounds),
                average=IterateAverage(config.averaging, size, rounds),
                should_stop=lambda: self._stopping or self._diverged,
                before_release=self._privacy_spent.before_release,
                secure_noise=config.privacy.secure_noise,
                noise_key=self._run.noise_key,
            )
        )


def _observers(config: RunConfig, observers: Sequence[Observer]) -> Observers:
    """Return the observers of a configuration, followed by those of the caller."""
    return Observers([*load_observers(config.observers), *checked_observers(observers)])
