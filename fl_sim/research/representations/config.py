"""An experiment's configuration, checked before anything starts.

It is a TOML file with the keys of :class:`ExperimentConfig`. An unknown key or impossible value raises a
:class:`~fl_sim.config.ConfigError` that names the key, the value and the allowed values.

>>> config = load_mapping({"method": "federate", "privacy.epsilon": 12})
>>> config.layer, config.mechanism(width=64).proven_epsilon
('l1', 12.0)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from fl_sim.clients.models.model_names import Pooling
from fl_sim.config import ConfigError, merged, nested
from fl_sim.research.representations.corpora.labelled_tables import AdultColumns, AdultSplit, TableColumns
from fl_sim.research.representations.corpora.labelled_text import TEXT_READERS, RowSelection
from fl_sim.research.representations.local_privacy import DroppedName, LayerName, Mechanism, build_mechanism
from fl_sim.research.study_files import StrictModel, first_problem
from fl_sim.storage.run_folder import MODEL_FOLDER

VocabularyName = Literal["training", "file"]
DataName = Literal["adult", "toy-adult", "dpnr-ag", "ag-news", "sst2", "table"]
EncoderKind = Literal["table", "mlp", "bag", "transformer"]
NoiseInTraining = Literal["none", "same", "schedule"]
"""Of the privacy layer in training: none (normalisation alone), the same as in the release, or ε_n of epoch n."""
AdversaryStyle = Literal["none", "reversal", "multiple", "coavoux"]
Weighed = Literal["gradient", "loss"]
"""The factor of λ in ``reversal`` and ``multiple``: the reversed gradient, or the adversaries' loss."""
AdaptiveName = Literal["1/n", "10/n"]
WeightSchedule = Literal["rising", "constant"]
"""λ of an epoch: from 0 to λ (FEDERATE), or always λ."""
MethodName = Literal[
    "random", "majority", "unconstrained", "non-robust", "robust", "adaptive", "noise", "federate", "adversarial",
    "adversarial-multiple", "coavoux", "inlp",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Method:
    """The parts of a method.

    Attributes:
        trains: whether it has a model.
        layer: its privacy layer, unless the configuration names one.
        noise: of that layer in training.
        style: of the adversaries.
        projects: whether INLP follows the training.
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
    "coavoux": Method(style="coavoux"),
    "inlp": Method(projects=True),
}
"""The systems of the papers by name. DPNR is ``robust``, its NON-PRIV ``unconstrained``, its ADV ``coavoux``;
FEDERATE's Adversarial is that of Li et al. (2018)."""


class DataSection(StrictModel):
    """A labelled corpus and its splits.

    Attributes:
        name: of the corpus; ``toy-adult`` is generated and needs no source, ``table`` is a file of one's own.
        source: the folder with the corpus; of ``table`` the file.
        rows: training rows, validation included; default: all (ag-news, sst2). Of toy-adult: all rows, default 6,000.
        selection: of ag-news and sst2: which rows, ``drawn`` by the seed or the ``first`` of the file.
        columns: of Adult: the ``nine`` of FEDERATE's paper, or those of its ``code``.
        split: of Adult: 60 : 20 : 20 as in that ``paper``, or 72 : 8 : 20 as in its ``code``.
        table: of ``table``: what its columns are.
    """

    name: DataName = "adult"
    source: str = Field(default="", description="the folder with the corpus")
    rows: int | None = Field(default=None, ge=2)
    selection: RowSelection = "drawn"
    columns: AdultColumns = "nine"
    split: AdultSplit = "paper"
    table: TableColumns = TableColumns()

    @property
    def is_table(self) -> bool:
        """Return whether the examples are rows of numbers, not texts."""
        return self.name in ("adult", "toy-adult") or (self.name == "table" and self.table.text is None)

    @model_validator(mode="after")
    def _has_an_order(self) -> DataSection:
        if self.selection == "first" and self.name not in TEXT_READERS:
            raise ValueError(f"selection is 'first'; allowed with name = {' or '.join(map(repr, TEXT_READERS))}")
        return self


class EncoderSection(StrictModel):
    """Kind and shape of an encoder.

    Attributes:
        kind: see `client/encoders.py`.
        width: k of mlp and bag; table and transformer have the width of their input or model.
        layers: linear layers of the mlp.
        first_width: units of the first of several layers; default: k.
        dropout: rate between the layers, in training.
        model: a Hugging Face encoder by hub name, folder, or ``minilm``: the model that ``transformer`` trains, or
            the source of the features of ``table`` and ``mlp``.
        max_tokens: longest input of that model.
        pooling: of that model's states: ``mean``, the default, ``cls``, ``last``, or ``pooler``, the tanh layer of BERT
            on the first state, which DPNR sends.
        trained_layers: uppermost layers of ``transformer`` that train, with the pooler; what is below reads every text
            once, without gradients. Default: everything trains.
        run: the folder of a finished run, whose model takes the place of ``model``.
        ngrams: words in the longest n-gram of a bag: 1 for words, 2 for words and pairs of them.
        vocabulary: of a bag: the n-grams of the ``training`` texts, or of all rows of the training ``file``.
    """

    kind: EncoderKind = "mlp"
    width: int = Field(default=64, ge=1, le=65536)
    layers: int = Field(default=2, ge=1, le=64)
    first_width: int | None = Field(default=None, ge=1, le=65536)
    dropout: float = Field(default=0.1, ge=0, lt=1)
    model: str | None = Field(default=None, min_length=1)
    max_tokens: int = Field(default=128, ge=2, le=131072)
    pooling: Pooling | None = None
    trained_layers: int | None = Field(default=None, ge=1, le=10**6)
    run: str | None = Field(None, min_length=1, description="the folder of a finished `fl-sim run`")
    ngrams: int = Field(default=1, ge=1, le=5)
    vocabulary: VocabularyName = "training"

    @property
    def source(self) -> str | None:
        """Return the hub name or folder of the Hugging Face encoder: ``model``, or the run's model."""
        return self.model if self.run is None else str(Path(self.run).expanduser() / MODEL_FOLDER)

    @model_validator(mode="after")
    def _has_the_layers(self) -> EncoderSection:
        if self.trained_layers is not None and self.kind != "transformer":
            raise ValueError(f"trained_layers is {self.trained_layers}; allowed with kind = 'transformer'")
        if self.first_width is not None and (self.kind != "mlp" or self.layers < 2):
            raise ValueError(f"first_width is {self.first_width}; allowed with kind = 'mlp' and at least two layers")
        if self.kind != "bag" and (self.ngrams, self.vocabulary) != (1, "training"):
            name, value = ("ngrams", self.ngrams) if self.ngrams > 1 else ("vocabulary", repr(self.vocabulary))
            raise ValueError(f"{name} is {value}; allowed with kind = 'bag'")
        return self


class ServerSection(StrictModel):
    """Classifier and adversaries."""

    classifier: tuple[int, ...] = Field((), description="widths of its hidden layers; none: it is linear")
    adversary: tuple[int, ...] = Field((64, 64), description="widths of an adversary's hidden layers")
    dropout: float = Field(0.1, ge=0, lt=1, description="between their layers, while training")
    adversary_dropout: float | None = Field(None, ge=0, lt=1, description="an adversary's; default: dropout")
    weight: float = Field(1.0, ge=0, le=1000, description="λ, the final weight of the adversaries' loss")
    weighed: Weighed = Field(
        "gradient",
        description="the factor of λ with reversed gradients: the gradient (FEDERATE's paper), or the adversaries' "
        "loss (its published code)",
    )
    weight_schedule: WeightSchedule = Field(
        "rising", description="λ of an epoch: rising from 0 in the first (FEDERATE), or constant"
    )
    orthogonal: float = Field(0.5, ge=0, le=1000, description="λ_ort of adversarial-multiple")

    @property
    def dropout_of_adversaries(self) -> float:
        """Return the adversaries' dropout: as configured, else the classifier's."""
        return self.dropout if self.adversary_dropout is None else self.adversary_dropout


class OptimizerSection(StrictModel):
    """Name and step size of an optimizer; FEDERATE has Adam at 0.001."""

    name: Literal["adam", "sgd"] = Field("adam", description="Adam (Kingma and Ba 2015), or plain SGD")
    learning_rate: float = Field(0.001, gt=0, le=100, description="its step size")
    decay: float = Field(1.0, gt=0, le=1, description="the factor of the step size from epoch to epoch")
    weight_decay: float = Field(0.0, ge=0, le=1, description="decoupled from Adam's step sizes (AdamW)")


class TrainingSection(StrictModel):
    """Length and steps of the training."""

    epochs: int = Field(20, ge=1, le=100_000, description="length of the schedule of λ")
    stop_after: int | None = Field(None, ge=1, description="trained epochs; default: all")
    batch_size: int = Field(2000, ge=1, le=10**7, description="examples of a step")
    adaptive: AdaptiveName = Field("10/n", description="adaptive: ε_n of epoch n")
    inlp_rounds: int = Field(4, ge=1, le=10_000, description="inlp: number of classifiers whose directions are removed")


class PrivacySection(StrictModel):
    """The privacy layer and the dropout of words."""

    layer: LayerName | None = Field(None, description="none, dpnr, l1 or l2; default: the method's")
    epsilon: float | None = Field(None, gt=0, description="the layer's parameter ε")
    word_dropout: float = Field(0.0, ge=0, le=1, description="μ, the probability that a word is dropped")
    sensitive: tuple[str, ...] = Field((), description="words that are always dropped")
    entities_of: str | None = Field(
        None, min_length=1, description="a corpus from `fl-sim prepare`: the words of its entities are dropped, too"
    )
    dropout_in_training: bool = Field(False, description="whether training texts lose words, too")
    dropped_words: DroppedName = Field(
        "removed",
        description="words are removed, or the encoder's own tokens masked, as in the papers' code: an n-gram of a bag "
        "becomes the unknown one, no token attends to a piece of a transformer's text",
    )
    secure_noise: bool = Field(
        False, description="noise and dropped words of releases come from the operating system: not reproducible"
    )

    @property
    def masks(self) -> bool:
        """Return whether tokens are masked in the place of dropped words."""
        return self.dropped_words == "masked"


class ReleaseSection(StrictModel):
    """Another release of the test texts by the trained system, besides that of the privacy section."""

    epsilon: float = Field(gt=0, description="the layer's parameter ε")
    word_dropout: float = Field(0.0, ge=0, le=1, description="μ")


class AttackSection(StrictModel):
    """The attacks on the released vectors."""

    leakage: bool = Field(True, description="accuracy of scikit-learn's MLPClassifier, trained on validation")
    mdl: bool = Field(True, description="minimum description length by online coding")
    attacker: bool = Field(False, description="DPNR's attacker: 512 hidden units, trained on training texts")
    attacker_epochs: int = Field(20, ge=1, le=100_000, description="epochs of its training")
    published_attacker: bool = Field(
        False, description="that of DPNR's published code: 256 hidden units, vectors scaled to [0, 1], 4 epochs"
    )


class ExperimentConfig(StrictModel):
    """One system on one corpus with one seed: a grid point."""

    method: MethodName = Field("federate", description="the system (docs/representations.md)")
    seed: int = Field(0, ge=0, le=2**63 - 1, description="of splits, weights, batches, masks and noise")
    feature_cache: str | None = Field(None, min_length=1, description="a folder for a frozen encoder's features")
    data: DataSection = DataSection()
    encoder: EncoderSection = EncoderSection()
    privacy: PrivacySection = PrivacySection()
    server: ServerSection = ServerSection()
    training: TrainingSection = TrainingSection()
    optimizer: OptimizerSection = OptimizerSection()
    attacks: AttackSection = AttackSection()
    releases: tuple[ReleaseSection, ...] = Field(
        (), description="other ε and μ with which the trained system's test texts are sent and classified"
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
        if self.data.is_table and self.encoder.source is not None:
            name = "model" if self.encoder.run is None else "run"
            raise ValueError(
                f"encoder.{name} is {getattr(self.encoder, name)!r}; allowed with texts, which data.name = "
                f"{self.data.name!r} has not: leave it out"
                + (", or name data.table.text" if self.data.name == "table" else "")
            )
        if self.releases and (layer == "none" or not self.system.trains):
            raise ValueError(f"releases are {len(self.releases)}; allowed with a privacy layer, else leave them out")
        if self.privacy.masks and self.encoder.kind not in ("bag", "transformer"):
            raise ValueError(
                f"privacy.dropped_words is 'masked'; allowed with encoder.kind = {self.encoder.kind!r}: removed"
            )
        if self.privacy.masks and (self.privacy.sensitive or self.privacy.entities_of is not None):
            raise ValueError(
                "privacy.dropped_words is 'masked'; allowed with privacy.sensitive or privacy.entities_of: removed"
            )
        if self.system.projects and self.server.classifier and layer != "none":
            raise ValueError(
                f"server.classifier is {self.server.classifier}; allowed with method {self.method!r} and a privacy "
                "layer: no hidden layers"
            )
        stop, epochs = self.training.stop_after, self.training.epochs
        if epochs == 1 and self.system.style != "none" and self.server.weight_schedule == "rising":
            raise ValueError(
                f"training.epochs is 1; method {self.method!r} would have adversaries of weight 0, as in the first "
                "epoch of a rising weight: allowed with server.weight_schedule = 'constant', else at least 2"
            )
        if stop is not None and stop > epochs:
            raise ValueError(f"training.stop_after is {stop}; allowed: at most training.epochs, {epochs}")
        return self

    @property
    def system(self) -> Method:
        """Return the parts of the method."""
        return METHODS[self.method]

    @property
    def layer(self) -> LayerName:
        """Return the privacy layer: as configured, else the method's."""
        return self.system.layer if self.privacy.layer is None else self.privacy.layer

    def mechanism(self, width: int) -> Mechanism | None:
        """Return the privacy layer's mechanism for vectors of ``width`` numbers; None without a layer."""
        return build_mechanism(self.layer, width, self.privacy.epsilon)

    def with_values(self, values: Mapping[str, Any]) -> ExperimentConfig:
        """Return a checked copy with ``values`` by full name (``server.weight``)."""
        return load_mapping(merged(self.model_dump(mode="json"), nested(values)))


def load_mapping(values: Mapping[str, Any]) -> ExperimentConfig:
    """Return the checked configuration of nested or dotted keys.

    Raises:
        ConfigError: for the first wrong key; names it, its value and the allowed values.
    """
    try:
        return ExperimentConfig.model_validate(nested(values))
    except ValidationError as error:
        raise ConfigError(first_problem(error, ExperimentConfig)) from error
