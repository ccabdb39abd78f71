"""Simulate a round of a secure sum: nodes round and add noise shares, and the server opens the sum or nothing.

The masks of a protocol such as SecAgg+ are not simulated: :class:`SecureSum` is the ideal functionality that such a
protocol stands for. It keeps a running sum modulo 2^bits, forgets every reply, and opens the sum once, if enough nodes
survived.

>>> from fl_sim.research.secure_sum.noise_shares import DistributedNoise
>>> design = DistributedNoise(population=60, sampling_rate=1.0, dimension=4, bits=18, noise_multiplier=0.05).design()
>>> total = SecureSum(design)
>>> for user in range(60):
...     node = Node(design, clip_norm=1.0, seed=0, identity=user)
...     total.add(node.reply(np.array([0.5, 0.5, -0.5, 0.5]), server_round=1))
>>> opened = total.open()
>>> released = release(design, opened, survivors=60, clip_norm=1.0, seed=0, server_round=1)
>>> bool(np.abs(released / 60 - [0.5, 0.5, -0.5, 0.5]).max() < 0.01)
True
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fl_sim.research.secure_sum.discrete_gaussian import (
    Words,
    discrete_gaussian,
    secure_words,
    seeded_words,
    sum_of_shares,
)
from fl_sim.research.secure_sum.lattice_rounding import Floats, Rotation, add_modulo, centred, residues, round_within
from fl_sim.research.secure_sum.noise_shares import ShareDesign
from fl_sim.strategies.primitives import streams
from fl_sim.strategies.primitives.limits import require

Residues = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Node:
    """Hold what a node needs for its replies.

    Attributes:
        design: of every round, public.
        clip_norm: C, the clip of an update, public.
        seed: of the run; it gives the public rotation, and rounding and noise unless these are secure.
        identity: of the node, an integer of at least 0.
        secure: whether rounding and noise come from the operating system, so that no seed gives them away.
    """

    design: ShareDesign
    clip_norm: float
    seed: int
    identity: int
    secure: bool = False

    def reply(self, update: Floats, server_round: int) -> Residues:
        """Return the update, clipped, rotated, rounded and with the node's noise share, modulo 2^bits: uint64 (D,).

        Args:
            update: float64 (d,); one that is not finite counts as zero.
            server_round: the round, from 1.

        Raises:
            PrivacyError: the update has another size.
        """
        settings = self.design.settings
        require(update.shape == (settings.dimension,), "update", f"of shape {update.shape}", f"({settings.dimension},)")
        scaled = _clipped(update, self.clip_norm) * (self.design.scale / self.clip_norm)
        rotated = _rotation(self.design, self.seed, server_round).apply(scaled)
        rounded = round_within(rotated, self.design.norm_bound_squared, self._words("rounding", server_round))
        share = discrete_gaussian(self.design.share_std, len(rounded), self._words("noise share", server_round))
        return residues(rounded + share, settings.bits)

    def _words(self, purpose: str, server_round: int) -> Words:
        return secure_words if self.secure else seeded_words(self.seed, purpose, server_round, self.identity)


class SecureSum:
    """Add replies modulo 2^bits, and show nobody anything but the sum of them all."""

    def __init__(self, design: ShareDesign) -> None:
        self._design = design
        self._total: Residues = np.zeros(design.padded, dtype=np.uint64)
        self._closed = False
        self.survivors = 0

    def add(self, reply: Residues) -> None:
        """Add the reply of a node that survived."""
        require(not self._closed, "the sum", "open", "replies before it is opened")
        self._total = add_modulo(self._total, reply, self._design.settings.bits)
        self.survivors += 1

    def open(self) -> Residues | None:
        """Return the sum, once; None for ever if fewer survived than the noise shares are made for."""
        require(not self._closed, "the sum", "open", "opening it once")
        self._closed = True
        return self._total if self.survivors >= self._design.fewest_survivors else None


def release(
    design: ShareDesign,
    opened: Residues | None,
    survivors: int,
    clip_norm: float,
    seed: int,
    server_round: int,
    *,
    secure: bool = False,
) -> Floats | None:
    """Return what the server releases: the opened sum with its noise topped up to K shares, float64 (d,).

    Args:
        design: of every round.
        opened: what :meth:`SecureSum.open` returned.
        survivors: the number of nodes in the sum.
        clip_norm: C.
        seed: of the run.
        server_round: the round, from 1.
        secure: whether the top-up comes from the operating system.

    Returns:
        None if the sum was not opened: the model stays as it is.
    """
    if opened is None:
        return None
    bits = design.settings.bits
    words = secure_words if secure else seeded_words(seed, "noise top-up", server_round)
    missing = max(design.full_shares - survivors, 0)
    topped_up = residues(sum_of_shares(design.share_std, missing, design.padded, words), bits)
    integers = centred(add_modulo(opened, topped_up, bits), bits)
    total: Floats = integers.astype(np.float64) * (clip_norm / design.scale)
    return _rotation(design, seed, server_round).undo(total)


def _rotation(design: ShareDesign, seed: int, server_round: int) -> Rotation:
    return Rotation(design.settings.dimension, streams.derived_seed(seed, "public rotation", server_round))


def _clipped(update: Floats, clip_norm: float) -> Floats:
    """Return an update of norm at most ``clip_norm``; zero if it is not finite."""
    with np.errstate(over="ignore"):  # a norm that overflows is not finite
        length = float(np.linalg.norm(update))
    if not np.isfinite(length):
        return np.zeros_like(update)
    return update * (clip_norm / length) if length > clip_norm else update
