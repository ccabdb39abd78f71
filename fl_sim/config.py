"""The configuration of a run: typed, complete, and checked before the run starts.

A configuration is a TOML file with the sections below, every key optional. On the command line and in ``flwr run
--run-config`` a key is written ``section.key=value``. An unknown key or an impossible value raises
:class:`ConfigError`, which names the key, the value and what is allowed.

>>> config = RunConfig.from_mapping({"rounds": 5, "privacy.target_epsilon": 2.0})
>>> config.rounds, config.privacy.target_epsilon, config.engine.name
(5, 2.0, 'ray')
>>> RunConfig.from_mapping({"rounds": 0})
Traceback (most recent call last):
fl_sim.config.ConfigError: rounds is 0; allowed: an integer in [1, 100000]
"""

from __future__ import annotations

import functools
import math
import numbers
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializationInfo,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from fl_sim import config_keys
from fl_sim.clients.models.model_names import TaskName
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.config_keys import Key
from fl_sim.files import read_bytes
from fl_sim.formats import first_mistake
from fl_sim.plugins import PluginError
from fl_sim.settings_origin import Origin
from fl_sim.strategies.mechanism import LocalTrainingConfig
from fl_sim.strategies.postprocessing import AveragingConfig, ServerOptimizerConfig
from fl_sim.strategies.privacy_config import PrivacyConfig, Text
from fl_sim.strategies.registry import STRATEGIES, built_in_strategies, load_strategy, target_unit
from fl_sim.strategies.uedp import UserEntityConfig


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class TrackingConfig(_Section):
    """Where the trackers among ``observers`` write."""

    project: Text = Field("fl_sim", description="the project of Weights & Biases and the experiment of MLflow")
    mlflow_uri: Text | None = Field(
        None,
        description="MLflow's tracking URI, such as `sqlite:///mlflow.db` or `https://…`; default: MLFLOW_TRACKING_URI "
        "if it is set, else a database in the run's folder",
    )
    wandb_mode: Literal["offline", "online"] | None = Field(
        None,
        description="whether Weights & Biases sends figures to its server; default: WANDB_MODE if it is set, else "
        "`offline`",
    )
    timeout: float = Field(
        60.0, gt=0, le=3600, description="seconds that Weights & Biases or MLflow may take for an answer"
    )


def _share(value: float, smallest: float) -> float:
    """Refuse a fraction below the smallest, and a part of one beyond the first."""
    if not (smallest <= value <= 1 or (value > 1 and value.is_integer())):
        raise PydanticCustomError("share", "not a share")
    return value


# Ray divides a GPU into ten thousand parts, and gives several only whole.
GpuShare = Annotated[
    float,
    AfterValidator(lambda value: value and _share(value, 1e-4)),
    Field(json_schema_extra={"allowed": "0, a fraction of at most 1, or whole GPUs"}),
]
# A worker's threads are whole, and ten processes a core gain nothing more.
CpuShare = Annotated[
    float,
    AfterValidator(lambda value: value if _share(value, 0.1) < 1 else int(value)),
    Field(json_schema_extra={"allowed": "a fraction from 0.1 to 1, or whole cores"}),
]
# Wide enough for any run that makes sense, narrow enough that accounting, seeds and messages stay exact and quick.
_MOST_ROUNDS = 100_000
LARGEST_SEED = 2**63 - 1

CONFIGURATIONS = Path(__file__).parent / "conf"
"""The folder of the configurations that ship: one per documented result, and those of figures in ``figures/``."""


class ConfigError(ValueError):
    """A configuration that cannot be run; the message names the key, the value and what is allowed."""


class CorpusConfig(_Section):
    """The corpus and its splits."""

    path: Text = Field(
        "bundled",
        description="a folder made by `fl-sim prepare`, or a corpus that ships: `bundled`, made-up users, or `irc`, "
        "users of the Ubuntu channel",
    )
    train_split: Text = Field("train", description="the split whose users train")
    held_out_split: Text | None = Field(
        None, description="the split on which utility is measured; default: `validation`, else `test`"
    )
    feature_cache: Text | None = Field(
        None,
        description="a folder that keeps a frozen encoder's features, or the states of frozen lower layers "
        "(model.lora_layers), for other runs; they are as private as the text; default: the run's folder, removed at "
        "the end",
    )


