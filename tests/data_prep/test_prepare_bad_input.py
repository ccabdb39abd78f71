"""fl-sim prepare and stats on bad input: one line on stderr, exit code 2, no traceback, nothing written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fl_sim.cli.main import main

DOCUMENT = "-DOCSTART- -X- O O\n\n"
GOLD = "Ann NNP I-NP I-PER\nslept VBD I-VP O\n\n"
TABLE = ["--text-column", "text", "--user-column", "user", "--test-fraction", "0"]
MARKED = [*TABLE, "--entities-column", "ents"]


def row(user: str, text: str = "Ann slept.", **more: object) -> str:
    return json.dumps({"user": user, "text": text, **more}) + "\n"


def conll(content: str | bytes) -> Callable[[Path], list[str]]:
    def arguments(folder: Path) -> list[str]:
        data = content if isinstance(content, bytes) else content.encode()
        (folder / "eng.train").write_bytes(data)
        return ["conll2003", "--source", str(folder)]

    return arguments


def table(kind: str, content: str | bytes, *options: str) -> Callable[[Path], list[str]]:
    def arguments(folder: Path) -> list[str]:
        data = content if isinstance(content, bytes) else content.encode()
        (folder / f"data.{kind}").write_bytes(data)
        return [kind, "--source", str(folder / f"data.{kind}"), *(options or TABLE)]

    return arguments


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def absent(kind: str) -> Callable[[Path], list[str]]:
    return lambda folder: [kind, "--source", str(folder / "absent"), *([] if kind == "conll2003" else TABLE)]


CASES: dict[str, tuple[Callable[[Path], list[str]], str]] = {
    "no folder": (absent("conll2003"), "must be the folder that holds eng.train"),
    "no eng.train": (lambda folder: ["conll2003", "--source", str(folder)], "no eng.train"),
    "no jsonl file": (absent("jsonl"), "absent: No such file or directory"),
    "no csv file": (absent("csv"), "absent: No such file or directory"),
    "no parquet file": (absent("parquet"), "absent: No such file or directory"),
    "a folder as a file": (lambda folder: ["jsonl", "--source", str(folder), *TABLE], "Is a directory"),
    "empty conll": (conll(""), "eng.train: the file is empty"),
    "conll of blank lines": (conll("\n\n"), "no sentence, so no user"),
    "ragged conll": (conll(DOCUMENT + GOLD + "Ann NNP O\n"), "eng.train, line 6: 3 columns"),
    "malformed tag": (conll(DOCUMENT + "Ann NNP I-NP PER\n"), "eng.train, line 3: tag 'PER'"),
    "conll in Latin-1": (conll(DOCUMENT.encode() + b"\xc5 NN I-NP O\n"), "eng.train, line 3: not UTF-8"),
    "conll without documents": (conll(GOLD), "eng.train, line 1: a sentence before"),
    "conll of one user": (conll(DOCUMENT + GOLD), "has one user"),
    "conll without entities": (conll((DOCUMENT + "it PRP I-NP O\n\n") * 2), "no entity at all"),
    "gold tagger without gold": (table("jsonl", row("a") + row("b"), *TABLE, "--tagger", "gold"), "--tagger gold"),
    "unknown tagger": (table("jsonl", row("a") + row("b"), *TABLE, "--tagger", "magic"), "tagger 'magic' must be"),
    "empty jsonl": (table("jsonl", ""), "data.jsonl: the file is empty"),
    "blank jsonl": (table("jsonl", "\n \n"), "no sentence, so no user"),
    "broken jsonl": (table("jsonl", row("a") + "{\n"), "data.jsonl, line 2: not JSON"),
    "jsonl in Latin-1": (table("jsonl", row("a").encode() + b'"\xe9"\n'), "data.jsonl, line 2: not UTF-8"),
    "no user column": (table("jsonl", '{"text": "a"}\n'), "line 1: no column 'user'; found 'text'"),
    "one user": (table("jsonl", row("a") * 3), "has one user"),
    "nobody left to train": (
        table("jsonl", row("a") + row("b"), *TABLE, "--test-fraction", "0.999999"),
        "'train' split",
    ),
    "no entity": (table("jsonl", row("a", "it rained.") + row("b", "it stopped.")), "no entity at all"),
    "no gold entity": (table("jsonl", row("a", ents=[]) + row("b", ents=[]), *MARKED), "no entity at all"),
    "entity outside": (
        table("jsonl", row("a", ents=[{"start": 0, "end": 99, "label": "X"}]), *MARKED),
        "line 1: entity [0, 99) of user 'a' lies outside",
    ),
    "ragged csv": (table("csv", "text,user\nhello,a\nhello\n"), "data.csv, line 3: 1 columns, the header has 2"),
    "csv without the column": (
        table("csv", "words,user\nhello,a\n"),
        "line 1: no column 'text'; found 'words', 'user'",
    ),
    "csv in Latin-1": (table("csv", b"text,user\nhell\xf6,a\n"), "data.csv, line 2: not UTF-8"),
    "not parquet": (table("parquet", "hello"), "data.parquet: not a readable Parquet file"),
    "fraction above one": (
        table("jsonl", row("a"), *TABLE, "--test-fraction", "1.5"),
        "--test-fraction 1.5 must lie in",
    ),
    "fraction of letters": (table("jsonl", row("a"), *TABLE, "--test-fraction", "few"), "invalid float value: 'few'"),
    "no text column named": (table("jsonl", row("a"), "--user-column", "user"), "required: --text-column"),
    "no AG": (lambda folder: ["ag-news", "--source", str(folder)], "no train.csv"),
    "no AG file": (lambda folder: ["ag-news", "--source", str(folder / "absent.csv")], "No such file"),
    "AG of another shape": (
        lambda folder: ["ag-news", "--source", str(written(folder / "train.csv", "a,b\n"))],
        "train.csv, line 1: 2 columns, must be 3 (class_index, title, description)",
    ),
    "no SEC stand-in": (lambda folder: ["sec-standin", "--source", str(folder)], "no sentences.jsonl"),
    "no edition": (lambda folder: ["shakespeare", "--source", str(folder)], "one edition must be named"),
    "no tagged file": (lambda folder: ["iob", "--source", str(folder)], "no tagged file in this folder"),
    "text as a tagged file": (
        lambda folder: ["iob", "--source", str(written(folder / "a.txt", "Ann slept.\nBo woke.\n"))],
        "a.txt, line 1: no column holds tags",
    ),
    "tagged file in Latin-1": (
        lambda folder: ["iob", "--source", str(written(folder / "a.conll", b"Ann\tO\nM\xfcller\tB-PER\n"))],
        "a.conll, line 2: not UTF-8 (byte 0xfc at position 1); convert the file first, or prepare it with --bad-bytes",
    ),
    "a column that is 0": (
        lambda folder: ["iob", "--source", str(written(folder / "a.conll", "Ann\tO\n")), "--tag-column", "0"],
        "--tag-column 0 must be",
    ),
    "too short sentences": (
        table("jsonl", row("a"), *TABLE, "--max-characters", "5"),
        "--max-characters 5 must be at least 100",
    ),
    "bad bytes to guess": (table("jsonl", row("a"), *TABLE, "--bad-bytes", "guess"), "--bad-bytes 'guess' must be"),
    "ragged tsv": (table("tsv", "text\tuser\nhello\ta\nhello\n"), "data.tsv, line 3: 1 columns, the header has 2"),
    "no such class column": (table("jsonl", row("a"), *TABLE, "--target-column", "x"), "line 1: no column 'x'"),
    "a class that is a list": (
        table("jsonl", row("a", x=[1]), *TABLE, "--target-column", "x"),
        "line 1: column 'x' must be text or a whole number, not list",
    ),
    "unknown kind": (lambda folder: ["xml"], "invalid choice: 'xml'"),
    "a split that is a path": (
        table("jsonl", row("a", part="../x") + row("b", part="train"), *TABLE, "--split-column", "part"),
        "split name '../x' must be",
    ),
}


def complaint(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run, check the manners of the refusal, and return its line."""
    try:
        code = main(arguments)
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else 1
    shown = capsys.readouterr()
    assert code == 2
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert "Traceback" not in shown.err
    return shown.err


