"""Language models by name: what a client trains, and the loss of one sentence.

Only the trainable parameters travel between server and clients (``LanguageModel.get_vector``); whatever is
frozen is loaded once per process (``clients.workspace``).
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import nn

from clients.batches import Batch
from clients.errors import ModelError
from clients.hub import describe_failure, first_line, locate
from clients.losses import perplexity, sentence_losses
from clients.parameters import TrainableParameters
from clients.tokenizers import BUNDLED, boundary_ids, load_tokenizer

__all__ = [
    "SMALL_GPT2",
    "SMALL_GPT2_PUBLIC",
    "LanguageModel",
    "ModelError",
    "ModelSpec",
    "load_model",
    "perplexity",
    "sentence_losses",
]

SMALL_GPT2 = "small-gpt2"
SMALL_GPT2_PUBLIC = "small-gpt2-public"
PUBLIC_FOLDER = Path(__file__).resolve().parent / "assets" / SMALL_GPT2_PUBLIC
_LOAD_ERRORS = (OSError, ValueError, KeyError, TypeError, ImportError, RuntimeError)


class ModelSpec(BaseModel):
    """Which model, public in every part.

    Attributes:
        name: ``"small-gpt2-public"`` (the one that ships, pre-trained on public text), ``"small-gpt2"`` (built
            from the sizes below, random initial weights; also what a size without a name means), or any causal
            language model of the Hugging Face hub or a local folder (safetensors weights only, its own code
            is never run).
        hidden, layers, heads: sizes of small-gpt2; ignored for a named model.
        max_tokens: context length; for a named model the smaller of this and its own.
        lora_rank: 0 trains all parameters; r > 0 freezes them and trains rank-r adapters (needs ``peft``).
        lora_alpha: scale of the adapters; ``None`` means 2·rank.
        lora_targets: names of the layers to adapt; empty means peft's choice for the architecture, or all
            linear layers where it has none.
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:<index>"``.
        tokenizer: ``"bundled"``, a hub name or a folder; ``None`` means bundled for the first
            two, else the model's own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(default=SMALL_GPT2_PUBLIC, min_length=1)
    hidden: int = Field(default=128, ge=1, le=16384)
    layers: int = Field(default=2, ge=1, le=512)
    heads: int = Field(default=4, ge=1, le=512)
    max_tokens: int = Field(default=128, ge=2, le=131072)
    lora_rank: int = Field(default=0, ge=0, le=4096)
    lora_alpha: int | None = Field(default=None, gt=0)
    lora_targets: tuple[str, ...] = ()
    device: str = Field(default="cpu", pattern=r"^(cpu|cuda(:\d+)?)$")
    tokenizer: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _sizes_mean_small_gpt2(cls, values: Any) -> Any:
        if isinstance(values, dict) and "name" not in values and values.keys() & {"hidden", "layers", "heads"}:
            return {**values, "name": SMALL_GPT2}
        return values

    @property
    def tokenizer_name(self) -> str:
        """The tokenizer that ``tokenizer=None`` stands for."""
        return self.tokenizer or (BUNDLED if self.name in (SMALL_GPT2, SMALL_GPT2_PUBLIC) else self.name)


class LanguageModel:
    """A causal language model whose trainable parameters are one flat vector.

    The module is in eval mode for good: with dropout off, the gradient of a sentence depends on nothing but
    the parameters and that sentence, which the privacy proof asks for (docs/privacy.md). A mask drawn from a
    stream that all sentences share would make one sentence's gradient depend on which others were there.

    Attributes:
        module: the torch module (transformers or peft), float32, in eval mode.
        tokenizer: the transformers tokenizer.
        spec, seed: what it was built from.
        bos_id, eos_id: boundary tokens of every sentence.
        max_tokens: the longest input, in tokens.
        vocabulary_size: number of rows of the embedding.
        parameters: the trainable parameters as a flat view.
    """

    def __init__(self, module: nn.Module, tokenizer: Any, spec: ModelSpec, seed: int) -> None:
        self.module = module.eval()
        self.tokenizer = tokenizer
        self.spec = spec
        self.seed = seed
        self.bos_id, self.eos_id = boundary_ids(tokenizer)
        core = _unwrapped(module)
        self.max_tokens = min(spec.max_tokens, _own_context(core.config))
        self.vocabulary_size: int = core.get_input_embeddings().weight.shape[0]
        self._takes_positions = "position_ids" in inspect.signature(core.forward).parameters
        self.parameters = TrainableParameters(module)
        if len(tokenizer) > self.vocabulary_size:
            raise ModelError(
                f"tokenizer {spec.tokenizer_name!r} has {len(tokenizer)} tokens; "
                f"allowed for model {spec.name!r}: at most {self.vocabulary_size}"
            )

    @property
    def device(self) -> torch.device:
        """Where the parameters live."""
        return next(iter(self.parameters.tensors.values())).device

    @property
    def num_parameters(self) -> int:
        """d, the number of trainable parameters."""
        return self.parameters.size

    def get_vector(self) -> NDArray[np.float32]:
        """A copy of the trainable parameters θ, shape (d,)."""
        return self.parameters.read()

    def set_vector(self, vector: NDArray[np.floating]) -> None:
        """Set the trainable parameters θ from shape (d,); raises ModelError for another shape."""
        self.parameters.write(vector)

    def named_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """(name, shape) of each trainable parameter, in the vector's order."""
        return self.parameters.shapes()

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Each text as ``[bos] w1 … wn [eos]``, cut to the context (a cut text has no eos: it did not end
        there).

        A special token spelt out in a text is plain text here: nobody can forge a sentence boundary.
        """
        if not texts:
            return []
        ids = self.tokenizer(list(texts), add_special_tokens=False, split_special_tokens=True)["input_ids"]
        whole = ([self.bos_id, *words, self.eos_id] for words in ids)
        return [np.array(tokens[: self.max_tokens + 1], dtype=np.int32) for tokens in whole]

    def logits(self, batch: Batch) -> torch.Tensor:
        """Next-token scores, (B, T, V).

        No attention mask: the padding is on the right, and a token attends to nothing after it.
        """
        positions = {"position_ids": batch.positions} if self._takes_positions else {}
        module: Any = self.module
        return module(input_ids=batch.inputs, use_cache=False, **positions).logits

    def save(self, folder: Path) -> None:
        """Write weights (safetensors; with LoRA the adapter alone), configuration, tokenizer, `spec.json`."""
        folder.mkdir(parents=True, exist_ok=True)
        _quiet()
        module: Any = self.module
        module.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        built_from = {"spec": self.spec.model_dump(mode="json"), "seed": self.seed}
        (folder / "spec.json").write_text(json.dumps(built_from, indent=2) + "\n", encoding="utf-8")


def _unwrapped(module: Any) -> Any:
    """The transformers model itself, also where peft's adapters wrap it."""
    return module.get_base_model() if hasattr(module, "get_base_model") else module