def _strategy_of(privacy: Mapping[str, object]) -> str | None:
    """Return the name of the strategy in a table ``[privacy]``; None if it is no name."""
    name = privacy.get("strategy", PrivacyConfig.model_fields["strategy"].default)
    return name if isinstance(name, str) and name else None


def _read_by_its_strategy(values: object) -> object:
    """Return ``[privacy]`` as the ``Config`` of its strategy, which declares the keys that the strategy reads.

    A key that only other strategies read may have its default, as in a configuration whose strategy was replaced.
    """
    if not isinstance(values, Mapping):
        return values
    name = _strategy_of(values)
    if name is None:
        return values
    try:
        config = load_strategy(name).Config
    except PluginError as error:
        raise ValueError(f"privacy.{error}") from error
    others = {
        key: field.default
        for other in built_in_strategies().values()
        for key, field in other.Config.model_fields.items()
    }
    unread = {key for key, default in others.items() if key not in config.model_fields and values.get(key) == default}
    return config.model_validate({key: value for key, value in values.items() if key not in unread}, strict=True)


class EvaluationConfig(_Section):
    """The measurement of utility."""

    every: int = Field(1, ge=1, description="rounds between two evaluations; the last round is always evaluated")
    max_sentences: int = Field(1000, ge=1, description="held-out sentences used, a seeded sample of the split")


class EngineConfig(_Section):
    """The engine that computes the rounds."""

    name: Literal["ray", "inline"] = Field("ray", description="Flower's simulation on Ray, or one process without Ray")
    nodes: int | None = Field(
        None, ge=1, description="SuperNodes, at most the corpus's users; default: one per worker (inline: one)"
    )
    cpus_per_node: CpuShare = Field(
        1,
        description="CPU cores that Ray reserves for a worker, which computes with as many threads, at least one: 0.5 "
        "lets two share a core",
    )
    gpus_per_node: GpuShare | None = Field(
        None,
        description="GPUs that Ray reserves for a worker, so that 0.25 lets four share one; default: 1 if model.device "
        "is a GPU, else 0",
    )
    server_device: Text | None = Field(
        None,
        description="where the server evaluates the model: `cpu`, or model.device, of which it then reserves as large "
        "a share as a worker; default: `cpu` with Ray, model.device with inline",
    )
    num_cpus: int | None = Field(None, ge=1, description="CPU cores that Ray may use; default: all")
    num_gpus: int | None = Field(None, ge=0, description="GPUs that Ray may use; default: all")
    address: Text | None = Field(None, description="an existing Ray cluster, such as `auto` or `10.0.0.1:6379`")
    timeout: float = Field(3600.0, gt=0, description="seconds after which an unanswered node counts as failed")

    @property
    def threads_per_node(self) -> int:
        """Return with how many threads a worker of Ray computes."""
        return max(1, int(self.cpus_per_node))

    @model_validator(mode="after")
    def _cluster_owns_its_size(self) -> EngineConfig:
        for name in ("num_cpus", "num_gpus"):
            if self.address is not None and getattr(self, name) is not None:
                raise ValueError(
                    f"engine.{name} is {getattr(self, name)} and engine.address is '{self.address}'; allowed: one of "
                    "them, because a running cluster has a fixed size"
                )
        return self


