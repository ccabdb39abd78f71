"""``--baseline`` trains the run without privacy that a private run is measured against, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fl_sim.api import runs
from fl_sim.api.noiseless_twin import train_twin, twin_of
from fl_sim.api.runs import Run
from fl_sim.cli.main import main
from fl_sim.experiments.observers import Observer, Row
from fl_sim.reporting.without_privacy import find_without_privacy
from fl_sim.storage.run_folder import ResultsError
from tests.tiny import command_line, configured

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("no_plots")]  # some runs of a second

BOUNDED: dict[str, Any] = {"privacy.q_s": 0.8, "privacy.entity_bound": 2, "privacy.user_sentences": 3}
LOCAL: dict[str, Any] = {"privacy.strategy": "user_level", "privacy.q_u": 0.7, "local.epochs": 2}
Capture = pytest.CaptureFixture[str]


def private(corpus: Path, out: Path, **settings: Any) -> Run:
    return runs.run(configured(corpus, out, rounds=3, **settings))


def test_the_twin_reads_as_many_sentences_without_bounds_clip_and_noise(corpus: Path, tmp_path: Path) -> None:
    run = private(corpus, tmp_path / "private", **BOUNDED)
    config = twin_of(run)
    privacy = config.privacy
    assert (privacy.strategy, privacy.q_u, privacy.q_e, config.rounds, config.seed) == ("noiseless", 1.0, 1.0, 3, 0)
    assert (privacy.entity_bound, privacy.user_sentences, privacy.noise_multiplier) == (None, None, None)
    assert privacy.q_s == pytest.approx(run.metrics["cohort_sentences"].mean() / 24, rel=1e-3)
    assert config.server == run.config.server
    twin = train_twin(run)
    assert (twin.path.name, twin.strategy, twin.finished) == ("private-noiseless", "noiseless", True)
    found = find_without_privacy(run.folder)
    assert found is not None
    assert found.run == "private-noiseless"


def test_a_twin_of_local_steps_draws_the_same_users(corpus: Path, tmp_path: Path) -> None:
    run = private(corpus, tmp_path / "private", **LOCAL)
    twin = train_twin(run)
    assert twin.config.local == run.config.local.model_copy(update={"update": "steps"})
    for column in ("cohort_users", "cohort_sentences"):
        assert twin.metrics[column].tolist()[1:] == run.metrics[column].tolist()[1:]


def test_a_twin_is_trained_once_and_another_run_is_left_alone(corpus: Path, tmp_path: Path) -> None:
    run = private(corpus, tmp_path / "private", **LOCAL)
    began = (train_twin(run).path / "metrics.jsonl").stat().st_mtime_ns
    assert (train_twin(run).path / "metrics.jsonl").stat().st_mtime_ns == began
    (run.path.parent / "private-noiseless").rename(tmp_path / "kept")
    assert train_twin(run).path == tmp_path / "kept"
    other = private(corpus, tmp_path / "other" / "private", **LOCAL)
    private(corpus, tmp_path / "other" / "private-noiseless")
    with pytest.raises(ResultsError, match="private-noiseless: is another run"):
        train_twin(other)


class Killed(Observer):
    """Stands for a machine that goes down after a round."""

    def on_round(self, row: Row) -> None:
        raise KeyboardInterrupt


def test_an_interrupted_twin_goes_on_from_wherever_its_run_is_named(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = private(corpus, tmp_path / "private", **LOCAL)
    with pytest.raises(KeyboardInterrupt):
        train_twin(run, [Killed()])
    monkeypatch.chdir(tmp_path)
    twin = train_twin(runs.open_run("private"))
    assert (twin.path.name, twin.finished, twin.result["rounds"]) == ("private-noiseless", True, 3)


def test_the_command_reports_what_privacy_costs(corpus: Path, tmp_path: Path, capsys: Capture) -> None:
    settings = {"engine.name": "inline", "corpus.path": corpus, "rounds": 1, "out": tmp_path / "run", **LOCAL}
    flags = command_line(settings | {"model.name": "awd-lstm", "model.embedding": 8, "model.hidden": 16})
    assert main(["run", "--baseline", *flags]) == 0
    printed = capsys.readouterr()
    assert "without privacy" in printed.out
    assert "run-noiseless" in printed.out
    assert printed.err.startswith("--baseline: a run without privacy follows")
    assert main(["resume", str(tmp_path / "run"), "--baseline", "--quiet"]) == 0
    assert main(["run", "--strategy", "noiseless", "--baseline"]) == 2
    assert "--baseline is given with privacy.strategy noiseless; allowed: with a private" in capsys.readouterr().err


def test_a_run_that_is_not_finished_has_no_twin(corpus: Path, tmp_path: Path) -> None:
    run = private(corpus, tmp_path / "private", **LOCAL)
    (run.path / "result.json").unlink()
    with pytest.raises(ResultsError, match="is not finished"):
        twin_of(runs.open_run(run.path))
