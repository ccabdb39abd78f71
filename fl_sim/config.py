"""A run's configuration: typed, complete, checked before anything starts.

A configuration is a TOML file with the sections below, every key optional. On the command line and in ``flwr run
--run-config`` a key is written ``section.key=value``. Unknown keys and impossible values are :class:`ConfigError`\\ s
that name the key, the value and what is allowed.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from clients.models import ModelSpec
from strategies.baselines import LocalTrainingConfig
from strategies.plan import StrategyName
from strategies.server_optimizer import ServerOptimizerConfig

Rate = Annotated[float, Field(gt=0, le=1)]


class ConfigError(ValueError):
    """A configuration that cannot be run; the message names the key, the value and what is allowed."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class CorpusConfig(_Section):
    """Which text."""

    path: str = Field("bundled", description="a folder made by fl-sim prepare, or the corpus that ships: bundled")
    train_split: str = Field("train", description="the split whose users train")
    held_out_split: str | None = Field(
        None, description="the split on which perplexity is measured; default: validation, else test"
    )


class PrivacyConfig(_Section):
    """The mechanism and its promise. A rate left out takes the strategy's default (docs/configuration.md)."""

    strategy: StrategyName = "uedp"
    q_u: Rate | None = Field(None, description="user sampling rate; uedp 1, user_level 0.05, noiseless 1")
    q_e: Rate | None = Field(None, description="entity sampling rate; uedp 0.5, else 1")
    q_s: Rate | None = Field(None, description="sentence sampling rate; user_level 1, else 0.05")
    clip_norm: float | None = Field(
        None, gt=0, description="c, the L2 clip of a sentence's gradient (uedp) or of a user's update (user_level)"
    )
    user_cap: float | None = Field(None, ge=1, description="ŵ, the user's cap in sentences per round; uedp 5")
    noise_multiplier: float | None = Field(None, gt=0, description="z; the noise on the sum is z·ŵ·c")
    target_epsilon: float | None = Field(None, gt=0, description="find the smallest noise that meets this ε")
    target_unit: Literal["user", "user_entity"] = Field(
        "user_entity", description="whose ε the target and the budget mean (user_entity: 95th percentile reach)"
    )
    epsilon_budget: float | None = Field(None, gt=0, description="stop before this ε would be exceeded")
    delta: float = Field(1e-5, gt=0, lt=1)
    population: int | None = Field(None, ge=1, description="N, the public number of enrolled users; default: all")
    user_sentences: int | Literal["corpus", "unbounded"] = Field(
        "corpus", description="n', the sentences of the protected user: a number, the corpus's largest, or unbounded"
    )

    @model_validator(mode="after")
    def _one_source_of_noise(self) -> PrivacyConfig:
        if self.noise_multiplier is not None and self.target_epsilon is not None:
            raise ValueError("give noise_multiplier or target_epsilon, not both")
        return self


class EvaluationConfig(_Section):
    """How utility is measured."""

    every: int = Field(1, ge=1, description="rounds between two evaluations; the last round always is")
    max_sentences: int = Field(1500, ge=1, description="held-out sentences used, a seeded sample of the split")


class EngineConfig(_Section):
    """Where the rounds are computed."""

    name: Literal["ray", "inline"] = Field("ray", description="Flower on Ray, or one process without Ray")
    nodes: int | None = Field(None, ge=1, description="SuperNodes; default: one per worker")
    cpus_per_node: int = Field(1, ge=1, description="CPU cores that Ray reserves for a working node")
    gpus_per_node: float = Field(0.0, ge=0, description="GPUs that Ray reserves for a working node; may be a fraction")
    num_cpus: int | None = Field(None, ge=1, description="CPU cores that Ray may use; default: all")
    num_gpus: int | None = Field(None, ge=0, description="GPUs that Ray may use; default: all")
    address: str | None = Field(None, description="an existing Ray cluster, such as auto or 10.0.0.1:6379")
    timeout: float = Field(3600.0, gt=0, description="seconds after which an unanswered node counts as failed")

    @model_validator(mode="after")
    def _cluster_owns_its_size(self) -> EngineConfig:
        if self.address is not None and (self.num_cpus is not None or self.num_gpus is not None):
            raise ValueError("with address the cluster decides num_cpus and num_gpus; leave them out")
        return self


