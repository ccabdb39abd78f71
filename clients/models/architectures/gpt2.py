"""GPT-2 with the weights, names and files of transformers' class, without the compiler that its import loads.

That import takes longer than torch's own. This module has what training without adapters needs, and gives the same
numbers bit for bit.

>>> module = Gpt2(Gpt2Sizes(vocab_size=7, n_positions=16, n_embd=8, n_layer=1, n_head=2))
>>> tuple(module(input_ids=torch.tensor([[1, 2, 3]])).logits.shape)
(1, 3, 7)
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from fl_sim.clients.models.architectures.architecture import CONFIG_FILE, WEIGHTS_FILE
from fl_sim.clients.models.model_names import SMALL_GPT2_PUBLIC

_STD = 0.02  # of new weights
_EPSILON = 1e-5  # of the layer norms
PUBLIC_FOLDER = Path(__file__).resolve().parents[2] / "assets" / SMALL_GPT2_PUBLIC

Cache = dict[int, tuple[torch.Tensor, torch.Tensor]]
"""Keys and values of the tokens so far, (B, heads, T, h / heads), by block."""


@dataclasses.dataclass(frozen=True)
class Gpt2Sizes:
    """The sizes of a model, under transformers' names, and its boundary tokens."""

    vocab_size: int
    n_positions: int
    n_embd: int
    n_layer: int
    n_head: int
    bos_token_id: int = 0
    eos_token_id: int = 0

    model_type = "gpt2"

    @classmethod
    def read(cls, folder: Path) -> Gpt2Sizes:
        """Return the sizes in the ``config.json`` of a folder that :meth:`_Saved.save_pretrained` wrote."""
        content = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        return cls(**{field.name: content[field.name] for field in dataclasses.fields(cls)})

    @property
    def hidden_size(self) -> int:
        """The width of a state."""
        return self.n_embd

    @property
    def max_position_embeddings(self) -> int:
        """The longest input in tokens."""
        return self.n_positions


class Output(NamedTuple):
    """What a model returns: the last states (B, T, h), the scores (B, T, V) if it has an output layer, its cache."""

    last_hidden_state: torch.Tensor
    logits: torch.Tensor | None
    past_key_values: Cache | None


class _Attention(nn.Module):
    def __init__(self, sizes: Gpt2Sizes, number: int, fused: bool) -> None:
        super().__init__()
        self.c_attn = Conv1D(3 * sizes.n_embd, sizes.n_embd)
        self.c_proj = Conv1D(sizes.n_embd, sizes.n_embd)
        self._heads, self._number, self._fused = sizes.n_head, number, fused

    def forward(self, states: torch.Tensor, cache: Cache | None) -> torch.Tensor:
        batch, tokens, width = states.shape
        split = (batch, tokens, self._heads, width // self._heads)
        query, key, value = (part.view(split).transpose(1, 2) for part in self.c_attn(states).split(width, dim=2))
        if cache is not None:
            before = cache.get(self._number, (key[:, :, :0], value[:, :, :0]))
            key, value = (torch.cat(pair, dim=-2) for pair in zip(before, (key, value), strict=True))
            cache[self._number] = key, value
        mixed = (_fused if self._fused else _plain)(query, key, value, states.dtype)
        return self.c_proj(mixed.transpose(1, 2).reshape(batch, tokens, width).contiguous())


def _earlier(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Return which keys each query may see, bool (1, 1, queries, keys): the last query sees all."""
    queries, keys = query.shape[2], key.shape[2]
    positions = torch.arange(keys, device=query.device)
    return (positions <= positions[keys - queries :, None])[None, None]


def _plain(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Attend as the formula says, which is faster than torch's fused attention at 20 tokens on a CPU."""
    scores = torch.matmul(query, key.transpose(-1, -2)) * query.size(-1) ** -0.5
    hidden = torch.finfo(dtype).min
    zero = torch.zeros((), device=query.device, dtype=dtype)
    weights = functional.softmax(scores + torch.where(_earlier(query, key), zero, hidden), dim=-1)
    return torch.matmul(weights.type(value.dtype), value)


def _fused(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Attend with torch's fused kernels, which know the plain causal mask themselves."""
    queries, keys = query.shape[2], key.shape[2]
    mask = None if queries in (1, keys) else _earlier(query, key)
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=queries > 1 and mask is None, scale=query.size(-1) ** -0.5
    )


class _Mlp(nn.Module):
    def __init__(self, sizes: Gpt2Sizes) -> None:
        super().__init__()
        self.c_fc = Conv1D(4 * sizes.n_embd, sizes.n_embd)
        self.c_proj = Conv1D(sizes.n_embd, 4 * sizes.n_embd)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.c_proj(functional.gelu(self.c_fc(states), approximate="tanh"))


class _Block(nn.Module):
    def __init__(self, sizes: Gpt2Sizes, number: int, fused: bool) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(sizes.n_embd, eps=_EPSILON)
        self.attn = _Attention(sizes, number, fused)
        self.ln_2 = nn.LayerNorm(sizes.n_embd, eps=_EPSILON)
        self.mlp = _Mlp(sizes)

    def forward(self, states: torch.Tensor, cache: Cache | None) -> torch.Tensor:
        states = self.attn(self.ln_1(states), cache) + states
        return states + self.mlp(self.ln_2(states))


def _write_as_shipped(path: Path, own: Mapping[str, object]) -> None:
    """Write a file of settings as the model that ships has it, which transformers reads, but for those of its own."""
    shipped = json.loads((PUBLIC_FOLDER / path.name).read_text(encoding="utf-8"))
    content = shipped | dict(own) | {"transformers_version": version("transformers")}
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


class _Saved(nn.Module):
    """A module that is read and written as transformers' class of the same name."""

    kind: str
    config: Gpt2Sizes

    def save_pretrained(self, folder: Path) -> None:
        """Write sizes and weights as transformers does."""
        from safetensors.torch import save_file

        _write_as_shipped(folder / CONFIG_FILE, dataclasses.asdict(self.config) | {"architectures": [self.kind]})
        weights = {name: value.detach().cpu().contiguous() for name, value in self.named_parameters()}
        save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})

    def read(self, folder: Path) -> None:
        """Read a model with an output layer, or a body its part; KeyError or RuntimeError if the weights do not fit."""
        from safetensors.torch import load_file

        weights = load_file(folder / WEIGHTS_FILE)
        if isinstance(self, Gpt2Body):
            weights = {name.removeprefix("transformer."): value for name, value in weights.items()}
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.copy_(weights[name])


