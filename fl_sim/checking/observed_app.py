"""Run trials of an app in this process: its ServerApp on nodes that answer as a trial says.

Nothing of the app's code is changed: Flower hands every function that an app registers to ``make_ffn``, where answers
are put in below all mods, and the strategies are found on the stack when they send requests.

>>> cause_of(FileNotFoundError(2, "No such file", "rows.csv"), Path("app"), "stopped")
('absent', 'it needs rows.csv, which is not there')
>>> cause_of(ValueError("a private row"), Path("app"), "stopped")
('stopped', 'ValueError')
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import importlib
import logging
import math
import os
import random
import secrets
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict, UserConfig
from flwr.clientapp import ClientApp, client_app
from flwr.common import Parameters
from flwr.server import LegacyContext
from flwr.server.strategy import Strategy as OlderStrategy
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import Strategy
from flwr.supercore.logger import FLOWER_LOGGER
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity

from fl_sim.checking import older_api
from fl_sim.checking.app_folder import AppFolder
from fl_sim.checking.older_api import MissingNodes, OwnServer
from fl_sim.checking.trials import Arrays, Seen, Trial, Unit, flat, moved
from fl_sim.engines.grids import SERVER_NODE, InlineGrid, context_of
from fl_sim.global_generators import own_generators, seed_all
from fl_sim.strategies.aggregation import BoundedSumStrategy

ROUND_ENDS = "ROUND "
PRIVATE_TEXT = "a line of private text"
"""The text of the exception of a node that fails; it must not reach the server's log."""

_noisy_average = BoundedSumStrategy.noisy_average
_POLLS = 3  # a strategy that asks for nodes more often before a request waits for more of them
_QUIET = {
    "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0", "WANDB_MODE": "offline",
    "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "MPLBACKEND": "agg",
}  # fmt: skip


class NoNetwork(ConnectionError):
    """The app asked for the network."""


class _Enough(BaseException):
    """The trial has seen what it is for."""


class LoadedApp:
    """Import an app from its folder, and run trials of it; one app per process.

    Args:
        scratch: the working directory while it is imported.

    Raises:
        Exception: whatever importing it raises.
    """

    def __init__(self, app: AppFolder, nodes: int, scratch: Path) -> None:
        self._app = app
        self._nodes = nodes
        self._stage: _Stage | None = None
        self.own: dict[Unit, tuple[Arrays, RecordDict]] = {}
        self.measured: dict[int, RecordDict] = {}
        os.environ.update(_QUIET)
        sys.dont_write_bytecode = True
        os.chdir(scratch)
        sys.path.insert(0, str(app.path))
        _forbid_network()
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, SERVER_NODE
        make = client_app.make_ffn
        setattr(client_app, "make_ffn", lambda ffn, mods: make(self._answering(ffn), mods))  # noqa: B010
        self._mods: list[Any] = []
        self.client = self._loaded(app.client, ClientApp)
        self.server = self._loaded(app.server, ServerApp)
        self._mods = list(self.client._mods)
        for mod in self._mods:
            if users := getattr(mod, "_users", None):  # our own, which names the users of a node that holds several
                mod._users = lambda context, users=users: [
                    name for name in users(context) if self._is_there(context, name)
                ]
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(1)  # so that a fork finds no threads

    def run(self, trial: Trial, folder: Path) -> Seen:
        """Run a trial in this process, which it may leave in any state; the app writes into ``folder``."""
        began, log = time.monotonic(), folder / "log.txt"
        os.environ.update(FLWR_HOME=str(folder), XDG_STATE_HOME=str(folder))
        os.chdir(folder)
        output = _Output(log, folder / "nodes.txt")
        stage = self._stage = _Stage(trial, self, _Entropy(trial.entropy), output)
        seed_all(trial.seed)
        grid = _WatchedGrid(stage, self.client, self._nodes, dict(self._app.config))
        try:
            older_api.start(self.server, grid, context_of(SERVER_NODE, run_config=dict(self._app.config)))
            stage.ended = True
        except _Enough:
            pass
        except MissingNodes as waits:
            stage.seen.error, stage.seen.waits_for = ("waits", "it waits for more nodes"), waits.args[0]
        except BaseException as error:
            stage.seen.error = stage.seen.error or cause_of(error, self._app.path, "stopped")
        stage.finish()
        stage.seen.log, stage.seen.node_log = output.texts()
        stage.seen.seconds = time.monotonic() - began
        return stage.seen

    def _loaded(self, name: str, kind: type) -> Any:
        module, _, attribute = name.partition(":")
        found = getattr(importlib.import_module(module), attribute)
        if not isinstance(found, kind):
            raise TypeError(f"{name} is no {kind.__name__}")
        return found

    def _answering(self, function: Callable[[Message, Context], Message]) -> Callable[[Message, Context], Message]:
        def answer(message: Message, context: Context) -> Message:
            if self._stage is None:
                return function(message, context)
            return self._stage.answer(function, message, context)

        return answer

    def _is_there(self, context: Context, name: object) -> bool:
        """Return whether the trial under way has a user of a node."""
        trial = None if self._stage is None else self._stage.trial
        unit = (int(context.node_config["partition-id"]), str(name))
        return trial is None or not trial.absent or unit != trial.target


