"""What the server trains on what clients send: a classifier, and adversaries that the encoder is to fool.

Losses are functions of the sent vectors z (B, k), the classes y (B,) and the private attributes s (B, p), so that the
gradient in z is all that a client needs for its encoder. With C the classifier and A an adversary:

* ``reversal`` (Adversarial, Li et al. 2018; FEDERATE): L(y, C(z)) + L(s, A(g_λ(z))). g_λ is the identity forward and
  −λ backward (Ganin and Lempitsky 2015), so that A learns to tell s and the encoder to hide it. One adversary for
  each private attribute, as Li et al. have it.
* ``multiple`` (Han, Baldwin and Cohn 2021): three adversaries, and λ_ort times the orthogonality loss of the first
  with each other one, which keeps them different.
* Both with λ on the loss, as FEDERATE's published code has them: L(y, C(z)) + λ·L(s, A(g_1(z))) + λ_ort·L_ort. Adam
  does not care how large an adversary's own gradient is; but then orthogonality counts λ_ort for the encoder, too, and
  not λ·λ_ort, and λ_ort/λ for an adversary.
* ``coavoux`` (Coavoux, Narayan and Cohen 2018, multidetasking; DPNR's ADV): L(y, C(z)) + λ·(−ln P_A(¬s | z)), the
  adversary being trained on its own −ln P_A(s | z) alone.
* ``declustering`` (the same authors): L(y, C(z)) + λ·mean over pairs (½ − a)·‖u − u'‖², a the share of private
  attributes that the pair has in common, u = z / ‖z‖₂: whoever has more than half in common is pushed apart. The
  study of DPNR prints the sign the other way round with l as a distance, which would gather them; and without u the
  loss has no lower bound.
"""

from __future__ import annotations

from typing import Any, Literal, cast

import torch
from torch import nn
from torch.autograd import Function
from torch.func import functional_call
from torch.nn import functional

from fl_sim.research.representations.client.draws import Draw
from fl_sim.research.representations.client.encoders import dropped, linear_stack

AdversaryStyle = Literal["none", "reversal", "multiple", "coavoux", "declustering"]
Weighed = Literal["gradient", "loss"]
"""What λ multiplies in ``reversal`` and ``multiple``: the gradient that is turned round, or the adversaries' loss."""
DIVERSE = 3
"""Adversaries of ``multiple``, as Han et al. (2021) and FEDERATE have it."""


class _Reversal(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: float) -> torch.Tensor:
        ctx.weight = weight
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return -ctx.weight * gradients[0], None


def reversed_gradient(x: torch.Tensor, weight: float) -> torch.Tensor:
    """g_λ: ``x`` forward, the gradient times −λ backward."""
    return torch.Tensor(_Reversal.apply(x, weight))


class Mlp(nn.Module):
    """Linear layers with ReLU and dropout between them.

    Args:
        widths: of the input, each hidden layer, and the output.
        dropout: rate. name: of its dropout masks.
    """

    def __init__(self, widths: list[int], dropout: float, name: str) -> None:
        super().__init__()
        self.linears = linear_stack(widths)
        self.dropout = dropout
        self.name = name

    def hidden(self, x: torch.Tensor, draw: Draw | None = None) -> torch.Tensor:
        """What the last layer reads."""
        for number, layer in enumerate(list(self.linears)[:-1]):
            x = dropped(torch.relu(layer(x)), self.dropout, draw, f"{self.name} dropout {number}")
        return x

    def forward(self, x: torch.Tensor, draw: Draw | None = None) -> torch.Tensor:
        return self.linears[-1](self.hidden(x, draw))


