"""``privacy.entity_key``: entities are sampled by keyed digests of their names, whatever their ids in a corpus."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fl_sim.clients.selection import select
from fl_sim.data_prep import digests
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.digests import entity_digests, key_check, named_ownership, read_key, user_digests
from fl_sim.data_prep.records import CorpusError, Mention, Sentence
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.engines import simulation
from fl_sim.storage.run_folder import RunFolder
from tests.e2e.small_runs import SAME_MODEL, Crash, apart, configuration, crash_after, model_of, small_corpus

pytestmark = pytest.mark.usefixtures("no_plots")

KEY = b"a key of nineteen b"
LEARNING_RATE = 0.01
SETTINGS = {
    "privacy__q_e": 0.5,
    "privacy__q_s": 1.0,
    "server__optimizer": "sgd",
    "server__learning_rate": LEARNING_RATE,
}


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_bytes(KEY + b"\n")
    return path


def run(corpus: Path, out: Path, key_file: Path | None, **changes: object) -> RunFolder:
    named = {} if key_file is None else {"privacy__entity_key": str(key_file)}
    return simulation.run(configuration(corpus, out, **SETTINGS, **named, **changes))


def test_corpora_with_other_ids_sample_the_same_names(tmp_path: Path) -> None:
    names = [f"N{number}ame" for number in range(40)]

    def corpus(folder: str, order: list[str]) -> Corpus:
        said = [Sentence("train", user, f"{n} left.", (Mention(0, len(n), "PER"),)) for n in order for user in "ab"]
        return write_corpus(said, tmp_path / folder, name=folder)

    def sampled(corpus: Corpus) -> set[str]:
        ownership = named_ownership(corpus, "train", KEY)
        kept = select(ownership, np.array([[0, 2]]), round_seed=7, q_e=0.5, q_s=1.0).sentences
        return set(corpus.sentences("train")["text"].iloc[kept])

    one, other = corpus("one", names), corpus("other", names[::-1])
    assert sampled(one) == sampled(other)
    assert 5 < len(sampled(one)) < 35


@pytest.mark.system
def test_a_run_by_name_is_another_one_and_does_not_depend_on_its_nodes(tmp_path: Path, key_file: Path) -> None:
    corpus = small_corpus(tmp_path / "corpus")
    by_name = run(corpus, tmp_path / "by_name", key_file)
    divided = run(corpus, tmp_path / "divided", key_file, engine__nodes=3)
    by_id = run(corpus, tmp_path / "by_id", None)
    assert apart(by_name, divided, LEARNING_RATE) < SAME_MODEL
    assert not np.array_equal(model_of(by_name), model_of(by_id))


@pytest.mark.nightly
def test_the_key_of_a_run_that_resumes_is_that_of_its_beginning(tmp_path: Path, key_file: Path) -> None:
    corpus, out = small_corpus(tmp_path / "corpus"), tmp_path / "run"
    config = configuration(corpus, out, **SETTINGS, privacy__entity_key=str(key_file))
    with pytest.raises(Crash):
        simulation.run(config, on_row=crash_after(1))
    key_file.write_bytes(b"another key of 23 bytes")
    with pytest.raises(ValueError, match="corpus is not that of the run's beginning; allowed: the same, or a new run"):
        simulation.resume(out)
    key_file.write_bytes(KEY)
    whole = run(corpus, tmp_path / "whole", key_file)
    assert np.array_equal(model_of(simulation.resume(out)), model_of(whole))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read .* allowed: a file with the key"),
        (b"short \n", "has 5 bytes; allowed: 16 to 64"),
        (b"k" * 65, "has 65 bytes; allowed: 16 to 64"),
    ],
)
def test_a_bad_key_is_refused_and_leaves_no_folder(tmp_path: Path, content: bytes | None, message: str) -> None:
    key = tmp_path / "key"
    if content is not None:
        key.write_bytes(content)
    with pytest.raises(CorpusError, match=message):
        run(small_corpus(tmp_path / "corpus"), tmp_path / "run", key)
    assert not (tmp_path / "run").exists()


def test_two_names_with_one_digest_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "_SIGN", np.uint64(1))
    with pytest.raises(CorpusError, match="two names one digest; allowed: a key that tells all names apart"):
        entity_digests(["ada", "blaise", "carl"], KEY)


def test_digests_need_the_key_and_tell_purposes_apart(tmp_path: Path) -> None:
    assert user_digests(["ada"], KEY) != user_digests(["ada"], KEY[::-1])
    assert key_check(KEY) != key_check(KEY[::-1])
    assert entity_digests(["ada"], KEY).dtype == np.int64
    (tmp_path / "key").write_bytes(b" \n" + KEY + b"\r\n")
    assert read_key(tmp_path / "key") == KEY
