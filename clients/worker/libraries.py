"""Import what takes the longest when a process starts: torch, Flower, and the rest of a run."""

from __future__ import annotations

import gc
import importlib

_SLOW = ("transformers.pytorch_utils", "fl_sim.clients.client_app")

OF_A_RUN = ("fl_sim.engines.simulation", "scipy.stats", "scipy.signal", "fl_sim.reporting.plots")
"""What the process of a run imports sooner or later besides: accounting and plots."""


def load_libraries(*others: str) -> None:
    """Import what every model needs, so that later steps do not wait for it, and the modules called ``others``.

    The imports create a million objects that stay. The garbage collector would scan them repeatedly meanwhile and
    once more when the process ends, a quarter of the time in all, so it is off here and ignores them afterwards.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        for name in (*_SLOW, *others):
            importlib.import_module(name)
    finally:
        gc.freeze()
        if collecting:
            gc.enable()
