"""All checks in order: what is installed, the machine, the arithmetic, and a short run on every engine.

>>> names = [finding.name for finding in checkup(quick=True)]
>>> "torch" in names, "clipped gradients on cpu" in names, "ray on cpu" in names
(True, True, False)
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from fl_sim.diagnosis.arithmetic import check_gradients
from fl_sim.diagnosis.finding import Finding
from fl_sim.diagnosis.installation import at_hand, devices, installed, machine
from fl_sim.diagnosis.short_runs import check_engines


def checkup(*, quick: bool = False, observer: Callable[[str], None] = lambda what: None) -> list[Finding]:
    """Return what all checks found.

    Args:
        quick: leave out the runs, which take most of the time.
        observer: called with what is checked next.
    """
    observer("versions and machine")
    findings = [*installed(), *at_hand(), *machine(Path.cwd())]
    for device in devices():
        observer(f"clipped gradients on {device}")
        findings += check_gradients(device)
    if not quick:
        with tempfile.TemporaryDirectory(prefix="fl-sim-doctor-") as folder:
            findings += check_engines(devices(), Path(folder), observer)
    return findings
