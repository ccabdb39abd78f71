"""Whole apps: every fault of examples/faults is found and named, and apps that are right have none."""

from __future__ import annotations

import json
import math
import multiprocessing
import shutil
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path

import pytest

import fl_sim
from fl_sim.api.checks import repaired
from fl_sim.checking import app_process
from fl_sim.checking.app_folder import CheckError
from fl_sim.cli.main import main

EXAMPLES = Path(__file__).parents[3] / "examples"
FAULTS = (
    "no-noise", "unbounded-update", "clip-on-mean", "unclipped-array", "array-without-noise", "example-weights",
    "nan-passes", "failure-shows", "realised-denominator", "fixed-cohort", "same-cohort", "accountant-reset",
    "noise-reused", "fixed-seed", "noise-below-claim", "metrics-leave", "exception-text", "inf-passes", "losses-leave",
    "noise-stops", "noise-in-step", "number-without-noise",
)  # fmt: skip
NAMES = {
    "inf-passes": "nan-passes", "losses-leave": "metrics-leave", "number-without-noise": "array-without-noise",
}  # fmt: skip
"""Faults that have the name of another one of the same kind."""

ALSO = {"example-weights": {"realised-denominator"}, "same-cohort": {"realised-denominator"}}
"""What comes with a fault: weighted sums of shares depend on who took part, a fixed half loses one who is away."""

pytestmark = pytest.mark.usefixtures("few_trials")


@pytest.mark.system
@pytest.mark.sample(6)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_named(fault: str) -> None:
    check = fl_sim.check(EXAMPLES / "faults", run_config=f"fault='{fault}'")
    names = {finding.name for finding in check.findings}
    name = NAMES.get(fault, fault)
    assert {name} <= names <= {name} | ALSO.get(fault, set())
    assert check.holds == (fault == "exception-text")
    if name not in ("metrics-leave", "exception-text"):
        assert check.measured.stated.epsilon is not None
        assert check.epsilon > 1.5 * check.measured.stated.epsilon


@pytest.mark.system
def test_the_right_app_has_no_finding_and_the_epsilon_that_it_states() -> None:
    check = fl_sim.check(EXAMPLES / "faults")
    assert check.findings == []
    assert check.measured.stated.epsilon == pytest.approx(7.4224)  # of the accountant, for z 1, q 0.5, five rounds
    assert check.epsilon == pytest.approx(7.4224, rel=0.15)
    assert check.measured.mu == pytest.approx(1.0, rel=0.1)  # a clip against noise of the same size


@pytest.mark.system
def test_the_patch_makes_the_quickstart_private() -> None:
    before = (EXAMPLES / "quickstart/quickstart/quickstart_server.py").read_text()
    settings = {"nodes": 4, "run_config": "num-server-rounds=2"}
    check = fl_sim.check(EXAMPLES / "quickstart", **settings)
    names = {finding.name for finding in check.findings}
    assert {"no-noise", "unbounded-update", "example-weights", "nan-passes"} <= names
    assert check.epsilon == math.inf
    repair = repaired(EXAMPLES / "quickstart", check, **settings)
    assert "+app = ClientApp(mods=[userlevelclipping_mod])" in repair.diff
    assert '+    "fl-sim",' in repair.diff
    assert repair.check is not None
    assert repair.check.findings == []
    assert repair.check.epsilon == pytest.approx(8.0, rel=0.1)
    assert (EXAMPLES / "quickstart/quickstart/quickstart_server.py").read_text() == before


@pytest.mark.system
def test_a_private_torch_app_has_no_finding() -> None:
    check = fl_sim.check(EXAMPLES / "digits_cnn", run_config="num-server-rounds=2 local-steps=1 target-epsilon=20.0")
    assert check.findings == []
    assert check.measured.sampling == "poisson"


