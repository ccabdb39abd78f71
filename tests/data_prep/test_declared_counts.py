"""Files of declared counts: what is written is read, larger counts are allowed, and anything else is one line."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fl_sim.cli.main import main
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.declared_counts import read_counts, write_counts
from fl_sim.data_prep.public_names import write_public_weights
from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.contribution_limits import DeclaredCounts
from fl_sim.data_prep.store.corpus import Corpus
from tests.data_prep.marked import said

CONTENT = {"corpus": "x", "split": "train", "users": {"u": 3, "v": 1}, "entities": {"ada": 3, "bob": 1}}


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    """User u has three sentences and v one; ada is in three sentences and bob in one."""
    said_by = (("u", ("Ada", "Bob")), ("u", ("Ada",)), ("u", ()), ("v", ("Ada",)))
    return write_corpus((said("Ada met Bob", *names, user=user) for user, names in said_by), tmp_path / "x", name="x")


@pytest.mark.parametrize(
    ("flags", "users", "entities"), [([], [3, 1], [3, 1]), (["--rounded"], [4, 1], [4, 1])], ids=["true", "rounded"]
)
def test_what_the_command_writes_is_read(
    corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], users: Any, entities: Any
) -> None:
    words = ["corpus", "counts", str(corpus.path), "--out", str(tmp_path / "counts.json"), *flags]
    assert main(words) == 0
    assert f"--set privacy.counts={tmp_path / 'counts.json'}" in capsys.readouterr().out
    counts = read_counts(corpus, "train", tmp_path / "counts.json")
    assert (counts.users.tolist(), counts.entities.tolist(), counts.population) == (users, entities, 2)
    assert main(words) == 2
    assert "counts.json: exists already; choose another --out" in capsys.readouterr().err
    assert (tmp_path / "counts.json").stat().st_mode & 0o077 == 0  # it names every user


def test_a_full_disk_leaves_no_fragment(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    for write in (
        lambda: write_counts(corpus, tmp_path / "counts.json"),
        lambda: write_public_weights(corpus, entity_bound=1, sentences=100, out=tmp_path / "weights.tsv"),
    ):
        with pytest.raises(OSError, match="No space"):
            write()
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def written(folder: Path, content: Any) -> Path:
    path = folder / "counts.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_larger_counts_and_absent_names_are_declared(corpus: Corpus, tmp_path: Path) -> None:
    """A corpus from which a user and a name are taken out is trained on as before."""
    larger = CONTENT | {"users": {"w": 9, "v": 5, "u": 3}, "entities": {"carl": 9, "bob": 7, "ada": 3}}
    counts = read_counts(corpus, "train", written(tmp_path, larger))
    assert (counts.users.tolist(), counts.entities.tolist(), counts.population) == ([3, 5], [3, 7], 3)
    assert counts.users.dtype == counts.entities.dtype == np.int64


def test_the_digest_is_of_all_that_is_declared(corpus: Corpus, tmp_path: Path) -> None:
    """A ledger that states it stands for one set of counts, those of absent users and names included."""
    changes: list[dict[str, Any]] = [
        {}, {"users": {"u": 4, "v": 1}}, {"users": {"u": 3, "v": 1, "w": 0}}, {"entities": {"ada": 3, "bob": 2}},
        {"entities": {"ada": 3, "bob": 1, "carl": 0}}, {"entities": {"ada": 3, "bob": 1, "dora": 0}},
        {"users": {"u": 3, "v": 1, "w": 9}}, {"users": {"u": 3, "v": 9, "w": 1}},
    ]  # fmt: skip
    digests = {read_counts(corpus, "train", written(tmp_path, CONTENT | change)).digest for change in changes}
    assert len(digests) == len(changes)
    assert DeclaredCounts.of(corpus.ownership("train")).digest not in digests
    turned = written(tmp_path, CONTENT | {"users": {"v": 1, "u": 3}})
    assert read_counts(corpus, "train", turned).digest in digests, "the order in the file declares nothing"


def test_the_digest_of_rounded_counts_of_a_file_is_of_nothing_else(corpus: Corpus, tmp_path: Path) -> None:
    """Absent names included; a file of rounded counts gives the same as one of exact counts."""
    absent = CONTENT | {"entities": {"ada": 3, "bob": 1, "carl": 5}}
    changes: list[dict[str, Any]] = [
        {}, {"users": {"u": 4, "v": 1}}, {"entities": {"ada": 4, "bob": 1, "carl": 8}},
        {"entities": {"ada": 4, "bob": 1, "carl": 9}}, {"entities": {"ada": 4, "bob": 1}},
    ]  # fmt: skip
    read = [read_counts(corpus, "train", written(tmp_path, absent | change)) for change in changes]
    assert len({counts.digest for counts in read}) == len(changes)
    digests = [counts.rounded_up().digest for counts in read]
    assert digests[0] == digests[1] == digests[2]
    assert len(set(digests)) == 3


ONLY = "allowed: what fl-sim corpus counts writes"
WHOLE = "allowed: a whole number from 0 to 1099511627776"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("users: 3", f"its content: invalid JSON: .*; {ONLY}"),
        ("[]", f"its content: .*; {ONLY}"),
        (CONTENT | {"messages": {}}, f"messages: extra inputs are not permitted; {ONLY}"),
        ({key: CONTENT[key] for key in ("corpus", "split", "users")}, f"entities: field required; {ONLY}"),
        (CONTENT | {"users": {}}, f"users: dictionary should have at least 1 item.*; {ONLY}"),
        (CONTENT | {"users": {"u": 1.5, "v": 1}}, f"users.u is 1.5; {WHOLE}"),
        (CONTENT | {"users": {"u": 3, "v": True}}, f"users.v is True; {WHOLE}"),
        (CONTENT | {"entities": {"ada": "3", "bob": 1}}, f"entities.ada is '3'; {WHOLE}"),
        (CONTENT | {"entities": {"ada": 3, "bob": 1, "carl": -1}}, f"entities.carl is -1; {WHOLE}"),
        (CONTENT | {"users": {"u": 3, "v": 1e30}}, f"users.v is 1e+30; {WHOLE}"),
        (CONTENT | {"users": {"u": 3}}, "user 'v' has no count; allowed: at least 1, that of the corpus"),
        (CONTENT | {"entities": {"ada": 3}}, "entity 'bob' has no count; allowed: at least 1, that of the corpus"),
        (CONTENT | {"users": {"u": 2, "v": 1}}, "user 'u' has count 2; allowed: at least 3, that of the corpus"),
        (CONTENT | {"entities": {"ada": 2, "bob": 1}}, "entity 'ada' has count 2; allowed: at least 3, that of the"),
        (CONTENT | {"corpus": "y"}, "is of corpus 'y'; allowed: counts of 'x'"),
        (CONTENT | {"split": "validation"}, "is of split 'validation'; allowed: counts of 'train'"),
    ],
)
def test_other_files_are_refused_in_one_line(corpus: Corpus, tmp_path: Path, content: Any, message: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(CorpusError, match=message.replace("+", r"\+")) as error:
        read_counts(corpus, "train", path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)
