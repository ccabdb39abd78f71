"""Start new processes whose runs neither draw nor load plots, which takes longer than the runs."""

from __future__ import annotations

import sys
import types

from fl_sim.search import sweep

_start = sweep._prepare_worker


def start() -> None:
    """Do what ``fl_sim.search.sweep`` does at the start of a process, and replace the plots."""
    _start()
    plots = types.ModuleType("fl_sim.reporting.plots")
    plots.__dict__["write_run_plots"] = lambda run: None
    sys.modules["fl_sim.reporting.plots"] = plots
