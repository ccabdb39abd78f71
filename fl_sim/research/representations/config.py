"""An experiment's configuration: typed, complete, checked before anything starts.

A TOML file with the keys of :class:`ExperimentConfig`; unknown keys and impossible values are
:class:`~fl_sim.config.ConfigError`\\ s that name the key, the value and what is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fl_sim.config import ConfigError, merged, nested, read_toml
from fl_sim.research.representations.client.client_workspace import ClientSpec, DataSpec
from fl_sim.research.representations.client.encoders import EncoderSpec
from fl_sim.research.representations.client.local_privacy import LayerName, Mechanism, build_mechanism
from fl_sim.research.representations.server.adversarial_training import NoiseInTraining, TrainingPlan
from fl_sim.research.representations.server.heads import AdversaryStyle, Weighed
from fl_sim.research.representations.server.optimizers import OptimizerSpec
from fl_sim.research.representations.server.schedules import ADAPTIVE, AdaptiveName
from fl_sim.storage.run_folder import MODEL_FOLDER

MethodName = Literal[
    "random", "majority", "unconstrained", "non-robust", "robust", "adaptive", "noise", "federate", "adversarial",
    "adversarial-multiple", "li", "coavoux", "declustering", "inlp",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Method:
    """What a method is made of.

    Attributes:
        trains: whether there is a model at all.
        layer: the privacy layer that it has unless the configuration names one.
        noise: of that layer in training.
        style: of the adversaries.
        projects: whether INLP follows.
    """

    trains: bool = True
    layer: LayerName = "none"
    noise: NoiseInTraining = "none"
    style: AdversaryStyle = "none"
    projects: bool = False


METHODS: dict[MethodName, Method] = {
    "random": Method(trains=False),
    "majority": Method(trains=False),
    "unconstrained": Method(),
    "non-robust": Method(layer="dpnr"),
    "robust": Method(layer="dpnr", noise="same"),
    "adaptive": Method(layer="dpnr", noise="schedule"),
    "noise": Method(layer="l1", noise="same"),
    "federate": Method(layer="l1", noise="same", style="reversal"),
    "adversarial": Method(style="reversal"),
    "adversarial-multiple": Method(style="multiple"),
    "li": Method(style="reversal"),
    "coavoux": Method(style="coavoux"),
    "declustering": Method(style="declustering"),
    "inlp": Method(projects=True),
}
"""The systems of the papers by name. DPNR is ``robust``, its NON-PRIV is ``unconstrained``, its ADV ``coavoux``;
``adversarial`` and ``li`` are one (FEDERATE names the former after the latter)."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class EncoderSection(EncoderSpec):
    """The encoder; all keys of `fl_sim.research.representations.client.encoders.EncoderSpec`, and a run that trained
    it."""

    run: str | None = Field(
        None, min_length=1, description="the folder of a finished `fl-sim run`, whose model is the encoder"
    )


class ServerSection(_Section):
    """Classifier and adversaries."""

    classifier: tuple[int, ...] = Field((), description="widths of its hidden layers; none: it is linear")
    adversary: tuple[int, ...] = Field((64, 64), description="widths of an adversary's hidden layers")
    dropout: float = Field(0.1, ge=0, lt=1, description="between their layers, while training")
    adversary_dropout: float | None = Field(None, ge=0, lt=1, description="an adversary's; default: dropout")
    weight: float = Field(1.0, ge=0, le=1000, description="λ, what the adversaries' loss counts at the end")
    weighed: Weighed = Field(
        "gradient",
        description="what λ multiplies where gradients are reversed: the gradient (FEDERATE's paper), or the "
        "adversaries' loss (its published code)",
    )
    orthogonal: float = Field(0.5, ge=0, le=1000, description="λ_ort of adversarial-multiple")

    @property
    def dropout_of_adversaries(self) -> float:
        """As configured, else that of the classifier."""
        return self.dropout if self.adversary_dropout is None else self.adversary_dropout


