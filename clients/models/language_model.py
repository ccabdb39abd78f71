"""Language models by name: what a client trains, for a task.

Only the trainable parameters travel between server and clients (``LanguageModel.get_vector``); whatever is
frozen is loaded once per process (``fl_sim.clients.workspace``).
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fl_sim.clients.batches import Batch, validate
from fl_sim.clients.errors import ModelError
from fl_sim.clients.examples import NO_CLASS, Example
from fl_sim.clients.models import tuning
from fl_sim.clients.models.architectures import awd_lstm
from fl_sim.clients.models.architectures.awd_lstm import AwdLstm, AwdLstmConfig, AwdLstmForNextWord
from fl_sim.clients.models.architectures.pretrained import (
    PUBLIC_FOLDER,
    build_small_gpt2,
    load_body,
    load_causal,
    own_context,
)
from fl_sim.clients.models.classifier import Classifier, core_of
from fl_sim.clients.models.losses import held_out, sentence_losses
from fl_sim.clients.models.model_names import AWD_LSTM, SMALL_GPT2, SMALL_GPT2_PUBLIC
from fl_sim.clients.models.parameters import TrainableParameters
from fl_sim.clients.models.tokenizers import boundary_ids, load_tokenizer
from fl_sim.clients.tasks import Classification, NextWord, Task

if TYPE_CHECKING:
    from fl_sim.clients.models.model_spec import ModelSpec

__all__ = [
    "PUBLIC_FOLDER",
    "SMALL_GPT2",
    "SMALL_GPT2_PUBLIC",
    "LanguageModel",
    "ModelError",
    "held_out",
    "load_model",
    "sentence_losses",
]

_HEAD_FILE = "head.safetensors"


class LanguageModel:
    """A model for a task whose trainable parameters are one flat vector.

    The module is in eval mode for good: with dropout off, the gradient of a sentence depends on nothing but
    the parameters and that sentence, which the privacy proof asks for (docs/privacy.md). A mask drawn from a
    stream that all sentences share would make one sentence's gradient depend on which others were there. So dropout
    is not the module's: where a model has it (`fl_sim.clients.models.architectures.awd_lstm`), masks are drawn here,
    from a seed,
    and handed in.

    Attributes:
        module: the torch module, float32, in eval mode: one of transformers or peft, or our own.
        tokenizer: the transformers tokenizer.
        spec, seed, task: what it was built from, and for.
        bos_id, eos_id: boundary tokens of every sentence.
        max_tokens: the longest input, in tokens.
        vocabulary_size: number of rows of the embedding.
        parameters: the trainable parameters as a flat view.
    """

    def __init__(self, module: nn.Module, tokenizer: Any, spec: ModelSpec, seed: int, task: Task | None = None) -> None:
        self.module = module.eval()
        self.tokenizer = tokenizer
        self.spec = spec
        self.seed = seed
        self.task = task or NextWord()
        self.bos_id, self.eos_id = boundary_ids(tokenizer)
        body = _body_of(module)
        context = 2**31 if isinstance(body, AwdLstm) else own_context(body.config)
        self.max_tokens = min(spec.max_tokens, context)
        table = body.embedding if isinstance(body, AwdLstm) else body.get_input_embeddings()
        self.vocabulary_size: int = table.weight.shape[0]
        self._takes_positions = "position_ids" in inspect.signature(body.forward).parameters
        self._masking = body if isinstance(body, AwdLstm) and body.config.has_dropout else None
        self.parameters = TrainableParameters(module)
        self._mixed = spec.precision == "bfloat16"
        if self._mixed and isinstance(body, AwdLstm):
            raise ModelError(f"model.precision is 'bfloat16'; allowed for {spec.name!r}: float32, it is no transformer")
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

    @property
    def has_dropout(self) -> bool:
        """Whether a seed of dropout masks makes a difference."""
        return self._masking is not None

    @property
    def reads_features(self) -> bool:
        """Whether the body is frozen, so that a sentence need be read only once (`fl_sim.clients.features`)."""
        module = self.module
        return isinstance(module, Classifier) and not any(p.requires_grad for p in module.body.parameters())

    def get_vector(self) -> NDArray[np.float32]:
        """A copy of the trainable parameters θ, shape (d,)."""
        return self.parameters.read()

    def set_vector(self, vector: NDArray[np.floating]) -> None:
        """Set the trainable parameters θ from shape (d,); raises ModelError for another shape."""
        self.parameters.write(vector)

    def named_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """(name, shape) of each trainable parameter, in the vector's order."""
        return self.parameters.shapes()

    def encode(self, texts: Sequence[str], targets: Sequence[int] | None = None) -> list[Example]:
        """Each text as ``[bos] w1 … wn [eos]``, cut to the context (a cut text has no eos: it did not end
        there), with its class if ``targets`` are given; numbered from 0.

        A special token spelt out in a text is plain text here: nobody can forge a sentence boundary.
        """
        if not texts:
            return []
        ids = self.tokenizer(list(texts), add_special_tokens=False, split_special_tokens=True)["input_ids"]
        longest = self.task.longest(self.max_tokens)
        whole = (np.array([self.bos_id, *words, self.eos_id][:longest], dtype=np.int32) for words in ids)
        classes = [NO_CLASS] * len(ids) if targets is None else targets
        return [
            Example(tokens, target, number) for number, (tokens, target) in enumerate(zip(whole, classes, strict=True))
        ]

    def validate(self, examples: Sequence[Example]) -> None:
        """Raise ModelError for the first example that the model cannot read."""
        validate(examples, self.task.longest(self.max_tokens), self.vocabulary_size)

    def batch(self, examples: Sequence[Example], mask_seed: int | None = None) -> Batch:
        """Examples of which there is something to tell, padded; with dropout masks where a seed is given and the
        model has dropout."""
        batch = self.task.collate(examples, self.device)
        if mask_seed is None or self._masking is None or batch.features is not None:
            return batch
        return dataclasses.replace(batch, masks=self._masking.draw_masks(examples, batch, mask_seed))

    def logits(self, batch: Batch) -> torch.Tensor:
        """Scores of what may be told, (B, P, vocabulary or classes).

        A causal model gets no attention mask: the padding is on the right, and a token attends to nothing after it.
        """
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._mixed):
            return self._scores(batch)

    @contextmanager
    def exact(self) -> Iterator[None]:
        """Compute in float32, whatever the precision of training."""
        mixed, self._mixed = self._mixed, False
        try:
            yield
        finally:
            self._mixed = mixed

    def _scores(self, batch: Batch) -> torch.Tensor:
        module: Any = self.module
        if isinstance(module, Classifier | AwdLstmForNextWord):
            return module(batch)
        positions = {"position_ids": batch.positions} if self._takes_positions else {}
        return module(input_ids=batch.inputs, use_cache=False, **positions).logits

    def save(self, folder: Path) -> None:
        """Write weights (safetensors; with LoRA the adapter alone), configuration, tokenizer, `spec.json`; a
        classification head goes into a file of its own."""
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        _quiet()
        module: Any = self.module
        if isinstance(module, Classifier):
            head = {name: value.detach().cpu() for name, value in module.head.state_dict().items()}
            save_file(head, folder / _HEAD_FILE)
            module = module.body
        if isinstance(module, AwdLstm | AwdLstmForNextWord):
            awd_lstm.save(module, folder)
        else:
            module.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        built_from: dict[str, Any] = {"spec": self.spec.model_dump(mode="json"), "seed": self.seed}
        if isinstance(self.task, Classification):
            built_from["classes"] = list(self.task.classes)
        (folder / "spec.json").write_text(json.dumps(built_from, indent=2) + "\n", encoding="utf-8")