def _split_at_commas(value: Any) -> Any:
    """Return the parts of a text between commas: Flower's command line takes no lists."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


class RunConfig(_Section):
    """All settings of a run."""

    seed: int = Field(0, ge=0, le=LARGEST_SEED, description="root of every random draw: the same seed, the same run")
    task: TaskName = Field(
        "next-word",
        description="what the model predicts: every next word, or the class of a sentence (of a corpus with classes)",
    )
    rounds: int = Field(30, ge=1, le=_MOST_ROUNDS, description="T, the number of rounds")
    out: Text | None = Field(None, description="the run's folder, new or empty; default: a new one under `runs/`")
    anchor: Text | None = Field(
        None,
        description="a file outside the run's folder that keeps the head hash of its ledger, so that `resume` notices "
        "older copies of the folder and copies that went on; `none` keeps nothing; default: with secure_noise, a file "
        "in the user's state folder, if it can be written",
    )
    checkpoint_every: int | None = Field(
        None,
        ge=1,
        description="rounds between two checkpoints; the last round always has one; default: 1, and for a large model "
        "with seeded noise as many as keep what is written to half a GiB a round",
    )
    observers: Annotated[tuple[Text, ...], BeforeValidator(_split_at_commas)] = Field(
        (),
        description="observers, called with the row of every round: the trackers `tensorboard`, `wandb`, `mlflow` and "
        "`csv` (docs/report.md), names of entry points, or import paths such as `my_module:MyObserver`; also one "
        "text, separated by commas (docs/extending.md)",
    )
    origin: dict[str, object] = Field(
        {},
        description="the public text that settings were tuned on, as `fl-sim plan trials` writes it, for the record: "
        "no release depends on it, but a run on that text is refused (docs/settings.md)",
    )
    corpus: CorpusConfig = CorpusConfig()
    model: ModelSpec = ModelSpec()
    privacy: Annotated[SerializeAsAny[PrivacyConfig], BeforeValidator(_read_by_its_strategy)] = UserEntityConfig()
    server: ServerOptimizerConfig = ServerOptimizerConfig()
    averaging: AveragingConfig = AveragingConfig()
    local: LocalTrainingConfig = LocalTrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    tracking: TrackingConfig = TrackingConfig()
    engine: EngineConfig = EngineConfig()

    @model_validator(mode="after")
    def _origin_is_whole(self) -> RunConfig:
        try:
            if self.origin:
                Origin.model_validate(self.origin)
        except ValidationError as error:
            raise ValueError(f"origin.{first_mistake(error)}; allowed: what fl-sim plan trials writes") from error
        return self

    @model_validator(mode="after")
    def _workers_have_devices_of_their_own(self) -> RunConfig:
        device, engine = self.model.device, self.engine
        if engine.server_device not in (None, "cpu", device):
            raise ValueError(
                f"engine.server_device is '{engine.server_device}' and model.device is '{device}'; "
                f"allowed: {'cpu' if device == 'cpu' else f'cpu or {device}'}"
            )
        if engine.name != "ray" or device == "cpu":
            return self
        kind, _, index = device.partition(":")
        if index not in ("", "0"):
            raise ValueError(
                f"model.device is '{device}' and engine.name is ray; allowed: {kind}, because a worker sees only the "
                f"GPU that Ray reserved for it, or engine.name = 'inline'"
            )
        if engine.gpus_per_node == 0:
            raise ValueError(
                f"engine.gpus_per_node is 0 and model.device is '{device}'; allowed: a share above 0, because workers "
                "without one would all use the first GPU"
            )
        return self

    @model_validator(mode="after")
    def _default_share_stays_open(self) -> RunConfig:
        """Take a stated share that is the default as the default, so that a record reads as the run's configuration."""
        if self.engine.gpus_per_node != self._default_share:
            return self
        return self.model_copy(update={"engine": self.engine.model_copy(update={"gpus_per_node": None})})

    @property
    def _default_share(self) -> float:
        return float(self.engine.name == "ray" and self.model.device != "cpu")

    @property
    def placed_engine(self) -> EngineConfig:
        """The engine with the defaults that depend on the model's device: the share of a GPU, the server's device.

        >>> RunConfig.from_mapping({"model.device": "cuda"}).placed_engine.gpus_per_node
        1.0
        """
        engine = self.engine
        share = self._default_share if engine.gpus_per_node is None else engine.gpus_per_node
        device = engine.server_device or ("cpu" if engine.name == "ray" else self.model.device)
        return engine.model_copy(update={"gpus_per_node": share, "server_device": device})

    @property
    def tuned_on(self) -> Origin | None:
        """The public text that settings were tuned on; None if the configuration names none."""
        return Origin.model_validate(self.origin) if self.origin else None

    @model_serializer(mode="wrap")
    def _without_what_is_empty(self, dump: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, object]:
        """Leave out empty observers and origins, and how to track, so that records stay the same for runs without them.

        A record (JSON) states the share of a GPU that a worker had, and the unit of a target or budget; in Python these
        defaults stay open.
        """
        values: dict[str, Any] = dump(self)
        privacy = self.privacy
        aims = privacy.target_epsilon is not None or privacy.epsilon_budget is not None
        if info.mode == "json" and aims and "privacy" in values:
            values["privacy"]["target_unit"] = target_unit(privacy)
        if info.mode == "json" and "engine" in values:
            values["engine"]["gpus_per_node"] = self.placed_engine.gpus_per_node
            if self.engine.server_device is None:
                values["engine"].pop("server_device", None)
        if not self.observers and self.tracking == TrackingConfig():
            values.pop("tracking", None)
        return {name: value for name, value in values.items() if value or name not in ("observers", "origin")}

    @classmethod
    def from_mapping(cls, values: Mapping[str, object]) -> RunConfig:
        """Return the configuration of nested or dotted keys, with ``_`` or ``-``; ConfigError names every mistake."""
        tree = {"privacy": {}} | nested(values)  # the default strategy may be claimed by another package, too
        _check_leaves(tree)
        try:
            # strict: "30" and true are not numbers
            return cls.model_validate(tree, strict=True)
        except ValidationError as error:
            raise ConfigError(_explain(error, tree)) from error

    def changed(self, overrides: Mapping[str, object]) -> RunConfig:
        """Return the configuration with other values for some keys, nested or dotted, as :meth:`load` overrides them.

        >>> RunConfig().changed({"privacy.q_s": 0.05, "rounds": 3}).privacy.q_s
        0.05
        """
        over = nested(overrides)
        return self.from_mapping(merged(_without_rival(self.model_dump(), over), over))

    @classmethod
    def load(cls, path: str | Path | None, overrides: Mapping[str, object] | None = None) -> RunConfig:
        """Return the configuration of a TOML file (or the defaults) with ``section.key`` overrides.

        A name without ending, such as ``irc``, is that of a configuration that ships, unless there is such a file.
        ``noise_multiplier`` among the overrides takes the place of the file's ``target_epsilon``, and vice versa.
        ConfigError names the file where the mistake is in it.
        """
        values: dict[str, object] = {}
        if path is not None:
            values = nested(read_toml(_file_of(path)))
            try:
                cls.from_mapping(values)
            except ConfigError as error:
                raise ConfigError(f"{path}: {error}") from error
        over = nested(overrides or {})
        return cls.from_mapping(merged(_without_rival(values, over), over))


