"""fl-sim prepare on a folder that holds something: the same, another corpus, one to add to."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fl_sim.cli.main import main
from fl_sim.data_prep.store.corpus import Corpus


def messages(path: Path, *users: str) -> Path:
    rows = [{"text": "Bo was here.", "user": user, "ents": [{"start": 0, "end": 2, "label": "P"}]} for user in users]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def arguments(source: Path, out: Path, *more: str) -> list[str]:
    columns = ["--text-column", "text", "--user-column", "user", "--entities-column", "ents", "--test-fraction", "0"]
    return ["prepare", "jsonl", "--source", str(source), *columns, "--out", str(out), *more]


def test_again_other_settings_overwrite_and_append(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = messages(tmp_path / "old.jsonl", "ann", "cy"), tmp_path / "out"
    assert main(arguments(source, out)) == 0
    assert "prepared" in capsys.readouterr().out
    assert main(arguments(source, out)) == 0
    assert "nothing to do: the same corpus is there already" in capsys.readouterr().out
    assert main(arguments(source, out, "--lower-case")) == 2
    assert "holds another corpus (settings lower_case: nothing then, true now)" in capsys.readouterr().err
    assert main(arguments(source, out, "--lower-case", "--overwrite")) == 0
    later = messages(tmp_path / "later.jsonl", "eve", "ann")
    assert main(arguments(later, out, "--append", "--joined-at", "7", "--json")) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (told["parts"], told["cached"], told["splits"]["train"]["users"]) == (2, False, 3)
    assert main(arguments(later, out, "--append", "--joined-at", "7", "--json")) == 0
    assert json.loads(capsys.readouterr().out)["cached"]
    assert Corpus.open(out, verify=True).parts[1].manifest.joined_at == 7


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--append"], "--append and --joined-at go together"),
        (["--joined-at", "3"], "--append and --joined-at go together"),
        (["--append", "--joined-at", "0"], "--joined-at 0 must be at least 1"),
        (["--append", "--joined-at", "2", "--identity", "case"], "another identity"),
    ],
)
def test_an_append_that_means_nothing(
    more: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(messages(tmp_path / "old.jsonl", "ann", "cy"), tmp_path / "out")) == 0
    assert main(arguments(messages(tmp_path / "new.jsonl", "eve"), tmp_path / "out", *more)) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_a_cache_hit_imports_nothing_heavy(tmp_path: Path) -> None:
    words = arguments(messages(tmp_path / "old.jsonl", "ann", "cy"), tmp_path / "out")
    assert main(words) == 0
    heavy = {"spacy", "pandas", "torch", "transformers", "flwr", "sklearn", "scipy"}
    program = f"import sys; from fl_sim.cli.main import main; main({words!r}); print({heavy!r} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "nothing to do" in found
    assert found.endswith("set()\n")