class _Stage:
    """Hold a trial while it runs."""

    def __init__(self, trial: Trial, app: LoadedApp, entropy: _Entropy, output: _Output) -> None:
        self.trial, self.app, self.entropy, self.seen = trial, app, entropy, Seen()
        self.output = output
        self.seen.mods = [_settings(mod) for mod in app._mods]
        self.sent: Arrays = {}
        self.trained: dict[Unit, Arrays] = {}
        self.strategies: list[Any] = []
        self.ended = False
        self._average: Any = None
        self._make_private: Any = None
        self._round = 0

        def noisy_average(strategy: BoundedSumStrategy, *arguments: Any) -> Any:
            self._average = _noisy_average(strategy, *arguments)
            return self._average

        setattr(BoundedSumStrategy, "noisy_average", noisy_average)  # noqa: B010

    def begin_round(self, sent: Arrays) -> None:
        """Take the model that a round sends out; it is what the last round released, if nobody else said so."""
        if self.sent and len(self.seen.steps) < self._round:
            self._add_step({name: _difference(sent[name], value) for name, value in self.sent.items()})
        self.sent = sent
        if not self.seen.start:
            self.seen.start = sent
        self._round += 1
        self.seen.cohorts.append([])
        self.seen.replies = {}

    def look_for_strategy(self) -> None:
        """Watch the strategy that is at work, and each that starts after it."""
        strategy = _strategy_on_stack(at_hand=not self.strategies)
        if strategy is not None and all(strategy is not known for known in self.strategies):
            self._watch(strategy)

    def answer(self, function: Any, message: Message, context: Context) -> Message:
        """Return what a user answers."""
        kind = message.metadata.message_type.partition(".")[0]
        unit = _unit(message, context)
        if kind == "evaluate" and self._round > self.trial.real and unit[0] in self.app.measured:
            return Message(self.app.measured[unit[0]], reply_to=message)
        if kind != "train" or not message.content.array_records:
            reply = function(message, context)
            if kind != "evaluate":
                self.seen.asked.add(message.metadata.message_type)
            elif not reply.has_error():
                self.app.measured[unit[0]] = reply.content
            return reply
        self.seen.cohorts[-1].append(unit)
        return self._trained(function, message, context, unit)

    def _trained(self, function: Any, message: Message, context: Context, unit: Unit) -> Message:
        attacked = unit == self.trial.target
        answer = self.trial.attacked if attacked else self.trial.others
        sent = _arrays(next(iter(message.content.array_records.values())))
        if answer.kind == "fail":
            raise ValueError(PRIVATE_TEXT)
        known = self.trial.target if answer.kind == "same" and self.trial.target in self.app.own else unit
        if self._round <= self.trial.real or known not in self.app.own:
            self._train(function, message, context, unit, sent)
            known = unit
        update, beside = self.app.own[known]
        arrays = moved(sent, answer, update)
        self.trained[unit[0], ""] = arrays
        factor = self.trial.weight if attacked else 1.0
        model = ArrayRecord({name: Array(value) for name, value in arrays.items()})
        content = {
            name: model if isinstance(record, ArrayRecord) else _weighed(name, record, factor)
            for name, record in beside.items()
        }
        return Message(RecordDict(content), reply_to=message)

    def _train(self, function: Any, message: Message, context: Context, unit: Unit, sent: Arrays) -> None:
        """Let the app's own function train, and keep what it returned."""
        self._watch_opacus()
        try:
            reply = function(message, context)
        except Exception as error:
            self.seen.error = self.seen.error or cause_of(error, self.app._app.path, "node")
            raise
        records = list(reply.content.array_records.items()) if not reply.has_error() else []
        if len(records) != 1 or list(records[0][1]) != list(sent):
            self.seen.error = self.seen.error or ("node", "its nodes do not return the model that they get")
            raise ValueError("no model")
        update = {name: _difference(value, sent[name]) for name, value in _arrays(records[0][1]).items()}
        beside = RecordDict({**reply.content, records[0][0]: ArrayRecord()})
        self.app.own[unit] = self.seen.own[unit] = (update, beside)

    def _watch_opacus(self) -> None:
        """Note whether a node trains with Opacus: an app that imports it may but use its accountant."""
        kind: Any = getattr(sys.modules.get("opacus.optimizers"), "DPOptimizer", None)
        if kind is None or self._make_private is not None:
            return
        make = self._make_private = kind.__init__

        def noted(optimizer: Any, *arguments: Any, **named: Any) -> None:
            self.seen.opacus = True
            make(optimizer, *arguments, **named)

        kind.__init__ = noted

    def _watch(self, strategy: Any) -> None:
        self.strategies.append(strategy)
        measure = strategy.aggregate_evaluate
        step = "aggregate_train" if isinstance(strategy, Strategy) else "aggregate_fit"
        aggregate = getattr(strategy, step)

        def aggregate_train(server_round: int, replies: Iterable[Any], *failures: Any) -> Any:
            answered = list(replies)
            if len(self.seen.cohorts) == len(self.seen.steps):  # nobody was asked
                self.seen.cohorts.append([])
                self._round += 1
            if self.trial.rounds == 0:
                raise _Enough
            if self.trial.steady:
                seed_all(self.trial.seed * 1000 + self._round + self.trial.noise * 10**9)
                self.entropy.restart(f"aggregate {self._round} {self.trial.noise}")
            arrays, metrics = aggregate(server_round, answered, *failures)
            self._released(arrays, metrics)
            return arrays, metrics

        def aggregate_evaluate(server_round: int, replies: Iterable[Any], *failures: Any) -> Any:
            answer = measure(server_round, list(replies), *failures)
            metrics = {"loss": answer[0], **answer[1]} if isinstance(answer, tuple) else answer
            for of_round in self.seen.metrics[-1:]:  # none where no round came to an end
                of_round |= {f"evaluate {name}": value for name, value in _numbers(metrics).items()}
            return answer

        setattr(strategy, step, aggregate_train)
        strategy.aggregate_evaluate = aggregate_evaluate

    def _released(self, arrays: ArrayRecord | Parameters | None, metrics: Mapping[str, object] | None) -> None:
        if self._average is not None:
            step: Arrays = {"average": np.array(self._average, np.float64)}
            self._average = None
        elif arrays is None:
            step = {name: np.zeros(value.shape) for name, value in self.sent.items()}
        else:
            new = older_api.named_arrays(arrays) if isinstance(arrays, Parameters) else _arrays(arrays)
            step = {name: _difference(new[name], value) for name, value in self.sent.items() if name in new}
            self.sent = new
        self._add_step(step, _numbers(metrics))

    def _add_step(self, step: Arrays, metrics: dict[str, float] | None = None) -> None:
        self.seen.steps.append(step)
        self.seen.metrics.append(metrics or {})
        self.output.mark(f"{ROUND_ENDS}{len(self.seen.steps)}")
        if self.trial.rounds is not None and len(self.seen.steps) >= self.trial.rounds:
            raise _Enough

    def finish(self) -> None:
        """Read what can be read of the strategies at the end."""
        layers = [layer for strategy in self.strategies for layer in _layers(strategy)]
        self.seen.strategy = [_settings(layer) for layer in layers]
        for layer in layers:
            with contextlib.suppress(Exception):
                if type(layer).__module__.startswith("fl_sim.flower"):
                    self.seen.stated = float(layer.epsilon())
                elif getattr(layer, "accountant", None) is not None:
                    self.seen.stated = float(layer.accountant.get_privacy_spent().epsilon)


