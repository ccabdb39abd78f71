"""A private app, and text on its nodes, train the same model in simulation and over TLS with keys for the nodes."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from fl_sim.reporting.run_facts import read_facts
from fl_sim.storage.checkpoint import Checkpoint
from fl_sim.storage.run_folder import RunFolder
from tests.conftest import REPOSITORY
from tests.e2e.engines.flwr_command import Flower
from tests.e2e.processes import needs_proc
from tests.script_modules import imported_script

try_deployment = imported_script("try_deployment")
try_text = imported_script("try_text_deployment")

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
pytestmark = [pytest.mark.nightly, needs_proc, pytest.mark.usefixtures("no_plots")]

APP = REPOSITORY / "examples" / "own_data"
NODES = ("node1", "node2", "stranger")  # the keys that the deployment makes
ROUNDS = 4


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    make_tables = imported_script("make_tables", APP)
    make_tables.main(tmp_path / "tables", len(NODES))
    return tmp_path / "tables"


@needs_openssl
def test_the_same_seed_trains_the_same_model_in_simulation_and_deployment(
    flower: Flower, tables: Path, tmp_path: Path
) -> None:
    run_config = f"num-server-rounds={ROUNDS} seed=7"
    simulated = flower.run(f'{run_config} folder="simulated" data="{tables}"', app=APP, nodes=len(NODES))
    assert "fl-sim DONE" in simulated.stdout, simulated.stdout[-2000:]

    place = tmp_path / "deployment"
    place.mkdir()
    with try_deployment.deployment(place) as link:
        for number, name in enumerate(NODES):
            own = place / f"home-of-{name}"
            own.mkdir()
            shutil.move(tables / f"user{number}.csv", own / "mine.csv")  # nobody else has it
            link.flwr("supernode", "register", str(place / f"{name}.pub"), "deployment")
            config = f'partition-id={number} data-path="{own / "mine.csv"}"'
            trusted = ["--root-certificates", "ca.crt", "--auth-supernode-private-key", name]
            link.start_node(name, *trusted, "--node-config", config)
        for name in NODES:
            link.wait_for(name, "SuperNode ID")
        said = link.flwr("run", str(APP), "deployment", "--stream", "--run-config", f'{run_config} folder="deployed"')
    assert "fl-sim DONE" in said, said[-2000:]

    runs = [flower.home / "fl-sim-runs" / "simulated", place / "flwr" / "fl-sim-runs" / "deployed"]
    models = [Checkpoint.read(run / "checkpoint") for run in runs]
    assert models[0] is not None
    assert models[1] is not None
    assert models[0].server_round == models[1].server_round == ROUNDS
    assert np.abs(models[0].vector).max() > 0.01
    assert np.abs(models[0].vector - models[1].vector).max() <= 1e-12
    facts = [read_facts(RunFolder.open(run)).record() for run in runs]
    assert facts[0]["epsilon"] == facts[1]["epsilon"]
    assert facts[1]["ledger"] == {"problem": None, "notes": []}


@needs_openssl
def test_nodes_with_folders_of_their_own_train_it_over_tls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try_text.try_all(tmp_path)
    said = capsys.readouterr().out
    assert "distance from the model of fl-sim run on the joint corpus" in said
    assert "node 1 has another entity key than node 0; allowed: the same on all nodes" in said
    assert "corpus-path of node 0 is not given; allowed: a path, in the node's config" in said