def _file_of(path: str | Path) -> Path:
    """Return the file of a configuration, given as a path or as the name of one that ships.

    Raises:
        ConfigError: it is a bare name, and none that ships.
    """
    given = Path(path)
    if given.suffix or given.parent != Path() or given.is_file():
        return given
    shipped = {file.stem: file for file in sorted(CONFIGURATIONS.glob("*.toml"))}
    if given.name not in shipped:
        raise ConfigError(f"{path}: there is no such file; allowed: a TOML file, or {', '.join(shipped)}, which ship")
    return shipped[given.name]


@functools.cache
def run_keys() -> dict[str, Key]:
    """Return every key of a run's configuration by its full name, section by section.

    Those of the built-in strategies stand after those of every strategy; their meaning begins with the strategies'
    names.
    """
    keys = config_keys.keys_of(RunConfig)
    names = f"{', '.join(STRATEGIES.built_in)}, or an import path such as my_module:MyStrategy"
    keys["privacy.strategy"] = replace(keys["privacy.strategy"], allowed=names)
    for strategy in built_in_strategies().values():
        for name, key in _privacy_keys(strategy.Config).items():
            if name not in keys:
                keys[name] = replace(key, meaning=f"{', '.join(read_by(name))}: {key.meaning}")
    sections = list(dict.fromkeys(name.rpartition(".")[0] for name in keys))
    return dict(sorted(keys.items(), key=lambda item: sections.index(item[0].rpartition(".")[0])))


