"""The bundled tokenizer, and the script that makes it."""

from __future__ import annotations

import hashlib
import lzma
import unicodedata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_sim.clients.models.tokenizers import BUNDLED, BUNDLED_FOLDER, boundary_ids, load_tokenizer
from tests.script_modules import imported_script

TOKENIZER: Any = load_tokenizer(BUNDLED)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return imported_script("train_tokenizer")


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


def test_the_script_reads_both_formats_and_repeats_itself(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "uner").mkdir()
    (tmp_path / "wikigold").mkdir()
    universal = "# sent_id = 1\n# text = Ada met Bob in Rome.\n1\tAda\tB-PER\t-\t-\n\n"
    for name in script.NER_OPEN_FILES[:3]:
        (tmp_path / name).write_bytes(lzma.compress(universal.encode()))
    columns = "Rome I-LOC\nfell O\n\n-DOCSTART- O\n\nRome O\nrose O\n"
    (tmp_path / script.NER_OPEN_FILES[3]).write_bytes(lzma.compress(columns.encode()))
    assert list(script.ner_open_sentences(tmp_path)) == ["Ada met Bob in Rome."] * 3 + ["Rome fell", "Rome rose"]
    checksums = []
    for out in ("a", "b"):
        arguments = ["--ner-open", str(tmp_path), "--vocabulary", "270", "--out", str(tmp_path / out)]
        assert script.main(arguments) == 0
        checksums.append(capsys.readouterr().out.splitlines()[-1])
    assert checksums[0] == checksums[1]
    assert len(load_tokenizer(str(tmp_path / "a"))) <= 270
    with pytest.raises(SystemExit):
        script.main(["--out", str(tmp_path / "c")])


def test_the_card_is_true(script: ModuleType, shared_data: Path) -> None:
    """Trained again from the open sets and the bundled public split, it is the same."""
    sentences = [*script.ner_open_sentences(shared_data / "ner_open"), *script.bundled_public_sentences()]
    shipped = (BUNDLED_FOLDER / "tokenizer.json").read_text(encoding="utf-8")
    assert script.train(sentences, 4096).to_str() == shipped