def load_model(spec: ModelSpec, seed: int, task: Task | None = None) -> LanguageModel:
    """Build or load the model; new weights depend on ``seed`` alone and torch's global generator is left as
    it was.

    Args:
        spec: which model.
        seed: of new weights.
        task: what it is for; ``None`` is the next word.

    Raises:
        ModelError: if the model, its tokenizer, its device or peft is not to be had, or it cannot do the task; one
            line that says what was tried.
    """
    _quiet()
    device = _device(spec.device)
    task = task or NextWord()
    with torch.random.fork_rng(devices=[]):
        # The CPU's generator alone: weights are drawn there, whatever the device.
        torch.default_generator.manual_seed(seed)
        named = None if spec.name in (SMALL_GPT2, AWD_LSTM) else _named(spec, task)
        tokenizer = load_tokenizer(spec.tokenizer_name)
        module = _built(spec, tokenizer, task) if named is None else named
        _check_dropout(module, spec)
        module = _tuned(module, spec, task)
    return LanguageModel(module.to(device), tokenizer, spec, seed, task)


def _named(spec: ModelSpec, task: Task) -> nn.Module:
    """A model with weights of its own, less its output layer for classification."""
    next_word = isinstance(task, NextWord)
    if awd_lstm.is_awd_lstm(spec.name):
        return awd_lstm.load(Path(spec.name), spec, output_layer=next_word)
    return load_causal(spec.name) if next_word else load_body(spec.name)


