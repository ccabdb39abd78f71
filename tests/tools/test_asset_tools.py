"""The small tools: the tokenizer, public text and the list of public names, each on tiny input."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import pytest

from fl_sim.clients.models.tokenizers import load_tokenizer
from tools import chat_style, debian_text, public_names, public_text, train_tokenizer


def test_the_tokenizer_repeats_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "public.txt").write_text("Ada met Bob in Rome.\nRome fell.\n", encoding="utf-8")
    checksums = []
    for out in ("a", "b"):
        arguments = ["--text", str(tmp_path / "public.txt"), "--vocabulary", "270", "--out", str(tmp_path / out)]
        train_tokenizer.main(arguments)
        checksums.append(capsys.readouterr().out.splitlines()[-1])
    assert checksums[0] == checksums[1]
    assert len(load_tokenizer(str(tmp_path / "a"))) <= 270
    with pytest.raises(SystemExit):
        train_tokenizer.main(["--out", str(tmp_path / "c")])


PAGE = """<page><info><desc>Not shown.</desc></info><title>Turn it off</title>
<p>Press the <key>power</key> button. Wait until the screen
goes dark.</p><pre>rm -rf everything now</pre><p lang="C">if (x > 0) { y = x; } else { z = x; }</p></page>"""
DESCRIPTIONS = """Package: one
Description-md5: 0
Description-en: a tool for everybody
 It does one thing well. It has no
 options at all.
 .
 Nothing else is in it.

Package: two
Description-en: a tool for everybody
 It does one thing well.
"""


def debian(folder: Path) -> Path:
    """Return a folder like that of unpacked packages: descriptions, a manual in two languages, a game, a dictionary."""
    folder.mkdir(parents=True)
    (folder / "Translation-en").write_text(DESCRIPTIONS, encoding="utf-8")
    for language in ("C", "de"):
        manual = folder / "usr/share/help" / language
        manual.mkdir(parents=True)
        (manual / "off.page").write_text(PAGE.replace("Turn", "Turn" if language == "C" else "Dreh"), encoding="utf-8")
    (folder / "scenario.cfg").write_text('message= _ "female^We must go on."\nname= _ "Ada"\n', encoding="utf-8")
    (folder / "foldoc.dict.dz").write_bytes(gzip.compress(b"bit\n\n   The smallest unit of\n   information.\n"))
    return folder


def test_prose_and_dialogue_are_read_once_in_english(tmp_path: Path) -> None:
    """Wherever the packages are unpacked: a folder above them called ``pt`` makes no manual Portuguese."""
    assert list(debian_text.sentences(debian(tmp_path / "pt" / "debian"))) == [
        "a tool for everybody",
        "It does one thing well.",
        "It has no options at all.",
        "Nothing else is in it.",
        "bit",
        "The smallest unit of information.",
        "We must go on.",
        "Turn it off",
        "Press the power button.",
        "Wait until the screen goes dark.",
    ]


def test_half_of_the_sentences_are_rendered_as_messages() -> None:
    sentences = [f"This is Sentence number {number}." for number in range(400)]
    rendered = chat_style.render(sentences, seed=0)
    assert rendered == chat_style.render(sentences, seed=0) != chat_style.render(sentences, seed=1)
    assert 0.4 < sum(one != other for one, other in zip(sentences, rendered, strict=True)) / 400 < 0.6
    assert all(f"entence number {number}" in message for number, message in enumerate(rendered))
    assert sum(message.split(" ")[0].endswith((":", ",")) for message in rendered) > 40


def test_public_text_is_gathered_a_sentence_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_style, "RENDERED_SHARE", 0.0)
    (tmp_path / "rt-polarity.neg.xz").write_bytes(lzma.compress("a long dull film .\ntoo short\n".encode("latin-1")))
    (tmp_path / "one.txt.xz").write_bytes(lzma.compress(b"This O\nagreement O\nends O\n\nNow O\n"))
    out = tmp_path / "public.txt"
    words = ["--polarity", str(tmp_path), "--filings", str(tmp_path), "--debian", str(debian(tmp_path / "debian"))]
    (tmp_path / "rt-polarity.pos.xz").write_bytes(lzma.compress(b""))
    public_text.main([*words, "--out", str(out)])
    lines = out.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "a long dull film."
    assert {"This agreement ends", "It does one thing well."} <= set(lines)
    assert "bit" not in lines


def test_public_names_are_places_and_software_that_no_person_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_names, "classified", lambda: iter(["Linux", "Ruby", "Theme"]))
    names = public_names.public_names()
    assert {"London", "Linux", "Germany", "South Korea"} <= set(names)
    assert not {"Jordan", "Georgia", "Ruby", "Theme"} & set(names)
