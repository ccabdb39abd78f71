"""The configuration of a run: typed, complete, and checked before the run starts.

A configuration is a TOML file with the sections below, every key optional. On the command line and in ``flwr run
--run-config`` a key is written ``section.key=value``. An unknown key or an impossible value raises
:class:`ConfigError`, which names the key, the value and what is allowed.

>>> TrackingConfig().wandb_mode is None, TrackingConfig().timeout
(True, 60.0)

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
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializationInfo,
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
from fl_sim.plugins import PluginError
from fl_sim.settings_origin import Origin
from fl_sim.strategies.accounting.guarantee import BoundRule, MentionGraph, NoiseScale
from fl_sim.strategies.mechanism import LocalTrainingConfig, Mechanism
from fl_sim.strategies.postprocessing import AveragingConfig, ServerOptimizerConfig
from fl_sim.strategies.primitives.limits import (
    MOST_EPOCH_ROUNDS,
    SMALLEST_CLIP,
    SMALLEST_DELTA,
    SMALLEST_RATE,
    SMALLEST_STABILITY,
    PrivacyError,
    is_rate,
)
from fl_sim.strategies.registry import STRATEGIES, built_in_strategies, load_strategy
from fl_sim.strategies.uedp import GradientClipping

_Text = Annotated[str, Field(min_length=1)]


class TrackingConfig(BaseModel):
    """Where the trackers among ``observers`` write."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    project: _Text = Field("fl_sim", description="the project of Weights & Biases and the experiment of MLflow")
    folder: _Text | None = Field(
        None,
        description="the folder in which each run has one of its name for what trackers write; default: the run's own",
    )
    mlflow_uri: _Text | None = Field(
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
        60.0,
        gt=0,
        le=3600,
        description="seconds that Weights & Biases or MLflow may take for an answer",
    )


def _rate(value: float) -> float:
    if not is_rate(value):
        raise PydanticCustomError("rate", "not a rate")  # what is shown comes from the schema
    return value


Rate = Annotated[float, AfterValidator(_rate), Field(json_schema_extra={"minimum": SMALLEST_RATE, "maximum": 1})]


def _gpu_share(value: float) -> float:
    """Refuse what Ray cannot reserve: it divides a GPU into ten thousand parts, and gives several only whole."""
    if not (value == 0 or _SMALLEST_SHARE <= value <= 1 or (value > 1 and value.is_integer())):
        raise PydanticCustomError("gpu_share", "not a share of a GPU")
    return value


_SMALLEST_SHARE = 1e-4
GpuShare = Annotated[
    float, AfterValidator(_gpu_share), Field(json_schema_extra={"allowed": "0, a fraction of at most 1, or whole GPUs"})
]
Epsilon = Annotated[float, Field(gt=0)]
UserSampling = Literal["poisson", "random_allocation"]
WeightCap = Annotated[float | None, Field(gt=0, le=1e9)]
Text = Annotated[str, Field(min_length=1)]

# Wide enough for any run that makes sense, narrow enough that accounting, seeds and messages stay exact and quick.
_MOST_ROUNDS = 100_000
_MOST_PEOPLE = 10**12
_MOST_SENTENCES = 10**9
_LARGEST_SEED = 2**63 - 1


