"""fl-sim prepare on bad input: one line on stderr, exit code 2, no traceback, nothing written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fl_sim.cli.main import main

TABLE = ["--text-column", "text", "--user-column", "user", "--test-fraction", "0"]


def row(user: str, text: str = "Ann slept.", **more: object) -> str:
    return json.dumps({"user": user, "text": text, **more}) + "\n"


def table(kind: str, content: str, *options: str) -> Callable[[Path], list[str]]:
    def arguments(folder: Path) -> list[str]:
        (folder / f"data.{kind}").write_text(content, encoding="latin-1")
        return [kind, "--source", str(folder / f"data.{kind}"), *(options or TABLE)]

    return arguments


CASES: dict[str, tuple[Callable[[Path], list[str]], str]] = {
    "no file": (lambda folder: ["jsonl", "--source", str(folder / "absent"), *TABLE], "absent: No such file"),
    "a folder as a file": (lambda folder: ["jsonl", "--source", str(folder), *TABLE], "Is a directory"),
    "Latin-1": (table("csv", "text,user\nhellö,a\n"), "data.csv, line 2: not UTF-8 (byte 0xf6 at position 4)"),
    "fraction of letters": (
        table("jsonl", row("a"), *TABLE, "--test-fraction", "few"),
        "--test-fraction: 'few' is not a valid float",
    ),
    "no text column named": (table("jsonl", row("a"), "--user-column", "user"), "--text-column is missing"),
    "no SEC stand-in": (lambda folder: ["sec-standin", "--source", str(folder)], "no sentences.jsonl"),
    "a class that is a list": (
        table("jsonl", row("a", x=[1]), *TABLE, "--target-column", "x"),
        "line 1: column 'x' must be text or a whole number, not list",
    ),
    "unknown kind": (lambda folder: ["xml"], "No such command 'xml'"),
}


def complaint(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run, check the manners of the refusal, and return its line."""
    code = main([*arguments, "--quiet"])  # no line of progress where the machine is slow
    shown = capsys.readouterr()
    assert code == 2
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert "Traceback" not in shown.err
    return shown.err


@pytest.mark.parametrize("case", CASES)
def test_prepare_refuses(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "source"
    source.mkdir()
    make, message = CASES[case]
    arguments = make(source)
    before = sorted(tmp_path.rglob("*"))
    line = complaint(["prepare", *arguments, "--out", str(tmp_path / "new" / "out")], capsys)
    assert message in line
    assert sorted(tmp_path.rglob("*")) == before


def test_an_output_folder_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text(row("a") + row("b"), encoding="utf-8")
    good = ["prepare", "jsonl", "--source", str(file), *TABLE, "--tagger", "rules"]
    assert "is a file" in complaint([*good, "--out", str(file)], capsys)
    assert "Not a directory" in complaint([*good, "--out", str(file / "out")], capsys)

    def refused(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", refused)  # the mode of a folder would not stop a test that runs as root
    assert "Permission denied" in complaint([*good, "--out", str(tmp_path / "out")], capsys)