def _own_context(config: Any) -> int:
    """The longest input that the architecture takes; recurrent ones state none."""
    return getattr(config, "max_position_embeddings", None) or 2**31


def load_model(spec: ModelSpec, seed: int) -> LanguageModel:
    """Build or load the model; new weights depend on ``seed`` alone and torch's global generator is left as
    it was.

    Raises:
        ModelError: if the model, its tokenizer, its device or peft is not to be had; one line that says what
            was tried.
    """
    _quiet()
    device = _device(spec.device)
    with torch.random.fork_rng(devices=[]):
        # The CPU's generator alone: weights are drawn there, whatever the device.
        torch.default_generator.manual_seed(seed)
        pretrained = None if spec.name == SMALL_GPT2 else _pretrained(spec.name)
        tokenizer = load_tokenizer(spec.tokenizer_name)
        module = _small_gpt2(spec, tokenizer) if pretrained is None else pretrained
        if spec.lora_rank > 0:
            module = _with_adapters(module, spec)
    return LanguageModel(module.to(device), tokenizer, spec, seed)


def _quiet() -> None:
    """No progress bars of transformers for what takes a moment; a run shows its own."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def _device(name: str) -> torch.device:
    if name != "cpu":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        index = torch.device(name).index or 0
        if index >= count:
            raise ModelError(f"device is {name!r}, but torch sees {count} CUDA devices here; allowed: 'cpu'")
    return torch.device(name)


def _small_gpt2(spec: ModelSpec, tokenizer: Any) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    if spec.hidden % spec.heads:
        raise ModelError(f"hidden is {spec.hidden}; allowed with heads = {spec.heads}: a multiple of it")
    bos, eos = boundary_ids(tokenizer)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=spec.max_tokens,
        n_embd=spec.hidden,
        n_layer=spec.layers,
        n_head=spec.heads,
        activation_function="gelu_pytorch_tanh",  # GPT-2's own function, as one fused kernel
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=bos,
        eos_token_id=eos,
    )
    module = GPT2LMHeadModel(config)
    if spec.device == "cpu":
        module.set_attn_implementation("eager")  # faster than torch's fused attention at 20 tokens
    return module


def _pretrained(name: str) -> nn.Module:
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    loader: Any = AutoModelForCausalLM
    try:
        module, report = loader.from_pretrained(
            PUBLIC_FOLDER if name == SMALL_GPT2_PUBLIC else locate(name),
            use_safetensors=True,
            trust_remote_code=False,
            dtype=torch.float32,
            output_loading_info=True,
        )
    except (*_LOAD_ERRORS, SafetensorError) as error:
        raise ModelError(f"cannot load model {name!r}: {describe_failure(name, error)}") from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise ModelError(f"model {name!r} lacks {len(missing)} weights, the first is {missing[0]!r}")
    return module


def _with_adapters(module: nn.Module, spec: ModelSpec) -> nn.Module:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ModelError(f"lora_rank is {spec.lora_rank}, which needs peft: pip install 'fl-sim[lora]'") from error
    from transformers.pytorch_utils import Conv1D

    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=spec.lora_rank,
        lora_alpha=spec.lora_alpha or 2 * spec.lora_rank,
        target_modules=_lora_targets(module, spec),
        lora_dropout=0.0,
        fan_in_fan_out=any(isinstance(m, Conv1D) for m in module.modules()),
    )
    try:
        return get_peft_model(module, config)
    except ValueError as error:
        raise ModelError(
            f"cannot add LoRA to {spec.name!r}: lora_targets is {list(spec.lora_targets)} ({first_line(error)})"
        ) from error


def _lora_targets(module: Any, spec: ModelSpec) -> list[str] | str | None:
    """The layers asked for, else peft's choice for the architecture (``None``), else all linear layers."""
    from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as KNOWN

    if spec.lora_targets:
        return list(spec.lora_targets)
    return None if module.config.model_type in KNOWN else "all-linear"
