"""AWD-LSTM (Merity, Keskar and Socher 2018, "Regularizing and optimizing LSTM language models").

LSTM layers between one table of word vectors that is both embedding and output layer, with dropout in five places.
The recurrence is our own, so that the gradient of every gate is recorded and per-sentence norms follow. Its input and
recurrent bias are one, because only their sum matters. The paper's averaging of iterates, penalties on activations and
truncated back-propagation are left out: they belong to the trainer.

Dropout that the proof allows: a sentence's masks are drawn from a stream of its own, keyed by the seed and the
sentence's number. The mask of the hidden-to-hidden weights is drawn from the seed alone, for all sentences: it is
public randomness, independent of the data.

>>> module = AwdLstmForNextWord(AwdLstmConfig(vocabulary=5, embedding=8, hidden=8, layers=1))
>>> sum(parameter.numel() for parameter in module.parameters())
589
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from fl_sim.clients.batches import Batch, Example
from fl_sim.clients.errors import ModelError
from fl_sim.clients.ghost_norms import Contribution, Layer, LayerHandler, PerSentence, Product, Record, gram_slack
from fl_sim.clients.models import model_names
from fl_sim.clients.models.architectures.architecture import CONFIG_FILE, WEIGHTS_FILE, Architecture
from fl_sim.clients.models.architectures.model_size import check_size
from fl_sim.files import read_bytes
from fl_sim.formats import shortened
from fl_sim.strategies.primitives import streams

if TYPE_CHECKING:
    from fl_sim.clients.models.model_spec import ModelSpec
    from fl_sim.clients.models.tokenizers import Vocabulary

PUBLIC_LSTM_FOLDER = Path(__file__).resolve().parents[2] / "assets" / model_names.SMALL_AWD_LSTM_PUBLIC

_PLACES = ("embedding", "input", "hidden", "output", "weight")  # of dropout
_MASKED_LIMIT = 1 << 18  # float32 numbers of a masked weight's gradient at a time: so many stay in the cache


class MaskedProduct(Contribution):
    """A weight (q, p) whose entries are multiplied by ``scale`` before use, the same for all sentences.

    Its gradient is ``scale ∘ G_sᵀ A_s``. Products of Gram matrices do not give its norm, so it is computed for a few
    rows of the weight at a time.
    """

    def __init__(self, name: str, inputs: torch.Tensor, grad: torch.Tensor, scale: torch.Tensor) -> None:
        self.name = name
        self.rows = len(grad)
        self._inputs = inputs
        self._grad = grad
        self._scale = scale

    @functools.cached_property
    def norms(self) -> tuple[torch.Tensor, torch.Tensor]:
        squared = self.inner(self)
        return squared, torch.zeros_like(squared)

    @property
    def inner_slack(self) -> torch.Tensor:
        return gram_slack(self._inputs, self._grad) * self._scale.max().square()

    def only(self, rows: torch.Tensor | slice) -> MaskedProduct:
        return MaskedProduct(self.name, self._inputs[rows], self._grad[rows], self._scale)

    def stored(self) -> PerSentence:
        raise TypeError("gradients of a masked weight meet those of masked weights alone")

    def inner(self, other: Contribution) -> torch.Tensor:
        if not isinstance(other, MaskedProduct):
            return other.inner(self)
        rows = max(1, _MASKED_LIMIT // (self._inputs.shape[0] * self._inputs.shape[2]))
        parts = []
        split = (grad.split(rows, dim=2) for grad in (self._grad, other._grad))
        for g, other_g, scale in zip(*split, self._scale.split(rows), strict=True):
            here = torch.bmm(g.transpose(1, 2), self._inputs) * scale
            there = here if other is self else torch.bmm(other_g.transpose(1, 2), other._inputs) * scale
            parts.append((here * there).sum(dim=2).sum(dim=1, dtype=torch.float64))
        return torch.stack(parts).sum(dim=0)

    def add(self, factors: torch.Tensor, total: torch.Tensor) -> None:
        grad = (self._grad * factors.view(-1, 1, 1)).flatten(0, 1)
        total.addcmul_(grad.t() @ self._inputs.flatten(0, 1), self._scale)


class RecurrentLayer(Layer):
    """The hidden-to-hidden weight of `fl_sim.clients.models.architectures.awd_lstm.Recurrence`.

    At every step the weight multiplies the state of the step before, and its output's gradient is that of the gates.
    """

    def __init__(self, module: nn.Module, names: Mapping[str, str]) -> None:
        recurrence: Any = module
        self.modules = (recurrence.gates, module)
        self.names = (names["weight"],)

    reads_outputs: ClassVar[bool] = True

    def contributions(self, records: Sequence[Record]) -> list[Contribution]:
        gates, recurrence = records
        if recurrence.output is None:
            raise ValueError("the record has no output; allowed: one with the states")
        before = functional.pad(recurrence.output[:, :-1], (0, 0, 1, 0))  # a sentence begins with a state of zeros
        scale = recurrence.options.get("scale")
        if scale is None:
            return [Product(self.names[0], before, gates.grad, transposed=False)]
        return [MaskedProduct(self.names[0], before, gates.grad, scale)]


@dataclass(frozen=True)
class AwdLstmConfig:
    """Sizes, and dropout rates during training; the last of the layers is as wide as a word vector (``embedding``)."""

    vocabulary: int
    embedding: int
    hidden: int
    layers: int
    embedding_rate: float = 0.0
    input_rate: float = 0.0
    hidden_rate: float = 0.0
    output_rate: float = 0.0
    weight_rate: float = 0.0

    @classmethod
    def of(cls, spec: ModelSpec, vocabulary: int) -> AwdLstmConfig:
        """Return the sizes and dropout of ``spec``, with a vocabulary of that size; the UeDP paper's by default."""
        hidden = 1150 if spec.hidden is None else spec.hidden
        layers = 3 if spec.layers is None else spec.layers
        return cls(vocabulary, spec.embedding, hidden, layers).with_dropout(spec)

    def with_dropout(self, spec: ModelSpec) -> AwdLstmConfig:
        """Return the same sizes with the dropout of ``spec``."""
        rates = {f"{place}_rate": spec.dropout * getattr(spec, f"drop_{place}") for place in _PLACES}
        return replace(self, **rates)

    @property
    def widths(self) -> list[int]:
        """The width of each layer's states."""
        return [self.hidden] * (self.layers - 1) + [self.embedding]

    @property
    def has_dropout(self) -> bool:
        """Whether any rate is above zero."""
        return any(getattr(self, f"{place}_rate") > 0 for place in _PLACES)