class _WatchedGrid(InlineGrid):
    """Tell a stage of requests and replies."""

    def __init__(self, stage: _Stage, client: ClientApp, nodes: int, config: UserConfig) -> None:
        super().__init__(client, nodes, config)
        self._stage = stage
        self._polls = 0

    def get_node_ids(self) -> Iterable[int]:
        self._stage.look_for_strategy()
        is_older = any(isinstance(one, OlderStrategy) for one in self._stage.strategies)
        if is_older and threading.current_thread() is not threading.main_thread():
            raise RunNotRunningException  # ends the older API's thread, which asks every five seconds
        self._polls += not is_older
        if self._polls > _POLLS:
            raise MissingNodes(_wanted_nodes())
        target = self._stage.trial.target
        gone = self._stage.trial.absent and target is not None and not target[1]
        return [
            node
            for node, context in self._contexts.items()
            if not (gone and target is not None and context.node_config["partition-id"] == target[0])
        ]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self._stage.look_for_strategy()
        self._polls = 0
        sent = list(messages)
        training = [m for m in sent if m.metadata.message_type.startswith("train") and m.content.array_records]
        if training:
            self._stage.begin_round(_arrays(next(iter(training[0].content.array_records.values()))))
        return super().push_messages(sent)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return [reply for sent in self.push_messages(messages) for reply in self.pull_messages([sent])]

    def _answer(self, message: Message) -> Message:
        stage, node = self._stage, message.metadata.dst_node_id
        purpose = f"{stage.trial.seed} node {node} {stage._round}"
        with own_generators(purpose.encode()), stage.output.of_nodes():  # nodes are other processes than the server
            if stage.trial.steady:
                stage.entropy.restart(purpose)
            reply = copy.deepcopy(super()._answer(copy.deepcopy(message)))  # as a network does: nothing is shared
        if not reply.has_error() and stage.seen.cohorts and message.metadata.message_type.startswith("train"):
            unit = (int(self._contexts[node].node_config["partition-id"]), "")
            seen = stage.seen.replies.get(unit, {})  # of this round's earlier replies, where a protocol has several
            stage.seen.replies[unit] = seen | _reply(reply, stage.sent, stage.trained.pop(unit, None))
        return reply


