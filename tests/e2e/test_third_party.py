"""A package of another author: every part that it registers works by its name, from raw text to ε."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from fl_sim.storage.run_folder import RunFolder
from fl_sim.strategies.accounting.accountant import RoundEvent, epsilon
from fl_sim.strategies.accounting.adjacency import Adjacency
from tests.conftest import REPOSITORY
from tests.e2e.processes import printed_by

PACKAGE = REPOSITORY / "tests" / "third_party" / "fl_sim_example"
PARTS = {
    "example-strategy": "fl_sim_example.margin_strategy:NoiseWithMargin",
    "example-model": "fl_sim_example.bag_model:BagOfWords",
    "example-tagger": "fl_sim_example.capital_tagger:CapitalTagger",
    "example-reader": "fl_sim_example.chat_reader:ChatReader",
    "example-observer": "fl_sim_example.trail_observer:Trail",
}
PEOPLE = ("Ada", "Blaise", "Carl", "Emmy", "Kurt")
CHAT = "".join(f"{who}: I saw {('NASA', 'the moon')[n % 2]} on day {n}.\n" for n in range(6) for who in PEOPLE)
PROGRAM = """
import sys
from fl_sim.cli.main import main
for words in sys.argv[1:]:
    assert main([*words.split(), "--json"]) == 0
    print("next:")
"""


@pytest.fixture
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the package is installed in, to be put on the path."""
    folder = tmp_path_factory.mktemp("third_party")
    shutil.copytree(PACKAGE, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    words = ["--no-deps", "--no-build-isolation", "--target", folder / "site", folder / "source"]
    printed_by(*pip, *words, folder=folder)
    return folder / "site"


@pytest.mark.system
def test_every_part_of_another_package_works_by_its_name(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "chat.txt").write_text(CHAT)
    sentences = len(CHAT.splitlines()) // len(PEOPLE)
    settings = ["observers=example-observer", "model.name=example-model", "model.max_tokens=16"]
    settings += ["privacy.strategy=example-strategy", "privacy.margin=1.5", f"privacy.user_sentences={sentences}"]
    settings = [f"--set {setting}" for setting in settings]
    commands = [
        "prepare example-reader --source chat.txt --held-out Kurt --tagger example-tagger --out corpus",
        f"run --corpus corpus --rounds 2 --engine inline --out run --delta 1e-5 --quiet {' '.join(settings)}",
        f"account ledger run --delta 1e-5 --user-sentences {sentences}",
    ]
    printed = printed_by(sys.executable, "-c", PROGRAM, *commands, folder=tmp_path, paths=[installed, REPOSITORY])
    made, result, spent = map(json.loads, printed.split("next:")[:3])

    assert made["splits"]["train"]["users"] == len(PEOPLE) - 1
    assert made["splits"]["train"]["entities"] == 1
    manifest = (tmp_path / "corpus" / "manifest.json").read_text()
    assert all(PARTS[name] in manifest for name in ("example-reader", "example-tagger"))
    event = RoundEvent("uedp", 1.5 * 2.0, q_e=0.5, q_s=0.2, user_cap=2.0)
    any_user = Adjacency(sentences, weighted=True)
    assert result["epsilon_user"] == pytest.approx(epsilon(event, any_user, 2, 1e-5), rel=1e-3)
    assert result["epsilon_user"] < result["epsilon_user_entity_max"] < float("inf")
    run = RunFolder.open(tmp_path / "run")
    trail = [line.split() for line in (tmp_path / "run" / "trail.txt").read_text().splitlines()]
    assert [(int(number), float(epsilon)) for number, epsilon in trail] == list(
        zip(run.metrics()["round"], run.metrics()["epsilon_user"], strict=True)
    )
    assert run.config["run"]["model"]["name"] == "example-model"
    assert run.config["strategy_origin"]["path"] == PARTS["example-strategy"]
    assert run.metrics()["noise_norm"].iloc[1] > 0
    assert spent["epsilon_user"] == pytest.approx(result["epsilon_user"], rel=1e-3)
