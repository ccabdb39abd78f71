"""Completion knows verbs, flags, choices, keys and files, and the scripts of the shells ask for it."""

from __future__ import annotations

import pytest
from click.shell_completion import ShellComplete

from fl_sim.cli.main import main
from fl_sim.cli.verbs import fl_sim

CASES = [
    ("", "re", {"report", "resume", "represent", "reproduce"}),
    ("run", "--eng", {"--engine"}),
    ("run --engine", "", {"ray", "inline"}),
    ("run --set", "engine.num_", {"engine.num_cpus=", "engine.num_gpus="}),
    ("run --strategy", "u", {"uedp", "user_level"}),
    ("run --corpus", "b", {"bundled", "b/"}),
    ("corpus", "sta", {"stats"}),
    ("corpus stats", "b", {"bundled", "b/"}),
    ("prepare", "js", {"jsonl"}),
    ("prepare jsonl", "--so", {"--source"}),
    ("report", "b", {"b/"}),
    ("run", "ma", {"ma*"}),
    ("audit mechanism --clipping", "", {"sentence", "automatic", "user"}),
]


@pytest.mark.parametrize(("words", "incomplete", "expected"), CASES, ids=[" ".join(case[:2]) for case in CASES])
def test_what_is_completed(words: str, incomplete: str, expected: set[str]) -> None:
    """A file or folder is left to the shell; ``b/`` stands for a folder and ``ma*`` for a file here."""
    items = ShellComplete(fl_sim, {}, "fl-sim", "_FL_SIM_COMPLETE").get_completions(words.split(), incomplete)
    kinds = {"plain": "", "dir": "/", "file": "*"}
    assert {f"{item.value}{kinds[item.type]}" for item in items} == expected


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_a_shell_gets_its_script(shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setenv("_FL_SIM_COMPLETE", f"{shell}_source")
    assert main([]) == 0
    assert f"_FL_SIM_COMPLETE={shell}_complete" in capsys.readouterr().out