class Gpt2Body(_Saved):
    """GPT-2 without its output layer; new weights are drawn in transformers' order, attention may be torch's fused."""

    kind = "GPT2Model"

    def __init__(self, config: Gpt2Sizes, *, fused: bool = False) -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.n_positions, config.n_embd)
        self.h = nn.ModuleList([_Block(config, number, fused) for number in range(config.n_layer)])
        self.ln_f = nn.LayerNorm(config.n_embd, eps=_EPSILON)
        self._draw()

    @torch.no_grad()
    def _draw(self) -> None:
        """Draw new weights; those that end a branch twice, because transformers' generator moves on so far."""
        smaller = _STD / math.sqrt(2 * self.config.n_layer)
        draws: list[tuple[Any, float]] = [(self.wte, _STD), (self.wpe, _STD)]
        blocks: Any = self.h
        for block in blocks:
            for first, last in ((block.attn.c_attn, block.attn.c_proj), (block.mlp.c_fc, block.mlp.c_proj)):
                draws += [(first, _STD), (last, _STD), (last, smaller)]
        for layer, std in draws:
            layer.weight.normal_(std=std)

    @property
    def base_model(self) -> Gpt2Body:
        """The body, as peft and transformers name it."""
        return self

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the table of word vectors."""
        return self.wte

    def get_output_embeddings(self) -> None:
        """Return None: a body has no output layer."""

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool = False,
    ) -> Output:
        """Return the last states of tokens, (B, T); positions count from 0 unless given, and a cache grows in place."""
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        cache = {} if use_cache and past_key_values is None else past_key_values
        states = self.wte(input_ids) + self.wpe(position_ids)
        for block in self.h:
            states = block(states, cache)
        return Output(self.ln_f(states), None, cache)


class Gpt2(_Saved):
    """GPT-2 with its output layer, whose weights are the word vectors; arguments as for :class:`Gpt2Body`."""

    kind = "GPT2LMHeadModel"

    def __init__(self, config: Gpt2Sizes, *, fused: bool = False) -> None:
        super().__init__()
        self.config = config
        self.transformer = Gpt2Body(config, fused=fused)
        with torch.device("meta"):  # without weights of its own
            self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    @property
    def base_model(self) -> Gpt2Body:
        """The body, as peft and transformers name it."""
        return self.transformer

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the table of word vectors."""
        return self.transformer.wte

    def get_output_embeddings(self) -> nn.Linear:
        """Return the output layer."""
        return self.lm_head

    def save_pretrained(self, folder: Path) -> None:
        """Write sizes, weights and what transformers needs to continue texts."""
        super().save_pretrained(folder)
        ends = {"bos_token_id": self.config.bos_token_id, "eos_token_id": self.config.eos_token_id}
        _write_as_shipped(folder / "generation_config.json", ends)

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool = False,
    ) -> Output:
        """Return states and scores; arguments as for :meth:`Gpt2Body.forward`."""
        output = self.transformer(input_ids, position_ids, past_key_values, use_cache)
        return output._replace(logits=self.lm_head(output.last_hidden_state))
