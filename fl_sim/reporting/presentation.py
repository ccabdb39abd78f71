"""The files of a finished run for human readers: the report as text, the model's card, and the plots.

>>> from pathlib import Path
>>> run = RunFolder(Path("runs/uedp-seed0"), config={}, environment={})
>>> run.summary_file.name, run.plots_dir.name
('summary.txt', 'plots')
"""

from __future__ import annotations

from fl_sim.reporting import model_card, plots, report
from fl_sim.storage.run_folder import RunFolder, replace_file


def present(run: RunFolder) -> None:
    """Write summary.txt, the model's card and the plots of ``run`` anew; no plots of an interrupted run."""
    replace_file(run.summary_file, report.summary(run).encode())
    if run.model_dir.is_dir():
        model_card.write_card(run)
    if run.finished:
        plots.write_run_plots(run)
