"""Execute the notebooks and keep their outputs in them, without anything of the machine that ran them.

    python scripts/execute_notebooks.py                       # those whose outputs are out of date
    python scripts/execute_notebooks.py first_run audit       # these, whatever their state
    python scripts/execute_notebooks.py --check               # exit code 1 if one is out of date; executes nothing

A notebook is out of date when its cells changed, or a file of the repository that it read: records in results/,
configurations, corpora and weights that ship. Hashes of both are in its metadata. Code is not hashed, because every
change of the product would then make every notebook run: whoever changes a picture executes the notebooks that draw it.

>>> source_hash(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 + 1")]))[:12]
'dfe66c22ca4d'
>>> without_machine("saved /tmp/x/fl-sim-ab12cd_9/run", {"/tmp/x": "…"})
'saved …/fl-sim/run'
"""

from __future__ import annotations

import argparse
import base64
import getpass
import hashlib
import io
import json
import os
import re
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
READ = ("results", "conf", "data_prep", "clients/assets")
"""Folders whose files count as what a notebook reads, besides code."""

KEY = "fl_sim"
COMMAND = "python scripts/execute_notebooks.py"
_SECONDS = 1800
_KEPT = ("image/png", "text/html", "text/markdown", "text/plain")
_TIME = re.compile(r"^Time .*\n?", re.MULTILINE)  # a line of a summary that says how long it took
_RANDOM_FOLDER = re.compile(r"(?<=/)([a-z][a-z-]*)-[a-z0-9_]{8}(?=[/\s'\"]|$)")  # of tempfile.mkdtemp

# The first and last cell of the copy that is executed: the names of the repository's files that were opened meanwhile.
_WATCH = """\
import sys as _sys
_opened = set()
_sys.addaudithook(lambda event, args: _opened.add(args[0]) if event == "open" and isinstance(args[0], str) else None)
"""
_TELL = """\
import json as _json, pathlib as _pathlib
print(_json.dumps(sorted({str(_pathlib.Path(name).resolve()) for name in _opened})))
"""


def source_hash(notebook: nbformat.NotebookNode) -> str:
    """Return the SHA-256 of the kinds and sources of all cells, in hexadecimal."""
    cells = [[cell.cell_type, cell.source] for cell in notebook.cells]
    return hashlib.sha256(json.dumps(cells, ensure_ascii=False).encode()).hexdigest()


def out_of_date(path: Path) -> str | None:
    """Return why a notebook's outputs are out of date; None if they are not."""
    notebook = nbformat.read(path, as_version=4)
    kept = notebook.metadata.get(KEY)
    if kept is None:
        return "was never executed"
    if kept["cells"] != source_hash(notebook):
        return "its cells changed"
    changed = [name for name, digest in kept["files"].items() if _digest(ROOT / name) != digest]
    return f"it reads {', '.join(changed)}, which changed" if changed else None


