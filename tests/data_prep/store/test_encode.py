"""Encoding: every sentence alone, between its marks, cut but never packed; the folder whole or not at all."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.encode import encode_once, encode_split, open_encoded
from tests.tiny import tiny_corpus

BOS, EOS = 0, 1


def letters(texts: list[str], *, add_special_tokens: bool, split_special_tokens: bool) -> dict[str, Any]:
    """A tokenizer that gives each character its code."""
    assert not add_special_tokens
    assert split_special_tokens  # or a text could forge a sentence boundary
    return {"input_ids": [[ord(character) for character in text] for text in texts]}


@given(st.lists(st.text(st.characters(max_codepoint=200), max_size=12), max_size=20), st.integers(2, 9))
def test_every_sentence_alone(tmp_path_factory: pytest.TempPathFactory, texts: list[str], max_tokens: int) -> None:
    out = tmp_path_factory.mktemp("encode") / "out"
    encoded = encode_split(texts, letters, max_tokens, out, bos_id=BOS, eos_id=EOS)
    expected = [[BOS, *map(ord, text), EOS][:max_tokens] for text in texts]
    assert [encoded.sentence(s).tolist() for s in range(len(texts))] == expected
    assert encoded.lengths.tolist() == [len(row) for row in expected]
    assert encoded.tokens.dtype == np.int32
    assert encoded.offsets.dtype == np.int64


def test_arrow_texts_over_several_batches_are_memory_mapped(tmp_path: Path) -> None:
    texts = [f"{number}" for number in range(10_000)]
    column = pa.chunked_array([texts[:3], texts[3:]], type=pa.large_string())
    encoded = encode_split(column, letters, 16, tmp_path / "out", bos_id=BOS, eos_id=EOS)
    assert isinstance(encoded.tokens.base, np.memmap)
    assert not encoded.tokens.flags.writeable
    again = open_encoded(tmp_path / "out")
    assert [bytes(again.sentence(s)[1:-1].astype(np.uint8)).decode() for s in (0, 4096, 9999)] == ["0", "4096", "9999"]


def test_a_sentence_that_does_not_exist(tmp_path: Path) -> None:
    encoded = encode_split(["a"], letters, 4, tmp_path / "out", bos_id=BOS, eos_id=EOS)
    for number in (-1, 1):
        with pytest.raises(CorpusError, match="must lie in"):
            encoded.sentence(number)


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="max_tokens 1 must be at least 2"):
        encode_split(["a"], letters, 1, tmp_path / "out", bos_id=BOS, eos_id=EOS)
    with pytest.raises(CorpusError, match="not an encoded split"):
        open_encoded(tmp_path / "out")
    encode_split(["a"], letters, 4, tmp_path / "out", bos_id=BOS, eos_id=EOS)
    with pytest.raises(CorpusError, match="not empty"):
        encode_split(["a"], letters, 4, tmp_path / "out", bos_id=BOS, eos_id=EOS)
    np.save(tmp_path / "out" / "tokens.npy", np.zeros(9, dtype=np.int32))
    with pytest.raises(CorpusError, match="do not fit together"):
        open_encoded(tmp_path / "out")
    (tmp_path / "out" / "tokens.npy").write_bytes(b"rubbish")
    with pytest.raises(CorpusError, match="not an encoded split"):
        open_encoded(tmp_path / "out")


class Counting:
    """A tokenizer with a text of its own, like a fast one, that counts its calls."""

    def __init__(self, text: str = "{}") -> None:
        self.calls = 0
        self.backend_tokenizer = SimpleNamespace(to_str=lambda: text)

    def __call__(self, texts: list[str], **options: bool) -> dict[str, Any]:
        self.calls += 1
        return letters(texts, **options)


def encoded_once(
    corpus: Corpus, tokenizer: Any, out: Path, max_tokens: int = 16, split: str = "train"
) -> list[list[int]]:
    encoded = encode_once(corpus, split, tokenizer, max_tokens, out, bos_id=BOS, eos_id=EOS)
    assert open_encoded(out).tokens.tolist() == encoded.tokens.tolist()
    return [encoded.sentence(s).tolist() for s in range(len(encoded.lengths))]


def test_tokens_are_kept_beside_the_corpus(tmp_path: Path) -> None:
    corpus, tokenizer = Corpus.open(tiny_corpus(tmp_path / "corpus")), Counting()
    first = encoded_once(corpus, tokenizer, tmp_path / "first")
    assert first == [[BOS, *map(ord, text), EOS][:16] for text in corpus.texts("train").to_pylist()]
    assert encoded_once(corpus, tokenizer, tmp_path / "second") == first
    assert tokenizer.calls == 1
    shutil.rmtree(corpus.path / "tokens")  # what a run has does not depend on what is kept
    assert open_encoded(tmp_path / "second").sentence(0).tolist() == first[0]


def test_other_tokens_are_made_anew(tmp_path: Path) -> None:
    corpus, other = Corpus.open(tiny_corpus(tmp_path / "corpus")), Counting("another")
    encoded_once(corpus, Counting(), tmp_path / "first")
    encoded_once(corpus, other, tmp_path / "of-another-tokenizer")
    encoded_once(corpus, other, tmp_path / "shorter", max_tokens=4)
    changed = replace(corpus, manifest=corpus.manifest.model_copy(update={"fingerprint": "0" * 64}))
    encoded_once(changed, other, tmp_path / "of-other-text")
    encoded_once(corpus, other, tmp_path / "held-out", split="validation")
    assert other.calls == 4


def test_damaged_tokens_are_made_anew(tmp_path: Path) -> None:
    corpus, tokenizer = Corpus.open(tiny_corpus(tmp_path / "corpus")), Counting()
    first = encoded_once(corpus, tokenizer, tmp_path / "first")
    (kept,) = (corpus.path / "tokens").iterdir()
    (kept / "tokens.npy").unlink()
    tokens = np.load(tmp_path / "first" / "tokens.npy")
    np.save(kept / "tokens.npy", tokens[::-1])  # as long, and offsets fit
    assert encoded_once(corpus, tokenizer, tmp_path / "second") == first
    assert encoded_once(corpus, tokenizer, tmp_path / "third") == first
    assert tokenizer.calls == 2


def test_the_tokens_used_last_are_kept(tmp_path: Path) -> None:
    corpus, first = Corpus.open(tiny_corpus(tmp_path / "corpus")), Counting("first")
    for turn in range(9):
        encoded_once(corpus, first, tmp_path / f"first-{turn}")
        encoded_once(corpus, Counting(f"{turn}"), tmp_path / f"other-{turn}")
    assert first.calls == 1
    assert len(list((corpus.path / "tokens").iterdir())) == 8


def test_nothing_is_kept_where_nothing_can_be_written_or_named(tmp_path: Path) -> None:
    corpus, tokenizer = Corpus.open(tiny_corpus(tmp_path / "corpus")), Counting()
    assert encoded_once(corpus, letters, tmp_path / "of-a-function")
    (corpus.path / "tokens").write_text("a file is in the way")
    assert encoded_once(corpus, tokenizer, tmp_path / "first") == encoded_once(corpus, tokenizer, tmp_path / "second")
    assert tokenizer.calls == 2


def test_kept_tokens_of_another_user_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: object) -> None:
        raise PermissionError

    corpus, tokenizer = Corpus.open(tiny_corpus(tmp_path / "corpus")), Counting()
    first = encoded_once(corpus, tokenizer, tmp_path / "first")
    for function in ("utime", "link"):
        monkeypatch.setattr(f"os.{function}", refused)
    assert encoded_once(corpus, tokenizer, tmp_path / "second") == first
    assert tokenizer.calls == 1