def read_by(key: str) -> list[str]:
    """Return the names of the built-in strategies that read a key of ``[privacy]``, given with its section."""
    return [name for name, other in built_in_strategies().items() if key in _privacy_keys(other.Config)]


@functools.cache
def _privacy_keys(config: type[PrivacyConfig]) -> dict[str, Key]:
    """Return the keys of ``[privacy]`` under one strategy by their full name."""
    keys = config_keys.keys_of(config)
    return {f"privacy.{name}": replace(key, name=f"privacy.{name}") for name, key in keys.items()}


def read_toml(path: str | Path) -> dict[str, Any]:
    """Return the tables of a TOML file; raise ConfigError with the file and the position of a mistake."""
    try:
        return tomllib.loads(read_bytes(path).decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 (byte {error.start + 1}); allowed: a TOML file in UTF-8") from error
    except OSError as error:
        raise ConfigError(f"{path}: the configuration cannot be read ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:  # Python's own limits on digits and nesting included
        raise ConfigError(f"{path}: not TOML ({error})") from error


def parse_assignments(assignments: Sequence[str]) -> dict[str, object]:
    """Return ``section.key=value`` words as a mapping; raise ConfigError for another form, or a key given twice."""
    values: dict[str, object] = {}
    for assignment in assignments:
        key, separator, text = assignment.partition("=")
        key = _plain(key)
        if not separator or not key:
            raise ConfigError(f"setting '{assignment}' is not understood; allowed: section.key=value")
        add_setting(values, key, text.strip())
    return values


def add_setting(values: dict[str, object], key: str, text: str) -> None:
    """Add the value that ``text`` means under the dotted ``key``, in place; ConfigError if there is another one."""
    value = parse_value(key, text)
    if key in values and values[key] != value:
        raise ConfigError(
            f"{key} is {config_keys.shown(values[key])} and {config_keys.shown(value)}; allowed: one value"
        )
    values[key] = value


def parse_value(key: str, text: str) -> Any:
    """Return the value that ``text`` means for ``key``: text if the key takes any, else a TOML value, else a number."""
    known = run_keys().get(key)
    try:
        tables = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        tables = {}
    if len(tables) == 1 and (isinstance(tables["value"], str) or known is None or not known.is_text):
        return tables["value"]
    if known is None or not known.is_text:
        try:
            return float(text)  # .5 is not TOML
        except ValueError:
            return text
    return text


def _plain(key: str) -> str:
    return key.strip().replace("-", "_")


def nested(values: Mapping[str, object]) -> dict[str, object]:
    """Return dotted or nested keys as nested mappings; raise ConfigError if a key is both a value and a section."""
    tree: dict[str, object] = {}
    for key, value in values.items():
        *sections, name = _plain(key).split(".")
        table = tree
        for section in sections:
            inner = table.setdefault(section, {})
            if not isinstance(inner, dict):
                raise ConfigError(
                    f"'{section}' is {config_keys.shown(inner)}, so '{key}' cannot be set; allowed: one of them"
                )
            table = inner
        item = nested(value) if isinstance(value, Mapping) else _frozen(value)
        table[name] = _merged_values(table.get(name), item)
    return tree


def _frozen(value: Any) -> Any:
    """Return a value as TOML would give it: numbers of NumPy and paths are plain, a list is a tuple."""
    if isinstance(value, list | tuple):
        return tuple(_frozen(item) for item in value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    return value


def merged(base: Mapping[str, object], over: Mapping[str, object]) -> dict[str, object]:
    """Return the values of two nested mappings; those of ``over`` take precedence."""
    return {**base, **{key: _merged_values(base.get(key), value) for key, value in over.items()}}


def _merged_values(base: object, over: object) -> object:
    return merged(base, over) if isinstance(base, dict) and isinstance(over, dict) else over


def _without_rival(values: dict[str, object], over: Mapping[str, object]) -> dict[str, object]:
    """Return ``values`` without noise multiplier and target ε if ``over`` sets one of them."""
    privacy, chosen = values.get("privacy"), over.get("privacy")
    if not isinstance(privacy, dict) or not isinstance(chosen, dict):
        return values
    ways = {"noise_multiplier", "target_epsilon"}
    dropped = ways if ways & chosen.keys() else set()
    return values | {"privacy": {name: value for name, value in privacy.items() if name not in dropped}}


def _check_leaves(values: Mapping[str, object], section: str = "") -> None:
    """Refuse values that no key accepts: infinite numbers, and text that no file name or JSON can hold."""
    for name, value in values.items():
        key = f"{section}{name}"
        if isinstance(value, dict):
            _check_leaves(value, f"{key}.")
        elif isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{key} is {value}; allowed: {_allowed_for(key) or 'a finite number'}")
        elif isinstance(value, str) and re.search("[\0\ud800-\udfff]", value):
            raise ConfigError(f"{key} is {value!r}; allowed: Unicode text without NUL")


def _explain(error: ValidationError, tree: Mapping[str, object]) -> str:
    """Return all mistakes of a configuration, given as nested mappings, in one line, each key once."""
    privacy = tree.get("privacy", {})
    strategy = _strategy_of(privacy) if isinstance(privacy, dict) else None
    lines: dict[str, str] = {}
    for mistake in error.errors():
        where, value = ".".join(str(part) for part in mistake["loc"]), config_keys.shown(mistake["input"])
        key = next((name for name in run_keys() if where == name or where.startswith(f"{name}.")), where)
        if mistake["type"] == "extra_forbidden" and key in run_keys() and where == key:
            value = mistake["input"] if isinstance(mistake["input"], str) else value
            lines[key] = (
                f"{key} is {value} and privacy.strategy is {strategy}; allowed: with {' or '.join(read_by(key))} only"
            )
        elif mistake["type"] == "extra_forbidden":
            lines[key] = _unknown(key, strategy)
        elif mistake["type"] == "value_error":
            lines[key] = str(mistake["ctx"]["error"])
        elif key in config_keys.sections_of(run_keys()):
            lines[key] = f"{key} is {value}; allowed: a section, with keys such as {key}.…"
        else:
            allowed = _allowed_for(key, strategy) or mistake["msg"]
            lines[key] = f"{key} is {value}; allowed: {allowed}"
    return "; ".join(lines.values())


def _allowed_for(key: str, strategy: str | None = None) -> str:
    known = _keys_under(strategy)
    return known[key].allowed if key in known else ""


def _unknown(key: str, strategy: str | None) -> str:
    keys, section = _keys_under(strategy), key.rpartition(".")[0]
    siblings = [name.rpartition(".")[2] for name in keys if name.rpartition(".")[0] == section]
    known = siblings if section else [*siblings, *config_keys.sections_of(keys)]
    guess = config_keys.nearest(key, keys)
    hint = f"did you mean '{guess}'? " if guess else ""
    return f"'{key}' is not a configuration key; {hint}known{f' in {section}' if section else ''}: {', '.join(known)}"


def _keys_under(strategy: str | None) -> dict[str, Key]:
    """Return the keys of a configuration whose strategy may be one of another package; None for the built-in ones."""
    own = {} if strategy is None else _privacy_keys(load_strategy(strategy).Config)
    return run_keys() | {name: key for name, key in own.items() if name not in run_keys()}
