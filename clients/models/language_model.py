"""A model for a task as clients train it: one flat vector of trainable parameters, batches in, scores out.

Only the trainable parameters travel between server and clients; what is frozen is loaded once per process
(`fl_sim.clients.worker.workspace`). What differs between families of models is in their
`fl_sim.clients.models.architectures.architecture.Architecture`.

>>> from fl_sim.clients.models.model_spec import ModelSpec
>>> model = load_model(ModelSpec(hidden=8, layers=1, heads=2), seed=0)
>>> batch = model.batch(model.encode(["Ada left.", "It rained all day."]))
>>> tuple(model.logits(batch).shape) == (*batch.targets.shape, model.vocabulary_size)
True
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from fl_sim.clients.batches import NO_CLASS, NO_TARGET, Batch, Example, batch_tokens
from fl_sim.clients.device import in_fixed_order, make_repeatable, tf32
from fl_sim.clients.errors import ModelError
from fl_sim.clients.models import parameters, tuning
from fl_sim.clients.models.architectures.architecture import UNBOUNDED, Architecture, check_dropout
from fl_sim.clients.models.architectures.model_size import check_declared
from fl_sim.clients.models.architectures.model_source import ModelSource, source_of
from fl_sim.clients.models.classifier import Classifier
from fl_sim.clients.models.parameters import TrainableParameters
from fl_sim.clients.models.tokenizers import Vocabulary, boundary_ids
from fl_sim.clients.tasks import NextWord, Task
from fl_sim.files import read_bytes
from fl_sim.formats import one_line

if TYPE_CHECKING:
    from fl_sim.clients.models.model_spec import ModelSpec

_LENGTHS = (3, 5, 8)  # tokens of the sentences that are tried
_TOLERANCE = 1e-4  # of the largest score


@contextmanager
def plugin_errors(name: str, source: ModelSource) -> Iterator[None]:
    """Turn what a plug-in raises within the block into a ModelError of one line; errors of our own models pass."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        if source.ships:
            raise
        raise ModelError(f"model {name!r} fails with {one_line(error, named=True)[:200]}") from error


def check_scores(model: LanguageModel, name: str) -> None:
    """Raise ModelError unless scores have the right shape and depend on no other sentence, padding or later word."""
    draws = np.random.default_rng(0)
    lengths = [min(length, model.task.longest(model.max_tokens)) for length in _LENGTHS]
    tokens = [draws.integers(0, model.vocabulary_size, size=length) for length in lengths]
    examples = [Example(sentence, target=0, number=number) for number, sentence in enumerate(tokens)]
    batch = model.batch(examples)
    with torch.no_grad():
        together = model.logits(batch)
        expected = (*batch.targets.shape, len(model.task.classes) or model.vocabulary_size)
        if tuple(together.shape) != expected:
            raise ModelError(f"model {name!r} returns scores of shape {tuple(together.shape)}; allowed: {expected}")
        allowed = _TOLERANCE * float(together.abs().max())
        for row, example in enumerate(examples):
            alone = model.batch([example])
            known = alone.targets[0] != NO_TARGET
            scores = model.logits(alone)[0]
            if not _agree(scores[known], together[row, : len(known)][known], allowed):
                raise ModelError(
                    f"model {name!r} scores a sentence otherwise beside other sentences; allowed: scores that depend "
                    "on the sentence alone (docs/privacy.md, section 2)"
                )
            if model.task.classes:
                continue
            ended_otherwise = alone.inputs.clone()
            ended_otherwise[:, -1] = torch.where(alone.inputs[:, -1] == 0, 1, 0)
            if not _agree(model.logits(replace(alone, inputs=ended_otherwise))[0, :-1], scores[:-1], allowed):
                raise ModelError(f"model {name!r} reads the word that it predicts; allowed: the words before it")


def _agree(scores: torch.Tensor, others: torch.Tensor, allowed: float) -> bool:
    return bool(((scores - others).abs() <= allowed).all())


_HEAD_FILE = "head.safetensors"
_SPEC_FILE = "spec.json"


