"""Split a transformer below its first trainable layer, so that what is frozen reads every sentence only once.

With adapters in the upper blocks alone, what enters the first of them is a function of the sentence and of frozen,
public weights. How blocks are called differs between architectures, so the split is tried when it is made, and both
ways must give the same states.

>>> model = nn.Sequential(nn.Embedding(9, 4), nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]))
>>> lower = LowerLayers(model[1], 1, lambda ids: model[1][1](model[1][0](model[0](ids))), words=9)
>>> lower.states(torch.tensor([[1, 2]])).shape
torch.Size([1, 2, 4])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from fl_sim.clients.errors import ModelError

_TOLERANCE = 1e-4  # of the largest state
_LARGEST_STATE = 3e4  # of float16, in which states are kept, half

Forward = Callable[[torch.Tensor], torch.Tensor]
"""Run the model without its output layer on token ids (B, T), and return its last states (B, T, h)."""


class LowerLayers:
    """The frozen blocks of a transformer below the ``first`` one that trains, an index of at least 1.

    ``forward`` runs the model without its output layer; ``words`` is the number of token ids.

    Raises:
        ModelError: the model from its own states is not the model from its tokens, or a state does not fit float16.
    """

    def __init__(self, blocks: nn.ModuleList, first: int, forward: Forward, words: int) -> None:
        self.first = first
        self._blocks = blocks
        self._forward = forward
        self._returns_tuple = False
        self._check(words)

    def states(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return what enters the first trainable block, (B, T, h), for token ids (B, T) without padding."""
        seen: list[torch.Tensor] = []
        blocks = self._stubs(range(self.first, len(self._blocks)), seen.append)
        with torch.no_grad(), self._exchanged(blocks):
            self._forward(inputs)
        return seen[0]

    @contextmanager
    def replaced_by(self, states: torch.Tensor) -> Iterator[None]:
        """Start the model from ``states`` (B, T, h) within the block, whatever token ids it gets."""
        blocks = self._stubs(range(self.first), None)
        blocks[self.first - 1] = _Stub(self._blocks[self.first - 1], lambda _: states, self._returns_tuple)
        with self._exchanged(blocks):
            yield

    def frozen_weights(self, module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield name and value of every weight and buffer of ``module`` on which the states may depend."""
        upper = {value.data_ptr() for block in self._blocks[self.first :] for value in block.state_dict().values()}
        seen: set[int] = set()
        for name, value in module.state_dict().items():
            if value.data_ptr() not in upper | seen:
                seen.add(value.data_ptr())
                yield name, value

    def _stubs(self, numbers: range, see: Callable[[torch.Tensor], None] | None) -> dict[int, nn.Module]:
        def passed(states: torch.Tensor) -> torch.Tensor:
            if see is not None:
                see(states)
            return states

        return {number: _Stub(self._blocks[number], passed, self._returns_tuple) for number in numbers}

    @contextmanager
    def _exchanged(self, blocks: dict[int, nn.Module]) -> Iterator[None]:
        own = {number: self._blocks[number] for number in blocks}
        try:
            for number, block in blocks.items():
                self._blocks[number] = block
            yield
        finally:
            for number, block in own.items():
                self._blocks[number] = block

    def _check(self, words: int) -> None:
        """Compare the model from its tokens with the model from its states."""
        kinds: list[bool] = []
        hook = self._blocks[0].register_forward_hook(lambda _, args, output: kinds.append(isinstance(output, tuple)))
        inputs = torch.linspace(0, words - 1, 10, device=next(self._blocks.parameters()).device).long().view(2, 5)
        try:
            with torch.no_grad():
                expected = self._forward(inputs)
                self._returns_tuple = kinds[0]
                states = self.states(inputs)
                with self.replaced_by(states):
                    found = self._forward(inputs)
        except (RuntimeError, TypeError, AttributeError, IndexError, KeyError, ValueError) as error:
            raise ModelError(
                f"model.lora_layers: the model cannot be split ({' '.join(str(error).split())[:200]})"
            ) from error
        finally:
            hook.remove()
        if not bool(((found - expected).abs() <= _TOLERANCE * expected.abs().max()).all()):
            raise ModelError("model.lora_layers: the model from its own states gives other scores; allowed: unset")
        if not float(states.abs().max()) < _LARGEST_STATE:
            raise ModelError(
                f"model.lora_layers: states are as large as {float(states.abs().max()):.3g}; allowed: unset"
            )


class _Stub(nn.Module):
    """Stand in for a block: the same attributes, but the hidden states come from a function of those it is given."""

    def __init__(self, block: nn.Module, states: Callable[[torch.Tensor], torch.Tensor], returns_tuple: bool) -> None:
        super().__init__()
        self.__dict__["_block"] = block  # not as a submodule, whose parameters would be listed twice
        self._states = states
        self._returns_tuple = returns_tuple

    def forward(self, *args: Any, **options: Any) -> Any:
        states = self._states(args[0] if args else options["hidden_states"])
        return (states,) if self._returns_tuple else states

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["_block"], name)
