"""Train any Flower app with differential privacy for its users: the server's side.

    from flwr.serverapp.strategy import FedAvg
    from fl_sim.flower import UserLevelDifferentialPrivacy

    strategy = UserLevelDifferentialPrivacy(
        FedAvg(), population=1000, sampling_rate=0.05, clip_norm=1.0, target_epsilon=4.0, folder="first"
    )
    result = strategy.start(grid, initial_arrays, num_rounds=50)

A round: every enrolled user is sampled with probability q, the nodes send the sums of their sampled users' updates,
each of norm at most C (:mod:`fl_sim.flower.clipping_mod`), noise of standard deviation z·C is added to the sum once,
and the sum is divided by q·N. This is DP-FedAvg (McMahan et al. 2018) with Poisson sampling; DP-FedSGD if a node takes
one step.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from numbers import Integral
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore.utils import get_flwr_home

from fl_sim.engines.grids import GridError
from fl_sim.experiments.plan.lineage import earlier_of_record
from fl_sim.flower import private_messages
from fl_sim.flower.app_run import AppRun, AppTraining, PrivateSettings, earlier_of, is_taken, keep_digest
from fl_sim.flower.enrolled_nodes import EnrolledNodes
from fl_sim.flower.private_messages import ArrayLayout, PrivateRound
from fl_sim.flower.server_step import step_of
from fl_sim.formats import format_delta, format_epsilon, one_line, printable
from fl_sim.storage import environment
from fl_sim.storage.open_run import RELEASE_FORMAT, ReleaseParts, digest_of, noise_digest
from fl_sim.storage.run_folder import Figure, default_run_path
from fl_sim.strategies.aggregation import Asked, BoundedSumStrategy, Federation, RoundParts
from fl_sim.strategies.mechanism import PrivacyPlan
from fl_sim.strategies.postprocessing import ServerOptimizerConfig
from fl_sim.strategies.primitives.limits import PrivacyError, require

log = logging.getLogger("flwr")  # shown by `flwr run --stream`

UNPROTECTED = "unprotected-"
"""What the names of metrics begin with that left their nodes without noise."""

Figures = dict[str, Figure]
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class _Training(NamedTuple):
    """Hold a training under way: its run, the layout of its model, and what samples, sums and adds noise."""

    run: AppRun
    layout: ArrayLayout
    round: BoundedSumStrategy


class UserLevelDifferentialPrivacy(Strategy):
    """Train with user-level differential privacy: Poisson sampling, bounded updates, noise once, ε from a ledger.

    Guarantee: against an adversary who observes the models of all rounds, the training is (ε, δ)-differentially private
    for any one user (add or remove all of the user's data), with the ε of :meth:`epsilon` (docs/privacy-accounting.md,
    section 7). It holds for the models of all rounds, the returned one among them, and for nothing else: not for
    metrics of the app that ``forward_metrics`` lets out, nor for what ``evaluate_fn`` measures on private data.

    Assumptions: the nodes run :class:`~fl_sim.flower.clipping_mod.UserLevelClipping` (an update that is too long is
    discarded), the server is trusted and keeps cohorts and updates to itself, the initial model is public, and
    ``seed`` is None wherever the data are real.

    Args:
        strategy: a Flower strategy that takes the server's step, such as ``FedAvg()`` or ``FedAdam(…)``; it sees the
            noisy average alone. None for ``server_optimizer``.
        population: N, a public estimate of the number of users; updates are divided by q·N.
        sampling_rate: q, the probability that a user takes part in a round.
        clip_norm: C, the bound on the L2 norm of a user's update, over all parameters.
        noise_multiplier: z; or ``target_epsilon``, for which the smallest z is computed.
        target_epsilon: ε of any user after all rounds.
        delta: δ, at which ε is stated.
        epsilon_budget: training ends before ε exceeds it.
        folder: of the run, for ledger, metrics and checkpoint; a relative path is in ``fl-sim-runs`` in Flower's home
            (``~/.flwr``), because a SuperLink has a working directory of its own. None for a new folder there.
        resume: whether to go on with the interrupted run in ``folder``.
        seed: for simulations that can be repeated; None takes samples and noise from the operating system.
        forward_metrics: whether metrics of the app's train and evaluate functions leave the nodes; their names begin
            with ``unprotected-`` then.
        server_optimizer: the server's step without ``strategy``: SGD, momentum or Adam on the noisy average.

    Raises:
        PrivacyError: a setting is impossible, or ``strategy`` is one that looks at single replies.
    """

    def __init__(
        self,
        strategy: Strategy | None = None,
        *,
        population: int,
        sampling_rate: float,
        clip_norm: float,
        noise_multiplier: float | None = None,
        target_epsilon: float | None = None,
        delta: float = 1e-5,
        epsilon_budget: float | None = None,
        folder: str | Path | None = None,
        resume: bool = False,
        seed: int | None = None,
        forward_metrics: bool = False,
        server_optimizer: ServerOptimizerConfig | None = None,
    ) -> None:
        self.settings = PrivateSettings(
            population=population,
            sampling_rate=sampling_rate,
            clip_norm=clip_norm,
            noise_multiplier=noise_multiplier,
            target_epsilon=target_epsilon,
            delta=delta,
            epsilon_budget=epsilon_budget,
            seed=seed,
            forward_metrics=forward_metrics,
        )
        self._wrapped = strategy
        self._step = step_of(strategy, server_optimizer)
        self._resume = resume
        base = (get_flwr_home() / "fl-sim-runs").absolute()
        self.folder = base / (_new_folder(base, seed) if folder is None else Path(folder).expanduser())
        self.nodes = EnrolledNodes()
        self._sampling_seed = secrets.randbits(128) if seed is None else seed
        # of the app's own generators: no function of the secret seed of samples, because nodes see what follows from it
        self._app_key = secrets.token_bytes(16) if seed is None else hashlib.sha256(f"app {seed}".encode()).digest()
        self._timeout = 3600.0
        self._metrics: dict[str, float] = {}
        self._content = RecordDict()
        self._training: _Training | None = None

    def epsilon(self) -> float:
        """Return ε of any user after all releases so far, with those of runs that trained the initial model.

        It is 0 before :meth:`start`.
        """
        return 0.0 if self._training is None else self._training.run.epsilon()

    @property
    def _open(self) -> _Training:
        """Return the training under way; RuntimeError before :meth:`start`."""
        if self._training is None:
            raise RuntimeError("there is no training under way: start() begins one")
        return self._training

    def summary(self) -> None:
        """Log the settings."""
        log.info("\t├──> %s: %s", type(self).__name__, self.settings)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Train for ``num_rounds`` rounds, or until the budget is spent, as :meth:`Strategy.start` does.

        The returned ``train_metrics_clientapp`` have the round's ``epsilon`` and ``delta``.

        Args:
            grid: the nodes.
            initial_arrays: the model, which must be public.
            num_rounds: T.
            timeout: seconds to wait for the replies of a round.
            train_config: of the app, sent with every request.
            evaluate_config: of the app, read with ``forward_metrics`` alone.
            evaluate_fn: measures the model on the server, before the first round and after each.

        Raises:
            PrivacyError: ``num_rounds`` or ``timeout`` is impossible, the model cannot be trained with noise, no noise
                meets the target, or this or the wrapped strategy has trained before.
            ResultsError: the folder is not free, or cannot be resumed with these settings.
            GridError: every node failed in a round; nothing of it was released. Or fewer nodes are there than the
                wrapped strategy waits for.
            ProtocolError: no node takes part, or nobody is enrolled.
        """
        with self._ended():
            num_rounds = _checked(num_rounds, timeout)
            grid = self._step.attended(grid)
            config = ConfigRecord(dict(train_config or {}))
            first, arrays = self._begin(initial_arrays, num_rounds, config)
            run, self._timeout, result = self._open.run, timeout, Result()
            result.arrays = arrays
            if first == 0:
                run.add_row(0, _measured(evaluate_fn, 0, arrays, result))  # before anything is released
                run.checkpoint(0, self._vector(arrays), self._step.state())
            stopped = "rounds"
            for server_round in range(max(first, 1), num_rounds + 1):
                if run.exceeds_budget(server_round):
                    stopped = "epsilon_budget"
                    break
                began = time.monotonic()
                replies = grid.send_and_receive(
                    self.configure_train(server_round, arrays, config, grid), timeout=timeout
                )
                arrays, metrics = self.aggregate_train(server_round, replies)
                keep_digest(self.folder, _model_digest(self._open.layout, arrays))
                result.arrays, result.train_metrics_clientapp[server_round] = arrays, metrics
                counted, figures = self._counted(time.monotonic() - began), Figures()
                run.checkpoint(server_round, self._vector(arrays), self._step.state())
                try:  # a released round is kept, whatever becomes of its evaluation
                    figures |= self._evaluated(server_round, arrays, evaluate_config, grid, result)
                    figures |= _measured(evaluate_fn, server_round, arrays, result)
                finally:
                    run.add_row(server_round, counted | figures)
                log.info("fl-sim: %s", self._in_words(server_round, num_rounds, figures))
            run.finish(stopped, _names(run), self._warnings())
            log.info("fl-sim DONE: results are in %s", run.folder.path)
            return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Enrol new nodes, sample the round's users, and return a request per node that holds any of them."""
        settings, content = self.settings, self._step.content(server_round, arrays, config)
        self.nodes.enrol(grid, self._timeout)
        cohort = self.nodes.sampled(self._sampling_seed, server_round, settings.sampling_rate)
        requests, asked = [], {}
        for node, users in cohort.items():
            seeds = tuple(private_messages.user_seed(self._app_key, server_round, user) for user in users)
            request = PrivateRound(server_round, users, seeds, settings.clip_norm, settings.forward_metrics)
            asked[node] = Asked(len(users), len(users), request.identity, turn=users[0])
            records = RecordDict({**content, private_messages.RECORD: request.record()})
            requests.append(Message(records, node, MessageType.TRAIN))
        self._content = content
        self._open.round.open_round(np.empty(self._open.layout.size, np.float32), asked)
        return requests

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord, MetricRecord]:
        """Return the next model and the round's ε; a failed node counts as zero."""
        self._metrics = {}
        average = self._open.round.noisy_average(server_round, self._forwarding(replies))
        stepped = self._step.stepped(self._content, self._open.layout, average)
        return stepped, MetricRecord({"epsilon": self.epsilon(), "delta": self.settings.delta})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the wrapped strategy's requests if its metrics may leave the nodes, else none."""
        if self._wrapped is None or not self.settings.forward_metrics:
            return []
        messages = list(self._wrapped.configure_evaluate(server_round, arrays, config, grid))
        for message in messages:
            message.content[private_messages.RECORD] = private_messages.request_part(private_messages.EVALUATION)
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the wrapped strategy's metrics, marked as unprotected; None if none may leave the nodes."""
        if self._wrapped is None or not self.settings.forward_metrics:
            return None
        metrics = self._wrapped.aggregate_evaluate(server_round, replies)
        return None if metrics is None else MetricRecord({f"{UNPROTECTED}{k}": v for k, v in metrics.items()})

    @contextlib.contextmanager
    def _ended(self) -> Iterator[None]:
        """Log what ends a training early, and close its run."""
        try:
            yield
        except Exception as error:
            log.error("fl-sim FAILED: %s", printable(one_line(error)))
            raise
        finally:
            if self._training is not None:
                self._training.run.close()

    def _begin(self, initial: ArrayRecord, rounds: int, config: ConfigRecord) -> tuple[int, ArrayRecord]:
        """Begin or resume the training; return its next round, 0 for the initial model, and the model before it."""
        if self._training is not None:  # its samples would be those of another training, under other noise
            raise PrivacyError("start was called before; allowed: a new strategy, with resume=True for the same run")
        layout = ArrayLayout.of(initial)
        if self._resume:
            earlier = earlier_of_record(self.folder)
        else:
            self._step.check_new()
            earlier = earlier_of(self.folder, _model_digest(layout, initial), self.settings.seed)
        plan = self.settings.plan(rounds, earlier)
        training = AppTraining(self.settings, plan, self._computed_from(layout, initial, plan, config), earlier)
        run = AppRun.resume(self.folder, training) if self._resume else AppRun.begin(self.folder, training)
        parts = RoundParts(
            plan=plan,
            federation=Federation("", np.empty(0, np.int64), self._sampling_seed),
            before_release=run.before_release,
            secure_noise=self.settings.secure_noise,
            noise_key=run.noise_key,
        )
        self._training = _Training(run, layout, BoundedSumStrategy(parts))
        for warning in self._warnings():
            log.warning("fl-sim: %s", warning)
        log.info("fl-sim: results go to %s", self.folder)
        self._step.prepare(layout.size, rounds)
        checkpoint = run.resumed_from
        self._step.check_new(None if checkpoint is None else checkpoint.optimizer)
        if checkpoint is None:
            return 0, initial
        self._step.restore(checkpoint.optimizer)
        return checkpoint.server_round + 1, layout.arrays(checkpoint.vector)

    def _computed_from(
        self, layout: ArrayLayout, initial: ArrayRecord, plan: PrivacyPlan, config: ConfigRecord
    ) -> ReleaseParts:
        """Return what the releases of the run are computed from, as far as the server knows it."""
        app = {f"train_config.{name}": value for name, value in config.items()}
        return {
            "settings": asdict(self.settings) | self._step.settings() | app | {"rounds": plan.rounds},
            "plan": plan.record(),
            "initial_model": digest_of([layout.vector(initial)]),
            "model_layout": hashlib.sha256(f"{layout}".encode()).hexdigest(),
            "code": {"fl_sim": environment.version("fl-sim"), "releases": RELEASE_FORMAT, "noise": noise_digest()},
        }

    def _vector(self, arrays: ArrayRecord) -> npt.NDArray[np.floating]:
        """Return a model as it is kept in a checkpoint: without a loss of digits."""
        layout = self._open.layout
        return layout.vector(arrays, "float64" if "float64" in layout.dtypes else "float32")

    def _forwarding(self, replies: Iterable[Message]) -> Iterator[Message]:
        """Yield the replies, and add up the metrics that left their nodes unprotected."""
        for reply in replies:
            record = None if reply.has_error() else reply.content.metric_records.get(private_messages.APP_METRICS)
            for name, value in record.items() if record is not None and self.settings.forward_metrics else ():
                if isinstance(value, int | float):
                    self._metrics[name] = self._metrics.get(name, 0.0) + value
            yield reply

    def _evaluated(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord | None, grid: Grid, result: Result
    ) -> Figures:
        """Return the unprotected metrics of the round: of training, the mean over users, and of evaluation."""
        users = max(1, self._open.round.tally.cohort_sentences)
        figures: Figures = {f"{UNPROTECTED}{name}": value / users for name, value in self._metrics.items()}
        requests = list(self.configure_evaluate(server_round, arrays, config or ConfigRecord(), grid))
        if requests:
            metrics = None
            try:
                replies = list(grid.send_and_receive(requests, timeout=self._timeout))
                metrics = self.aggregate_evaluate(server_round, replies)
            except GridError as error:
                log.warning("fl-sim: no node evaluates the model of round %d: %s", server_round, printable(f"{error}"))
            if metrics is not None:
                result.evaluate_metrics_clientapp[server_round] = metrics
                figures |= dict(metrics)
        return figures

    def _counted(self, seconds: float) -> Figures:
        """Return what the round counted, for the owner of the run; no ε covers it."""
        counted = self._open.round.tally.metrics()
        for name in ("train_loss", "cohort_sentences"):  # of text alone
            del counted[name]
        return {**counted, "enrolled": self.nodes.num_users, "seconds": seconds}

    def _in_words(self, server_round: int, rounds: int, figures: Figures) -> str:
        delta, epsilon = format_delta(self.settings.delta), format_epsilon(self.epsilon())
        tally = self._open.round.tally
        words = [f"round {server_round} of {rounds}", f"ε {epsilon} for any user (δ {delta})"]
        words += [f"{tally.cohort_users} of {self.nodes.num_users} users"]
        words += [f"{name} {value:.4g}" for name, value in figures.items() if isinstance(value, int | float)]
        if tally.failed_nodes:
            words.append(f"{tally.failed_nodes} nodes count as zero")
        return ", ".join(words)

    def _warnings(self) -> list[str]:
        warnings = list(self._open.run.warnings)
        mechanism, size = self._open.run.plan.mechanism, self._open.layout.size
        noise = math.sqrt(size) * mechanism.noise_std(mechanism.clip_norm) / mechanism.denominator
        if noise > mechanism.clip_norm:
            warnings.append(
                f"The noise drowns the updates: it is z·C/(q·N) = {noise / math.sqrt(size):.3g} on each of {size} "
                f"parameters, {noise / mechanism.clip_norm:.3g} times as long as their average can be. More users in a "
                "round, a smaller model or a larger ε would help."
            )
        if self.nodes.num_users > self.settings.population:
            warnings.append(
                f"{self.nodes.num_users} users have enrolled, and population is {self.settings.population}: rounds sum "
                "more updates than they are divided by. ε does not depend on it."
            )
        return warnings


