"""What a finished run's folder has for a reader: the report as text, and the plots."""

from __future__ import annotations

from fl_sim.reporting import plots, report
from fl_sim.storage.run_folder import RunFolder, replace_file


def present(run: RunFolder) -> None:
    """Write summary.txt and the plots of ``run``, or write them again."""
    replace_file(run.summary_file, report.summary(run).encode())
    plots.write_run_plots(run)
