"""Run ``fl-sim`` command lines in forks of one process that has torch, transformers and the rest imported.

A start of ``fl-sim`` takes seconds, nearly all of them imports. The server imports once; its programs ``fl-sim`` and
``python``, first on the path, have it fork for ``fl-sim …`` and ``python -m fl_sim …``. The fixture ``command_server``
(tests/conftest.py) is one for all tests of a worker:

    def test_it(command_server: CommandServer) -> None:
        done = subprocess.run(["fl-sim", "corpus", "stats", "bundled"], env=command_server.environment(), ...)

A command has the caller's folder, variables, streams, umask and ignored signals. Signals to the program reach it, it
ends with the program, also on kill -9, and the program ends as it did. Unlike in a process of its own, what libraries
read when they are imported (OMP_NUM_THREADS) is the server's, as are limits and the hash seed; streams are UTF-8.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_PROGRAM = """#!{python} -IS
import json, os, signal, socket, sys
if {is_python} and sys.argv[1:3] != ["-m", "fl_sim"]:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
stops = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
signal.pthread_sigmask(signal.SIG_BLOCK, stops)
ignored = [number for number in stops if signal.getsignal(number) is signal.SIG_IGN]
words = [sys.argv[0], *sys.argv[3 if {is_python} else 1:]]
call = json.dumps([words, os.getcwd(), dict(os.environ), os.umask(0), ignored]).encode()
link = socket.socket(socket.AF_UNIX)
link.connect({address!r})
socket.send_fds(link, [len(call).to_bytes(8, "big")], [0, 1, 2])
link.sendall(call)
answers = link.makefile("rb")
process = int.from_bytes(answers.read(8), "big")
for number in set(stops) - set(ignored):
    signal.signal(number, lambda number, frame: os.kill(process, number))
signal.pthread_sigmask(signal.SIG_UNBLOCK, stops)
end = answers.read(8)
code = int.from_bytes(end, "big", signed=True) if end else 70
if code < 0:
    if code != -signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""
_LIBRARIES = (
    *("pandas", "pyarrow.parquet", "scipy.stats", "spacy.lang.en", "rich.table", "rich.progress", "PIL.Image"),
    *("transformers.models.gpt2.modeling_gpt2", "transformers.models.auto.modeling_auto", "flwr.simulation"),
)
_LEFT_OUT = ("fl_sim.__main__", "fl_sim.cli.template", "fl_sim.experiments.trackers")


@dataclass(frozen=True)
class CommandServer:
    """A running server, and the folder with its programs."""

    programs: Path

    def environment(self, variables: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return ``variables`` with the server's programs first on the path, then this interpreter's."""
        folders = (str(self.programs), str(Path(sys.executable).parent), variables["PATH"])
        return {**variables, "PATH": os.pathsep.join(folders)}


@contextlib.contextmanager
def serving(variables: Mapping[str, str] = os.environ) -> Iterator[CommandServer]:
    """Give a server that ends with the block; it imports under ``variables``, so PYTHONPATH names its ``fl_sim``."""
    with tempfile.TemporaryDirectory(prefix="fl-sim-commands-") as folder, socket.socket(socket.AF_UNIX) as listener:
        address = f"{folder}/socket"
        for name in ("fl-sim", "python"):
            words = {"python": sys.executable, "is_python": name == "python", "address": address}
            Path(folder, name).write_text(_PROGRAM.format(**words), encoding="utf-8")
            Path(folder, name).chmod(0o755)
        listener.bind(address)
        listener.listen(64)  # a command that comes early waits for the imports
        server = subprocess.Popen(
            [sys.executable, "-P", __file__, str(listener.fileno())],
            env={**variables, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,  # its end, also that of killed tests, ends the server
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )
        try:
            yield CommandServer(Path(folder))
        finally:
            server.communicate()


def _warm_up() -> None:
    """Import what commands need, and make once what libraries keep in memory: a model's classes, fonts."""
    import fl_sim
    from fl_sim.clients.worker.libraries import load_libraries

    load_libraries()
    ours = (module.name for module in pkgutil.walk_packages(fl_sim.__path__, "fl_sim."))
    for name in (*_LIBRARIES, *(name for name in ours if not name.startswith(_LEFT_OUT))):
        importlib.import_module(name)
    from matplotlib.figure import Figure

    from fl_sim.clients.models.language_model import load_model
    from fl_sim.clients.models.model_spec import ModelSpec
    from fl_sim.reporting.plots import render

    load_model(ModelSpec(), seed=0)
    (figure := Figure()).suptitle("ε")
    render(figure)
    gc.collect()
    gc.freeze()  # else a collection in a command would touch, and so copy, all that was imported


def _serve(listener: socket.socket) -> list[str]:
    """Fork for every call until stdin ends; return the words of a command in its process, and never in the server."""
    children = 0
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        link = listener.accept()[0]
        if os.fork() == 0:
            listener.close()
            return _keep(link)
        link.close()
        children += 1
        while children and os.waitpid(-1, os.WNOHANG)[0]:
            children -= 1
    os._exit(0)


def _keep(link: socket.socket) -> list[str]:
    """Start the command and report its end, or end it with its caller; return its words in its process."""
    length, streams, _, _ = socket.recv_fds(link, 8, 3)
    with link.makefile("rb") as text:
        call = json.loads(text.read(int.from_bytes(length, "big")))
    if (process := os.fork()) == 0:
        link.close()
        return _become(streams, *call)
    for stream in streams:
        os.close(stream)
    with contextlib.suppress(OSError):  # the caller may be gone
        link.sendall(process.to_bytes(8, "big"))
        ended = os.pidfd_open(process)
        if ended not in select.select([ended, link], [], [])[0]:
            os.kill(process, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        link.sendall(code.to_bytes(8, "big", signed=True))
    os._exit(0)


def _become(
    streams: list[int], words: list[str], folder: str, variables: dict[str, str], umask: int, ignored: list[int]
) -> list[str]:
    """Take over what the caller has, apart from its words, which are returned."""
    os.setsid()  # a signal to the whole group is for this command alone
    for (number, name), stream in zip(enumerate(("stdin", "stdout", "stderr")), streams, strict=True):
        os.dup2(stream, number)
        os.close(stream)
        lines = 1 if name == "stderr" or os.isatty(number) else -1
        setattr(sys, name, os.fdopen(number, "w" if number else "r", lines, encoding="utf-8", closefd=False))
    os.chdir(folder)
    os.umask(umask)
    os.environ.clear()
    os.environ.update(variables)
    paths = filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:0] = [path for path in paths if path not in sys.path]
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    return words


def _main() -> int:
    """Serve, and in the process of a command run it; return its exit code."""
    _warm_up()
    from fl_sim.cli.main import main

    sys.argv = _serve(socket.socket(fileno=int(sys.argv[1])))
    try:
        return main()
    except SystemExit as error:  # argparse's
        return error.code if isinstance(error.code, int) else int(error.code is not None)


if __name__ == "__main__":
    code = 1
    try:
        code = _main()
    except BaseException:
        traceback.print_exc()
    finally:  # what Python does when it ends, but for taking the imported modules apart, which takes half a second
        threading._shutdown()
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(code)