@pytest.mark.nightly
def test_an_app_with_several_users_in_a_node_has_no_finding() -> None:
    check = fl_sim.check(EXAMPLES / "adult_logistic", run_config="num-server-rounds=2", nodes=4, time_limit=900)
    assert check.findings == []
    assert check.measured.effect["average"] == pytest.approx(1 / 150, rel=0.01)  # C / (q·N)


@pytest.mark.system
def test_the_command_draws_and_exits_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["check", str(EXAMPLES / "faults"), "--run-config", "fault='noise-below-claim'", "--json", "--quiet"]
    assert main([*words, "--picture", str(tmp_path / "user.svg")]) == 3
    record = json.loads(capsys.readouterr().out)
    assert [finding["name"] for finding in record["findings"]] == ["noise-below-claim"]
    assert record["measured"]["mu"] == pytest.approx(20, rel=0.1)
    assert "<svg" in (tmp_path / "user.svg").read_text()


def changed(folder: Path, line: str) -> Path:
    """Return a copy of the right app whose train function begins with a line of its own."""
    shutil.copytree(EXAMPLES / "faults", folder)
    file = folder / "faults/client_app.py"
    head = '"""Move the model towards the mean of the user\'s rows."""'
    text = file.read_text()
    assert head in text
    file.write_text(text.replace(head, line))
    return folder


@pytest.mark.system
def test_weights_are_found_whatever_the_metric_is_called(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "faults", tmp_path / "app")
    for file in (tmp_path / "app/faults").glob("*.py"):
        file.write_text(file.read_text().replace('"num-examples"', '"rows"'))
    check = fl_sim.check(tmp_path / "app", run_config="fault='example-weights'")
    assert "example-weights" in {finding.name for finding in check.findings}


QUESTION = """
    asked = [Message(RecordDict(), node, "query") for node in grid.get_node_ids()]
    sizes = [reply.content["metrics"]["rows"] for reply in grid.send_and_receive(asked)]
    zeros["bias"] = np.asarray(np.mean(sizes))
    initial = ArrayRecord("""
ANSWER = """
@app.query()
def size(message: Message, context: Context) -> Message:
    rows = 5 + int(context.node_config["partition-id"])
    return Message(RecordDict({"metrics": MetricRecord({"rows": rows})}), reply_to=message)
"""
LAST = """initial, num_rounds=config["num-server-rounds"])
    FedAvg(fraction_evaluate=0.0).start(grid, result.arrays, num_rounds=1)
"""


@pytest.mark.system
@pytest.mark.parametrize(
    ("file", "text", "replacement", "fault", "name"),
    [
        ("faulty_averages", '"train_loss": float', '"train_steps": float', "metrics-leave", "metrics-leave"),
        (
            "faulty_averages",
            'return {"train_loss"',
            'return print(losses) or {} and {"train_loss"',
            "metrics-leave",
            "metrics-leave",
        ),
        (
            "private_average",
            "        return {}",
            "        return {'norm': float(sum(abs(self.update(one)['bias']) for one in self.replies))}",
            "",
            "metrics-leave",
        ),
        ("server_app", 'initial, num_rounds=config["num-server-rounds"])\n', LAST, "", "noise-stops"),
        ("server_app", "\n    initial = ArrayRecord(", QUESTION, "", "array-without-noise"),
    ],
)
def test_what_leaves_in_another_way_is_found(
    file: str, text: str, replacement: str, fault: str, name: str, tmp_path: Path
) -> None:
    app = changed(tmp_path / "app", '"""Train."""')
    part = app / f"faults/{file}.py"
    assert text in part.read_text()
    names = "from flwr.app import Message, RecordDict\nfrom flwr.serverapp.strategy import FedAvg\n"
    started = (
        part.read_text().replace(text, replacement).replace("    strategy(config)", "    result = strategy(config)")
    )
    part.write_text(names + started)
    client = app / "faults/client_app.py"
    client.write_text(client.read_text() + ANSWER)
    check = fl_sim.check(app, run_config=f"fault='{fault}'")
    assert name in {finding.name for finding in check.findings}