class ConfigError(ValueError):
    """A configuration that cannot be run; the message names the key, the value and what is allowed."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


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


class PrivacyConfig(_Section):
    """The strategy and its guarantee. A key that is left out takes the strategy's default."""

    strategy: Text = Field(
        "uedp",
        description="the mechanism (docs/privacy.md)",
        json_schema_extra={
            "allowed": f"{', '.join(STRATEGIES.built_in)}, or an import path such as my_module:MyStrategy"
        },
    )
    q_u: Rate | None = Field(None, description="the probability that a user is sampled in a round")
    sampling: UserSampling = Field(
        "poisson",
        description="user_level: users are sampled independently in every round (`poisson`), or each takes part in one "
        "round of every epoch, chosen uniformly (`random_allocation`), which gives a smaller ε",
    )
    epoch_rounds: int | None = Field(
        None,
        ge=1,
        le=MOST_EPOCH_ROUNDS,
        description="t of random_allocation, the rounds of an epoch; q_u is 1/t",
    )
    q_e: Rate | None = Field(None, description="the probability that an entity is sampled in a round; 1 in user_level")
    q_s: Rate | None = Field(None, description="the probability that a sentence is sampled in a round; 1 in user_level")
    clip_norm: float | None = Field(
        None,
        ge=SMALLEST_CLIP,
        le=1e6,
        description="c, the L2 clip of a sentence's gradient (uedp) or of a user's update (user_level, published: β)",
    )
    user_cap: float | None = Field(
        None, ge=1, le=1e6, description="ŵ, a user's cap in sentences per round: β = ŵ·c; 1 except in uedp"
    )
    clipping: GradientClipping | None = Field(
        None,
        description="uedp: clip every sentence's gradient to c and the user's sum to β (`sentence`, the default), "
        "likewise after scaling every gradient to just below c (`automatic`), or the user's sum alone (`user`), which "
        "gives an entity little protection",
    )
    clip_stability: float | None = Field(
        None,
        ge=SMALLEST_STABILITY,
        le=1e6,
        description="γ of automatic clipping, which makes c·g/(‖g‖ + γ) of a gradient g; default 0.01",
    )
    noise_multiplier: float | None = Field(
        None,
        ge=1e-3,
        le=1e6,
        description="z; the noise on the sum has standard deviation z·ŵ·c (published: that of docs/strategies.md)",
    )
    noise_cohort: int | None = Field(
        None,
        ge=1,
        le=_MOST_PEOPLE,
        description="uedp, user_level: C, the expected users a round of a larger public population, at least q_u·N: "
        "the noise shrinks to q_u·N/C of z·ŵ·c, as if C users took part; every ε is that of the noise really added, "
        "and ε at z is a forecast, which guarantees nothing (docs/settings.md)",
    )
    clip_quantile: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="uedp, user_level: adapt c to this quantile of the norms by a noisy count, which ε covers; "
        "clip_norm is c of the first round",
    )
    clip_learning_rate: float = Field(0.2, gt=0, le=10, description="η of c ← c·exp(−η·(share within c − quantile))")
    clip_count_noise: float = Field(
        5.0,
        gt=1,
        le=1e6,
        description="noise x on the count, as a multiple of the noise that would use the whole budget; the noise on "
        "the sum grows by (1 − 1/x²)^−½",
    )
    estimator: Literal["f_e", "f_e_plus"] | None = Field(
        None,
        description="published: train only on sentences with a sampled entity (`f_e`), or also on sampled sentences "
        "without an entity (`f_e_plus`, the default)",
    )
    noise: NoiseScale | None = Field(
        None,
        description="published: noise of standard deviation σ, as in the paper (the default), or σ², as in its code, "
        "without a guarantee",
    )
    user_weight_cap: WeightCap = Field(
        None, description="published: ŵ_u of w_u = min(n_u/ŵ_u, 1); default: weights of 1"
    )
    entity_weight_cap: WeightCap = Field(
        None, description="published: ŵ_e of w_e = min(n_e/ŵ_e, 1); default: weights of 1"
    )
    extended_weight_cap: WeightCap = Field(
        None, description="published: ŵ_s of w_s = min(|S|/ŵ_s, 1); default: weights of 1"
    )
    entity_weights: float | None = Field(
        None,
        gt=0,
        le=1e12,
        description="published: W_e, a public constant; default: with settings_from_corpus, the sum over the corpus",
    )
    extended_weights: float | None = Field(
        None,
        ge=0,
        le=1e12,
        description="published: W_s, a public constant; default: with settings_from_corpus, the sum over the corpus",
    )
    target_epsilon: Epsilon | None = Field(
        None, description="instead of noise_multiplier: use the smallest noise that meets this ε"
    )
    target_unit: Literal["user", "user_entity"] = Field(
        "user_entity",
        description="the ε of target_epsilon and epsilon_budget: that of any user, or of any user with any entity",
    )
    epsilon_budget: Epsilon | None = Field(None, description="stop before a round would exceed this ε")
    delta: float = Field(1e-5, ge=SMALLEST_DELTA, lt=1, description="δ at which every ε is stated; below 1/N")
    public_names: Text | None = Field(
        None,
        description="a file with a name on each line, made from public text, or `shipped`: entities that are declared "
        "not sensitive; default: none",
    )
    public_weights: Text | None = Field(
        None,
        description="a file with name, tab and weight in (0, 1] on each line, made from public text (`fl-sim "
        "public-weights`): how much a sentence with the name counts; default: 1 for every name",
    )
    entity_key: Text | None = Field(
        None,
        description="a file with a secret key: an entity is sampled by a keyed digest of its normalised name, as nodes "
        "with corpora of their own sample it (docs/flower.md); default: by its id in the corpus",
    )
    population: int | None = Field(
        None,
        ge=1,
        le=_MOST_PEOPLE,
        description="N, the public number of enrolled users, at least the corpus's; default: the corpus's users, "
        "which only a public mention graph makes public",
    )
    mention_graph: MentionGraph = Field(
        "public",
        description="what the two corpora of the guarantee have in common: `public`, the same sentences, owners and "
        "mentions, of which the protected ones are null in one corpus; `private`, only the other sentences",
    )
    entity_bound: Annotated[int, Field(ge=1, le=_MOST_SENTENCES)] | Literal["unbounded"] | None = Field(
        None,
        description="k, the most sentences that mention an entity, or no bound; default: 10 in uedp with a public "
        "mention graph, else no bound",
    )
    entity_users: Annotated[int, Field(ge=1, le=_MOST_PEOPLE)] | None = Field(
        None, description="F, the most users who mention an entity; default: no bound but that of the sentences"
    )
    entity_bound_by: BoundRule | None = Field(
        None,
        description="how the bound on entities holds: `greedy` (the default) leaves sentences out, `weights` samples "
        "the sentences of frequent entities at lower rates, `stated` enforces nothing (the default with a private "
        "mention graph)",
    )
    user_sentences: Annotated[int, Field(ge=1, le=_MOST_SENTENCES)] | Literal["corpus", "unbounded"] | None = Field(
        None,
        description="m, the most sentences of a user, which is enforced; or no bound; or the corpus's largest user, "
        "with settings_from_corpus; default: 32 in uedp with a public mention graph, else no bound",
    )
    missed_mentions: int | None = Field(
        None,
        ge=0,
        le=_MOST_SENTENCES,
        description="the most sentences with an entity that the tagger misses, as stated: ε is given for them, too",
    )
    settings_from_corpus: bool = Field(
        False,
        description="accept settings that were chosen on this corpus, or are read from it; ε does not cover what they "
        "reveal, and record and report say so",
    )

    initial_model: Literal["composed", "disjoint"] = Field(
        "composed",
        description="an initial model that fl_sim trained: every ε is that of both trainings together (`composed`), or "
        "its owner states that it is public or was trained on text that shares no user and no entity with this corpus "
        "(`disjoint`; never checked)",
    )
    secure_noise: bool = Field(
        False,
        description="draw noise and samples from the operating system instead of the seed: the run cannot be repeated, "
        "and a round that is repeated after a crash counts twice in ε",
    )
    options: dict[str, Any] = Field({}, description="the settings of a strategy that is not built in")

    @model_validator(mode="after")
    def _one_source_of_noise(self) -> PrivacyConfig:
        if self.noise_multiplier is not None and self.target_epsilon is not None:
            raise ValueError(
                f"privacy.noise_multiplier is {self.noise_multiplier:g} and privacy.target_epsilon is "
                f"{self.target_epsilon:g}; allowed: one of them, not both"
            )
        return self

    @model_validator(mode="after")
    def _forecasts_alone(self) -> PrivacyConfig:
        """Refuse what would mistake the ε of a larger population for that of the run."""
        if self.noise_cohort is None:
            return self
        if self.secure_noise:
            raise ValueError(
                f"privacy.noise_cohort is {self.noise_cohort} and privacy.secure_noise is true; allowed: one of them, "
                "because a run with a larger population's noise is not for release"
            )
        if self.epsilon_budget is not None:
            raise ValueError(
                f"privacy.noise_cohort is {self.noise_cohort} and privacy.epsilon_budget is {self.epsilon_budget:g}; "
                "allowed: one of them, because the run spends more than the larger population would"
            )
        return self

    @model_validator(mode="after")
    def _settings_fit_the_strategy(self) -> PrivacyConfig:
        try:
            strategy = load_strategy(self.strategy)
            strategy.check_settings(dict(self))
        except (PluginError, PrivacyError) as error:
            raise ValueError(f"privacy.{error}") from error
        self._check_keys(strategy)
        self._check_bounds(strategy)
        config_keys.check_table(strategy.Config, self.options, "privacy.options", self.strategy)
        return self

    def _check_bounds(self, strategy: type[Mechanism]) -> None:
        """Refuse bounds that the strategy or the guarantee cannot keep, and settings that would be private."""
        bounds = {name: getattr(self, name) for name in ("entity_bound", "entity_users", "user_sentences")}
        given = {name: value for name, value in bounds.items() if value not in (None, "unbounded", "corpus")}
        for name, value in given.items() if not strategy.enforces_bounds else ():
            raise ValueError(
                f"privacy.{name} is {value} and privacy.strategy is {self.strategy}, which cannot keep it; "
                "allowed: no bound, or another strategy"
            )
        rule, entity = self.entity_bound_by, given.keys() - {"user_sentences"}
        if self.mention_graph == "private" and rule in ("greedy", "weights"):
            raise ValueError(
                f"privacy.entity_bound_by is {rule} and privacy.mention_graph is private; allowed: stated, because a "
                "rule that looks at other users' mentions reveals them"
            )
        if rule == "weights" and self.entity_users is not None:
            raise ValueError(
                f"privacy.entity_users is {self.entity_users} and privacy.entity_bound_by is weights; allowed: no "
                "entity_users, because every sentence keeps a weight"
            )
        if self.missed_mentions is not None and not (entity or strategy.default_bounds):
            raise ValueError(
                f"privacy.missed_mentions is {self.missed_mentions}; allowed: with privacy.entity_bound only"
            )
        if self.user_sentences == "corpus" and not self.settings_from_corpus:
            raise ValueError(
                "privacy.user_sentences is corpus, the largest user's sentences, which is private; allowed: a number, "
                "unbounded, or privacy.settings_from_corpus = true"
            )
        if self.mention_graph == "private" and self.population is None and not self.settings_from_corpus:
            raise ValueError(
                "privacy.population is not given and privacy.mention_graph is private; allowed: N, the public number "
                "of enrolled users, or privacy.settings_from_corpus = true"
            )

    def _check_keys(self, strategy: type[Mechanism]) -> None:
        """Refuse keys that only other strategies read."""
        shipped = built_in_strategies()
        for name in dict.fromkeys(key for other in shipped.values() for key in other.keys):
            if getattr(self, name) != type(self).model_fields[name].default and name not in strategy.keys:
                readers = " or ".join(other for other in shipped if name in shipped[other].keys)
                raise ValueError(
                    f"privacy.{name} is {getattr(self, name)} and privacy.strategy is {self.strategy}; "
                    f"allowed: with {readers} only"
                )

    @model_serializer(mode="wrap")
    def _without_empty_options(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out empty options, so that records stay the same for strategies without options."""
        values: dict[str, Any] = dump(self)
        return values if self.options else {name: value for name, value in values.items() if name != "options"}


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
    cpus_per_node: int = Field(
        1, ge=1, description="CPU cores that Ray reserves for a worker, which computes with as many threads"
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

    seed: int = Field(0, ge=0, le=_LARGEST_SEED, description="root of every random draw: the same seed, the same run")
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
    origin: dict[str, Any] = Field(
        {},
        description="the public text that settings were tuned on, as `fl-sim tune` writes it, for the record: no "
        "release depends on it, but a run on that text is refused (docs/settings.md)",
    )
    corpus: CorpusConfig = CorpusConfig()
    model: ModelSpec = ModelSpec()
    privacy: PrivacyConfig = Field(default_factory=PrivacyConfig)  # not at import: the default reads entry points
    server: ServerOptimizerConfig = ServerOptimizerConfig()
    averaging: AveragingConfig = AveragingConfig()
    local: LocalTrainingConfig = LocalTrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    tracking: TrackingConfig = TrackingConfig()
    engine: EngineConfig = EngineConfig()

    @model_validator(mode="after")
    def _origin_is_whole(self) -> RunConfig:
        if self.origin:
            config_keys.check_table(Origin, self.origin, "origin", "fl-sim tune")
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
        engine, device = self.engine, self.model.device
        with_ray = engine.name == "ray"
        share = engine.gpus_per_node
        placement = {
            "gpus_per_node": self._default_share if share is None else share,
            "server_device": engine.server_device or ("cpu" if with_ray else device),
        }
        return engine.model_copy(update=placement)

    @property
    def tuned_on(self) -> Origin | None:
        """The public text that settings were tuned on; None if the configuration names none."""
        return Origin.model_validate(self.origin) if self.origin else None

    @model_serializer(mode="wrap")
    def _without_what_is_empty(self, dump: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        """Leave out empty observers and origins, and how to track, so that records stay the same for runs without them.

        A record (JSON) states the share of a GPU that a worker had; in Python the default stays open.
        """
        values: dict[str, Any] = dump(self)
        if info.mode == "json" and "engine" in values:
            values["engine"]["gpus_per_node"] = self.placed_engine.gpus_per_node
            if self.engine.server_device is None:
                values["engine"].pop("server_device", None)
        if not self.observers and self.tracking == TrackingConfig():
            values.pop("tracking", None)
        return {name: value for name, value in values.items() if value or name not in ("observers", "origin")}

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> RunConfig:
        """Return the configuration of nested or dotted keys; dashes in keys mean underscores (as in Flower).

        Raises:
            ConfigError: names every mistake in one line.
        """
        tree = nested(values)
        _check_leaves(tree)
        try:
            # strict: "30" and true are not numbers
            return cls.model_validate(tree, strict=True)
        except ValidationError as error:
            raise ConfigError(_explain(error)) from error

    def changed(self, overrides: Mapping[str, Any]) -> RunConfig:
        """Return the configuration with other values for some keys, nested or dotted.

        ``noise_multiplier`` takes the place of ``target_epsilon``, and vice versa.

        Raises:
            ConfigError: names every mistake in one line.

        >>> RunConfig().changed({"privacy.q_s": 0.05, "rounds": 3}).privacy.q_s
        0.05
        """
        over = nested(overrides)
        return self.from_mapping(merged(_without_rival(self.model_dump(), over), over))

    @classmethod
    def load(cls, path: str | Path | None, overrides: Mapping[str, Any] | None = None) -> RunConfig:
        """Return the configuration of a TOML file (or the defaults) with ``section.key`` overrides.

        ``noise_multiplier`` among the overrides takes the place of the file's ``target_epsilon``, and vice versa.

        Raises:
            ConfigError: names the file where the mistake is in it.
        """
        values: dict[str, Any] = {}
        if path is not None:
            values = nested(read_toml(path))
            try:
                cls.from_mapping(values)
            except ConfigError as error:
                raise ConfigError(f"{path}: {error}") from error
        over = nested(overrides or {})
        return cls.from_mapping(merged(_without_rival(values, over), over))


@functools.cache
def run_keys() -> dict[str, Key]:
    """Return every key of a run's configuration by its full name."""
    return config_keys.keys_of(RunConfig)


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


def parse_assignments(assignments: Sequence[str]) -> dict[str, Any]:
    """Return ``section.key=value`` words as a mapping; raise ConfigError for another form, or a key given twice."""
    values: dict[str, Any] = {}
    for assignment in assignments:
        key, separator, text = assignment.partition("=")
        key = _plain(key)
        if not separator or not key:
            raise ConfigError(f"setting '{assignment}' is not understood; allowed: section.key=value")
        add_setting(values, key, text.strip())
    return values


def add_setting(values: dict[str, Any], key: str, text: str) -> None:
    """Add the value that ``text`` means under ``key``, in place.

    Args:
        values: settings by dotted key.
        key: the key.
        text: its value, as :func:`parse_value` reads it.

    Raises:
        ConfigError: ``values`` already has another value under ``key``.
    """
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


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted or nested keys as nested mappings; raise ConfigError if a key is both a value and a section."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *sections, name = _plain(key).split(".")
        table = tree
        for section in sections:
            table = table.setdefault(section, {})
            if not isinstance(table, dict):
                raise ConfigError(
                    f"'{section}' is {config_keys.shown(table)}, so '{key}' cannot be set; allowed: one of them"
                )
        item = nested(value) if isinstance(value, Mapping) else _frozen(value)
        if isinstance(item, dict) and isinstance(table.get(name), dict):
            item = merged(table[name], item)
        table[name] = item
    return tree


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list | tuple) else value


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Return the values of two nested mappings; those of ``over`` take precedence."""
    both = dict(base)
    for key, value in over.items():
        sections = isinstance(value, dict) and isinstance(both.get(key), dict)
        both[key] = merged(both[key], value) if sections else value
    return both


def _without_rival(values: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Return ``values`` without noise multiplier and target ε if ``over`` sets one of them."""
    privacy, chosen = values.get("privacy"), over.get("privacy")
    if not isinstance(privacy, dict) or not isinstance(chosen, dict):
        return values
    ways = {"noise_multiplier", "target_epsilon"}
    dropped = ways if ways & chosen.keys() else set()
    return values | {"privacy": {name: value for name, value in privacy.items() if name not in dropped}}