class _Entropy:
    """Stand in for the randomness of the operating system, so that a trial can be repeated."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.restart("start")
        os.urandom = random._urandom = self.bytes  # type: ignore[attr-defined]
        secrets.token_bytes = lambda nbytes=None: self.bytes(32 if nbytes is None else nbytes)

    def restart(self, purpose: object) -> None:
        self._generator = np.random.default_rng([self._seed, *hashlib.sha256(str(purpose).encode()).digest()[:8]])

    def bytes(self, size: int) -> bytes:
        return self._generator.bytes(size)


def cause_of(error: BaseException, folder: Path, kind: str) -> tuple[str, str]:
    """Return what ended a trial, without the text of an exception, which may quote data."""
    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and cause not in chain:
        chain.append(cause)
    for each in chain:
        if isinstance(each, OwnServer):
            return "absent", f"it has a server of its own ({each}); allowed: Flower's Server, or the message API"
        if isinstance(each, NoNetwork | ConnectionError) or "Offline" in type(each).__name__:
            return "absent", "it needs the network, or data that is not on this machine"
        if isinstance(each, ModuleNotFoundError):
            return "absent", f"it imports {each.name}, which is not installed"
        if isinstance(each, FileNotFoundError):
            return "absent", f"it needs {each.filename}, which is not there"
    place = ""
    for each in reversed(chain):
        for frame, line in traceback.walk_tb(each.__traceback__):
            file = Path(frame.f_code.co_filename)
            if file.is_relative_to(folder):
                place = f" at {file.relative_to(folder)}:{line}"
    return kind, f"{type(error).__name__}{place}"


def _forbid_network() -> None:
    def refuse(*arguments: Any, **named: Any) -> Any:
        raise NoNetwork("the network")

    connect = socket.socket.connect

    def local_only(self: socket.socket, address: Any) -> Any:
        return connect(self, address) if self.family == socket.AF_UNIX else refuse()

    setattr(socket.socket, "connect", local_only)  # noqa: B010
    socket.getaddrinfo = refuse
    socket.create_connection = refuse


class _Output:
    """Send what is printed and logged into a file of the server's, and of the nodes' while they work."""

    def __init__(self, server: Path, nodes: Path) -> None:
        self._paths = server, nodes
        self._server, self._nodes = (path.open("w", encoding="utf-8", buffering=1) for path in self._paths)
        for number in (1, 2):
            os.dup2(self._server.fileno(), number)
        FLOWER_LOGGER.setLevel(logging.INFO)
        self._into(self._server)

    @contextlib.contextmanager
    def of_nodes(self) -> Iterator[None]:
        """Send it into the nodes' file."""
        self._into(self._nodes)
        try:
            yield
        finally:
            self._into(self._server)

    def mark(self, words: str) -> None:
        """Write a line into both files."""
        for file in (self._server, self._nodes):
            file.write(f"{words}\n")

    def texts(self) -> tuple[str, str]:
        """Return what the server and the nodes wrote."""
        self._server.flush()
        self._nodes.flush()
        server, nodes = (path.read_text(encoding="utf-8", errors="replace") for path in self._paths)
        return server, nodes

    def _into(self, file: TextIO) -> None:
        sys.stdout = sys.stderr = file
        for handler in [*FLOWER_LOGGER.handlers, *logging.getLogger().handlers]:
            if isinstance(handler, logging.StreamHandler):
                handler.setStream(file)


