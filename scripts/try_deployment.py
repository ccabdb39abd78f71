"""Try a Flower deployment on loopback as docs/flower.md sets it up: TLS, registered nodes, and what is refused.

    python scripts/try_deployment.py [--keep DIR]

It makes an authority, certificates and keys with openssl and ssh-keygen, starts a SuperLink and two registered
SuperNodes, runs two rounds of fl_sim over TLS, and then tries four nodes that must be refused. It needs one to three
minutes, no network, and ends every process that it started.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_PATIENCE_SECONDS = 180.0
_CURVE = "-newkey ec -pkeyopt ec_paramgen_curve:P-384 -noenc -days 30"
_CERTIFICATES = (
    f'openssl req -x509 {_CURVE} -subj "/CN=authority" -addext basicConstraints=critical,CA:TRUE '
    "-addext keyUsage=critical,keyCertSign -keyout ca.key -out ca.crt",
    f'openssl req {_CURVE} -subj "/CN=superlink" -keyout server.key -out server.csr',
    r"printf 'subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth\n' > server.ext",
    "openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -extfile server.ext "
    "-out server.crt",
    f'openssl req -x509 {_CURVE} -subj "/CN=other authority" -keyout other.key -out other.crt',
    *(f'ssh-keygen -q -t ecdsa -b 384 -N "" -f {name}' for name in ("node1", "node2", "stranger")),
)
_RUN = "rounds=2 privacy.q_s=0.02 model.hidden=16 model.layers=1 model.heads=2 evaluation.max_sentences=20"


class DeploymentError(Exception):
    """Something did not go as docs/flower.md says."""


@dataclass
class Deployment:
    """A SuperLink and its nodes, as processes of this one.

    Attributes:
        folder: of certificates, keys, logs and results.
        port: of the SuperLink.
        processes: by name, with their logs.
    """

    folder: Path
    port: int
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of all processes: fl_sim of this checkout, and nothing that asks the network."""
        offline = dict.fromkeys(("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED"), "0")
        offline |= dict.fromkeys(("FLWR_DISABLE_UPDATE_CHECK", "HF_HUB_OFFLINE", "OMP_NUM_THREADS"), "1")
        paths = {"FLWR_HOME": str(self.folder / "flwr"), "PYTHONPATH": str(ROOT)}
        return os.environ | offline | paths | {"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1"}

    def start(self, name: str, *words: str) -> None:
        """Start a process whose output goes to ``NAME.log``."""
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [_program(words[0]), *words[1:]],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def start_node(self, name: str, *words: str) -> None:
        """Start a SuperNode."""
        link = f"127.0.0.1:{self.port}"
        self.start(name, "flower-supernode", "--superlink", link, "--port", str(_free_port()), *words)

    def said(self, name: str) -> str:
        """Return what a process has printed so far."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def wait_for(self, name: str, words: str) -> None:
        """Wait until a process has printed ``words``."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while words not in self.said(name):
            if time.monotonic() > deadline:
                raise DeploymentError(f"{name} never said {words!r}:\n{self.said(name)[-2000:]}")
            time.sleep(0.2)

    def wait_for_refusal(self, name: str) -> str:
        """Wait until a node that must be refused has ended; return the reason."""
        process = self.processes[name]
        try:
            code = process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise DeploymentError(f"{name} goes on:\n{self.said(name)[-2000:]}") from error
        if code == 0 or "SuperNode ID" in self.said(name):
            raise DeploymentError(f"{name} was not refused:\n{self.said(name)[-2000:]}")
        reasons = re.findall(r"\[code: \d+\][^\n]*|certificate verify failed|Exit Code: \d+", self.said(name))
        return "; ".join(dict.fromkeys(reasons))

    def flwr(self, *words: str) -> str:
        """Run a ``flwr`` command in the checkout; return what it printed."""
        done = subprocess.run(
            [_program("flwr"), *words], cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise DeploymentError(f"flwr {' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def end(self) -> None:
        """End all processes and their children."""
        for process in reversed(self.processes.values()):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + 10
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline - time.monotonic(), 0.1))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _program(name: str) -> str:
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else name


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def deployment(folder: Path) -> Iterator[Deployment]:
    """Give a SuperLink with TLS and known nodes, which ends with the block."""
    for command in _CERTIFICATES:
        subprocess.run(command, shell=True, cwd=folder, check=True, capture_output=True)
    link = Deployment(folder, _free_port())
    (folder / "flwr").mkdir()
    (folder / "flwr" / "config.toml").write_text(
        f'[superlink]\ndefault = "deployment"\n\n[superlink.deployment]\naddress = "127.0.0.1:{link.port}"\n'
        f'root-certificates = "{folder / "ca.crt"}"\n'
    )
    tls = ["--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.crt", "--ssl-keyfile", "server.key"]
    where = ["--host", "127.0.0.1", "--port", str(link.port)]
    try:
        link.start("superlink", "flower-superlink", *tls, "--enable-supernode-auth", *where)
        link.wait_for("superlink", "Uvicorn running on https")
        yield link
    finally:
        link.end()


def try_all(folder: Path) -> None:
    """Do what docs/flower.md does, and print what came of it."""
    trusted = ["--root-certificates", "ca.crt"]
    with deployment(folder) as link:
        for name in ("node1", "node2"):
            link.flwr("supernode", "register", str(folder / f"{name}.pub"), "deployment")
            link.start_node(name, *trusted, "--auth-supernode-private-key", name)
        for name in ("node1", "node2"):
            link.wait_for(name, "SuperNode ID")
        print("two registered nodes: online, over TLS")
        said = link.flwr("run", ".", "deployment", "--stream", "--run-config", _RUN)
        if "fl-sim DONE" not in said:
            raise DeploymentError(said)
        print(f"a run of two rounds: {next(line for line in said.splitlines() if 'round 2/2' in line).strip()}")
        refused = {
            "stranger": [*trusted, "--auth-supernode-private-key", "stranger"],
            "without a key": trusted,
            "of another authority": ["--root-certificates", "other.crt", "--auth-supernode-private-key", "node1"],
            "without TLS": ["--insecure"],
        }
        for name, words in refused.items():
            link.start_node(name, *words, "--max-retries", "2")
        for name in refused:
            print(f"a node {name}: refused ({link.wait_for_refusal(name)})")


def main(attempt: Callable[[Path], None], description: str | None) -> int:
    """Try something in a new folder, as the command line says; return the exit code.

    Args:
        attempt: called with the folder; raises DeploymentError if something did not go as docs/flower.md says.
        description: for ``--help``.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="keep certificates, logs and results in this new folder")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="deployment-")) if args.keep is None else args.keep.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    try:
        attempt(folder)
    except DeploymentError as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    finally:
        if args.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    print(f"as docs/flower.md says, in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(try_all, __doc__))