def _check_leaves(values: Mapping[str, Any], section: str = "") -> None:
    """Refuse values that no key accepts: infinite numbers, and text that no file name or JSON can hold."""
    for name, value in values.items():
        key = f"{section}{name}"
        if isinstance(value, dict):
            _check_leaves(value, f"{key}.")
        elif isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{key} is {value}; allowed: {_allowed_for(key) or 'a finite number'}")
        elif isinstance(value, str) and ("\0" in value or not _is_unicode(value)):
            raise ConfigError(f"{key} is {value!r}; allowed: Unicode text without NUL")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _explain(error: ValidationError) -> str:
    """Return all mistakes of a configuration in one line, each key once."""
    lines: dict[str, str] = {}
    for mistake in error.errors():
        where = ".".join(str(part) for part in mistake["loc"])
        key = next((name for name in run_keys() if where == name or where.startswith(f"{name}.")), where)
        if mistake["type"] == "extra_forbidden":
            lines[key] = _unknown(key)
        elif mistake["type"] == "value_error":
            lines[key] = str(mistake["ctx"]["error"])
        elif key in config_keys.sections_of(run_keys()):
            lines[key] = (
                f"{key} is {config_keys.shown(mistake['input'])}; allowed: a section, with keys such as {key}.…"
            )
        else:
            allowed = _allowed_for(key) or mistake["msg"]
            lines[key] = f"{key} is {config_keys.shown(mistake['input'])}; allowed: {allowed}"
    return "; ".join(lines.values())


def _allowed_for(key: str) -> str:
    known = run_keys().get(key)
    return known.allowed if known else ""


def _unknown(key: str) -> str:
    section = key.rpartition(".")[0]
    siblings = [name.rpartition(".")[2] for name in run_keys() if name.rpartition(".")[0] == section]
    known = siblings if section else [*siblings, *config_keys.sections_of(run_keys())]
    guess = config_keys.nearest(key, run_keys())
    hint = f"did you mean '{guess}'? " if guess else ""
    return f"'{key}' is not a configuration key; {hint}known{f' in {section}' if section else ''}: {', '.join(known)}"
