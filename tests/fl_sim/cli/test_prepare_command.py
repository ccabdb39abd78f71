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
        (["--joined-at", "3"], "--joined-at is 3 without --append; allowed: with it"),
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


@pytest.mark.system
def test_a_cache_hit_imports_nothing_heavy(tmp_path: Path) -> None:
    words = arguments(messages(tmp_path / "old.jsonl", "ann", "cy"), tmp_path / "out")
    assert main(words) == 0
    heavy = {"spacy", "pandas", "torch", "transformers", "flwr", "sklearn", "scipy"}
    program = f"import sys; from fl_sim.cli.main import main; main({words!r}); print({heavy!r} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "nothing to do" in found
    assert found.endswith("set()\n")


def test_an_append_joins_with_the_part_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(arguments(messages(tmp_path / "a.jsonl", "ann", "cy"), out)) == 0
    assert main(arguments(messages(tmp_path / "b.jsonl", "eve"), out, "--append")) == 0
    assert "takes part from round 1, so ε counts every round" in capsys.readouterr().err
    assert main(arguments(messages(tmp_path / "c.jsonl", "flo"), out, "--append", "--joined-at", "7")) == 0
    assert main(arguments(messages(tmp_path / "d.jsonl", "guy"), out, "--append")) == 0
    assert [part.manifest.joined_at for part in Corpus.open(out).parts] == [1, 1, 7, 7]


def letters(path: Path, users: int, rows: int = 24, times: int = 1) -> Path:
    ada = [{"start": 0, "end": 3, "label": "P"}]
    texts = [{"text": f"Ada wrote letter {n}.", "user": f"user {n % users}", "ents": ada} for n in range(rows)]
    path.write_text("\n".join([json.dumps(text) for text in texts] * times), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("users", "times", "words"),
    [
        (24, 1, "user column user has 24 users in 24 rows"),
        (6, 2, "24 of 48 sentences repeat an earlier one of the same user"),
        (6, 1, None),
    ],
)
def test_what_looks_wrong_with_a_source(
    users: int, times: int, words: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = letters(tmp_path / "rows.jsonl", users, times=times)
    assert main(arguments(source, tmp_path / "out", "--json")) == 0
    warnings = json.loads(capsys.readouterr().out)["warnings"]
    assert [words in warning for warning in warnings] == ([True] if words else [])


def test_users_that_differ_in_case_alone_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = letters(tmp_path / "rows.jsonl", 6)
    source.write_text(source.read_text(encoding="utf-8").replace("user 1", "User 0"), encoding="utf-8")
    assert main(arguments(source, tmp_path / "out", "--json")) == 0
    (warning,) = json.loads(capsys.readouterr().out)["warnings"]
    assert warning.startswith("the names of 1 users are those of others but for case")


def test_one_user_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(letters(tmp_path / "rows.jsonl", 1), tmp_path / "out")) == 2
    assert "the train split has one user" in capsys.readouterr().err


def test_a_second_source_and_the_text_as_the_user_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = messages(tmp_path / "a.jsonl", "ann")
    words = arguments(source, tmp_path / "out")
    assert main([*words, "--source", str(source)]) == 2
    assert "--source is" in capsys.readouterr().err
    words[words.index("user")] = "text"
    assert main(words) == 2
    assert "--user-column is text, the text column; allowed:" in capsys.readouterr().err


def test_a_reader_s_text_is_a_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A ``text`` is an argument of `corpus pretrain`; of a reader it is a setting like any other."""
    source = tmp_path / "train.csv"
    source.write_text('3,"Ada sells","She sold it."\n' * 20, encoding="utf-8")
    words = ["prepare", "ag-news", "--source", str(source), "--tagger", "rules", "--out", str(tmp_path / "ag")]
    assert main([*words, "--text", "body"]) == 2
    assert "--text is 'body'; allowed: title, description, title+description" in capsys.readouterr().err
    assert main(words) == 0
    assert set(Corpus.open(tmp_path / "ag").sentences("train")["text"]) == {"Ada sells"}
    assert main([*words, "--text", "title+description"]) == 2
    assert 'holds another corpus (settings text: "title" then, "title+description" now)' in capsys.readouterr().err