class TrainingSection(_Section):
    """How long, and with which steps."""

    epochs: int = Field(20, ge=1, le=100_000, description="that the schedule of λ counts with")
    stop_after: int | None = Field(None, ge=1, description="epochs that are trained; default: all")
    batch_size: int = Field(2000, ge=1, le=10**7, description="examples of a step")
    adaptive: AdaptiveName = Field("10/n", description="adaptive: ε_n of epoch n")
    inlp_rounds: int = Field(4, ge=1, le=10_000, description="inlp: classifiers whose directions are removed")


class PrivacySection(_Section):
    """The privacy layer and the dropout of words."""

    layer: LayerName | None = Field(None, description="none, dpnr, l1 or l2; default: the method's")
    epsilon: float | None = Field(None, gt=0, description="the layer's parameter ε")
    word_dropout: float = Field(0.0, ge=0, le=1, description="μ, the probability that a word is dropped")
    sensitive: tuple[str, ...] = Field((), description="words that are always dropped")
    entities_of: str | None = Field(
        None, min_length=1, description="a corpus made by `fl-sim prepare`: the words of its entities are, too"
    )
    dropout_in_training: bool = Field(False, description="whether training texts lose words, too")
    secure_noise: bool = Field(
        False, description="noise of what is released from the operating system: nobody can repeat it"
    )


class ReleaseSection(_Section):
    """Another release of the test texts by the trained system, beside that of the privacy section."""

    epsilon: float = Field(gt=0, description="the layer's parameter ε")
    word_dropout: float = Field(0.0, ge=0, le=1, description="μ")


class AttackSection(_Section):
    """Which attacks are made on what is released."""

    leakage: bool = Field(True, description="accuracy of scikit-learn's MLPClassifier, trained on validation")
    mdl: bool = Field(True, description="minimum description length by online coding")
    attacker: bool = Field(False, description="DPNR's attacker: 512 hidden units, trained on training texts")
    attacker_epochs: int = Field(20, ge=1, le=100_000, description="how long it is trained")