def orthogonality(first: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    """The mean over all pairs of rows of their squared cosine: 0 where every row of one (B, h) is orthogonal to every
    row of the other (Bousmalis et al. 2016, as Han et al. use it); summed over ``others``.

    The lengths carry no gradient. Σ (a_i·b_j)² = ⟨AᵀA, BᵀB⟩, which costs B·h² instead of B²·h.
    """
    directions = _directions(first)
    pairs = [(directions * _directions(other)).sum() / (len(first) * len(other)) for other in others]
    return torch.stack(pairs).sum()


def _directions(states: torch.Tensor) -> torch.Tensor:
    """AᵀA (h, h) of the rows at length 1."""
    unit = states / (states.detach().norm(dim=1, keepdim=True) + 1e-6)
    return unit.T @ unit


def declustering(z: torch.Tensor, private: torch.Tensor, partner: torch.Tensor) -> torch.Tensor:
    """The mean of (½ − a)·‖u − u'‖² over rows and their partners (B,)."""
    alike = (private == private[partner]).float().mean(dim=1)
    u = functional.normalize(z, dim=1)
    return ((0.5 - alike) * (u - u[partner]).square().sum(dim=1)).mean()


class Server(nn.Module):
    """Classifier and adversaries.

    Args:
        inputs: k. classes: how many. attributes: p.
        classifier: widths of its hidden layers. adversary: of each adversary's.
        dropout: of the classifier. adversary_dropout: of each adversary.
        style: of the adversaries. weighed: what λ multiplies. seed: of all weights.

    Raises:
        ValueError: for adversaries without a private attribute to find.
    """

    def __init__(
        self,
        inputs: int,
        classes: int,
        attributes: int,
        *,
        classifier: list[int],
        adversary: list[int],
        dropout: float,
        adversary_dropout: float,
        style: AdversaryStyle,
        weighed: Weighed,
        seed: int,
    ) -> None:
        super().__init__()
        self.style = style
        self.weighed = weighed
        copies = {"none": 0, "declustering": 0, "multiple": DIVERSE}.get(style, 1)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.classifier = Mlp([inputs, *classifier, classes], dropout, "classifier")
            self.adversaries = nn.ModuleList(
                Mlp([inputs, *adversary, 2], adversary_dropout, f"adversary {a} {copy}")
                for a in range(attributes)
                for copy in range(copies)
            )
        self.copies = copies

    def loss(
        self,
        z: torch.Tensor,
        classes: torch.Tensor,
        private: torch.Tensor,
        *,
        weight: float,
        orthogonal: float,
        draw: Draw,
    ) -> torch.Tensor:
        """The training loss; its gradient in z is what the encoder follows, in the weights what the server does.

        Args:
            z: (B, k). classes: int64 (B,). private: int64 (B, p).
            weight: λ of this epoch. orthogonal: λ_ort. draw: of the step.
        """
        total = functional.cross_entropy(self.classifier(z, draw), classes)
        if self.style == "declustering":
            partner = draw.uniform("declustering", 1)[:, 0].argsort()
            return total + weight * declustering(z, private, partner)
        for number in range(private.shape[1] if self.copies else 0):
            target = private[:, number]
            group = [self._adversary(number * self.copies + copy) for copy in range(self.copies)]
            if self.style == "coavoux":
                total = total + self._coavoux(group[0], z, target, weight, draw)
            else:
                total = total + self._reversed(group, z, target, weight, orthogonal, draw)
        return total

    def predictions(self, z: torch.Tensor) -> torch.Tensor:
        """The likeliest class of each row, int64 (n,)."""
        with torch.no_grad():
            return self.classifier(z).argmax(dim=1)

    def last_hidden(self, z: torch.Tensor) -> torch.Tensor:
        """What the classifier's last layer reads, (n, h); z itself where that is the only one."""
        with torch.no_grad():
            return self.classifier.hidden(z)

    def _adversary(self, number: int) -> Mlp:
        return cast(Mlp, self.adversaries[number])

    def _reversed(
        self,
        group: list[Mlp],
        z: torch.Tensor,
        target: torch.Tensor,
        weight: float,
        orthogonal: float,
        draw: Draw,
    ) -> torch.Tensor:
        on_loss = self.weighed == "loss"
        turned = reversed_gradient(z, 1.0 if on_loss else weight)
        states = [adversary.hidden(turned, draw) for adversary in group]
        scores = [adversary.linears[-1](state) for adversary, state in zip(group, states, strict=True)]
        total = torch.stack([functional.cross_entropy(score, target) for score in scores]).sum()
        if on_loss:
            total = weight * total
        if len(states) > 1:
            total = total + orthogonal * orthogonality(*states)
        return total

    def _coavoux(
        self, adversary: Mlp, z: torch.Tensor, target: torch.Tensor, weight: float, draw: Draw
    ) -> torch.Tensor:
        learns = functional.cross_entropy(adversary(z.detach(), draw), target)
        fixed = {name: value.detach() for name, value in adversary.named_parameters()}
        fooled = functional.cross_entropy(functional_call(adversary, fixed, (z, draw)), 1 - target)
        return learns + weight * fooled
