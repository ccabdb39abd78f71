"""For processes that start anew: runs there draw nothing, nor load what draws. That takes longer than they do."""

from __future__ import annotations

import sys
import types

from fl_sim.search import batch

_start = batch._one_thread


def start() -> None:
    """What ``fl_sim.search.batch`` does at the start of a process, and no plots."""
    _start()
    plots = types.ModuleType("fl_sim.reporting.plots")
    plots.__dict__["write_run_plots"] = lambda run: None
    sys.modules["fl_sim.reporting.plots"] = plots
