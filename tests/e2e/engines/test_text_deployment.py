"""Text on its nodes trains the model of the joint corpus under ``flwr run``, simulated and with TLS and known nodes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fl_sim.storage.run_folder import RunFolder
from tests.e2e.engines.flwr_command import Flower
from tests.e2e.processes import needs_proc
from tests.script_modules import imported_script

imported_script("try_deployment")
try_text = imported_script("try_text_deployment")

pytestmark = [pytest.mark.nightly, needs_proc, pytest.mark.usefixtures("no_plots")]


def test_the_example_trains_the_model_of_the_joint_corpus_under_flwr_run(flower: Flower, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    try_text.make_nodes(data)
    folders = {"corpus-path": str(data / "node-{partition-id}"), "entity-key": str(data / "key"), "out": "run"}
    words = try_text.as_run_config(try_text.SETTINGS | folders)
    done = flower.run(words, app=try_text.EXAMPLE)
    assert "fl-sim DONE" in done.stdout + done.stderr, (done.stdout + done.stderr)[-2000:]
    run = RunFolder.open(flower.home / "fl-sim-runs" / "run")
    assert try_text.apart(try_text.simulated(tmp_path), run) < try_text.SAME_MODEL


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
def test_nodes_with_folders_of_their_own_train_it_over_tls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try_text.try_all(tmp_path)
    said = capsys.readouterr().out
    assert "distance from the model of fl-sim run on the joint corpus" in said
    assert "node 1 has another entity key than node 0; allowed: the same on all nodes" in said
    assert "corpus-path of node 0 is not given; allowed: a path, in the node's config" in said
