"""Every command that README.md and docs/ show runs as pasted: page by page, each in a copy of the checkout.

pytest -m documented --dist worksteal                                # all pages, at small size; minutes on two cores
pytest -m documented -n 0 -k sweeps tests/documented                 # one of them
pytest -m nightly -n 2 --dist worksteal tests/documented             # at full size; half an hour
DOCUMENTED_LOG=FILE pytest -m documented …                           # and a log of what each block took and printed

At small size the environment alone differs: small_size/sitecustomize.py caps what the same commands compute.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fl_sim.data_prep import SHIPPED_CORPORA
from fl_sim.data_prep.prepare import prepare
from fl_sim.data_prep.readers.prepared_corpus import PreparedReader
from tests.command_server import CommandServer, serving
from tests.conftest import REPOSITORY
from tests.documented.shown_commands import Block, blocks_of, files_of, name_of, pages
from tests.documented.small_size.sitecustomize import CORPORA, few
from tests.e2e.processes import end_all_in
from tests.made_once import made_once

SMALL_SIZE = Path(__file__).with_name("small_size")
SECONDS = 2400
"""A block that takes longer is a failure."""


def _pages_to_run() -> Iterator[Any]:
    """Yield the pages with commands that are run, each with its name."""
    for page in pages():
        if any(not block.not_run for block in blocks_of(page)):
            yield pytest.param(page, id=name_of(page))


def _make_small_corpora(folder: Path) -> None:
    for name in SHIPPED_CORPORA:
        whole = PreparedReader(source=name).read()
        prepare(dataclasses.replace(whole, sentences=lambda whole=whole: few(whole.sentences())), folder / name)


@pytest.fixture(scope="session")
def small_size() -> Iterator[dict[str, str]]:
    """Return the environment in which commands are small: a server whose fl_sim is capped, and small corpora."""
    corpora = made_once("shipped-corpora-few", _make_small_corpora)
    paths = filter(None, (str(SMALL_SIZE), os.environ.get("PYTHONPATH")))
    variables = _user_variables() | {"PYTHONPATH": os.pathsep.join(paths), CORPORA: str(corpora)}
    with serving(variables) as server:
        yield server.environment(variables)


@pytest.fixture(scope="session")
def full_size(command_server: CommandServer) -> dict[str, str]:
    """Return the environment in which commands are as they are."""
    return command_server.environment(_user_variables())


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Path]:
    """Return a copy of the checkout's tracked files, in which a command may write."""
    folder = tmp_path / "fl_sim"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (REPOSITORY / name).exists() or (REPOSITORY / name).is_symlink():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, folder / name, follow_symlinks=False)
    yield folder
    shutil.rmtree(folder)


@contextlib.contextmanager
def _in_turn(block: Block, checkout: Path) -> Iterator[None]:
    """Let blocks with ``flwr run`` take turns, and end the SuperLink that it starts: there is one port for all."""
    with (Path(tempfile.gettempdir()) / "fl-sim-documented-superlink.lock").open("a") as lock:
        if "flwr run" in block.body:
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            end_all_in(checkout)


PAGES = pytest.mark.parametrize("page", list(_pages_to_run()))


@pytest.mark.documented
@PAGES
def test_commands_run_as_pasted(page: Path, checkout: Path, tmp_path: Path, small_size: dict[str, str]) -> None:
    _run_page(page, checkout, tmp_path, small_size, [block for block in blocks_of(page) if not block.full_size])


@pytest.mark.nightly
@PAGES
def test_commands_run_at_full_size(page: Path, checkout: Path, tmp_path: Path, full_size: dict[str, str]) -> None:
    _run_page(page, checkout, tmp_path, full_size, blocks_of(page))


def _run_page(page: Path, checkout: Path, home: Path, variables: dict[str, str], blocks: list[Block]) -> None:
    """Run the page's blocks in their order; skip the test if none of them can run here."""
    left_out = []
    for name, content in files_of(page).items():
        (checkout / name).write_text(content, encoding="utf-8")
    for block in blocks:
        if lacking := _lacking(block):
            left_out.append(f"{name_of(page)}:{block.line}: {lacking}")
        else:
            with _in_turn(block, checkout):
                run_block(block, checkout, home, name_of(page), variables)
    if left_out and len(left_out) == len(blocks):
        pytest.skip("; ".join(left_out))


def _lacking(block: Block) -> str:
    """Return why the block is not run here, or nothing."""
    kind, _, name = block.needs.partition(" ")
    if kind == "module" and importlib.util.find_spec(name) is None:
        return f"the module {name} is not installed"
    if kind == "program" and shutil.which(name) is None:
        return f"the program {name} is not installed"
    return block.not_run


def run_block(block: Block, checkout: Path, home: Path, page: str, variables: dict[str, str]) -> None:
    """Run the block in the folder, and with the variables, that the block before it left."""
    began = time.perf_counter()
    script = f"[ ! -e {home}/state ] || . {home}/state\n{block.body}\n{{ export -p; echo cd $PWD; }} > {home}/state\n"
    done = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", script],
        cwd=checkout,
        env={**variables, "HOME": str(home), "XDG_STATE_HOME": str(home / "state-home")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    took = f"{time.perf_counter() - began:.0f} s"
    _log(f"{page}:{block.line}: exit {done.returncode} after {took}", block.body, done.stdout)
    assert done.returncode == 0, f"{page}:{block.line}: exit {done.returncode}\n{block.body}\n{done.stdout[-4000:]}"
    runs_of_flower = sum(words[:2] == ["flwr", "run"] for words in block.words())  # whose exit code is always 0
    assert done.stdout.count("fl-sim DONE") >= runs_of_flower, f"{page}:{block.line}:\n{done.stdout[-4000:]}"


def _user_variables() -> dict[str, str]:
    """Return a user's environment: nothing of pytest's, and nothing that would have Flower install fl_sim anew."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV_", "RAY_"))}
    return kept | {
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # Ray's workers would wait for everything else that a busy machine does
    }


def _log(*parts: str) -> None:
    if path := os.environ.get("DOCUMENTED_LOG"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write("\n".join(parts) + "\n\n")