def _strategy_on_stack(*, at_hand: bool) -> Any:
    """Return the strategy that is sending a request: the one that started, or else, if wanted, one ``at_hand``."""
    found = None
    for frame, _ in traceback.walk_stack(sys._getframe(1)):
        if frame.f_code.co_name == "start" and isinstance(starting := frame.f_locals.get("self"), Strategy):
            return starting
        for value in list(frame.f_locals.values()) if at_hand else ():
            if isinstance(value, Strategy):
                found = value
            elif isinstance(value, LegacyContext) and value.strategy is not None:
                return value.strategy
    return found


def _wanted_nodes() -> int:
    wanted = (frame.f_locals.get("min_available_nodes") for frame, _ in traceback.walk_stack(sys._getframe(1)))
    return next((number for number in wanted if isinstance(number, int)), 0)


def _layers(strategy: Any) -> Iterator[Any]:
    while isinstance(strategy, Strategy | OlderStrategy):
        yield strategy
        strategy = getattr(strategy, "strategy", None) or getattr(strategy, "_wrapped", None)


def _settings(value: Any) -> tuple[str, dict[str, float]]:
    """Return the name of a strategy or mod and its numbers."""
    name = value.__name__ if callable(value) and hasattr(value, "__name__") else type(value).__name__
    own = dict(vars(value)) if hasattr(value, "__dict__") else {}
    if (settings := own.get("settings")) is not None:
        own |= {key: getattr(settings, key) for key in getattr(settings, "__slots__", ())}
    return name, {key: each for key, each in own.items() if isinstance(each, int | float)}


def _unit(message: Message, context: Context) -> Unit:
    names = (str(record["user-id"]) for record in message.content.config_records.values() if "user-id" in record)
    return int(context.node_config["partition-id"]), next(names, "")


def _arrays(record: ArrayRecord) -> Arrays:
    return {name: array.numpy() for name, array in record.items()}


def _difference(new: Any, old: Any) -> Any:
    with np.errstate(invalid="ignore"):
        return np.asarray(new, np.float64) - np.asarray(old, np.float64)


def _weighed(name: str, record: Any, factor: float) -> Any:
    """Return a record with a user's figures multiplied."""
    if not isinstance(record, MetricRecord) and name != older_api.RESULT:
        return record
    return type(record)({key: _times(value, factor) for key, value in record.items()})


def _times(value: Any, factor: float) -> Any:
    if isinstance(value, list):
        return [_times(each, factor) for each in value]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return type(value)(value * factor) if is_number else value


def _numbers(metrics: Mapping[str, object] | None) -> dict[str, float]:
    """Return the numbers among metrics; those of a list by their places.

    >>> _numbers({"losses": [0.5, 0.25], "kind": "mean"})
    {'losses[0]': 0.5, 'losses[1]': 0.25}
    """
    numbers = dict[str, float]()
    for name, value in (metrics or {}).items():
        if isinstance(value, list | tuple):
            numbers |= _numbers({f"{name}[{place}]": each for place, each in enumerate(value)})
        elif isinstance(value, int | float):
            numbers[name] = float(value)
    return numbers


def _reply(reply: Message, sent: Arrays, trained: Arrays | None) -> dict[str, float]:
    """Return the figures of a reply, and the norm of its update: of the one below all mods, where they mask it."""
    content = reply.content
    records: list[Mapping[str, object]]
    records = [*content.metric_records.values(), content.config_records.get(older_api.RESULT, {})]
    figures = {name.replace("_", "-"): value for record in records for name, value in _numbers(record).items()}
    record = next(iter(content.array_records.values()), None)
    model = trained if record is None or list(record) != list(sent) else _arrays(record)
    if model is not None:
        update = flat({name: _difference(value, sent[name]) for name, value in model.items()})
        figures["update norm"] = math.sqrt(float(update @ update))
    return figures