class RunConfig(_Section):
    """Everything a run depends on."""

    seed: int = Field(0, ge=0)
    rounds: int = Field(30, ge=1)
    out: str | None = Field(None, description="the run's folder; default: a new one under runs/")
    checkpoint_every: int = Field(1, ge=1, description="rounds between two checkpoints")
    corpus: CorpusConfig = CorpusConfig()
    model: ModelSpec = ModelSpec()
    privacy: PrivacyConfig = PrivacyConfig()
    server: ServerOptimizerConfig = ServerOptimizerConfig()
    local: LocalTrainingConfig = LocalTrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    engine: EngineConfig = EngineConfig()

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> RunConfig:
        """Validate nested or dotted keys; dashes in keys are underscores (Flower's habit)."""
        try:
            return cls.model_validate(_nested(values))
        except ValidationError as error:
            raise ConfigError(_explain(error)) from error

    @classmethod
    def load(cls, path: str | Path | None, overrides: Mapping[str, Any] | None = None) -> RunConfig:
        """The configuration of a TOML file (or the defaults) with ``section.key`` overrides on top."""
        values = read_toml(path) if path is not None else {}
        return cls.from_mapping(_merge(_nested(values), _nested(overrides or {})))


def read_toml(path: str | Path) -> dict[str, Any]:
    """The tables of a TOML file; :class:`ConfigError` names file and position of a mistake."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"configuration {path}: {reason}") from error


def parse_assignments(assignments: Sequence[str]) -> dict[str, Any]:
    """``section.key=value`` words as a mapping; a value that is not TOML is taken as text."""
    values: dict[str, Any] = {}
    for assignment in assignments:
        key, separator, text = assignment.partition("=")
        if not separator or not key.strip():
            raise ConfigError(f"setting '{assignment}' is not of the form section.key=value")
        values[key.strip()] = parse_value(text.strip())
    return values


def parse_value(text: str) -> Any:
    """A TOML scalar, or the text itself where it is none."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in values.items():
        *sections, name = key.replace("-", "_").split(".")
        table = nested
        for section in sections:
            table = table.setdefault(section, {})
            if not isinstance(table, dict):
                raise ConfigError(f"configuration key '{key}': '{section}' is not a section")
        item = _nested(value) if isinstance(value, Mapping) else value
        if isinstance(item, dict) and isinstance(table.get(name), dict):
            item = _merge(table[name], item)
        table[name] = item
    return nested


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _explain(error: ValidationError) -> str:
    """All mistakes of a configuration in one line."""
    lines = []
    for mistake in error.errors():
        key = ".".join(str(part) for part in mistake["loc"]) or "configuration"
        if mistake["type"] == "extra_forbidden":
            lines.append(f"'{key}' is not a configuration key; {_known_keys(mistake['loc'])}")
        elif mistake["type"] == "value_error":
            lines.append(f"{key}: {mistake['ctx']['error']}")
        else:
            lines.append(f"{key} is {mistake['input']!r}; allowed: {_allowed(mistake['msg'])}")
    return "; ".join(lines)


def _allowed(message: str) -> str:
    return message.removeprefix("Input should be ").replace("Input should be a", "a").replace("valid ", "")


def _known_keys(location: tuple[int | str, ...]) -> str:
    section: Any = RunConfig
    for part in location[:-1]:
        section = section.model_fields[str(part)].annotation
    where = ".".join(str(part) for part in location[:-1])
    return f"known{' in ' + where if where else ''}: {', '.join(sorted(section.model_fields))}"


def user_sentence_bound(setting: int | str, largest: int) -> float:
    """n' as a number, for the corpus whose largest user owns ``largest`` sentences."""
    if setting == "unbounded":
        return math.inf
    return float(largest if setting == "corpus" else setting)
