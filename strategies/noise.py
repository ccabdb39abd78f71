"""The Gaussian noise of the mechanism, drawn once per round on the server."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from strategies import streams


def gaussian_noise(seed: int, server_round: int, size: int, std: float) -> npt.NDArray[np.float64]:
    """N(0, std² I) of ``size`` coordinates, a pure function of the run's seed and the round.

    Re-running a round therefore releases the same noise, never a second sample of it. The sampler is numpy's
    ziggurat on doubles: right for simulation; it does not defend against attacks on the low bits of floating-point
    noise (Mironov 2012), which assume an adversary who sees the exact released doubles.
    """
    return streams.generator(seed, "noise", server_round).normal(0.0, std, size)
