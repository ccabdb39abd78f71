"""The bundled tokenizer (the tool that makes it: tests/tools)."""

from __future__ import annotations

import hashlib
import unicodedata
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fl_sim.clients.models.tokenizers import BUNDLED, BUNDLED_FOLDER, boundary_ids, load_tokenizer

TOKENIZER: Any = load_tokenizer(BUNDLED)


def test_the_bundled_tokenizer_is_the_one_on_its_card() -> None:
    checksum = hashlib.sha256((BUNDLED_FOLDER / "tokenizer.json").read_bytes()).hexdigest()
    assert checksum in (BUNDLED_FOLDER / "README.md").read_text(encoding="utf-8")
    assert len(TOKENIZER) == 4096
    assert boundary_ids(TOKENIZER) == (0, 0)
    assert TOKENIZER.convert_ids_to_tokens(0) == "<|endoftext|>"


@given(st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=40))
@settings(max_examples=100, deadline=None)
def test_every_text_has_an_encoding_and_comes_back(text: str) -> None:
    ids = TOKENIZER(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    back = TOKENIZER.decode(ids)
    assert back.removeprefix(" ") == unicodedata.normalize("NFC", text).removeprefix(" ")
