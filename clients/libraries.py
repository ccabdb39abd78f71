"""What takes longest when a process starts: to import torch and transformers."""

from __future__ import annotations

import gc
import importlib

_SLOW = ("transformers.modeling_utils", "transformers.loss.loss_utils", "fl_sim.clients.client_app")


def load_libraries() -> None:
    """Import what every model needs, so that nothing later has to wait for it.

    These imports make a million objects that stay. The garbage collector would look through them again and again
    while they come, and once more when the process ends, a quarter of the time in all; so it does not count them.
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