@pytest.mark.system
@pytest.mark.parametrize(("line", "severity"), [("import opacus.optimizers", "breaks"), ("DPOptimizer()", "note")])
def test_a_node_that_trains_with_opacus_states_the_epsilon_of_an_example(
    line: str, severity: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizers = types.ModuleType("opacus.optimizers")
    optimizers.DPOptimizer = type("DPOptimizer", (), {"__init__": lambda self: None})
    for name, module in {"opacus": types.ModuleType("opacus"), "opacus.optimizers": optimizers}.items():
        monkeypatch.setitem(sys.modules, name, module)
    app = changed(tmp_path / "app", f"from opacus.optimizers import DPOptimizer; {line}")
    check = fl_sim.check(app, run_config="fault='noise-stops'")
    assert {finding.severity for finding in check.findings} == {severity}


@pytest.mark.system
def test_an_app_may_start_processes_as_data_loaders_do(tmp_path: Path) -> None:
    line = "import multiprocessing; made = multiprocessing.get_context('fork').Process(target=int); made.start()"
    check = fl_sim.check(changed(tmp_path / "app", line), run_config="fault='nan-passes'")
    assert [finding.name for finding in check.findings] == ["nan-passes"]


@pytest.mark.system
def test_an_apps_own_processes_start_as_they_do_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under spawn every worker of every data loader would import all that the app does, again and again."""
    monkeypatch.setattr(app_process, "METHOD", "spawn")
    method = multiprocessing.get_start_method()
    code = f"import multiprocessing\n1 / (multiprocessing.get_start_method() == {method!r})\n"
    app_of(tmp_path, HEAD + code + "@server.main()\ndef main(grid, context): pass\n")
    with pytest.raises(CheckError, match="it never asks its nodes to train"):
        fl_sim.check(tmp_path)


@pytest.mark.system
@pytest.mark.skipif(sys.platform != "linux", reason="prctl(2) is Linux's")
def test_a_trial_without_an_end_ends_with_a_check_that_is_killed(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    endless = f"    open({str(pid)!r}, 'w').write(f'{{os.getpid()}} ')\n    while True: time.sleep(0.1)\n"
    app_of(tmp_path, "import os, time\n" + HEAD + "@server.main()\ndef main(grid, context):\n" + endless)
    check = subprocess.Popen([sys.executable, "-m", "fl_sim", "check", str(tmp_path), "--quiet"])
    wait_for(lambda: pid.exists() and pid.read_text().endswith(" "))
    check.kill()
    check.wait()
    wait_for(lambda: not Path("/proc", pid.read_text().strip()).exists())


def app_of(folder: Path, code: str) -> None:
    """Write an app of one module."""
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "app.py").write_text(code)


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.system
def test_an_app_whose_nodes_all_fail_is_not_checked(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match=r"no node returns a model.*allowed: an app whose train function works"):
        fl_sim.check(changed(tmp_path / "app", "raise ValueError('a private row')"))


@pytest.mark.system
def test_secure_aggregation_of_the_older_api_hides_updates_and_is_no_noise(tmp_path: Path) -> None:
    """Its rounding is random, and millions of times smaller than what a user does."""
    app_of(tmp_path, OLDER + SECURE)
    check = fl_sim.check(tmp_path, nodes=3)
    named = {"no-noise", "nan-passes", "metrics-leave", "realised-denominator"}
    assert {finding.name for finding in check.findings} == named
    assert check.measured.seen.mods[0][0] == "secaggplus_mod"
    assert check.measured.heavier == pytest.approx(1.0, abs=0.2)  # a weight above `max_weight` wraps round
    assert check.epsilon == math.inf


@pytest.mark.system
def test_a_wrapper_of_the_older_api_is_measured(tmp_path: Path) -> None:
    app_of(tmp_path, OLDER + WRAPPED)
    check = fl_sim.check(tmp_path, nodes=5)
    assert {finding.name for finding in check.findings if finding.severity == "breaks"} == {
        "example-weights", "nan-passes", "failure-shows",
    }  # fmt: skip
    assert check.measured.seen.strategy[0][0] == "DifferentialPrivacyServerSideFixedClipping"
    assert check.measured.effect["0"] ** 2 + check.measured.effect["1"] ** 2 == pytest.approx((2 * 0.5 / 5) ** 2)
    assert check.measured.mu == pytest.approx(2, rel=0.1)  # away, a user is missed in the others' shares, too


@pytest.mark.system
def test_an_older_server_of_an_apps_own_is_refused(tmp_path: Path) -> None:
    app_of(
        tmp_path,
        OLDER + "class Own(Server): pass\nserver = ServerApp(server=Own(client_manager=SimpleClientManager()))\n",
    )
    with pytest.raises(CheckError, match=r"a server of its own \(Own\); allowed: Flower's Server, or the message API"):
        fl_sim.check(tmp_path)


OLDER = """import numpy as np
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.server import LegacyContext, Server, ServerAppComponents, ServerConfig
from flwr.server.client_manager import SimpleClientManager
from flwr.server.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import ServerApp

class Rows(NumPyClient):
    def __init__(self, number):
        self.rows = np.random.default_rng(number).normal(number, size=(20, 3))
    def get_parameters(self, config):
        return [np.zeros(3), np.zeros(1)]
    def fit(self, parameters, config):
        return [parameters[0] + 0.1 * (self.rows.mean(0) - parameters[0]), parameters[1]], 20, {}
    def evaluate(self, parameters, config):
        return float(np.square(self.rows - parameters[0]).mean()), 20, {}

def client_fn(context):
    return Rows(context.node_config["partition-id"]).to_client()

client, config = ClientApp(client_fn), ServerConfig(num_rounds=2)
"""
SECURE = """
client, server = ClientApp(client_fn, mods=[secaggplus_mod]), ServerApp()
@server.main()
def main(grid, context):
    older = LegacyContext(context, config, FedAvg())
    DefaultWorkflow(fit_workflow=SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2))(grid, older)
