"""Take the server's step: by a wrapped Flower strategy, or by one of our server optimizers.

The strategy composes the requests (FedProx adds its μ there) and moves the model (FedAdam, FedAvgM …). It sees one
reply a round: the model plus the noisy average of bounded updates. So its step is post-processing, and costs no ε.

>>> WrappedStrategy(FedAvg(fraction_train=0.1))  # doctest: +ELLIPSIS
Traceback (most recent call last):
fl_sim.strategies.primitives.limits.PrivacyError: fraction_train is 0.1; allowed: 1.0, its default: ...
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi, Strategy

from fl_sim.engines.grids import AttendedGrid, GridError
from fl_sim.flower.private_messages import ArrayLayout
from fl_sim.formats import printable
from fl_sim.strategies.postprocessing import ServerOptimizer, ServerOptimizerConfig, build_optimizer
from fl_sim.strategies.primitives.limits import PrivacyError

StrategyState = dict[str, npt.NDArray[np.floating]]

_ONE_REPLY = {one.aggregate_train for one in (FedAvg, FedAdagrad, FedAdam, FedYogi, FedAvgM, FedProx)}
_DEFAULTS = {
    "fraction_train": (1.0, "sampling_rate draws the cohort"),
    "min_train_nodes": (2, "sampling_rate draws the cohort, which may be empty"),
    "weighted_by_key": ("num-examples", "updates are summed unweighted, whatever this metric says"),
}
"""Settings that a private round does not follow, with their only allowed value and the reason."""

_MEAN_METRICS = FedAvg().train_metrics_aggr_fn  # Flower's default, which needs no metric

_AVAILABLE = 2  # Flower's default of min_available_nodes: a single node may hold all users

_TRAINED = "_fl_sim_trained"
"""The attribute that marks a strategy, and copies of it, as one that a private round has moved."""


class WrappedStrategy:
    """Move the model by a Flower strategy that sees one reply a round.

    Args:
        strategy: FedAvg, FedAvgM, FedProx, FedAdam, FedAdagrad, FedYogi, or a strategy whose class states
            ``aggregates_one_reply = True``.

    Raises:
        PrivacyError: the strategy looks at single replies, or its settings ask for what a private round does not do.
    """

    def __init__(self, strategy: Strategy) -> None:
        one_reply = getattr(strategy, "aggregates_one_reply", False)
        if not one_reply and type(strategy).aggregate_train not in _ONE_REPLY:
            names = "FedAvg, FedAvgM, FedProx, FedAdam, FedAdagrad, FedYogi"
            raise PrivacyError(
                f"strategy is {type(strategy).__name__}, which may look at single replies; allowed: {names}, or a "
                "class with aggregates_one_reply = True"
            )
        for name, (only, reason) in _DEFAULTS.items():
            if (value := getattr(strategy, name, only)) != only:
                raise PrivacyError(f"{name} is {printable(str(value))}; allowed: {only}, its default: {reason}")
        measure = getattr(strategy, "train_metrics_aggr_fn", _MEAN_METRICS)
        if measure is not _MEAN_METRICS:
            raise PrivacyError(
                "train_metrics_aggr_fn is set; allowed: none, because no metrics of training reach the strategy "
                "(forward_metrics=True shows their means)"
            )
        self.strategy = strategy
        self._round = 0
        plain = {key: value for key, value in vars(strategy).items() if isinstance(value, int | float | str)}
        plain.pop(_TRAINED, None)
        named = {"class": f"{type(strategy).__module__}:{self.name}"} | plain
        self._numbers = {key: (type(value), value) for key, value in plain.items()}
        self._settings = {f"strategy.{name}": value for name, value in named.items()}

    @property
    def name(self) -> str:
        """Return the name of the strategy's class."""
        return type(self.strategy).__name__

    def settings(self) -> dict[str, object]:
        """Return the class, numbers and texts that the strategy was configured with, for the run's record."""
        return dict(self._settings)

    def prepare(self, size: int, rounds: int) -> None:
        """Begin a training; a Flower strategy needs no preparation."""

    def attended(self, grid: Grid) -> AttendedGrid:
        """Return a grid with as many nodes as the strategy waits for.

        Raises:
            GridError: they are not there within a minute.
        """
        name = "min_available_nodes"
        wanted = getattr(self.strategy, name, _AVAILABLE)
        try:
            return AttendedGrid(grid, 1 if wanted == _AVAILABLE else int(wanted))
        except GridError as error:
            raise GridError(f"{name} is {wanted}: {error}" if wanted != _AVAILABLE else f"{error}") from error

    def check_new(self, restored: Mapping[str, npt.NDArray[np.floating]] | None = None) -> None:
        """Check that the strategy has nothing of another training, whose releases no ε of this run would count.

        ``restored`` is the state from which a run goes on; None for a run that begins.

        Raises:
            PrivacyError: it keeps arrays, beside those of ``restored``, or has trained.
        """
        known = {path.partition("/")[0] for path in restored or ()}
        kept = sorted({path.partition("/")[0] for path in self._arrays()} - known)
        if kept or getattr(self.strategy, _TRAINED, False):  # it may keep more than a checkpoint has
            words = f" (it keeps {printable(', '.join(kept))})" if kept else ""
            raise PrivacyError(
                f"strategy is a {self.name} that has trained before{words}, and ε would not count that; allowed: a new "
                "one"
            )

    def content(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord) -> RecordDict:
        """Return the content of the request that the strategy would send to every node of its cohort."""
        self._round = server_round
        least = max(getattr(self.strategy, name, 1) for name in ("min_train_nodes", "min_available_nodes"))
        with _quiet():
            messages = self.strategy.configure_train(server_round, arrays, config, cast(Grid, _Crowd(int(least))))
        first = next(iter(messages), None)
        if first is None:
            raise PrivacyError(f"{self.name} asks no node to train; allowed: a strategy that does")
        return first.content

    def stepped(self, content: RecordDict, layout: ArrayLayout, average: npt.NDArray[np.float64]) -> ArrayRecord:
        """Return the next model after the noisy average of the updates, float64 (d,)."""
        key, arrays = next(iter(content.array_records.items()))
        weight = str(getattr(self.strategy, "weighted_by_key", "num-examples"))
        target = layout.vector(arrays)
        target += average
        moved = RecordDict({key: layout.arrays(target), "metrics": MetricRecord({weight: 1})})
        request = Message(content, 0, "train")
        setattr(self.strategy, _TRAINED, True)
        with _quiet():
            stepped, _ = self.strategy.aggregate_train(self._round, [Message(moved, reply_to=request)])
        if stepped is None:
            raise PrivacyError(f"{self.name} returned no model; allowed: a strategy that returns one from one reply")
        if ArrayLayout.of(stepped) == layout:
            return stepped
        return layout.arrays(layout.vector(stepped))  # FedAdam makes doubles of all numbers

    def state(self) -> StrategyState:
        """Return what the strategy keeps from round to round, by name, for a checkpoint.

        It is its attributes that are arrays, records, or lists or mappings of arrays, and the numbers that are not what
        they were when it was new.
        """
        kept = self._arrays()
        for name, value in vars(self.strategy).items():
            if type(value) in _NUMBERS and name != _TRAINED and self._numbers.get(name) != (type(value), value):
                number = np.array(value, np.int64).view(np.float64) if type(value) is int else np.array(float(value))
                kept[f"{name}/{type(value).__name__}/0/"] = number
        return kept

    def _arrays(self) -> StrategyState:
        kept: StrategyState = {}
        for name, value in vars(self.strategy).items():
            kind, arrays = _arrays_of(value)
            kept |= {f"{name}/{kind}/{place}/{key}": array for place, (key, array) in enumerate(arrays.items())}
        return kept

    def restore(self, state: Mapping[str, npt.NDArray[np.floating]]) -> None:
        """Continue from what :meth:`state` returned."""
        parts: dict[tuple[str, str], StrategyState] = {}
        for path in sorted(state, key=lambda path: int(path.split("/", 3)[2])):  # a file may have another order
            name, kind, _, key = path.split("/", 3)
            parts.setdefault((name, kind), {})[key] = state[path]
        for (name, kind), arrays in parts.items():
            setattr(self.strategy, name, _RESTORED[kind](arrays))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Drop what a strategy logs of nodes and replies: it sees none but those that stand for the round's."""
    flower = logging.getLogger("flwr")
    before = flower.level
    flower.setLevel(logging.WARNING)
    try:
        yield
    finally:
        flower.setLevel(before)