@dataclass(frozen=True)
class Masks:
    """Factors of states and weights: 0, or 1 / (1 - rate), so that means stay the same.

    Attributes:
        words: float32 (B, T, 1), the same for all places of one word type in a sentence.
        states: float32 (B, 1, width), for the word vectors and every layer's output, the same at every place of a
            sentence.
        weights: float32 (4·width, width), for every layer's recurrence, the same for all sentences; ``None`` without
            weight-drop.
    """

    words: torch.Tensor
    states: list[torch.Tensor]
    weights: list[torch.Tensor | None]


class _Steps(torch.autograd.Function):
    """The steps of an LSTM layer, with their gradients.

    The weight's gradient is one product over all steps. Autograd would write as much as the weight at every step, which
    takes most of the time of a wide layer.
    """

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return the states (B, T, w) for the gates' inputs (B, T, 4w) and the weight (4w, w)."""
        batch, steps, width = inputs.shape[0], inputs.shape[1], weight.shape[1]
        gates = inputs.new_empty(steps, batch, 4 * width)
        states, cells = (inputs.new_zeros(steps + 1, batch, width) for _ in range(2))  # the first are those before
        for step in range(steps):
            torch.addmm(inputs[:, step], states[step], weight.t(), out=gates[step])
            admit, keep, new, show = gates[step].chunk(4, dim=1)
            for gate in (admit, keep, show):
                gate.sigmoid_()
            torch.mul(keep, cells[step], out=cells[step + 1]).addcmul_(admit, new.tanh_())
            torch.mul(show, cells[step + 1].tanh(), out=states[step + 1])
        ctx.save_for_backward(gates, states, cells, weight)
        return states[1:].transpose(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the gradients of the gates' inputs and of the weight."""
        gates, states, cells, weight = ctx.saved_tensors
        grads = torch.empty_like(gates)
        of_state, of_cell = torch.zeros_like(states[0]), torch.zeros_like(states[0])
        for step in reversed(range(len(gates))):
            admit, keep, new, show = gates[step].chunk(4, dim=1)
            of_state, squashed = of_state + grad[:, step], cells[step + 1].tanh()
            of_cell = of_cell + of_state * show * (1 - squashed.square())
            parts = (
                of_cell * new * admit * (1 - admit),
                of_cell * cells[step] * keep * (1 - keep),
                of_cell * admit * (1 - new.square()),
                of_state * squashed * show * (1 - show),
            )
            torch.cat(parts, dim=1, out=grads[step])
            of_state, of_cell = grads[step] @ weight, of_cell * keep
        of_weight = grads.flatten(0, 1).t() @ states[:-1].flatten(0, 1) if ctx.needs_input_grad[1] else None
        return grads.transpose(0, 1), of_weight


class Recurrence(nn.Module):
    """The recurrent part of an LSTM layer: from the gates' inputs (B, T, 4w) to states (B, T, w).

    Attributes:
        weight: (4w, w), hidden to hidden; the gates are input, forget, cell, output.
        gates: the identity; the gradient of its output is the gates' gradient.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4 * width, width))
        self.gates = nn.Identity()

    def forward(self, inputs: torch.Tensor, *, scale: torch.Tensor | None = None) -> torch.Tensor:
        """Return the states (B, T, w) for the gates' inputs (B, T, 4w), from a state of zeros.

        ``scale`` (4w, w) is a factor of the weight; ``None`` stands for 1.
        """
        weight = self.weight if scale is None else self.weight * scale
        return _Steps.apply(self.gates(inputs), weight)


class LstmLayer(nn.Module):
    """One LSTM layer, from (B, T, p) to (B, T, w)."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(inputs, 4 * width)
        self.recurrence = Recurrence(width)

    def forward(self, inputs: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
        """Return the layer's states (B, T, w)."""
        return self.recurrence(self.project(inputs), scale=scale)


class AwdLstm(nn.Module):
    """Word vectors and LSTM layers; the states of the last layer are as wide as a word vector."""

    def __init__(self, config: AwdLstmConfig) -> None:
        super().__init__()
        self.config = config
        self.width = config.embedding
        self.embedding = nn.Embedding(config.vocabulary, config.embedding)
        widths = [config.embedding, *config.widths]
        self.layers = nn.ModuleList(LstmLayer(p, w) for p, w in pairwise(widths))
        self._weight_masks: tuple[int, list[torch.Tensor | None]] | None = None
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        bound = 1 / math.sqrt(config.hidden)
        for parameter in self.layers.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the states of the last layer, (B, T, embedding)."""
        masks: Masks | None = batch.masks
        states = self.embedding(batch.inputs)
        if masks is not None:
            states = states * masks.words * masks.states[0]
        for index, layer in enumerate(self.layers):
            states = layer(states, None if masks is None else masks.weights[index])
            if masks is not None:
                states = states * masks.states[index + 1]
        return states

    def draw_masks(self, examples: Sequence[Example], batch: Batch, seed: int) -> Masks:
        """Return a batch's masks: a sentence's depend on ``seed`` and its number, the weights' on ``seed`` alone."""
        config = self.config
        rates = [config.input_rate, *[config.hidden_rate] * (config.layers - 1), config.output_rate]
        widths = [config.embedding, *config.widths]
        device = batch.inputs.device
        words = torch.empty((*batch.inputs.shape, 1), device=device)
        states = [torch.empty((len(examples), 1, width), device=device) for width in widths]
        for row, example in enumerate(examples):
            rng = streams.generator(seed, "dropout", example.number)
            types = _mask(rng, (config.vocabulary,), config.embedding_rate).to(device)
            words[row, :, 0] = types[batch.inputs[row]]
            for mask, rate in zip(states, rates, strict=True):
                mask[row, 0] = _mask(rng, (mask.shape[2],), rate)
        return Masks(words, states, self._weights(seed, device))

    def _weights(self, seed: int, device: torch.device) -> list[torch.Tensor | None]:
        """Return the weight masks of a seed; only the last seed's are kept, because they are as large as the model."""
        if self.config.weight_rate == 0:
            return [None] * self.config.layers
        if self._weight_masks is None or self._weight_masks[0] != seed:
            rng = streams.generator(seed, "weight-drop")
            drawn = [_mask(rng, (4 * w, w), self.config.weight_rate).to(device) for w in self.config.widths]
            self._weight_masks = (seed, [*drawn])
        return self._weight_masks[1]


class AwdLstmForNextWord(nn.Module):
    """`AwdLstm` with the table of word vectors as output layer too, and a bias for each word."""

    def __init__(self, config: AwdLstmConfig) -> None:
        super().__init__()
        self.body = AwdLstm(config)
        self.decoder = nn.Linear(config.embedding, config.vocabulary)
        self.decoder.weight = self.body.embedding.weight
        nn.init.zeros_(self.decoder.bias)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the scores of the next token, (B, T, V)."""
        return self.decoder(self.body(batch))


class RecurrentArchitecture(Architecture):
    """AWD-LSTM, with dropout masks of its own."""

    settings: ClassVar[frozenset[str]] = frozenset({"hidden", "layers", "embedding"})
    no_dropout_because: ClassVar[str | None] = None

    def build(self, spec: ModelSpec, vocabulary: Vocabulary, *, output_layer: bool) -> nn.Module:
        config = AwdLstmConfig.of(spec, vocabulary.size)
        kind = AwdLstmForNextWord if output_layer else AwdLstm
        check_size(spec.name, lambda: kind(config))
        return kind(config)

    def output_layer(self, module: Any) -> nn.Module | None:
        return module.decoder

    def has_dropout(self, module: Any) -> bool:
        return _body(module).config.has_dropout

    def draw_masks(self, module: Any, examples: Sequence[Example], batch: Batch, seed: int) -> Masks:
        return _body(module).draw_masks(examples, batch, seed)

    def layer_handlers(self) -> Mapping[type[nn.Module], LayerHandler]:
        return {Recurrence: RecurrentLayer}

    def save(self, module: Any, folder: Path, spec: ModelSpec) -> None:
        """Write sizes and weights (safetensors); dropout belongs to training."""
        from safetensors.torch import save_file

        body = _body(module)
        sizes = {name: getattr(body.config, name) for name in ("vocabulary", "embedding", "hidden", "layers")}
        content = json.dumps({"model_type": model_names.AWD_LSTM, **sizes}, indent=2)
        (folder / CONFIG_FILE).write_text(content + "\n", encoding="utf-8")
        weights = {f"body.{name}": value.detach().cpu().contiguous() for name, value in body.state_dict().items()}
        if body is not module:
            weights["decoder.bias"] = module.decoder.bias.detach().cpu()
        save_file(weights, folder / WEIGHTS_FILE)

    def load(self, folder: Path, spec: ModelSpec, vocabulary: Vocabulary, *, output_layer: bool) -> nn.Module:
        """Return the module that :meth:`save` wrote, with the dropout of ``spec``."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            sizes = json.loads(read_bytes(folder / CONFIG_FILE))
            del sizes["model_type"]
            config = AwdLstmConfig(**sizes).with_dropout(spec)
            largest = {"vocabulary": 10**9, "embedding": 10**6, "hidden": 10**6, "layers": spec.max_layers}
            for name, most in largest.items():
                if type(value := getattr(config, name)) is not int or not 1 <= value <= most:
                    raise ModelError(f"{name} is {value!r:.40}; allowed: an integer in [1, {most}]")
            check_size(str(folder), lambda: AwdLstmForNextWord(config))
            module = AwdLstmForNextWord(config)
            weights = load_file(folder / WEIGHTS_FILE)
            weights["decoder.weight"] = weights["body.embedding.weight"]
            if not output_layer:
                weights.setdefault("decoder.bias", module.decoder.bias.detach())
            module.load_state_dict(weights)
        except (OSError, ValueError, TypeError, KeyError, RuntimeError, SafetensorError) as error:
            raise ModelError(f"cannot load model {str(folder)!r}: {shortened(error)}") from error
        return module if output_layer else module.body


class PublicRecurrent(RecurrentArchitecture):
    """The AWD-LSTM that ships, pre-trained on public text; its sizes are its own."""

    settings: ClassVar[frozenset[str]] = frozenset()

    def build(self, spec: ModelSpec, vocabulary: Vocabulary, *, output_layer: bool) -> nn.Module:
        return self.load(PUBLIC_LSTM_FOLDER, spec, vocabulary, output_layer=output_layer)


AWD_LSTM = RecurrentArchitecture()
SMALL_AWD_LSTM_PUBLIC = PublicRecurrent()


def _body(module: Any) -> Any:
    """Return the LSTM, also where an output layer is on top of it."""
    return getattr(module, "body", module)


def _mask(rng: np.random.Generator, shape: tuple[int, ...], rate: float) -> torch.Tensor:
    """Return 0 with probability ``rate``, else 1 / (1 - rate), float32; the numbers drawn do not depend on the rate."""
    kept = rng.random(shape, dtype=np.float32) >= rate
    return torch.from_numpy(kept.astype(np.float32) / np.float32(1 - rate))