"""
WRAPPED = """
def server_fn(context):
    private = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 0.5, num_sampled_clients=5)
    return ServerAppComponents(strategy=private, config=config)

server = ServerApp(server_fn=server_fn)
"""
PROJECT = '[tool.flwr.app.components]\nserverapp = "app:server"\nclientapp = "app:client"\n'
HEAD = (
    "from flwr.clientapp import ClientApp\nfrom flwr.serverapp import ServerApp\n"
    "server, client = ServerApp(), ClientApp()\n"
)
UNSUITABLE = {
    "import nowhere_installed": "it does not start: it imports nowhere_installed, which is not installed",
    "open('no/such/rows.csv')": "it does not start: it needs no/such/rows.csv, which is not there",
    "import socket; socket.create_connection(('127.0.0.1', 9))": "it needs the network",
    "1 / 0": "it does not start: ZeroDivisionError at app.py:4",
    "@server.main()\ndef main(grid, context): pass": "it never asks its nodes to train",
    "@server.main()\ndef main(grid, context):\n    while True: list(grid.get_node_ids())": "waits for more than",
    "@server.main()\ndef main(grid, context): raise ValueError('a private row')": "ValueError at app.py:5",
}


@pytest.mark.system
@pytest.mark.parametrize("code", UNSUITABLE)
def test_an_app_that_cannot_be_checked_is_told_in_one_line(
    code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app_of(tmp_path, HEAD + code + "\n")
    assert main(["check", str(tmp_path), "--quiet"]) == 2
    error = capsys.readouterr().err
    assert UNSUITABLE[code] in error
    assert error.count("\n") == 1
    assert "private row" not in error
    assert {path.name for path in tmp_path.iterdir()} == {"pyproject.toml", "app.py"}
