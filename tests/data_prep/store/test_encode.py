"""Encoding: every sentence alone, between its marks, cut but never packed; the folder whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.encode import encode_split, open_encoded

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