def _digest(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def execute(path: Path) -> None:
    """Run a notebook from first to last cell in a kernel and an empty folder, and write it back with its outputs.

    Raises:
        CellExecutionError: a cell failed; the file is left as it was.
    """
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        ran, opened = _run(notebook, Path(folder).resolve())
        words = _words_of_the_machine(folder)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for number, (cell, done) in enumerate(zip(code, ran, strict=True), start=1):
        cell.execution_count = number
        cell.outputs = [kept for output in done.outputs if (kept := _kept(output, number, words)) is not None]
        cell.metadata = nbformat.NotebookNode()
    files = {name: _digest(ROOT / name) for name in opened}
    notebook.metadata[KEY] = {"cells": source_hash(notebook), "files": files}
    nbformat.write(notebook, path)


def _run(notebook: nbformat.NotebookNode, folder: Path) -> tuple[list[nbformat.NotebookNode], list[str]]:
    """Return the executed code cells, and the names of the files of :data:`READ` that they opened."""
    copy = nbformat.from_dict(notebook)
    copy.cells = [nbformat.v4.new_code_cell(_WATCH), *copy.cells, nbformat.v4.new_code_cell(_TELL)]
    client = NotebookClient(
        copy, timeout=_SECONDS, kernel_name="python3", record_timing=False, resources={"metadata": {"path": folder}}
    )
    client.execute(env=_environment(folder))
    _, *code, last = [cell for cell in copy.cells if cell.cell_type == "code"]
    opened = [Path(name) for name in json.loads(last.outputs[0].text)]
    inside = [name.relative_to(ROOT).as_posix() for name in opened if name.is_relative_to(ROOT) and name.is_file()]
    read = [name for name in inside if name.startswith(READ) and not name.endswith((".py", ".pyc"))]
    return code, without_listed(read)


def without_listed(names: Sequence[str]) -> list[str]:
    """Return the names without the files of a corpus, whose checksums its manifest has.

    >>> without_listed(["results/a.json", "data_prep/irc/manifest.json", "data_prep/irc/train.users.parquet"])
    ['results/a.json', 'data_prep/irc/manifest.json']
    """
    corpora = {name.removesuffix("manifest.json") for name in names if name.endswith("/manifest.json")}
    return [name for name in names if name.endswith("/manifest.json") or not name.startswith(tuple(corpora))]


def _environment(folder: Path) -> dict[str, str]:
    """Return the kernel's environment: temporary files in ``folder``, no settings of the user, one thread."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FL_SIM_", "JUPYTER"))}
    jupyter = {name: str(folder / "jupyter") for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR")}
    fixed = {"TMPDIR": str(folder), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "COLUMNS": "100", "NO_COLOR": "1"}
    return inherited | jupyter | fixed | {"HF_HUB_OFFLINE": "1"}


def _words_of_the_machine(folder: str) -> dict[str, str]:
    """Return what an output must not hold, longest first, each with what stands in its place."""
    paths = {folder: "…", str(Path(folder).resolve()): "…", str(ROOT): "fl_sim", str(Path.home()): "~"}
    words = {socket.gethostname(): "machine", getpass.getuser(): "user"}
    return paths | {word: stands for word, stands in words.items() if len(word) > 4}


def without_machine(text: str, words: Mapping[str, str]) -> str:
    """Return a text with ``words`` replaced, without lines of times and the random part of temporary folders."""
    for word in sorted(words, key=len, reverse=True):
        text = text.replace(word, words[word])
    return _RANDOM_FOLDER.sub(r"\1", _TIME.sub("", text))


def _kept(output: nbformat.NotebookNode, number: int, words: Mapping[str, str]) -> nbformat.NotebookNode | None:
    """Return an output as it is kept; None for what is not: standard error, such as bars of progress."""
    if output.output_type == "stream":
        text = without_machine(output.text, words)
        return nbformat.v4.new_output("stream", name="stdout", text=text) if output.name == "stdout" else None
    data = {kind: _clean(kind, value, words) for kind, value in output.data.items() if kind in _KEPT}
    if "image/png" in data or "text/markdown" in data:
        data.pop("text/plain", None)  # the address of an object
    count = {"execution_count": number} if output.output_type == "execute_result" else {}
    return nbformat.v4.new_output(output.output_type, data=data, metadata=output.metadata, **count)


def _clean(kind: str, value: str, words: Mapping[str, str]) -> str:
    return without_metadata(value) if kind == "image/png" else without_machine(value, words)


def without_metadata(encoded: str) -> str:
    """Return a PNG (base64) without what is not its pixels, such as the versions of programs, as small as it gets."""
    buffer = io.BytesIO()
    Image.open(io.BytesIO(base64.b64decode(encoded))).convert("RGB").save(buffer, "PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"notebooks to execute; allowed: {', '.join(names)}")
    parser.add_argument("--check", action="store_true", help="only say which are out of date")
    args = parser.parse_args(argv)
    if unknown := sorted(set(args.names) - set(names)):
        parser.error(f"NAME is {unknown[0]}; allowed: {', '.join(names)}")
    stale: dict[str, Any] = {name: out_of_date(NOTEBOOKS / f"{name}.ipynb") for name in args.names or names}
    for name, why in stale.items():
        if args.check and why:
            print(f"notebooks/{name}.ipynb: {why}; {COMMAND} {name}")
        elif not args.check and (why or args.names):
            print(f"executing notebooks/{name}.ipynb", flush=True)
            execute(NOTEBOOKS / f"{name}.ipynb")
    return int(args.check and any(stale.values()))


if __name__ == "__main__":
    sys.exit(main())