_given = set[Path]()


def _new_folder(base: Path, seed: int | None) -> Path:
    """Return a path that no run has, and that this process gave to no other strategy."""
    path = default_run_path(base, strategy="user_level", seed=seed, taken=_given)
    _given.add(path)
    return path


def _checked(num_rounds: object, timeout: object) -> int:
    """Return the number of rounds; PrivacyError if it or the time limit is of another kind."""
    whole = isinstance(num_rounds, Integral) and not isinstance(num_rounds, bool)
    require(whole, "num_rounds", repr(num_rounds), "a whole number")
    limited = isinstance(timeout, int | float) and not isinstance(timeout, bool) and timeout > 0
    require(limited, "timeout", repr(timeout), "a number of seconds above 0")
    return int(cast("int", num_rounds))


def _model_digest(layout: ArrayLayout, arrays: ArrayRecord) -> str:
    """Return a digest of a model by which a later run knows it, in whatever order and type of floats it was kept."""
    with np.errstate(over="ignore"):  # a model that diverged
        return digest_of([np.sort(layout.vector(arrays, np.float32)) + 0.0])  # -0 and 0 are equal, and sort as they lie


def _measured(measure: EvaluateFn | None, server_round: int, arrays: ArrayRecord, result: Result) -> Figures:
    """Return what ``evaluate_fn`` measured, by name.

    Raises:
        PrivacyError: of the initial model it returned no metrics, or a figure that would pass for one of the run's own.
            Later ones of such a name are left out.
    """
    metrics = None if measure is None else measure(server_round, arrays)
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        raise PrivacyError(f"evaluate_fn returned a {type(metrics).__name__}; allowed: a MetricRecord, or None")
    result.evaluate_metrics_serverapp[server_round] = metrics
    if taken := sorted(name for name in metrics if is_taken(name)):
        words = f"evaluate_fn returned '{printable(taken[0])}', a name of the run's own; allowed: another name"
        if server_round == 0:
            raise PrivacyError(words)
        log.warning("fl-sim: %s; it is left out", words)
    return {name: value for name, value in metrics.items() if name not in taken}


def _names(run: AppRun) -> list[str]:
    """Return the names of the app's own figures, numbers in the last row of the metrics."""
    own = (name for name in run.last_row if not is_taken(name))
    return [name for name in own if isinstance(run.last_row[name], int | float)]
