"""The environment in which documented commands are small: its caps act there, and no text changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fl_sim.data_prep.records import Sentence
from tests.documented.shown_commands import blocks_of
from tests.documented.small_size import sitecustomize
from tests.documented.test_documented_commands import run_block

_SETTINGS = {"rounds": 7, "evaluation.max_sentences": 1000}
_ASKED = """
import json, sys
from fl_sim.auditing.leakage.attacked_run import Options
from fl_sim.config import ConfigError, RunConfig
config = RunConfig.load(None, json.loads(sys.argv[1]))
try:
    RunConfig.load(None, {"rounds": 0})
except ConfigError as error:
    refusal = str(error)
fewest, most = Options(max_users=3), Options(max_users=900)
print(json.dumps([config.rounds, config.evaluation.max_sentences, fewest.max_users, most.max_users, refusal]))
"""
_REFUSAL = "rounds is 0; allowed: an integer in [1, 100000]"


@pytest.mark.system
def test_caps_act_where_the_folder_is_on_the_path(tmp_path: Path) -> None:
    paths = [str(Path(sitecustomize.__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(paths), sitecustomize.CORPORA: str(tmp_path)}
    words = [sys.executable, "-c", _ASKED, json.dumps(_SETTINGS)]
    done = subprocess.run(words, env=variables, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [sitecustomize.ROUNDS, sitecustomize.HELD_OUT, 3, 15, _REFUSAL]


def test_a_few_sentences_of_each_split_and_user_are_taken() -> None:
    users = [("train", "ann")] * 100 + [(split, f"{n}") for split in ("train", "test") for n in range(2000)]
    few = list(sitecustomize.few(Sentence(split, user, "", ()) for split, user in users))
    assert sum(sentence.user == "ann" for sentence in few) == sitecustomize.OF_A_USER
    assert [sum(s.split == split for s in few) for split in ("train", "test")] == [sitecustomize.SENTENCES] * 2


def test_what_is_run_is_what_is_shown(tmp_path: Path) -> None:
    """A page's commands reach the programs word by word, in the folder and with the variables of those before."""
    page, checkout, home = tmp_path / "page.md", tmp_path / "checkout", tmp_path / "home"
    for folder in (checkout / "below", home):
        folder.mkdir(parents=True)
    page.write_text(
        "```bash\nfl-sim run --rounds 5 \\\n    --set 'a=[\"b\"]'  # five\ncd below\nexport SEED=3\n```\n\n"
        "```bash\nfl-sim run --seed $SEED\n```\n",
        encoding="utf-8",
    )
    program = tmp_path / "bin" / "fl-sim"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nfor word in "${{PWD##*/}}" "$@"; do echo "$word" >> {tmp_path}/words; done\n')
    program.chmod(0o755)
    for block in blocks_of(page):
        run_block(block, checkout, home, "page", {"PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"})
    shown = [words[1:] for block in blocks_of(page) for words in block.words()]
    first, last = [words for words in shown if words[0] == "run"]
    expected = ["checkout", *first, "below", *(word.replace("$SEED", "3") for word in last)]
    assert (tmp_path / "words").read_text(encoding="utf-8").splitlines() == expected
