"""The small tools: the tokenizer, public text and the list of public names, each on tiny input."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from fl_sim.clients.models.tokenizers import load_tokenizer
from tools import public_names, public_text, train_tokenizer


def test_the_tokenizer_reads_both_formats_and_repeats_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "uner").mkdir()
    (tmp_path / "wikigold").mkdir()
    universal = "# sent_id = 1\n# text = Ada met Bob in Rome.\n1\tAda\tB-PER\t-\t-\n\n"
    for name in train_tokenizer.NER_OPEN_FILES[:3]:
        (tmp_path / name).write_bytes(lzma.compress(universal.encode()))
    columns = "Rome I-LOC\nfell O\n\n-DOCSTART- O\n\nRome O\nrose O\n"
    (tmp_path / train_tokenizer.NER_OPEN_FILES[3]).write_bytes(lzma.compress(columns.encode()))
    assert list(train_tokenizer.ner_open_sentences(tmp_path)) == ["Ada met Bob in Rome."] * 3 + [
        "Rome fell",
        "Rome rose",
    ]
    checksums = []
    for out in ("a", "b"):
        arguments = ["--ner-open", str(tmp_path), "--vocabulary", "270", "--out", str(tmp_path / out)]
        assert train_tokenizer.main(arguments) == 0
        checksums.append(capsys.readouterr().out.splitlines()[-1])
    assert checksums[0] == checksums[1]
    assert len(load_tokenizer(str(tmp_path / "a"))) <= 270
    with pytest.raises(SystemExit):
        train_tokenizer.main(["--out", str(tmp_path / "c")])


def test_public_text_is_gathered_a_sentence_a_line(tmp_path: Path) -> None:
    (tmp_path / "rt-polarity.neg.xz").write_bytes(lzma.compress("a long dull film\ntoo short\n".encode("latin-1")))
    (tmp_path / "one.txt.xz").write_bytes(lzma.compress(b"This O\nagreement O\nends O\n\nNow O\n"))
    out = tmp_path / "public.txt"
    words = ["--polarity", str(tmp_path), "--filings", str(tmp_path), "--out", str(out)]
    (tmp_path / "rt-polarity.pos.xz").write_bytes(lzma.compress(b""))
    assert public_text.main(words) == 0
    assert out.read_text(encoding="utf-8").splitlines()[0] == "a long dull film"
    assert "This agreement ends" in out.read_text(encoding="utf-8").splitlines()


def test_public_names_are_places_and_software_that_no_person_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_names, "classified", lambda: iter(["Linux", "Ruby", "Theme"]))
    names = public_names.public_names()
    assert {"London", "Linux", "Germany", "South Korea"} <= set(names)
    assert not {"Jordan", "Georgia", "Ruby", "Theme"} & set(names)
