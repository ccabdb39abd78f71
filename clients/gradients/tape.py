"""Record the inputs of modules in the forward pass, and hand over each record in the backward pass with its gradient.

Nothing is held longer than it is needed. Inputs that a module rounds to bfloat16 are kept as bfloat16. Those of
checkpointed blocks are recorded when the block is computed again in the backward pass.

>>> module, records = nn.Linear(3, 2).requires_grad_(False), {}
>>> with Tape([module], sentences=1, receive=records.__setitem__) as tape:
...     tape.backward(module(torch.ones(1, 4, 3)), torch.ones(1, 4, 2))
>>> records[module].inputs.shape, records[module].grad.shape
(torch.Size([1, 4, 3]), torch.Size([1, 4, 2]))
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import nn
from torch.autograd import Function

from fl_sim.clients.device import full_precision
from fl_sim.clients.ghost_norms import NotCovered, Record

Receive = Callable[[nn.Module, Record], None]


@dataclass
class _Call:
    """Hold what is known so far of one call of a module."""

    runs: int = 0
    inputs: torch.Tensor | None = None
    output: torch.Tensor | None = None
    options: dict[str, object] = field(default_factory=dict)
    gradient: torch.Tensor | None = None


class Tape:
    """Record the calls of modules while open, and make every output differentiable.

    The parameters of the modules need no gradient: an output that is not differentiable otherwise is made so.

    Args:
        modules: the modules, each called once in a pass.
        sentences: B; a module that was given the tokens of all sentences as (B·T, features) has them in this order.
        receive: called with each module and its record, in the backward pass.
        with_outputs: the modules whose records have outputs.
        recomputed: the modules that are called once more in the backward pass, because they are checkpointed.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        sentences: int,
        receive: Receive,
        with_outputs: Collection[nn.Module] = (),
        recomputed: Collection[nn.Module] = (),
    ) -> None:
        self._calls = {module: _Call() for module in modules}
        self._sentences = sentences
        self._receive = receive
        self._with_outputs = frozenset(with_outputs)
        self._recomputed = frozenset(recomputed)
        self._leaves: list[torch.Tensor] = []
        self._goes_back = False
        self._handles: list[torch.utils.hooks.RemovableHandle] = []

    def __enter__(self) -> Self:
        self._handles = [m.register_forward_hook(self._called, with_kwargs=True) for m in self._calls]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._calls.clear()
        self._leaves.clear()

    def _called(
        self, module: nn.Module, args: tuple[Any, ...], options: dict[str, object], output: torch.Tensor
    ) -> None:
        if not args or not isinstance(args[0], torch.Tensor) or not isinstance(output, torch.Tensor):
            raise NotCovered(f"a {type(module).__name__} does not turn one tensor into another")
        is_leaf = not output.requires_grad
        if is_leaf:
            output.requires_grad_()
        call = self._calls[module]
        if not self._goes_back:
            call.runs += 1
            if is_leaf:
                self._leaves.append(output)
            output.register_hook(functools.partial(self._arrived, module))
        if self._goes_back or module not in self._recomputed:
            self._keep(module, call, args, options, output)

    def _keep(
        self, module: nn.Module, call: _Call, args: tuple[Any, ...], options: dict[str, object], output: torch.Tensor
    ) -> None:
        if len(args) > 1:
            further = list(inspect.signature(module.forward).parameters)[1 : len(args)]
            options = options | dict(zip(further, args[1:], strict=True))
        rounds = output.dtype == torch.bfloat16 and args[0].dtype == torch.float32
        call.inputs = args[0].detach().bfloat16() if rounds else args[0].detach()
        call.output = output.detach() if module in self._with_outputs else None
        call.options = options
        self._hand_over(module, call)

    def _arrived(self, module: nn.Module, gradient: torch.Tensor) -> None:
        call = self._calls[module]
        call.gradient = gradient.detach()
        self._hand_over(module, call)

    def _hand_over(self, module: nn.Module, call: _Call) -> None:
        """Hand over a record that is complete."""
        if call.inputs is None or call.gradient is None:
            return
        inputs, gradient, output = call.inputs, call.gradient, call.output
        if gradient.dim() == inputs.dim() == 2 and len(gradient) % self._sentences == 0:
            inputs, gradient = (t.unflatten(0, (self._sentences, -1)) for t in (inputs, gradient))
            output = None if output is None else output.unflatten(0, (self._sentences, -1))
        record = Record(inputs, gradient, output, call.options)
        self._calls[module] = _Call(runs=call.runs)
        # The backward pass may be in TF32, and a block that is computed again in autocast: both would round norms.
        with torch.no_grad(), torch.autocast(inputs.device.type, enabled=False), full_precision():
            self._receive(module, record)

    def check(self) -> None:
        """Raise NotCovered unless each module was called once."""
        for module, call in self._calls.items():
            if call.runs != 1:
                raise NotCovered(f"a {type(module).__name__} was called {call.runs} times in one pass; known: once")

    def inputs_of(self, module: nn.Module) -> torch.Tensor | None:
        """Return the recorded input of a module before the backward pass."""
        return self._calls[module].inputs

    def backward(self, scores: torch.Tensor, of_scores: torch.Tensor) -> None:
        """Run the backward pass from the scores, given the gradient in them; raise NotCovered as :meth:`check` does."""
        self.check()
        self._goes_back = True
        leaves, self._leaves = self._leaves, []
        torch.autograd.grad(_Seed.apply(scores, of_scores), leaves)


class _Seed(Function):
    """A number with a given gradient in the scores.

    torch checks a gradient that it is given (``grad_outputs``) with its compiler's algebra, half a second to import.
    """

    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor, of_scores: torch.Tensor) -> torch.Tensor:
        ctx.of_scores = of_scores
        return scores.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.of_scores, None
