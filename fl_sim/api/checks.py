"""Check what the ε of somebody's Flower app is worth (docs/check.md).

>>> import fl_sim
>>> fl_sim.check("no/such/app")
Traceback (most recent call last):
fl_sim.checking.app_folder.CheckError: no/such/app: has no pyproject.toml; allowed: the folder of a Flower app
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fl_sim.checking.app_folder import AppFolder, CheckError

if TYPE_CHECKING:
    from fl_sim.checking.faults import Check

NODES = 10
"""The number of nodes where neither the caller nor the app says one."""


def check(
    folder: str | Path,
    *,
    nodes: int | None = None,
    run_config: str = "",
    data: Literal["own", "generated"] = "own",
    time_limit: float = 300.0,
    say: Callable[[str], None] = lambda words: None,
) -> Check:
    """Run a Flower app with neighbouring users, and compare what it releases with the ε that it states.

    The app's folder is not changed, and the app cannot use the network.

    Args:
        folder: The folder of the app, with its pyproject.toml.
        nodes: The number of nodes; by default what the app's pyproject.toml says, or else 10.
        run_config: Keys of the run configuration, as ``flwr run --run-config`` takes them.
        data: Where the app's data come from: its own, or generated rows in place of those of flwr_datasets.
        time_limit: The seconds after which the check gives up.
        say: Called with the name of each part before it starts.

    Returns:
        ``findings``, ``holds``, ``epsilon``, ``text()``, ``record()``, ``picture()``.

    Raises:
        CheckError: the app cannot be checked; the message says why.
    """
    from fl_sim.checking.faults import Check, findings
    from fl_sim.checking.generated_data import stand_in
    from fl_sim.checking.measurements import measure

    began = time.monotonic()
    app = AppFolder.read(folder, run_config)
    number = nodes if nodes is not None else app.nodes or NODES
    if number < 2:
        raise CheckError(f"`nodes` is {number}; allowed: at least 2, so that one of them may be away")
    if not time_limit > 0:
        raise CheckError(f"`time_limit` is {time_limit:g}; allowed: a number above 0")
    before = app.digest()
    found = measure(app, number, time_limit, say, stand_in if data == "generated" else None)
    if app.digest() != before:
        found.unseen.append("The app changed its own folder while it ran.")
    return Check(app.path.name, found, findings(found), time.monotonic() - began)


@dataclass(frozen=True)
class Repair:
    """Hold the patch that puts fl_sim.flower into an app, and the check of the app with it.

    Attributes:
        diff: The patch, a unified diff.
        check: What was found in the patched copy; None if it could not be checked.
        reason: Why not.
    """

    diff: str
    check: Check | None
    reason: str = ""

    def record(self) -> dict[str, object]:
        """Return the repair for JSON."""
        return {"diff": self.diff, "check": None if self.check is None else self.check.record(), "reason": self.reason}

    def text(self) -> str:
        """Return the patch, and what was found with it."""
        after = f"with the patch: {self.reason}" if self.check is None else f"with the patch\n{self.check.text()}"
        return f"{self.diff}\n{after}"


def repaired(folder: str | Path, found: Check, *, run_config: str = "", **settings: Any) -> Repair:
    """Return the patch that makes an app private with :mod:`fl_sim.flower`, and check a patched copy.

    Args:
        folder: The folder of the app, which stays as it is.
        found: The check of the app: its users, their share of a round and the stated ε are kept.
        run_config: As for :func:`check`.
        settings: The other arguments of :func:`check`.

    Raises:
        CheckError: no patch can be written for this app.
    """
    from fl_sim.checking import repair

    app = AppFolder.read(folder, run_config)
    changed = repair.patch(app, repair.settings_of(found.measured))
    diff = repair.diff(app, changed)
    with tempfile.TemporaryDirectory(prefix="fl-sim-fixed-") as scratch:
        copy = repair.copied(app, changed, Path(scratch))
        try:
            return Repair(diff, check(copy, run_config=run_config, **settings))
        except CheckError as error:
            return Repair(diff, None, str(error).removeprefix(f"{copy}: "))
