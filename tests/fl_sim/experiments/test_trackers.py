"""Trackers: what they wrote is read back, of a whole run and of one that was resumed; a failing one changes nothing."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fl_sim.cli.main import main
from fl_sim.config import RunConfig
from fl_sim.engines import simulation
from fl_sim.experiments import observers
from fl_sim.experiments.run_inputs import with_absolute_paths
from fl_sim.experiments.run_record import Record
from fl_sim.experiments.trackers import figures, settings
from fl_sim.plugins import PluginError
from fl_sim.storage.run_folder import RunFolder, rows_of
from tests import tiny
from tests.e2e.small_runs import Crash, crash_after

pytestmark = pytest.mark.usefixtures("no_plots")

Capture = pytest.CaptureFixture[str]
Steps = dict[tuple[str, int], list[float]]
"""Figures by name and round: one value each if every round was written once."""

TRACKERS = ("tensorboard", "csv", "wandb", "mlflow")
_BLOCK, _HEADER = 32768, 7


@pytest.fixture(scope="module", autouse=True)
def no_tracker_of_the_environment() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MLFLOW_TRACKING_URI", "WANDB_MODE", "WANDB_BASE_URL"):
            patch.delenv(name, raising=False)
        yield


def configured(corpus: Path, out: Path, *trackers: str, **changes: Any) -> RunConfig:
    return tiny.configured(corpus, out, observers=trackers, **changes)


def expected(run: Path) -> Steps:
    """The figures of all rounds, as the run's own metrics have them."""
    rows = rows_of(run, 1_000)
    return {(name, row["round"]): [value] for row in rows for name, value in figures(row).items()}


# Readers of what trackers wrote


def read_csv(run: Path) -> Steps:
    table = pd.read_csv(run / "rounds.csv").set_index("round")
    cells = [(str(name), int(step), table[name]) for name in table for step in table.index.unique()]
    read = {(name, step): column[[step]].tolist() for name, step, column in cells}
    return {key: values for key, values in read.items() if pd.notna(values).any()}


def read_tensorboard(run: Path) -> Steps:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason='needs pip install "fl-sim[tensorboard]"'
    )
    events = accumulator.EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    read: Steps = {}
    for name in events.Tags()["scalars"]:
        for event in events.Scalars(name):
            read.setdefault((name, event.step), []).append(event.value)
    return read


def read_mlflow(run: Path) -> Steps:
    client, run_id = mlflow_client(run)
    read: Steps = {}
    for name in client.get_run(run_id).data.metrics:
        for kept in client.get_metric_history(run_id, name):
            read.setdefault((name, kept.step), []).append(kept.value)
    return read


def mlflow_client(run: Path) -> tuple[Any, str]:
    tracking = pytest.importorskip("mlflow.tracking", reason='needs pip install "fl-sim[mlflow]"')
    noted = json.loads((run / "trackers.json").read_text())["mlflow"]
    return tracking.MlflowClient(tracking_uri=noted["uri"]), noted["run_id"]


def read_wandb(run: Path) -> Steps:
    wait_for(lambda: any(record.WhichOneof("record_type") == "exit" for record in wandb_records(run)))
    read: Steps = {}
    for record in wandb_records(run):
        if record.WhichOneof("record_type") != "history":
            continue
        items = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        step = items.pop("_step")
        for name in items.keys() - {"_runtime", "_timestamp", "_wandb"}:
            read.setdefault((name, step), []).append(float(items[name]))
    return read


def wandb_records(run: Path) -> Iterator[Any]:
    """The records of the offline run's file, which its service writes shortly after the end of the run.

    It is LevelDB's log format, of blocks whose records have a header.
    """
    messages = pytest.importorskip("wandb.proto.wandb_internal_pb2", reason='needs pip install "fl-sim[wandb]"')
    (file,) = run.glob("wandb/offline-run-*/run-*.wandb")
    content, at, parts = file.read_bytes(), _HEADER, b""
    while at + _HEADER <= len(content):
        if _BLOCK - at % _BLOCK < _HEADER:
            at += _BLOCK - at % _BLOCK
            continue
        _, size, kind = struct.unpack("<IHB", content[at : at + _HEADER])
        parts += content[at + _HEADER : at + _HEADER + size]
        at += _HEADER + size
        if kind in (1, 4):  # whole, or the last part
            record = messages.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


READERS: Mapping[str, Callable[[Path], Steps]] = {
    "tensorboard": read_tensorboard,
    "csv": read_csv,
    "wandb": read_wandb,
    "mlflow": read_mlflow,
}


