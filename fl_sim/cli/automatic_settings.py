"""Choose the settings of ``fl-sim run --auto`` and show them before the run.

>>> search_folder("runs/mine", RunConfig()).name
'mine-tuning'
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from rich.console import Console

from fl_sim.cli.run_commands.tune_command import in_words
from fl_sim.config import RunConfig
from fl_sim.search.automatic import MINUTES, choose_settings
from fl_sim.search.settings_search import Tried
from fl_sim.stop_signals import exit_status


def chosen(config: RunConfig, minutes: float | None, *, quiet: bool) -> RunConfig | int:
    """Return the configuration with all settings chosen, or the exit code if the search was interrupted.

    Args:
        config: what is stated.
        minutes: for search and training; None for the default.
        quiet: show nothing.
    """
    console = Console(stderr=True, quiet=quiet, soft_wrap=True, highlight=False)

    def show(tried: Tried) -> None:
        console.print(f"{tried.name}: {in_words(tried.trial)}", markup=False)

    allowed = MINUTES if minutes is None else minutes
    automatic = choose_settings(config, allowed, search_folder(config.out, config), show)
    if isinstance(automatic, Tried):
        print("interrupted; continue with the same command", file=sys.stderr)
        return exit_status(automatic.reason)
    for note in automatic.notes:
        console.print(f"settings: {note}", markup=False)
    return automatic.config


def search_folder(out: str | None, config: RunConfig) -> Path:
    """Return the folder of the search: beside the run's, or in ``runs/`` by what is stated, so that it resumes."""
    if out is not None:
        path = Path(out).expanduser().absolute()
        return path.with_name(f"{path.name}-tuning")
    digest = hashlib.sha256(config.model_dump_json().encode()).hexdigest()[:12]
    return Path("runs").absolute() / f"tuning-{digest}"
