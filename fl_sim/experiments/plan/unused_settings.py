"""Warnings about settings that were changed and have no effect.

>>> idle_settings(RunConfig.from_mapping({"server.optimizer": "adam", "server.momentum": 0.9}))
['server.momentum has no effect: server.optimizer is adam.']
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from fl_sim.clients.models.architectures.model_source import source_of
from fl_sim.config import RunConfig
from fl_sim.strategies.registry import load_strategy

_SIZES = ("hidden", "layers", "heads", "embedding")
_DROPOUT = ("drop_embedding", "drop_input", "drop_hidden", "drop_output", "drop_weight")
_RAY = ("cpus_per_node", "gpus_per_node", "num_cpus", "num_gpus", "address")


def idle_settings(config: RunConfig) -> list[str]:
    """Return one sentence per reason why settings that differ from their default have no effect."""
    return [
        f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} no effect: {reason}."
        for section, fields, reason in _unread(config)
        if (names := _changed(getattr(config, section), section, fields))
    ]


def _unread(config: RunConfig) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Yield sections with their fields that this configuration does not read, and the reason."""
    strategy = config.privacy.strategy
    yield from load_strategy(strategy).unread(strategy, config.local)
    if config.server.optimizer == "adam":
        yield "server", ("momentum",), "server.optimizer is adam"
    else:
        yield "server", ("beta_1", "beta_2", "stabilizer"), "server.optimizer is sgd"
    if config.server.schedule == "constant":
        yield "server", ("final_share",), "server.schedule is constant"
    if config.averaging.kind != "exponential":
        yield "averaging", ("decay",), f"averaging.kind is {config.averaging.kind}"
    if config.averaging.kind != "tail":
        yield "averaging", ("tail",), f"averaging.kind is {config.averaging.kind}"
    if config.privacy.clip_quantile is None:
        yield "privacy", ("clip_learning_rate", "clip_count_noise"), "privacy.clip_quantile is not given"
    read = source_of(config.model.name).settings
    unread = tuple(name for name in _SIZES if name not in read)
    yield "model", unread, f"model.name is {config.model.name}" if read else "model.name has sizes of its own"
    if config.model.dropout == 0:
        yield "model", _DROPOUT, "model.dropout is 0"
    if config.task == "next-word":
        yield "model", ("pooling", "normalize"), "task is next-word"
    keeps_features = config.task == "classification" and config.model.tune == "head"
    if not keeps_features and config.model.lora_layers is None:
        yield "corpus", ("feature_cache",), "the model reads the sentences in every round"
    if config.model.lora_rank == 0:
        yield "model", ("lora_alpha", "lora_targets"), "model.lora_rank is 0"
    if config.engine.name == "inline":
        yield "engine", _RAY, "engine.name is inline"
    if config.privacy.target_epsilon is None and config.privacy.epsilon_budget is None:
        yield "privacy", ("target_unit",), "neither privacy.target_epsilon nor privacy.epsilon_budget is given"


def _changed(values: BaseModel, section: str, fields: tuple[str, ...]) -> list[str]:
    defaults = type(values)()
    return [f"{section}.{name}" for name in fields if getattr(values, name) != getattr(defaults, name)]
