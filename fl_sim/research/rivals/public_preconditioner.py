"""Scale gradients by their size on public text before they are clipped: AdaDPS, by a model whose gradients are scaled.

"Private Adaptive Optimization with Side Information" (Li, Zaheer, Reddi and Smith, ICML 2022, arXiv 2202.05963,
algorithm 1) steps by the noisy average of Π_c(g_s / A), A = √E[g²] + ε of public data, so that coordinates with small
gradients are not drowned in noise that is as large for all. "On Design Principles for Private Adaptive Optimizers"
(Ganesh, McMahan and Thakurta 2025, arXiv 2507.01129) compares it with others. Second moments here are of single
sentences of the made-up users that ship, at the public start of training.

Guarantee: that of the strategy. A sentence still adds one vector of length c at most, a function of the model, the
sentence and public numbers.

>>> Preconditioned(0.1).stabilizer
0.1
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from fl_sim.clients.gradients.clipped_sums import loss_gradients
from fl_sim.clients.models.architectures.gpt2 import PUBLIC_FOLDER, Cache, Gpt2, Gpt2Sizes, Output
from fl_sim.clients.models.architectures.transformer import PublicGpt2
from fl_sim.clients.models.language_model import load_model
from fl_sim.clients.models.model_names import SMALL_GPT2_PUBLIC
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.clients.models.tokenizers import BUNDLED, Vocabulary
from fl_sim.data_prep.store.corpus import Corpus

_SENTENCES = 1000


@functools.cache
def public_moments() -> dict[str, torch.Tensor]:
    """Return E[g²] of every parameter of the public model, by name: over sentences of the made-up users."""
    model = load_model(ModelSpec(name=SMALL_GPT2_PUBLIC), seed=0)
    corpus = Corpus.open("bundled")
    texts = corpus.texts("train").to_pylist()
    moments = {name: torch.zeros_like(parameter) for name, parameter in model.module.named_parameters()}
    for example in model.encode(texts[:: len(texts) // _SENTENCES]):
        for name, gradient in loss_gradients(model, model.batch([example]))[1].items():
            moments[name] += gradient.square() / _SENTENCES
    return moments


class _Scaled(torch.autograd.Function):
    """Return a parameter as it is; its gradient is scaled."""

    @staticmethod
    def forward(context: Any, parameter: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(scale)
        return parameter.view_as(parameter)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0] * context.saved_tensors[0], None


class ScaledGpt2(Gpt2):
    """The public model, whose gradients are divided by A, up to a common factor that clipping takes out."""

    def __init__(self, stabilizer: float) -> None:
        super().__init__(Gpt2Sizes.read(PUBLIC_FOLDER))
        self.read(PUBLIC_FOLDER)
        moments = {name.removeprefix("transformer."): moment for name, moment in public_moments().items()}
        typical = torch.cat([moment.flatten() for moment in moments.values()]).mean().sqrt()
        self._scales = {name: 1 / (moment.sqrt() / typical + stabilizer) for name, moment in moments.items()}

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool = False,
    ) -> Output:
        """Return states and scores; arguments as for the body."""
        arguments = (input_ids, position_ids, past_key_values, use_cache)
        if not torch.is_grad_enabled():
            return super().forward(*arguments)
        scaled = {name: _Scaled.apply(own, self._scales[name]) for name, own in self.transformer.named_parameters()}
        output = functional_call(self.transformer, scaled, arguments)
        return output._replace(logits=functional.linear(output.last_hidden_state, scaled["wte.weight"]))


class Preconditioned(PublicGpt2):
    """The public model, gradients divided by √E[g²] + ε; ``stabilizer`` is ε, in units of the root mean of E[g²]."""

    def __init__(self, stabilizer: float) -> None:
        super().__init__(tokenizer=BUNDLED)
        self.stabilizer = stabilizer

    def build(self, spec: ModelSpec, vocabulary: Vocabulary, *, output_layer: bool) -> nn.Module:
        return ScaledGpt2(self.stabilizer) if output_layer else super().build(spec, vocabulary, output_layer=False)


MEDIUM, LARGE = Preconditioned(0.1), Preconditioned(1.0)
