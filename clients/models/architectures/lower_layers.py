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
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from fl_sim.clients.errors import ModelError
from fl_sim.clients.models.parameters import replaced_forwards
from fl_sim.formats import shortened

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
        see = self._block_of(lambda states: seen.append(states) or states)  # type: ignore[func-returns-value]
        with torch.no_grad(), replaced_forwards(dict.fromkeys(self._blocks[self.first :], see)):
            self._forward(inputs)
        return seen[0]

    def replaced_by(self, states: torch.Tensor) -> AbstractContextManager[None]:
        """Start the model from ``states`` (B, T, h) within the block, whatever token ids it gets."""
        return replaced_forwards(dict.fromkeys(self._blocks[: self.first], self._block_of(lambda _: states)))

    def _block_of(self, compute: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
        """Return the forward pass of a block whose states are a function of those it is given."""

        def forward(*args: Any, **options: Any) -> Any:
            states = compute(args[0] if args else options["hidden_states"])
            return (states,) if self._returns_tuple else states

        return forward

    def frozen_weights(self, module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield name and value of every weight and buffer of ``module`` on which the states may depend."""
        upper = {value.data_ptr() for block in self._blocks[self.first :] for value in block.state_dict().values()}
        seen: set[int] = set()
        for name, value in module.state_dict().items():
            if value.data_ptr() not in upper | seen:
                seen.add(value.data_ptr())
                yield name, value

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
            raise ModelError(f"model.lora_layers: the model cannot be split ({shortened(error)})") from error
        finally:
            hook.remove()
        if not bool(((found - expected).abs() <= _TOLERANCE * expected.abs().max()).all()):
            raise ModelError("model.lora_layers: the model from its own states gives other scores; allowed: unset")
        if not float(states.abs().max()) < _LARGEST_STATE:
            raise ModelError(
                f"model.lora_layers: states are as large as {float(states.abs().max()):.3g}; allowed: unset"
            )