@pytest.mark.sample(12)
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


@pytest.fixture
def good(tmp_path: Path) -> list[str]:
    (tmp_path / "data.jsonl").write_text(row("a") + row("b"), encoding="utf-8")
    return ["prepare", "jsonl", "--source", str(tmp_path / "data.jsonl"), *TABLE, "--tagger", "rules"]


def test_an_output_folder_that_is_taken(good: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main([*good, "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["splits"]["train"]["users"] == 2
    before = {path: path.read_bytes() for path in out.iterdir()}
    line = complaint([*good, "--seed", "1", "--out", str(out)], capsys)
    assert "holds another corpus (settings seed: 0 then, 1 now)" in line
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "file").touch()
    assert "exists and is not empty" in complaint([*good, "--out", str(tmp_path / "foreign")], capsys)
    assert before == {path: path.read_bytes() for path in out.iterdir()}
    file = tmp_path / "data.jsonl"
    assert "exists and is not a folder" in complaint([*good, "--out", str(file)], capsys)
    assert "Not a directory" in complaint([*good, "--out", str(file / "out")], capsys)


def test_an_output_folder_that_cannot_be_written(
    good: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", refused)  # the mode of a folder would not stop a test that runs as root
    assert "Permission denied" in complaint([*good, "--out", str(tmp_path / "out")], capsys)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda out: (out / "train.users.parquet").unlink(), "train.users.parquet: missing"),
        (lambda out: (out / "train.users.parquet").write_bytes(b""), "0 bytes, the manifest says"),
        (lambda out: (out / "manifest.json").write_text("{}"), "not a manifest of this version"),
        (lambda out: (out / "manifest.json").unlink(), "not a prepared corpus"),
    ],
)
def test_stats_refuses_damaged_folders(
    damage: Callable[[Path], object],
    message: str,
    good: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    assert main([*good, "--out", str(out)]) == 0
    capsys.readouterr()
    damage(out)
    assert message in complaint(["stats", str(out)], capsys)
    assert message in complaint(["stats", str(out), "--json"], capsys)


def test_stats_refuses_what_is_no_corpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no such folder" in complaint(["stats", str(tmp_path / "absent")], capsys)
    assert "not a prepared corpus" in complaint(["stats", str(tmp_path)], capsys)