def check_read(tracker: str, run: Path) -> None:
    """Check that a tracker has every figure of every round once; TensorBoard's are float32."""
    read, wanted = READERS[tracker](run), expected(run)
    assert read.keys() == wanted.keys()
    for key, values in read.items():
        assert values == pytest.approx(wanted[key], rel=1e-6 if tracker == "tensorboard" else 1e-12, nan_ok=True), key


# Whole runs


def installed() -> list[str]:
    def is_installed(name: str) -> bool:
        try:
            observers.check_installed([name])
        except PluginError:
            return False
        return True

    return [name for name in TRACKERS if is_installed(name)]


@pytest.fixture(scope="module")
def tracked(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with every tracker that is installed."""
    return simulation.run(configured(corpus, tmp_path_factory.mktemp("runs") / "tracked", *installed())).path


@pytest.mark.sample(1)
@pytest.mark.system
@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_tracker_has_every_figure_of_every_round_once(tracker: str, tracked: Path) -> None:
    check_read(tracker, tracked)


@pytest.mark.system
def test_trackers_do_not_change_the_run(corpus: Path, tracked: Path, tmp_path: Path) -> None:
    alone = simulation.run(configured(corpus, tmp_path / "alone"))
    assert "tracking" not in json.loads(alone.config_file.read_text())["run"]
    for file in ("model/model.safetensors", "checkpoint/latest.safetensors"):
        kept, other = ((run / file).read_bytes() for run in (alone.path, tracked))
        assert len(kept) == len(other)
    assert (alone.path / "model/model.safetensors").read_bytes() == (tracked / "model/model.safetensors").read_bytes()
    assert alone.metrics().drop(columns="seconds").equals(RunFolder.open(tracked).metrics().drop(columns="seconds"))


@pytest.mark.system
def test_trackers_have_the_settings(tracked: Path) -> None:
    sent = settings(Record.read(RunFolder.open(tracked)).config)
    assert sent["corpus.path"] == tiny.shared_corpus().name
    assert sent["privacy.delta"] == 1e-5
    client, run_id = mlflow_client(tracked)
    assert client.get_run(run_id).data.params == {name: str(value) for name, value in sent.items()}
    assert client.get_run(run_id).info.status == "FINISHED"
    configs = [r.run for r in wandb_records(tracked) if r.WhichOneof("record_type") == "run"]
    logged = {item.key: json.loads(item.value_json) for item in configs[0].config.update}
    assert {name: logged[name] for name in sent} == sent
    assert (configs[0].project, configs[0].host, configs[0].run_group) == ("fl_sim", "", tracked.parent.name)


@pytest.mark.system
def test_the_files_of_trackers_are_for_the_owner_alone(tracked: Path) -> None:
    """Those of wandb's service have the rights that its process has; a closed folder is above them."""
    files = [path for path in tracked.rglob("*") if "wandb" not in path.parts]
    assert [path for path in (tracked, *files) if path.stat().st_mode & 0o077] == []


@pytest.mark.system
def test_no_local_tracker_reaches_the_network(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reached: list[Any] = []
    connect = socket.socket.connect

    def noted(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "localhost", "::1"):
            reached.append(address)
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", noted)
    run = simulation.run(configured(corpus, tmp_path / "run", *installed(), rounds=1))
    assert run.finished
    assert reached == []
    assert not [warning for warning in (run.result or {})["warnings"] if "tracker" in warning]


# Resumed runs


@pytest.mark.system
@pytest.mark.parametrize("stopped_at", [0, 3])
@pytest.mark.parametrize("tracker", ["csv", "tensorboard", "wandb"])
def test_a_resumed_run_goes_on_without_doubled_or_lost_rounds(
    tracker: str, stopped_at: int, corpus: Path, tmp_path: Path
) -> None:
    """Round 3, after which it is stopped, has no checkpoint: it is done again."""
    if tracker not in installed():
        pytest.skip(f'needs pip install "fl-sim[{tracker}]"')
    config = configured(corpus, tmp_path / "run", tracker, rounds=5, checkpoint_every=2)
    with pytest.raises(Crash):
        simulation.run(config, on_row=crash_after(stopped_at))
    noted = tmp_path / "run" / "trackers.json"
    before = json.loads(noted.read_text())
    assert simulation.resume(tmp_path / "run").finished
    check_read(tracker, tmp_path / "run")
    after = json.loads(noted.read_text())
    assert after[tracker].get("id") == before[tracker].get("id")


@pytest.mark.nightly
def test_a_resumed_run_goes_on_in_the_same_mlflow_run(corpus: Path, tmp_path: Path) -> None:
    config = configured(corpus, tmp_path / "run", "mlflow", rounds=5, checkpoint_every=2)
    with pytest.raises(Crash):
        simulation.run(config, on_row=crash_after(3))
    assert simulation.resume(tmp_path / "run").finished
    read, wanted = read_mlflow(tmp_path / "run"), expected(tmp_path / "run")
    assert read.keys() == wanted.keys()
    for (name, step), values in read.items():  # round 3 was sent when it was done first, and took another time then
        assert name == "private/seconds" or values == pytest.approx(wanted[name, step], nan_ok=True), (name, step)
    client, run_id = mlflow_client(tmp_path / "run")
    experiment = client.get_experiment_by_name("fl_sim").experiment_id
    assert [run.info.run_id for run in client.search_runs([experiment])] == [run_id]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)


@pytest.mark.system
def test_a_tracker_that_cannot_write_does_not_stop_the_run(
    corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changes = {"tracking.mlflow_uri": "nonsense://x"}
    run = simulation.run(configured(corpus, tmp_path / "run", "mlflow", "csv", **changes))
    assert run.finished
    check_read("csv", run.path)
    words = "tracker mlflow sends figures and settings to nonsense://x: losses"
    assert any(warning.startswith(words) for warning in (run.result or {})["warnings"])
    warned = [record.getMessage() for record in caplog.records if "is ignored from now on" in record.msg]
    assert [message.split()[1] for message in warned] == ["MLflowTracker"]


# Settings


def test_a_database_of_mlflow_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = with_absolute_paths(RunConfig.from_mapping({"tracking.mlflow_uri": "sqlite:///mlflow.db"}))
    assert config.tracking.mlflow_uri == f"sqlite:///{tmp_path / 'mlflow.db'}"


@pytest.mark.parametrize(
    ("changes", "environment", "place"),
    [
        ({"tracking.wandb_mode": "online"}, {}, "the server of Weights & Biases"),
        ({}, {"WANDB_MODE": "online", "WANDB_BASE_URL": "https://ours"}, "https://ours"),
        ({"tracking.mlflow_uri": "https://me:secret@ours/ml"}, {}, "https://ours/ml"),
        ({}, {"MLFLOW_TRACKING_URI": "databricks"}, "databricks"),
    ],
)
def test_a_run_warns_of_figures_that_leave_this_machine(
    changes: dict[str, Any], environment: dict[str, str], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    config = RunConfig.from_mapping({"observers": TRACKERS, **changes})
    (warning,) = observers.off_machine(config)
    assert f"sends figures and settings to {place}: losses, held-out metrics and the seed are private" in warning
    assert observers.off_machine(RunConfig.from_mapping({"observers": ["csv"], **changes})) == []


def test_trackers_have_no_name_of_a_machine() -> None:
    assert "gpu7" not in str(settings(RunConfig.from_mapping({"engine.address": "gpu7.example:6379"})))


def test_wandb_is_offline_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert observers.wandb_mode(RunConfig()) == "offline"
    monkeypatch.setenv("WANDB_MODE", "online")
    assert observers.wandb_mode(RunConfig()) == "online"
    assert observers.wandb_mode(RunConfig.from_mapping({"tracking.wandb_mode": "offline"})) == "offline"


def test_a_missing_package_is_told_in_one_line_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(observers.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(
        "fl_sim.clients.worker.libraries.load_libraries", lambda *_: pytest.fail("libraries are loaded")
    )
    assert main(["run", "--track", "mlflow", "--out", str(tmp_path / "run")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith('package mlflow is not installed; allowed: after pip install "fl-sim[mlflow]"')
    assert not (tmp_path / "run").exists()


@pytest.mark.system
def test_flags_add_trackers_to_those_of_the_configuration(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('observers = ["csv"]\n')
    flags = tiny.command_line({"corpus.path": corpus, "engine.name": "inline", "rounds": 1, **tiny.MODEL})
    words = ["run", str(tmp_path / "run.toml"), "--quiet", "--out", str(tmp_path / "run"), *flags]
    assert main([*words, "--track", "csv", "--track", "tensorboard"]) == 0
    recorded = json.loads((tmp_path / "run" / "config.json").read_text())["run"]
    assert recorded["observers"] == ["csv", "tensorboard"]
    check_read("csv", tmp_path / "run")
