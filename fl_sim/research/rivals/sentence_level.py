"""Define DP-SGD whose unit is one sentence, on which other methods build: sentences are clipped, not users or names.

v = Σ_{s sampled} Π_c(−∇l(θ, s)) + N(0, σ²c²), each sentence sampled with probability q_s ("Deep Learning with
Differential Privacy", Abadi et al. 2016). It is the private step of "Provably Confidential Language Modelling" (Zhao,
Li and Wang, NAACL 2022) and phase 2 of "Just Fine-tune Twice" (Shi et al., EMNLP 2022). What such methods claim is the
ε of one sentence; the ε of a user, of a name and of both is that of as many sentences.

Guarantee: that of ``uedp`` with q_u = q_e = 1 and a cap ŵ that hardly any user reaches; z·ŵ is their noise multiplier
σ.

>>> mechanism = SentenceLevelDP(
...     population=100, q_u=1.0, q_e=1.0, q_s=0.02, clip_norm=1.0, user_cap=16.0, noise_multiplier=1 / 16)
>>> mechanism.noise_std(clip_norm=1.0), mechanism.claims(10, 1e-5)["epsilon_as_published"][[0, 1, 10]].round(2)
(1.0, array([0.  , 0.44, 0.76]))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fl_sim.strategies.accounting.accountant import epsilon_curve
from fl_sim.strategies.accounting.adjacency import Adjacency
from fl_sim.strategies.accounting.paper_model import AS_PUBLISHED
from fl_sim.strategies.uedp import UserEntityConfig, UserEntityDP


class SentenceLevelConfig(UserEntityConfig):
    """Declare the keys of ``[privacy]``: those of ``uedp``, without bounds by default."""

    default_bounds: ClassVar[Mapping[str, int]] = {}


@dataclass(frozen=True, kw_only=True)
class SentenceLevelDP(UserEntityDP):
    """Clip sentences and sample them alone; what it claims is the ε of one sentence."""

    defaults: ClassVar = UserEntityDP.defaults | {"q_e": 1.0, "user_cap": 16.0}
    Config = SentenceLevelConfig
    fixed_at_one = ("q_u", "q_e")
    needs_entities = False
    protects = "one sentence; a user or a name as so many sentences"
    headline = AS_PUBLISHED

    strategy: str = "fl_sim.research.rivals.sentence_level:SentenceLevelDP"

    def claims(self, rounds: int, delta: float) -> dict[str, npt.NDArray[np.float64]]:
        """Return the ε of one sentence, after 0 to T rounds."""
        curve = epsilon_curve(self.event(), Adjacency(user_sentences=1), range(1, rounds + 1), delta)
        return {AS_PUBLISHED: np.concatenate([[0.0], curve])}