class ExperimentConfig(_Section):
    """One system on one corpus with one seed: one grid point."""

    method: MethodName = Field("federate", description="the system (docs/representations.md)")
    seed: int = Field(0, ge=0, le=2**63 - 1, description="of splits, weights, batches, masks and noise")
    nodes: int = Field(0, ge=0, le=10_000, description="Flower nodes that hold the clients' side; 0: no messages")
    feature_cache: str | None = Field(None, min_length=1, description="a folder for a frozen encoder's features")
    data: DataSpec = DataSpec()
    encoder: EncoderSection = EncoderSection()
    privacy: PrivacySection = PrivacySection()
    server: ServerSection = ServerSection()
    training: TrainingSection = TrainingSection()
    optimizer: OptimizerSpec = OptimizerSpec()
    attacks: AttackSection = AttackSection()
    releases: tuple[ReleaseSection, ...] = Field(
        (), description="with which other ε and μ the trained system's test texts are sent and classified"
    )

    @model_validator(mode="after")
    def _fits(self) -> ExperimentConfig:
        layer = self.layer
        if layer != "none" and self.privacy.epsilon is None:
            raise ValueError(f"privacy.epsilon is missing; method {self.method!r} with layer {layer!r} needs one")
        if layer == "none" and self.privacy.epsilon is not None:
            raise ValueError(
                f"privacy.epsilon is {self.privacy.epsilon:g}; method {self.method!r} has no privacy layer: leave it "
                "out, or name privacy.layer"
            )
        if self.encoder.run is not None and (self.encoder.model is not None or self.encoder.kind == "bag"):
            raise ValueError(
                f"encoder.run is {self.encoder.run!r}; allowed without encoder.model, and with encoder.kind = table, "
                "mlp or transformer"
            )
        if self.releases and (layer == "none" or self.nodes or not self.system.trains):
            raise ValueError(
                f"releases are {len(self.releases)}; allowed with a privacy layer and nodes = 0, else leave them out"
            )
        if self.system.projects and self.server.classifier and layer != "none":
            raise ValueError(
                f"server.classifier is {self.server.classifier}; allowed with method {self.method!r} and a privacy "
                "layer: no hidden layers"
            )
        stop, epochs = self.training.stop_after, self.training.epochs
        if stop is not None and stop > epochs:
            raise ValueError(f"training.stop_after is {stop}; allowed: at most training.epochs, {epochs}")
        return self

    @property
    def system(self) -> Method:
        """What the method is made of."""
        return METHODS[self.method]

    @property
    def layer(self) -> LayerName:
        """The privacy layer: as configured, else the method's."""
        return self.system.layer if self.privacy.layer is None else self.privacy.layer

    @property
    def client(self) -> ClientSpec:
        """The clients' side."""
        return ClientSpec(
            data=self.data,
            encoder=self._encoder,
            layer=self.layer,
            epsilon=self.privacy.epsilon,
            word_dropout=self.privacy.word_dropout,
            sensitive=self.privacy.sensitive,
            entities_of=self.privacy.entities_of,
            dropout_in_training=self.privacy.dropout_in_training,
            seed=self.seed,
            feature_cache=self.feature_cache,
        )

    @property
    def _encoder(self) -> EncoderSpec:
        """The encoder as clients know it: a run's model is a folder like any other."""
        values = self.encoder.model_dump(exclude={"run"})
        if self.encoder.run is not None:
            values["model"] = str(Path(self.encoder.run).expanduser() / MODEL_FOLDER)
        return EncoderSpec(**values)

    def mechanism(self, width: int) -> Mechanism | None:
        """The privacy layer's maths for vectors of ``width``."""
        return build_mechanism(self.layer, width, self.privacy.epsilon)

    def plan(self, width: int) -> TrainingPlan:
        """How to train."""
        mechanism = self.mechanism(width)
        return TrainingPlan(
            epochs=self.training.epochs,
            batch_size=self.training.batch_size,
            noise=self.system.noise,
            epsilon=None if mechanism is None else mechanism.epsilon,
            noise_scale=None if mechanism is None else mechanism.noise_scale,
            weight=self.server.weight,
            orthogonal=self.server.orthogonal,
            seed=self.seed,
            schedule=ADAPTIVE[self.training.adaptive],
            stop_after=self.training.stop_after,
        )

    def with_values(self, values: Mapping[str, Any]) -> ExperimentConfig:
        """The same configuration with these values by full name (``server.weight``)."""
        return load_mapping(merged(self.model_dump(mode="json"), nested(values)))


def load_mapping(values: Mapping[str, Any]) -> ExperimentConfig:
    """A checked configuration of nested or dotted keys; ConfigError names the first key at fault, its value and what
    is allowed."""
    try:
        return ExperimentConfig.model_validate(nested(values))
    except ValidationError as error:
        raise ConfigError(_first_problem(error)) from error


def load_file(path: Path) -> ExperimentConfig:
    """The configuration of a TOML file."""
    return load_mapping(read_toml(path))


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    name = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f"{name}: unknown key; allowed: {', '.join(_keys(problem['loc'][:-1]))}"
    if problem["type"] == "value_error":
        return str(problem["ctx"]["error"]) if not name else f"{name}: {problem['ctx']['error']}"
    return f"{name} is {problem['input']!r}; {problem['msg'][0].lower()}{problem['msg'][1:]}"


def _keys(sections: tuple[int | str, ...]) -> list[str]:
    """The keys of a section, or of an item of a list of them."""
    model: Any = ExperimentConfig
    for section in sections:
        if isinstance(section, str):
            annotation = model.model_fields[section].annotation
            model = next(iter(get_args(annotation)), annotation)
    return list(model.model_fields)
