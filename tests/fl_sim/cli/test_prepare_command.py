"""fl-sim prepare on a folder that holds something: the same, another corpus, one to add to."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fl_sim.cli.main import main
from fl_sim.data_prep.store.corpus import Corpus
from tests.fl_sim.conftest import Capture, Printed, Refusal


def messages(path: Path, *users: str) -> Path:
    rows = [{"text": "Bo was here.", "user": user, "ents": [{"start": 0, "end": 2, "label": "P"}]} for user in users]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def arguments(source: Path, out: Path, *more: str) -> list[str]:
    columns = ["--text-column", "text", "--user-column", "user", "--entities-column", "ents", "--test-fraction", "0"]
    return ["prepare", "jsonl", "--source", str(source), *columns, "--out", str(out), *more]


def test_again_other_settings_overwrite_and_append(
    tmp_path: Path, printed: Printed, refusal: Refusal, capsys: Capture
) -> None:
    source, out = messages(tmp_path / "old.jsonl", "ann", "cy"), tmp_path / "out"
    assert main(arguments(source, out)) == 0
    assert "prepared" in capsys.readouterr().out
    assert main(arguments(source, out)) == 0
    assert "nothing to do: the same corpus is there already" in capsys.readouterr().out
    changed = refusal(*arguments(source, out, "--lower-case"))
    assert "holds another corpus (settings lower_case: nothing then, true now)" in changed
    printed(*arguments(source, out, "--lower-case", "--overwrite"))
    later = arguments(messages(tmp_path / "later.jsonl", "eve", "ann"), out, "--append", "--joined-at", "7")
    told = printed(*later)
    assert (told["parts"], told["cached"], told["splits"]["train"]["users"]) == (2, False, 3)
    assert printed(*later)["cached"]
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
    more: list[str], words: str, tmp_path: Path, printed: Printed, refusal: Refusal
) -> None:
    printed(*arguments(messages(tmp_path / "old.jsonl", "ann", "cy"), tmp_path / "out"))
    assert words in refusal(*arguments(messages(tmp_path / "new.jsonl", "eve"), tmp_path / "out", *more))


def test_nothing_joins_where_the_same_part_is_there_already(tmp_path: Path, capsys: Capture) -> None:
    words = arguments(messages(tmp_path / "old.jsonl", "ann", "cy"), tmp_path / "out")
    assert main(words) == 0
    assert main([*words, "--append"]) == 0
    captured = capsys.readouterr()
    assert "nothing to do" in captured.out
    assert "the new part takes part" not in captured.err


@pytest.mark.parametrize("number", [0, -3])
def test_a_batch_of_no_texts(number: int, tmp_path: Path, refusal: Refusal) -> None:
    source, more = messages(tmp_path / "new.jsonl", "eve", "cy"), ("--tagger", "rules", "--batch-size", str(number))
    words = arguments(source, tmp_path / "out", *more)
    assert f"the batch size must be at least 1, not {number}" in refusal(*words)


@pytest.mark.system
def test_a_cache_hit_imports_nothing_heavy(tmp_path: Path) -> None:
    words = arguments(messages(tmp_path / "old.jsonl", "ann", "cy"), tmp_path / "out")
    assert main(words) == 0
    heavy = {"spacy", "pandas", "torch", "transformers", "flwr", "sklearn", "scipy"}
    program = f"import sys; from fl_sim.cli.main import main; main({words!r}); print({heavy!r} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "nothing to do" in found
    assert found.endswith("set()\n")


def test_an_append_joins_with_the_part_before(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out"
    assert main(arguments(messages(tmp_path / "a.jsonl", "ann", "cy"), out)) == 0
    assert main(arguments(messages(tmp_path / "b.jsonl", "eve"), out, "--append")) == 0
    assert "takes part from round 1, so ε counts every round" in capsys.readouterr().err
    assert main(arguments(messages(tmp_path / "c.jsonl", "flo"), out, "--append", "--joined-at", "7")) == 0
    assert main(arguments(messages(tmp_path / "d.jsonl", "guy"), out, "--append")) == 0
    assert [part.manifest.joined_at for part in Corpus.open(out).parts] == [1, 1, 7, 7]


def letters(path: Path, users: int, times: int = 1) -> Path:
    ada = [{"start": 0, "end": 3, "label": "P"}]
    texts = [{"text": f"Ada wrote letter {n}.", "user": f"user {n % users}", "ents": ada} for n in range(24)]
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
    users: int, times: int, words: str | None, tmp_path: Path, printed: Printed
) -> None:
    source = letters(tmp_path / "rows.jsonl", users, times=times)
    warnings = printed(*arguments(source, tmp_path / "out"))["warnings"]
    assert [words in warning for warning in warnings] == ([True] if words else [])


def test_users_that_differ_in_case_alone_are_told(tmp_path: Path, printed: Printed) -> None:
    source = letters(tmp_path / "rows.jsonl", 6)
    source.write_text(source.read_text(encoding="utf-8").replace("user 1", "User 0"), encoding="utf-8")
    (warning,) = printed(*arguments(source, tmp_path / "out"))["warnings"]
    assert warning.startswith("the names of 1 users are those of others but for case")


def test_an_appended_part_is_compared_with_the_corpus(tmp_path: Path, printed: Printed) -> None:
    printed(*arguments(letters(tmp_path / "rows.jsonl", 6), tmp_path / "out", "--lower-case"))
    late = letters(tmp_path / "late.jsonl", 6)
    late.write_text(late.read_text(encoding="utf-8").replace("user 1", "USER 1"), encoding="utf-8")
    repeated, alike = printed(*arguments(late, tmp_path / "out", "--lower-case", "--append"))["warnings"]
    assert repeated.startswith("20 of 24 sentences repeat an earlier one of the same user")
    assert alike.startswith("the names of 1 users are those of others but for case")


def test_what_makes_no_corpus_is_refused(tmp_path: Path, refusal: Refusal) -> None:
    words = arguments(letters(tmp_path / "rows.jsonl", 1), tmp_path / "out")
    assert "the train split has one user" in refusal(*words)
    assert "--source is" in refusal(*words, "--source", tmp_path / "rows.jsonl")
    words[words.index("user")] = "text"
    assert "--user-column is text, the text column; allowed:" in refusal(*words)


def test_a_reader_s_text_is_a_flag(tmp_path: Path, printed: Printed, refusal: Refusal) -> None:
    """A ``text`` is an argument of `corpus pretrain`; of a reader it is a setting like any other."""
    source = tmp_path / "train.csv"
    source.write_text('3,"Ada sells","She sold it."\n' * 20, encoding="utf-8")
    words = ["prepare", "ag-news", "--source", str(source), "--tagger", "rules", "--out", str(tmp_path / "ag")]
    unknown = refusal(*words, "--text", "body")
    assert "--text is 'body'; allowed: title, description, title+description" in unknown
    printed(*words)
    assert set(Corpus.open(tmp_path / "ag").sentences("train")["text"]) == {"Ada sells"}
    other = refusal(*words, "--text", "title+description")
    assert 'holds another corpus (settings text: "title" then, "title+description" now)' in other
