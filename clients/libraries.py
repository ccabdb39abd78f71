"""Import torch and transformers, which take the longest when a process starts."""

from __future__ import annotations

import gc
import importlib

_SLOW = ("transformers.modeling_utils", "transformers.loss.loss_utils", "fl_sim.clients.client_app")


def load_libraries() -> None:
    """Import what every model needs, so that later steps do not wait for it.

    The imports create a million objects that stay. The garbage collector would scan them repeatedly meanwhile and
    once more when the process ends, a quarter of the time in all, so it is off here and ignores them afterwards.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        for name in _SLOW:
            importlib.import_module(name)
    finally:
        gc.freeze()
        if collecting:
            gc.enable()
