"""Run Flower's own command with a SuperLink of its own on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.conftest import REPOSITORY
from tests.e2e.processes import free_port, processes_in

ON_THIS_MACHINE = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_ADDRESS": "local",
}


class Flower:
    """The ``flwr`` command with its own home and SuperLink, run in ``place``."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.home = place.parent / "flwr-home"
        own = {"FLWR_HOME": str(self.home), "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port())}
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # flwr starts flower-superlink
        self.environment = os.environ | ON_THIS_MACHINE | own | {"PATH": path}

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the command; repeat it if the SuperLink was not up within Flower's 15 seconds, as on a busy machine."""
        command = [str(Path(sys.executable).with_name("flwr")), *words]
        for _ in range(5):
            done = subprocess.run(
                command, cwd=self.place, env=self.environment, capture_output=True, text=True, timeout=300, check=False
            )
            if "start local SuperLink within" not in done.stdout + done.stderr:
                break
        return done

    def run(self, run_config: str, app: Path = REPOSITORY, nodes: int = 2) -> subprocess.CompletedProcess[str]:
        """Run ``flwr run APP --stream`` with one worker."""
        federation = f"num-supernodes={nodes} client-resources-num-cpus=1 init-args-num-cpus=1"
        return self("run", str(app), "--stream", "--run-config", run_config, "--federation-config", federation)

    def statuses(self) -> list[str]:
        """Return the status of all runs in ``flwr list``, the latest first."""
        return [str(run["status"]) for run in json.loads(self("list", "--format", "json").stdout)["runs"]]

    def superlink(self) -> list[int]:
        """Return the ids of the SuperLink's processes."""
        return [process for process, command in processes_in(self.place).items() if "flower-superlink" in command]

    def stop_superlink(self) -> None:
        for process in self.superlink():
            os.kill(process, signal.SIGTERM)
