"""Which path the gradients of a run take is said before round 1, on the progress line, in report and result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fl_sim.cli.main import main
from fl_sim.clients.ghost_norms import NotCovered
from fl_sim.clients.gradients import ghost_pass
from fl_sim.clients.training import gradient_path_of
from fl_sim.reporting.report import full_report_text
from fl_sim.reporting.run_facts import read_facts
from fl_sim.storage.run_folder import RunFolder
from fl_sim.strategies.client_rules import ClippedGradients, LocalSteps
from tests.clients.models import models_to_try
from tests.tiny import command_line

pytestmark = pytest.mark.usefixtures("no_plots")


def run(corpus: Path, out: Path, **changes: Any) -> RunFolder:
    tiny = {"corpus.path": corpus, "out": out, "engine.name": "inline", "rounds": 1, "model.hidden": 8}
    tiny |= {"model.layers": 1, "model.heads": 1} | {key.replace("__", "."): value for key, value in changes.items()}
    assert main(["run", *command_line(tiny)]) == 0
    return RunFolder.open(out)


@pytest.mark.system
def test_the_fast_path_is_named(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run(small, tmp_path / "out")
    assert (folder.result or {})["gradients"] == {"path": "fast"}
    assert "Gradients   fast path, many sentences in one pass" in full_report_text(read_facts(folder))
    assert ", fast path" in " ".join(capsys.readouterr().err.split())


@pytest.mark.system
def test_the_slow_path_says_why_and_how_long(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(model: object) -> None:
        raise NotCovered("its experts are no layer")

    monkeypatch.setattr(ghost_pass, "cover", refuse)
    folder = run(small, tmp_path / "out")
    recorded = (folder.result or {})["gradients"]
    assert (recorded["path"], recorded["reason"]) == ("slow", "its experts are no layer")
    assert read_facts(folder).record()["gradients"] == recorded
    assert "slow path, one sentence at a time: its experts are no layer" in full_report_text(read_facts(folder))
    errors = " ".join(capsys.readouterr().err.split())
    assert errors.index("Gradients are computed one sentence at a time (its experts are no layer).") < errors.index(
        ", slow path"
    )
    assert any("one sentence at a time" in line for line in json.loads(folder.result_file.read_text())["warnings"])


@pytest.mark.parametrize(
    ("rule", "named"),
    [
        (ClippedGradients(q_e=1.0, q_s=1.0, user_clip=2.0, sentence_clip=1.0), True),
        (ClippedGradients(q_e=1.0, q_s=1.0, user_clip=np.inf), False),
        (LocalSteps(q_e=1.0, q_s=1.0, user_clip=1.0, epochs=1, batch_size=8), True),
        (LocalSteps(q_e=1.0, q_s=1.0, user_clip=1.0, epochs=2, batch_size=8), False),
        (LocalSteps(q_e=1.0, q_s=1.0, user_clip=1.0, epochs=1, batch_size=8, optimizer="adam"), False),
    ],
)
def test_which_rules_need_gradients_of_sentences_or_users(rule: Any, named: bool) -> None:
    path = gradient_path_of(models_to_try.small_gpt2(), rule)
    assert (path is not None and path.name == "fast") == named