def _built(spec: ModelSpec, tokenizer: Any, task: Task) -> nn.Module:
    """A model with random weights, less its output layer for classification."""
    next_word = isinstance(task, NextWord)
    if spec.name == SMALL_GPT2:
        return build_small_gpt2(spec, tokenizer, output_layer=next_word)
    config = AwdLstmConfig.of(spec, len(tokenizer))
    return AwdLstmForNextWord(config) if next_word else AwdLstm(config)


def _tuned(module: nn.Module, spec: ModelSpec, task: Task) -> nn.Module:
    """The module with its head for the task, and with those parameters trainable that ``spec`` says."""
    next_word = isinstance(task, NextWord)
    if spec.lora_rank > 0:
        module = tuning.with_adapters(module, spec, output_layer=next_word)
    if isinstance(task, Classification):
        module = Classifier(module, len(task.classes), spec)
        _read_head(module, spec, task)
    if spec.tune == "head":
        tuning.train_head_only(module, _head_of(module), spec)
    if spec.tune == "bias":
        tuning.train_biases(module, module.head if isinstance(module, Classifier) else None, spec)
    return module


def _read_head(module: Classifier, spec: ModelSpec, task: Classification) -> None:
    """Take over the head of a classifier that was saved, if it was made for the same classes."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folder = Path(spec.name)
    if not (folder / _HEAD_FILE).is_file():
        return
    try:
        made_for = json.loads((folder / "spec.json").read_text(encoding="utf-8")).get("classes")
        if made_for == list(task.classes):
            module.head.load_state_dict(load_file(folder / _HEAD_FILE))
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"cannot load the head of model {spec.name!r}: {' '.join(str(error).split())}") from error


def _head_of(module: Any) -> nn.Module | None:
    """The output layer, ``None`` where a model has none to be found."""
    if isinstance(module, Classifier):
        return module.head
    return module.decoder if isinstance(module, AwdLstmForNextWord) else module.get_output_embeddings()


def _body_of(module: Any) -> Any:
    """What reads the tokens: the transformers model, also where peft wraps it, or the LSTM."""
    if isinstance(module, Classifier | AwdLstmForNextWord):
        module = module.body
    return core_of(module)


def _check_dropout(module: nn.Module, spec: ModelSpec) -> None:
    if spec.dropout > 0 and not isinstance(module, AwdLstm | AwdLstmForNextWord):
        raise ModelError(
            f"model.dropout is {spec.dropout:g}; allowed for {spec.name!r}: 0, because transformers draws one mask "
            "for a whole batch, and a sentence's gradient may depend on no other sentence"
        )


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