class _Crowd:
    """Stand for as many nodes as a strategy waits for: it composes their requests, and nobody gets them."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes

    def get_node_ids(self) -> Iterable[int]:
        return list(range(1, self._nodes + 1))


def _arrays_of(value: Any) -> tuple[str, StrategyState]:
    """Return the kind of container that a strategy keeps arrays in, and the arrays; none for any other value."""
    if isinstance(value, ArrayRecord):
        return "record", {name: array.numpy() for name, array in value.items()}
    if isinstance(value, np.ndarray):
        return "array", {"": value}
    if isinstance(value, dict) and _are_arrays(value.values()):
        return "mapping", {str(name): np.asarray(one) for name, one in value.items()}
    if isinstance(value, list) and _are_arrays(value):
        return "list", {str(number): np.asarray(one) for number, one in enumerate(value)}
    return "", {}


def _are_arrays(values: Iterable[Any]) -> bool:
    """Return whether all values are arrays or numbers of numpy, which arithmetic on arrays of no dimension returns."""
    return all(isinstance(one, np.ndarray | np.generic) for one in values)


_RESTORED: dict[str, Callable[[StrategyState], Any]] = {
    "record": lambda arrays: ArrayRecord({name: Array(array) for name, array in arrays.items()}),
    "array": lambda arrays: arrays[""],
    "mapping": dict,
    "list": lambda arrays: list(arrays.values()),
    "int": lambda arrays: int(arrays[""].view(np.int64)),
    "float": lambda arrays: float(arrays[""]),
    "bool": lambda arrays: bool(arrays[""]),
}
_NUMBERS = (int, float, bool)


class OptimizerStep:
    """Move the model by a server optimizer of ours, in float32; the methods are those of :class:`WrappedStrategy`."""

    def __init__(self, config: ServerOptimizerConfig) -> None:
        self._config = config
        self._optimizer: ServerOptimizer = build_optimizer(config, 0)

    def settings(self) -> dict[str, object]:
        return {f"server_optimizer.{name}": value for name, value in self._config.model_dump(mode="json").items()}

    def prepare(self, size: int, rounds: int) -> None:
        self._optimizer = build_optimizer(self._config, size, rounds)

    def attended(self, grid: Grid) -> AttendedGrid:
        return AttendedGrid(grid)

    def check_new(self, restored: Mapping[str, npt.NDArray[np.floating]] | None = None) -> None:
        """Every training has a new optimizer."""

    def content(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord) -> RecordDict:
        config["server-round"] = server_round  # as Flower's own strategies do
        return RecordDict({"arrays": arrays, "config": config})

    def stepped(self, content: RecordDict, layout: ArrayLayout, average: npt.NDArray[np.float64]) -> ArrayRecord:
        model = layout.vector(content.array_records["arrays"], np.float32)
        return layout.arrays(self._optimizer.stepped(model, average))

    def state(self) -> Mapping[str, npt.NDArray[np.floating]]:
        return self._optimizer.state()

    def restore(self, state: Mapping[str, npt.NDArray[np.floating]]) -> None:
        self._optimizer.restore(state)


ServerStep = WrappedStrategy | OptimizerStep
"""Compose the requests of a round and move the model by the noisy average: post-processing of what was released."""


def step_of(strategy: Strategy | None, optimizer: ServerOptimizerConfig | None) -> ServerStep:
    """Return the server's step; PrivacyError if both are given, or neither."""
    if strategy is not None and optimizer is None:
        return WrappedStrategy(strategy)
    if optimizer is not None and strategy is None:
        return OptimizerStep(optimizer)
    given = "missing" if strategy is None else "given with server_optimizer"
    raise PrivacyError(f"strategy is {given}; allowed: one of strategy and server_optimizer")
