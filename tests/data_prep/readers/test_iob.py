"""Tagged files of every shape, the malformed ones too; and the counts that the real sets are published with."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_sim.data_prep.readers.cleaning import Note
from fl_sim.data_prep.readers.iob import IobReader, iob_files, mentions_of_tags
from fl_sim.data_prep.readers.reader import BY_PLACE
from fl_sim.data_prep.records import CorpusError, Mention, Sentence


def read(folder: Path, text: str, **settings: Any) -> tuple[list[Sentence], Counter[str]]:
    path = folder / "file.conll"
    path.write_text(text, encoding="utf-8")
    raw = IobReader(path, **{"test_fraction": 0.0, **settings}).read()
    return list(raw.sentences()), raw.reading.notes


def found(sentence: Sentence) -> list[tuple[str, str]]:
    return [(sentence.surface(mention), mention.label) for mention in sentence.mentions]


ADA = [("Ada Byron", "PER"), ("Leeds", "PER"), ("Hull", "LOC")]
SHAPES = {
    "iob2, tabs": "Ada\tB-PER\nByron\tI-PER\nLeeds\tB-PER\nin\tO\nHull\tB-LOC\n",
    "iob1, spaces": "Ada I-PER\nByron I-PER\nLeeds B-PER\nin O\nHull I-LOC\n",
    "iobes": "Ada\tB-PER\nByron\tE-PER\nLeeds\tS-PER\nin\tO\nHull\tS-LOC\n",
    "bilou": "Ada\tB-PER\nByron\tL-PER\nLeeds\tU-PER\nin\tO\nHull\tU-LOC\n",
    "four columns": "Ada X I-NP I-PER\nByron X I-NP I-PER\nLeeds X I-NP B-PER\nin X I-PP O\nHull X I-NP I-LOC\n",
    "uner": "# newdoc id = d1\n# sent_id = 1\n# text = is O\n1\tAda\tB-PER\t-\tann\n2\tByron\tI-PER\t-\tann\n"
    "3\tLeeds\tB-PER\t-\tann\n4-5\tinHull\tO\t-\t-\n4\tin\tO\t-\t-\n5\tHull\tB-LOC\t-\tann\n",
    "crlf": "Ada\tB-PER\r\nByron\tI-PER\r\nLeeds\tB-PER\r\nin\tO\r\nHull\tB-LOC\r\n\r\n",
    "a space too many": "Ada \tB-PER\nByron\tI-PER \nLeeds\tB-PER\nin\tO\nHull\tB-LOC\n",
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_reads_alike(shape: str, tmp_path: Path) -> None:
    sentences, notes = read(tmp_path, SHAPES[shape])
    assert [sentence.text for sentence in sentences] == ["Ada Byron Leeds in Hull"]
    assert found(sentences[0]) == ADA
    assert notes == {}


@pytest.mark.parametrize("columns", [(2, 3), (-3, -2)])
def test_columns_may_be_named(columns: tuple[int, int], tmp_path: Path) -> None:
    text = "O\tAda\tB-PER\tx\nO\tleft\tO\tx\n"
    sentences, _ = read(tmp_path, text, token_column=columns[0], tag_column=columns[1])
    assert found(sentences[0]) == [("Ada", "PER")]


def test_a_hash_may_be_a_token_or_open_a_comment(tmp_path: Path) -> None:
    tagged = "# sent_id = 7\n#\tO\n#tag\tO\nOslo\tB-LOC\n" + "in\tO\n" * 24
    sentences, notes = read(tmp_path, f"{tagged}#Leeds\tLOC\n# a remark\n#end of document\n")
    assert [sentence.text for sentence in sentences] == ["# #tag Oslo" + " in" * 24 + " #Leeds"]
    assert [sentences[0].surface(mention) for mention in sentences[0].mentions] == ["Oslo", "#Leeds"]
    assert notes == {}


@pytest.mark.parametrize(
    ("tags", "entities"),
    [
        ("O I-PER I-PER O", ["1-2"]),
        ("B-PER I-LOC O O", ["0-0", "1-1"]),
        ("I-PER B-PER I-LOC O", ["0-0", "1-1", "2-2"]),
        ("B-PER O E-PER S-LOC", ["0-0", "2-2", "3-3"]),
        ("B-PER I-PER E-PER I-PER", ["0-2", "3-3"]),
        ("B-PER E-PER O O", ["0-1"]),
        ("PER PER O O", ["0-1"]),
        ("X-PER b-PER O o", ["0-0", "1-1"]),
        ("I- B- 0 _", ["0-0", "1-1"]),
    ],
)
def test_malformed_tags_lose_no_entity(tags: str, entities: list[str]) -> None:
    spans = [(place, place + 1) for place in range(0, 8, 2)]
    mentions = mentions_of_tags(tags.split(), spans)
    assert [f"{m.start // 2}-{(m.end - 1) // 2}" for m in mentions] == entities
    assert all(mention.label for mention in mentions)


SEGMENTS = st.lists(st.tuples(st.sampled_from(["", "PER", "LOC"]), st.integers(1, 3)), max_size=6)


@given(SEGMENTS, st.sampled_from(["iob1", "iob2", "iobes"]))
def test_regular_tags_give_back_their_entities(segments: list[tuple[str, int]], scheme: str) -> None:
    tags: list[str] = []
    expected = []
    for label, length in segments:
        if not label:
            tags += ["O"] * length
            continue
        expected.append(Mention(2 * len(tags), 2 * (len(tags) + length) - 1, label))
        touches = bool(tags) and tags[-1][2:] == label
        if scheme == "iobes":
            prefixes = ["S"] if length == 1 else ["B", *"I" * (length - 2), "E"]
        else:
            prefixes = ["B" if scheme == "iob2" or touches else "I", *"I" * (length - 1)]
        tags += [f"{prefix}-{label}" for prefix in prefixes]
    assert mentions_of_tags(tags, [(2 * place, 2 * place + 1) for place in range(len(tags))]) == tuple(expected)


def test_ragged_lines_are_survived_and_counted(tmp_path: Path) -> None:
    lines = ["Ada\tB-PER", "left", "\tO", " \tB-LOC", "Hull\tB-LOC"] + ["word\tO"] * 30
    sentences, notes = read(tmp_path, "\n".join(lines) + "\n")
    assert sentences[0].text.startswith("Ada left Hull word")
    assert found(sentences[0]) == [("Ada", "PER"), ("Hull", "LOC")]
    assert notes == {Note.LINES_WITHOUT_TAG: 1, Note.LINES_WITHOUT_TOKEN: 2}


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("Ada went\nto Hull\n", {}, "line 1: no column holds tags"),
        ("\nAda\tB-PER\nHull\tB-LOC\n", {"tag_column": 1}, r"line 2: column 1 \(`tag_column`\) must hold tags"),
        ("Ada\tB-PER\n", {"tag_column": 5}, r"line 1: column 5 \(`tag_column`\) must hold tags"),
        ("", {}, "file.conll: the file is empty"),
        ("Ada\tB-PER\n", {"token_column": 0}, "`token_column` 0 must be"),
        ("Ada\tB-PER\n", {"sentences_per_user": 0}, "`sentences_per_user` 0 must be"),
        ("Ada\tB-PER\n", {"test_fraction": 1.0}, "`test_fraction` is 1.0; allowed"),
    ],
)
def test_untagged_files_and_bad_settings_are_refused(text: str, settings: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=message):
        read(tmp_path, text, **settings)


def test_documents_or_runs_of_sentences_are_users(tmp_path: Path) -> None:
    one = "Oslo\tB-LOC\n\n"
    marked = f"{one}{one}-DOCSTART-\tO\n\n-DOCSTART-\tO\n\n{one}"
    sentences, _ = read(tmp_path, marked)
    assert [sentence.user for sentence in sentences] == ["file.conll-0001", "file.conll-0001", "file.conll-0002"]
    sentences, _ = read(tmp_path, marked, sentences_per_user=1)
    assert [sentence.user[-4:] for sentence in sentences] == ["0001", "0002", "0003"]
    sentences, _ = read(tmp_path, one * 31)
    assert Counter(sentence.user[-4:] for sentence in sentences) == {"0001": 15, "0002": 15, "0003": 1}


def test_a_corpus_says_that_users_go_by_the_place_of_their_sentences(tmp_path: Path) -> None:
    def users(texts: list[str]) -> dict[str, tuple[str, str]]:
        sentences, _ = read(tmp_path, "".join(f"{text}\tO\n\n" for text in texts), test_fraction=0.5)
        return {sentence.text: (sentence.split, sentence.user) for sentence in sentences}

    texts = [f"s{number}" for number in range(300)]
    before, after = users(texts), users(texts[1:])
    assert {before[text][0] for text in texts[1:] if before[text] != after[text]} == {"train", "test"}
    assert IobReader(tmp_path / "file.conll").read().settings["warnings"] == [BY_PLACE]


def test_file_names_tell_the_splits_only_if_they_say_train(tmp_path: Path) -> None:
    for name in ("x.train.conll", "x.dev.conll", "x-testb.txt.xz", "x-testb.txt", "more.conll", "README.md", "LICENSE"):
        (tmp_path / name).write_text("a\tO\n")
    assert {path.name: split for path, split in iob_files(tmp_path).items()} == {
        "more.conll": "train",
        "x-testb.txt": "test",
        "x.dev.conll": "validation",
        "x.train.conll": "train",
    }
    (tmp_path / "x.train.conll").unlink()
    assert set(iob_files(tmp_path).values()) == {None}
    (tmp_path / "empty").mkdir()
    with pytest.raises(CorpusError, match="no tagged file"):
        iob_files(tmp_path / "empty")


PUBLISHED = {
    "ner_open/btc": (9338, {"PER": 7928, "ORG": 4135, "LOC": 2822}),
    "ner_open/wikigold": (1696, {"LOC": 1014, "PER": 934, "ORG": 898, "MISC": 712}),
    "ner_open/uner": (5078, {"LOC": 399 + 317 + 426, "PER": 343 + 449 + 414, "ORG": 224 + 322 + 235}),
    "sec_filings_ner": (1467, {"PER": 963, "ORG": 299, "LOC": 210, "MISC": 14}),
    "conll2003": (20_744, {"LOC": 10_645, "PER": 10_059, "ORG": 9_323, "MISC": 5_062}),
}


@pytest.mark.nightly
@pytest.mark.parametrize("folder", PUBLISHED)
def test_entities_of_the_real_sets(folder: str, shared_data: Path) -> None:
    sentences = list(IobReader(shared_data / folder).read().sentences())
    labels = Counter(mention.label for sentence in sentences for mention in sentence.mentions)
    assert (len(sentences), labels) == PUBLISHED[folder]
