"""The server's networks and losses: a classifier, and adversaries that predict the private attributes.

Losses are functions of the sent vectors z (B, k), the classes y (B,) and the private attributes s (B, p), so the
gradient in z suffices to train a client's encoder. With C the classifier and A an adversary:

* ``reversal`` (Adversarial, Li et al. 2018; FEDERATE): L(y, C(z)) + L(s, A(g_λ(z))). g_λ is the identity forward and
  −λ backward (Ganin and Lempitsky 2015), so A learns to predict s and the encoder to hide it. There is one adversary
  per private attribute, as in Li et al.
* ``multiple`` (Han, Baldwin and Cohn 2021): three adversaries, and λ_ort times the orthogonality loss between the first
  and each other one, which keeps them different.
* Both with λ on the loss, as in FEDERATE's published code: L(y, C(z)) + λ·L(s, A(g_1(z))) + λ_ort·L_ort. Adam is
  invariant to the scale of an adversary's own gradient; but the weight of orthogonality is then λ_ort for the encoder
  instead of λ·λ_ort, and λ_ort/λ for an adversary.
* ``coavoux`` (Coavoux, Narayan and Cohen 2018, multidetasking; DPNR's ADV): L(y, C(z)) + λ·(−ln P_A(¬s | z)); the
  adversary is trained on −ln P_A(s | z) alone.

>>> z = torch.ones(2, 3, requires_grad=True)
>>> reverse_gradient(z, weight=0.5).sum().backward()
>>> z.grad[0].tolist()
[-0.5, -0.5, -0.5]
>>> orthogonality(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]])).item()
0.0
"""

from __future__ import annotations

from typing import cast

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from fl_sim.research.representations.client.feed_forward import Draw, FeedForward
from fl_sim.research.representations.config import AdversaryStyle, ServerSection

NUM_DIVERSE = 3
"""Adversaries per attribute of ``multiple``, as in Han et al. (2021) and FEDERATE."""


def reverse_gradient(x: torch.Tensor, weight: float) -> torch.Tensor:
    """Return ``x``; its gradient is multiplied by −``weight`` (g_λ)."""
    same = x.view_as(x)
    same.register_hook(lambda gradient: -weight * gradient)
    return same


def orthogonality(first: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    """Return the mean squared cosine over all pairs of rows of ``first`` and another tensor, summed over ``others``.

    The loss is 0 if every row of the one is orthogonal to every row of the other (Bousmalis et al. 2016, as used by Han
    et al.). The lengths carry no gradient. Σ (a_i·b_j)² = ⟨AᵀA, BᵀB⟩ costs B·h² instead of B²·h.
    All are float32 (B, h).
    """
    directions = _directions(first)
    pairs = [(directions * _directions(other)).sum() / (len(first) * len(other)) for other in others]
    return torch.stack(pairs).sum()


def _directions(states: torch.Tensor) -> torch.Tensor:
    """Return AᵀA, float32 (h, h), of the rows scaled to length 1."""
    unit = states / (states.detach().norm(dim=1, keepdim=True) + 1e-6)
    return unit.T @ unit


class Server(nn.Module):
    """Classifier and adversaries of vectors of ``inputs`` (k) numbers, for ``attributes`` (p) private attributes.

    All weights follow from ``seed``.
    """

    def __init__(
        self,
        inputs: int,
        classes: int,
        attributes: int,
        section: ServerSection,
        style: AdversaryStyle,
        seed: int,
    ) -> None:
        super().__init__()
        self.section = section
        self.style = style
        copies = {"none": 0, "multiple": NUM_DIVERSE}.get(style, 1)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.classifier = FeedForward([inputs, *section.classifier, classes], section.dropout, "classifier")
            self.adversaries = nn.ModuleList(
                FeedForward([inputs, *section.adversary, 2], section.dropout_of_adversaries, f"adversary {a} {copy}")
                for a in range(attributes)
                for copy in range(copies)
            )
        self.copies = copies

    def loss(
        self,
        z: torch.Tensor,
        classes: torch.Tensor,
        private: torch.Tensor,
        weight: float,
        draw: Draw,
    ) -> torch.Tensor:
        """Return the training loss; the encoder steps along its gradient in z, the server along that in its weights.

        ``z`` is float32 (B, k), ``classes`` int64 (B,), ``private`` int64 (B, p); ``weight`` is λ of this epoch.
        """
        total = functional.cross_entropy(self.classifier(z, draw), classes)
        for number in range(private.shape[1] if self.copies else 0):
            target = private[:, number]
            group = [cast(FeedForward, self.adversaries[number * self.copies + copy]) for copy in range(self.copies)]
            if self.style == "coavoux":
                total = total + self._multidetasking_loss(group[0], z, target, weight, draw)
            else:
                total = total + self._reversal_loss(group, z, target, weight, draw)
        return total

    def predictions(self, z: torch.Tensor) -> torch.Tensor:
        """Return the most likely class of each row of ``z``, int64 (n,)."""
        with torch.no_grad():
            return self.classifier(z).argmax(dim=1)

    def last_hidden(self, z: torch.Tensor) -> torch.Tensor:
        """Return the input of the classifier's last layer, float32 (n, h); ``z`` itself if it has one layer."""
        with torch.no_grad():
            return self.classifier.hidden(z)

    def _reversal_loss(
        self, group: list[FeedForward], z: torch.Tensor, target: torch.Tensor, weight: float, draw: Draw
    ) -> torch.Tensor:
        on_loss = self.section.weighed == "loss"
        inputs = reverse_gradient(z, 1.0 if on_loss else weight)
        states = [adversary.hidden(inputs, draw) for adversary in group]
        scores = [adversary.linears[-1](state) for adversary, state in zip(group, states, strict=True)]
        total = torch.stack([functional.cross_entropy(score, target) for score in scores]).sum()
        if on_loss:
            total = weight * total
        if len(states) > 1:
            total = total + self.section.orthogonal * orthogonality(*states)
        return total

    def _multidetasking_loss(
        self, adversary: FeedForward, z: torch.Tensor, target: torch.Tensor, weight: float, draw: Draw
    ) -> torch.Tensor:
        adversary_loss = functional.cross_entropy(adversary(z.detach(), draw), target)
        fixed = {name: value.detach() for name, value in adversary.named_parameters()}
        encoder_loss = functional.cross_entropy(functional_call(adversary, fixed, (z, draw)), 1 - target)
        return adversary_loss + weight * encoder_loss