class LanguageModel:
    """A model for a task whose trainable parameters are one flat vector.

    The module stays in eval mode: with torch's dropout off, the gradient of a sentence depends on the parameters and
    that sentence alone, which the privacy proof needs (docs/privacy.md). A mask drawn from a stream that all sentences
    share would make one sentence's gradient depend on which others were there. Where an architecture has dropout, its
    masks are drawn in :meth:`batch` from a seed and passed to the module.

    Attributes:
        module: the torch module, float32, in eval mode.
        spec, seed, task: what it was built from, and for.
        architecture: runs, tunes and saves the module.
        body: the module, without its head if the task is classification.
        classifier: the module if the task is classification, else ``None``.
        bos_id, eos_id: boundary tokens of every sentence.
        max_tokens: the longest input, in tokens.
        vocabulary_size: number of rows of the embedding.
        parameters: the trainable parameters as a flat view.
        largest_batch: the most tokens of a micro-batch, because more did not fit into memory; ``None`` for no limit.
        recomputed: the blocks that are computed again in the backward pass; empty without ``model.checkpointing``.
        in_fixed_order: whether backward passes run under `fl_sim.clients.device.in_fixed_order`; set once it is known
            that they can, on an accelerator.
        mixed: whether matrix products are in bfloat16 now.
        lower: the frozen layers below the adapters, whose states are kept; ``None`` if sentences are read from tokens.
    """

    def __init__(
        self,
        module: nn.Module,
        tokenizer: Any,
        spec: ModelSpec,
        seed: int,
        task: Task | None = None,
        source: ModelSource | None = None,
    ) -> None:
        self._source = source = source or source_of(spec.name)
        self.architecture: Architecture = source.architecture
        self.module = module.eval()
        self.tokenizer = tokenizer
        self.spec = spec
        self.seed = seed
        self.task = task or NextWord()
        self.bos_id, self.eos_id = boundary_ids(tokenizer)
        self.classifier = module if isinstance(module, Classifier) else None
        self.body = module if self.classifier is None else self.classifier.body
        self.max_tokens = min(spec.max_tokens, self.architecture.context(self.body))
        self.vocabulary_size: int = self.architecture.embedding(self.body).weight.shape[0]
        self.parameters = TrainableParameters(module)
        self.lower = None if spec.lora_layers is None else self.architecture.split_below(self.body, spec.lora_layers)
        self.recomputed: Sequence[nn.Module] = self.architecture.blocks(self.body) if spec.checkpointing else ()
        if spec.checkpointing and not self.recomputed:
            raise ModelError(f"model.checkpointing is true; allowed for {spec.name!r}: false, it is no transformer")
        self.largest_batch: int | None = None
        self._tf32 = spec.tf32
        self.in_fixed_order = False
        self.mixed = spec.precision == "bfloat16"
        if self.mixed and not self.architecture.mixed_precision:
            raise ModelError(f"model.precision is 'bfloat16'; allowed for {spec.name!r}: float32, it is no transformer")
        if len(tokenizer) > self.vocabulary_size:
            raise ModelError(
                f"tokenizer {source.tokenizer_name(spec)!r} has {len(tokenizer)} tokens; "
                f"allowed for model {spec.name!r}: at most {self.vocabulary_size}"
            )

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next(iter(self.parameters.tensors.values())).device

    @property
    def batch_tokens(self) -> int:
        """The padded size of a micro-batch in tokens: ``model.batch_tokens``, or less where memory did not suffice."""
        tokens = batch_tokens(self.spec.batch_tokens, self.device)
        return tokens if self.largest_batch is None else min(tokens, self.largest_batch)

    @property
    def num_parameters(self) -> int:
        """d, the number of trainable parameters."""
        return self.parameters.size

    @property
    def has_dropout(self) -> bool:
        """Whether a seed of dropout masks makes a difference."""
        return self.architecture.has_dropout(self.body)

    @property
    def reads_features(self) -> bool:
        """Whether the body is frozen, so that it has to read a sentence only once (`fl_sim.clients.frozen_states`)."""
        return self.classifier is not None and not any(p.requires_grad for p in self.classifier.body.parameters())

    def get_vector(self) -> NDArray[np.float32]:
        """Return a copy of the trainable parameters θ, float32 (d,)."""
        return self.parameters.read()

    def set_vector(self, vector: NDArray[np.floating]) -> None:
        """Set the trainable parameters θ from a vector (d,); raise ModelError for another shape."""
        self.parameters.write(vector)

    def weights(self) -> Iterator[NDArray[Any]]:
        """Yield all weights, trainable or frozen, and buffers, in the module's order; bfloat16 as float32."""
        for value in self.module.state_dict().values():
            tensor = value.detach().cpu()
            yield (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()

    def encode(self, texts: Sequence[str], targets: Sequence[int] | None = None) -> list[Example]:
        """Return each text as the example ``[bos] w1 … wn [eos]``, numbered from 0, with its class if the task has any.

        A text that is longer than the context is cut and loses its eos, because it did not end there. A special token
        spelt out in a text is plain text: no text can forge a sentence boundary.
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
        """Check that examples, but those with features, neither fail inside a layer nor index another token's row.

        Raises:
            ModelError: a sentence is not a flat integer array, is empty, is longer than the model takes, or holds an id
                outside the vocabulary; the message names the first.
        """
        longest = self.task.longest(self.max_tokens)
        for index, example in enumerate(examples):
            if example.features is not None:
                continue
            tokens = example.tokens
            if tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer):
                raise ModelError(f"sentence {index} is a {tokens.ndim}-d {tokens.dtype} array; allowed: 1-d integers")
            if not 1 <= len(tokens) <= longest:
                raise ModelError(f"sentence {index} has {len(tokens)} tokens; allowed: 1 to {longest}")
            low, high = int(tokens.min()), int(tokens.max())
            if low < 0 or high >= self.vocabulary_size:
                wrong = low if low < 0 else high
                raise ModelError(f"sentence {index} holds token id {wrong}; allowed: 0 to {self.vocabulary_size - 1}")

    def batch(self, examples: Sequence[Example], mask_seed: int | None = None) -> Batch:
        """Return the padded batch of examples with a prediction target; ``mask_seed`` draws the dropout masks."""
        batch = self.task.collate(examples, self.device)
        if mask_seed is None or batch.features is not None or not self.has_dropout:
            return batch
        masks = self.architecture.draw_masks(self.body, examples, batch, mask_seed)
        return replace(batch, masks=masks)

    def logits(self, batch: Batch) -> torch.Tensor:
        """Return the scores of the prediction targets, (B, P, vocabulary or classes)."""
        start: AbstractContextManager[None] = nullcontext()
        if batch.states is not None and self.lower is not None:
            start = self.lower.replaced_by(batch.states)
        with self.autocast(), self.fast_products(), start, checkpointed(self.recomputed):
            if self.classifier is not None:
                return self.classifier(batch)
            return self.architecture.scores(self.module, batch)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context in which products are of bfloat16, if the model trains in mixed precision."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.mixed)

    def fast_products(self) -> AbstractContextManager[None]:
        """Return the context of a pass in training, whose products are of TF32 if it is chosen."""
        return tf32() if self._tf32 and self.device.type != "cpu" else nullcontext()

    @contextmanager
    def backward_pass(self) -> Iterator[None]:
        """Hold the context of a backward pass: its products, and the order of its sums."""
        with self.fast_products(), in_fixed_order() if self.in_fixed_order else nullcontext():
            yield

    @contextmanager
    def exact(self) -> Iterator[None]:
        """Compute in float32 within the block, whatever the precision of training."""
        before = self.mixed, self._tf32
        self.mixed = self._tf32 = False
        try:
            yield
        finally:
            self.mixed, self._tf32 = before

    def save(self, folder: Path) -> None:
        """Write weights (safetensors; with LoRA the adapter alone), configuration, tokenizer and `spec.json`.

        A classification head goes into a file of its own. ModelError or OSError if a file cannot be written.
        """
        from safetensors import SafetensorError

        try:
            self._save(folder)
        except OSError:
            raise
        except Exception as error:
            if not isinstance(error, SafetensorError) and type(error) is not Exception:
                raise
            # The libraries' own code writes the weights and the tokenizer; its errors are no OSError.
            raise ModelError(f"{folder}: the model cannot be written ({one_line(error)})") from error

    def _save(self, folder: Path) -> None:
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        _quiet()
        if self.classifier is not None:
            head = {name: value.detach().cpu() for name, value in self.classifier.head.state_dict().items()}
            save_file(head, folder / _HEAD_FILE)
        self.architecture.save(self.body, folder, self._source.original(self.spec))
        before, context = self.tokenizer.model_max_length, self.architecture.context(self.body)
        self.tokenizer.model_max_length = context if context < UNBOUNDED else before  # others cut what is longer
        try:
            self.tokenizer.save_pretrained(folder)
        finally:
            self.tokenizer.model_max_length = before
        classes = {"classes": list(self.task.classes)} if self.task.classes else {}
        built_from = {"spec": self.spec.model_dump(mode="json"), "seed": self.seed, **classes}
        (folder / _SPEC_FILE).write_text(json.dumps(built_from, indent=2) + "\n", encoding="utf-8")


def load_model(spec: ModelSpec, seed: int, task: Task | None = None) -> LanguageModel:
    """Build or load a model; torch's global generator is left as it was.

    Args:
        spec: names the model and its sizes.
        seed: the only source of new weights.
        task: what it predicts; ``None`` is the next word.

    Raises:
        ModelError: the model, its tokenizer, its device or peft is missing, or the model cannot do the task.
    """
    _quiet()
    check_declared(spec)
    device = _device(spec.device)
    if device.type != "cpu":
        make_repeatable()
    task = task or NextWord()
    source = source_of(spec.name)
    vocabulary = Vocabulary(source.tokenizer_name(spec), spec.begin_token, spec.end_token)
    with plugin_errors(spec.name, source), torch.random.fork_rng(devices=[]):
        # The CPU's generator alone: weights are drawn there, whatever the device.
        torch.default_generator.manual_seed(seed)
        module = source.build(spec, vocabulary, output_layer=not task.classes)
        tokenizer = vocabulary.tokenizer
        check_dropout(source.architecture, spec)
        module = _tuned(source.architecture, module, spec, task)
        module = module.to(device)
        if spec.frozen_precision != "float32":
            parameters.share(module, spec, seed, repr((task.name, task.classes)))
        model = LanguageModel(module, tokenizer, spec, seed, task, source)
        if not source.ships:
            check_scores(model, spec.name)
    return model


def model_without_weights(spec: ModelSpec) -> LanguageModel:
    """Build a next-word model to count its memory with, without weights or tokens; of a named one the sizes alone.

    Call it where tensors take no memory (`fl_sim.engines.worker_memory`). Whatever ``spec.device`` is, tensors are on
    the CPU; blocks of scores have the size for that device.

    Raises:
        ModelError: there is no such model.
    """
    task = NextWord()
    source = source_of(spec.name)
    with plugin_errors(spec.name, source):
        with torch.device("meta"):
            module = source.architecture.without_weights(source.original(spec), output_layer=True)
            module = _tuned(source.architecture, module, spec, task)
        _take_from_meta(module)
        return LanguageModel(module, _NoTokens(), spec, 0, task, source)


def _take_from_meta(module: nn.Module) -> None:
    """Give a module on torch's meta device new tensors of the same shapes, in place; what is shared stays shared."""
    made: dict[int, torch.Tensor] = {}

    def new(tensor: torch.Tensor) -> torch.Tensor:
        empty = torch.empty(tensor.shape, dtype=tensor.dtype)
        return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty

    for part in module.modules():
        tables: tuple[dict[str, Any], ...] = (part._parameters, part._buffers)
        for owned in tables:
            for name, tensor in owned.items():
                if tensor is not None:
                    owned[name] = made.setdefault(id(tensor), new(tensor))


class _NoTokens:
    """Stand for a tokenizer that reads nothing."""

    bos_token_id = eos_token_id = 0

    def __len__(self) -> int:
        return 0


def _tuned(architecture: Architecture, module: nn.Module, spec: ModelSpec, task: Task) -> nn.Module:
    """Return the module with its head for the task, its trainable and frozen parameters as ``spec`` says."""
    if spec.lora_rank > 0:
        module = architecture.with_adapters(module, spec, output_layer=not task.classes)
    if spec.tune == "matrices":
        tuning.train_matrices(module, architecture.embedding(module))
    head: nn.Module | None = None
    if task.classes:
        module = Classifier(architecture, module, len(task.classes), spec)
        _read_head(module, spec, task)
        head = module.head
    if spec.tune == "head":
        tuning.train_head_only(module, architecture.output_layer(module) if head is None else head, spec)
    if spec.tune == "bias":
        tuning.train_biases(module, head, spec)
    if spec.frozen_precision != "float32":
        parameters.store(module, spec.frozen_precision)
    return module


def _read_head(module: Classifier, spec: ModelSpec, task: Task) -> None:
    """Load the head of a saved classifier, if it was made for the same classes."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folder = Path(spec.name)
    if not (folder / _HEAD_FILE).is_file():
        return
    try:
        made_for = json.loads(read_bytes(folder / _SPEC_FILE)).get("classes")
        if made_for == list(task.classes):
            module.head.load_state_dict(load_file(folder / _HEAD_FILE))
    except (OSError, ValueError, AttributeError, RecursionError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"cannot load the head of model {spec.name!r}: {one_line(error)}") from error


def _quiet() -> None:
    """Switch off transformers' progress bars; a run shows its own."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def _device(name: str) -> torch.device:
    """Return the device of that name; raise ModelError if torch does not see it."""
    if name != "cpu":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        index = torch.device(name).index or 0
        if index >= count:
            raise ModelError(f"device is {name!r}, but torch sees {count} CUDA devices here; allowed: 'cpu'")
    return torch.device(name)


@contextmanager
def checkpointed(blocks: Sequence[nn.Module]) -> Iterator[None]:
    """Let blocks that are called within the context keep nothing but their inputs, if gradients are computed.

    The backward pass computes a block to its end again, so that hooks on all its modules run, which record their inputs
    then.
    """
    again = functools.partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    forwards = {block: functools.partial(again, block.forward) for block in blocks if torch.is_grad_enabled()}
    with parameters.replaced_forwards(forwards), set_checkpoint_early_stop(False):
        yield
